"""How far a GPU and a NIC port are apart, in NCCL's words, from whichever witness there is."""

from __future__ import annotations

from typing import Optional

from ..node.model import Facts, Gpu, Nic
from .tree import Ascent, Step, Tree

# NCCL's path words (src/graph/topo.cc topoPathTypeStr), best first. NODE is nvidia-smi's and is PHB to NCCL.
LEVELS = ("PIX", "PXB", "P2C", "PHB", "NODE", "SYS")
# Traffic stays below the CPU.
BESIDE = ("PIX", "PXB")


def turning_point(up: Ascent, down: Ascent) -> tuple[list[Step], list[Step]]:
    """Both ascents without what they have in common above the lowest common switch or NUMA node."""
    rising, falling = list(up.steps), list(down.steps)
    while len(rising) > 1 and len(falling) > 1 and rising[-1].lower == falling[-1].lower:
        rising.pop()
        falling.pop()
    return rising, falling


def path_word(rising: list[Step], falling: list[Step], c2c: bool) -> str:
    """NCCL's word for a way that climbs `rising`, turns, and descends `falling` (src/graph/paths.cc:84-98, 203-208)."""
    if rising[-1].upper != falling[-1].upper:
        return "SYS"
    if rising[-1].upper.startswith("numa"):
        return "P2C" if c2c else "PHB"
    return "PIX" if len(rising) == len(falling) == 1 else "PXB"


class Distances:
    """Path words of GPUs and NIC ports of one machine."""

    def __init__(self, facts: Facts, tree: Tree) -> None:
        self._tree = tree
        self.matrix = bool(facts.paths) and not facts.pci
        self._level: dict[tuple[str, str], str] = {}
        for path in facts.paths if self.matrix else ():
            self._level[path.a, path.b] = self._level[path.b, path.a] = path.level

    def word(self, gpu: Gpu, nic: Nic) -> Optional[str]:
        """PIX, PXB, P2C, PHB, NODE or SYS; None when the witness does not show it."""
        key = (gpu.name, nic.name)
        if key not in self._level and not self.matrix:
            found = self._from_tree(gpu, nic)
            if found is None:
                return None
            self._level[key] = found
        return self._level.get(key)

    def model(self, nic: Nic) -> Optional[tuple[Optional[str], Optional[str]]]:
        """PCI vendor and device of a NIC; None where the witness does not tell."""
        return self.model_of(nic.address)

    def model_of(self, address: Optional[str]) -> Optional[tuple[Optional[str], Optional[str]]]:
        """PCI vendor and device of a function; None where the witness does not tell."""
        device = self._tree.device(address) if address is not None else None
        return None if device is None or device.device is None else (device.vendor, device.device)

    def _from_tree(self, gpu: Gpu, nic: Nic) -> Optional[str]:
        if gpu.address is None or nic.address is None:
            return None
        up, down = self._tree.ascent(gpu.address), self._tree.ascent(nic.address)
        if up is None or down is None:
            return None
        word = path_word(*turning_point(up, down), c2c=False)
        return "P2C" if word == "PHB" and gpu.c2c is not None else word
