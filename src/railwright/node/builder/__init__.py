"""Builds of NCCL and nccl-tests on a build node: once for a fleet, as packages with a manifest, from a cache that knows
what it holds."""

from .model import Archive, Built, Request, Source
from .run import build

__all__ = ["Archive", "Built", "Request", "Source", "build"]
