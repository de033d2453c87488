"""Other witnesses of a machine -> Facts: what a customer can paste or send when nobody may log in."""

from __future__ import annotations

from .reading import FORMATS, read

__all__ = ["FORMATS", "read"]
