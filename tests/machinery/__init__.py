"""Recorded machines as file trees: what a kernel shows of a machine, built from a page of text.

`build(path, dest)` lays out /sys, /proc and /etc of the machine that a `machine.yml` describes;
`build_from_nccl_xml(xml, dest)` does so for the machine that an NCCL topology file describes. PyYAML is all it needs.
"""

from __future__ import annotations

from .build import build, tree_of
from .description import load
from .errors import MachineError
from .model import Machine
from .nccl_xml import build_from_nccl_xml

__all__ = ["Machine", "MachineError", "build", "build_from_nccl_xml", "load", "tree_of"]
