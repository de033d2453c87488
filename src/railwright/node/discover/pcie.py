"""Tags, memory windows, translation, error counters and lockdown, from sys/bus/pci and sys/kernel."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Optional

from ..model import Bar, InputError, PcieErrors, PcieFacts, PcieFunction
from .pci import PciTree, is_gpu, is_nic
from .tree import Tree

_LOCKDOWN = "sys/kernel/security/lockdown"
_CHOSEN = re.compile(r"\[([a-z]+)\]")
_DOMAIN = re.compile(r"[A-Za-z][A-Za-z-]{1,30}")
_WINDOW = re.compile(r"0x([0-9a-f]{1,16}) 0x([0-9a-f]{1,16}) 0x([0-9a-f]{1,16})")
# include/linux/ioport.h: a memory window, and one that nobody has found an address for.
_MEMORY, _UNSET = 0x00000200, 0x20000000
_BARS = 6
_COUNTER = re.compile(r"(\w+) (\d{1,20})", re.ASCII)


def read_pcie(tree: Tree, pci: PciTree) -> PcieFacts:
    """Raises InputError for text that no kernel writes."""
    return PcieFacts(tuple(_functions(tree, pci)), read_lockdown(tree))


def read_errors(tree: Tree, pci: PciTree) -> tuple[PcieErrors, ...]:
    """Counters of every function and port that has any. Raises InputError."""
    found = []
    for device in pci.devices:
        place = pci.places[device.address]
        counts = [_total(tree, f"{place}/aer_dev_{kind}") for kind in ("correctable", "nonfatal", "fatal")]
        if counts != [None, None, None]:
            found.append(PcieErrors(device.address, *counts))
    return tuple(found)


def read_lockdown(tree: Tree) -> Optional[str]:
    """How far the kernel is locked down; None where it does not tell. Raises InputError."""
    text = tree.text(_LOCKDOWN)
    if text is None:
        return None
    chosen = _CHOSEN.findall(text)
    if len(chosen) != 1:
        raise InputError(
            tree.where(_LOCKDOWN), f"found {text[:80]!r}", "expected a form like [none] integrity"
        )
    return str(chosen[0])


def _functions(tree: Tree, pci: PciTree) -> Iterator[PcieFunction]:
    for device in pci.devices:
        if is_gpu(device) or is_nic(device):
            config = pci.configs[device.address]
            yield PcieFunction(
                device.address,
                config.extended_tags,
                config.ten_bit_tags,
                config.ten_bit_capable,
                _bars(tree, f"{pci.places[device.address]}/resource"),
                _translation(tree, device.iommu_group),
            )


def _bars(tree: Tree, path: str) -> Optional[tuple[Bar, ...]]:
    """The first six lines are the function's own windows: start, end, flags (drivers/pci/pci-sysfs.c)."""
    text = tree.text(path)
    if text is None:
        return None
    found = []
    for number, line in enumerate(text.splitlines()[:_BARS]):
        match = _WINDOW.fullmatch(line.strip())
        if match is None:
            raise InputError(
                f"{tree.where(path)}:{number + 1}", f"found {line[:80]!r}", "expected start, end and flags"
            )
        start, end, flags = (int(part, 16) for part in match.groups())
        if flags & _MEMORY and end > start:
            # Without an address the kernel keeps the size, from 0 on.
            found.append(Bar(number, end - start + 1, not flags & _UNSET and start != 0))
    return tuple(found)


def _translation(tree: Tree, group: Optional[int]) -> Optional[str]:
    place = f"sys/kernel/iommu_groups/{group}/type"
    text = None if group is None else tree.text(place)
    if text is not None and not _DOMAIN.fullmatch(text):
        raise InputError(tree.where(place), f"found {text[:80]!r}", "expected a word like identity or DMA-FQ")
    return text


def _total(tree: Tree, path: str) -> Optional[int]:
    """The last line's number: "TOTAL_ERR_COR 12" (Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats)."""
    text = tree.text(path)
    if text is None:
        return None
    match = _COUNTER.fullmatch(text.splitlines()[-1].strip()) if text else None
    if match is None or not match[1].startswith("TOTAL"):
        raise InputError(
            tree.where(path), f"ends with {text[-80:]!r}", "expected a line like TOTAL_ERR_COR 0"
        )
    return int(match[2])
