"""The disk of each layout's guest, made once: every run has an overlay of its own over it."""

from __future__ import annotations

import sys
from pathlib import Path

from .. import cache, debian
from ..namespaces import apart
from ..shell import call
from . import assemble, guest, seed
from .layout import Layout

_PROJECT = Path(__file__).resolve().parents[3]


def disk(shape: Layout) -> Path:
    """The folder with a layout's disk, the keys to it and its kernel's release (see assemble.py). Raises LabError."""
    return cache.kept("disk", name(shape), lambda place: _build(shape, place))


def name(shape: Layout) -> str:
    """Of the cache: another guest, other modules or another way to put them together are another disk."""
    recipe = debian.recipe(__file__, assemble.__file__, seed.__file__)
    return cache.key(recipe, guest.name().encode(), cache.contents([assemble.MODULES]), repr(shape).encode())


def _build(shape: Layout, place: Path) -> None:
    argv = [sys.executable, "-P", "-m", "tests.lab.vm.assemble", shape.name, str(guest.root()), str(place)]
    call(["env", f"PYTHONPATH={_PROJECT}", "PYTHONDONTWRITEBYTECODE=1", *apart(*argv)])
