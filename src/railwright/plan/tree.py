"""The PCI tree as NCCL sees it: GPUs and NICs, the switches above them, and NUMA nodes at the top.

Both forms of a witness give the same tree: sysfs shows every port of a switch, a NCCL dump shows switches only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Optional

from ..node.model import Facts, Link, PciDevice
from ..node.model.soundness import must_be_a_tree
from .constants import pcie_mbps

_DOWN_PORTS = ("root", "downstream")
# NCCL 2.30.7 src/graph/topo.cc:199-203: vendor, device, subsystem vendor, and the top digit of the subsystem device.
_PEX_GEN4 = ("0x1000", "0xc010", "0x1000", "a")
_PEX_GEN5_UPPER = ("0x1000", "0xc030", "0x1000", "0")
_PEX_GEN5_LOWER = ("0x1000", "0xc030", "0x1000", "1")


@dataclass(frozen=True)
class Step:
    """One link towards the CPU: from `lower` to `upper`, its rate in Mb/s, and whether what is stated can be true."""

    lower: str
    upper: str
    mbps: int
    believed: bool


@dataclass(frozen=True)
class Ascent:
    """The way of one PCI function up to its NUMA node: each link in order. numa: None where it is not known."""

    steps: tuple[Step, ...]
    numa: Optional[int]


def numa_name(numa: Optional[int]) -> str:
    """What a NUMA node is called in links and findings."""
    return "numa-unknown" if numa is None else f"numa{numa}"


class Tree:
    """Ascents of PCI functions, computed once each. gpus: their addresses.

    Raises InputError when a function hangs below itself.
    """

    def __init__(self, facts: Facts) -> None:
        self._devices = {device.address: device for device in facts.pci}
        must_be_a_tree(facts.pci, "facts")
        self._roots = {root.name: root.numa for root in facts.roots}
        # Where witnesses were merged, the first one's tree was taken.
        merged = [witness.kind for witness in facts.witnesses[:1]] == ["nccl-xml"]
        self._whole = not merged or any(device.port in _DOWN_PORTS for device in facts.pci)
        self.gpus = frozenset(gpu.address for gpu in facts.gpus if gpu.address is not None)
        self._ascents: dict[str, Optional[Ascent]] = {}

    def device(self, address: str) -> Optional[PciDevice]:
        return self._devices.get(address)

    def ascent(self, address: str) -> Optional[Ascent]:
        """The way up from this function; None when the witness does not show where it hangs."""
        if address not in self._ascents:
            self._ascents[address] = self._climb(address)
        return self._ascents[address]

    def bridges(self, address: str) -> tuple[PciDevice, ...]:
        """All bridges above this function, nearest first, also those that NCCL does not count."""
        found = []
        device = self._devices.get(address)
        while device is not None and device.parent is not None:
            device = self._devices.get(device.parent)
            if device is not None:
                found.append(device)
        return tuple(found)

    def port(self, address: str) -> Optional[PciDevice]:
        """The port at the upper end of this function's link, where the witness shows ports."""
        return self.parent(address) if self._whole else None

    def chain(self, address: str) -> tuple[PciDevice, ...]:
        """This function and the switches above it that NCCL counts, nearest first, none of them folded."""
        found = []
        device = self._devices.get(address)
        while device is not None:
            found.append(device)
            device = self._switch_above(device)
        return tuple(found)

    def slot(self, address: str) -> Optional[str]:
        """The chassis's name of the slot: firmware gives it to the function or to the port above."""
        device, port = self._devices.get(address), self.parent(address)
        own = None if device is None else device.slot
        return own if own is not None or port is None else port.slot

    def parent(self, address: str) -> Optional[PciDevice]:
        device = self._devices.get(address)
        return None if device is None or device.parent is None else self._devices.get(device.parent)

    def _climb(self, address: str) -> Optional[Ascent]:
        here = self._devices.get(address)
        if here is None or here.parent is None:
            return None
        steps: list[Step] = []
        while True:
            upper = self._switch_above(here)
            link = self._link(here)
            if upper is None:
                numa = self._numa(here)
                steps.append(
                    Step(here.address, numa_name(numa), pcie_mbps(*link), self._believed(here, link))
                )
                return Ascent(_flattened(steps, self._devices), numa)
            steps.append(Step(here.address, upper.address, pcie_mbps(*link), self._believed(here, link)))
            here = upper

    def _switch_above(self, device: PciDevice) -> Optional[PciDevice]:
        """The next switch: two places up where ports are shown, as NCCL rewinds two elements of the path (xml.cc)."""
        port = self._devices.get(device.parent or "")
        if port is None or not self._whole:
            return port
        return self._devices.get(port.parent or "")

    def _link(self, device: PciDevice) -> tuple[Optional[float], Optional[int]]:
        """Speed and width that both ends of the link are capable of (xml.cc:681-716)."""
        port = self.port(device.address)
        ends = [_able(device.link)] + ([_able(port.link)] if port is not None else [])
        speeds = [speed for speed, _ in ends if speed is not None]
        widths = [width for _, width in ends if width is not None]
        return min(speeds, default=None), min(widths, default=None)

    def _believed(self, device: PciDevice, link: tuple[Optional[float], Optional[int]]) -> bool:
        speed, width = link
        if speed is None or width is None:
            return False
        if device.address in self.gpus:
            # No GPU with GPUDirect is slower than Gen3: 2.5 and 5 GT/s is a link that idles.
            return speed > 5.0
        # A virtual bridge says 2.5 GT/s x1 whatever it carries.
        return not (_is_bridge(device) and speed == 2.5 and width == 1)

    def _numa(self, device: PciDevice) -> Optional[int]:
        if device.numa is not None:
            return device.numa
        top = device
        while top.parent in self._devices:
            top = self._devices[top.parent or ""]
        return self._roots.get(top.parent or "")


def _able(link: Link) -> tuple[Optional[float], Optional[int]]:
    return (
        link.max_speed if link.max_speed is not None else link.speed,
        link.max_width if link.max_width is not None else link.width,
    )


def _is_bridge(device: PciDevice) -> bool:
    return (device.class_code or "").startswith("0x0604")


def _is_pex(device: Optional[PciDevice], ids: tuple[str, str, str, str]) -> bool:
    if device is None:
        return False
    vendor, number, subsystem_vendor, digit = ids
    return (
        (device.vendor, device.device, device.subsystem_vendor) == (vendor, number, subsystem_vendor)
        and len(device.subsystem_device or "") == len("0x0000")
        and (device.subsystem_device or "")[2] == digit
    )


def _flattened(steps: Iterable[Step], devices: dict[str, PciDevice]) -> tuple[Step, ...]:
    """Broadcom switches that show two levels but switch at full rate on all ports become one, as in topo.cc:204-266.

    The link between the levels goes; the upper level's own link states a figure that no traffic ever sees.
    """
    result = list(steps)
    # NCCL starts with the first switch it meets and never folds a folded one again: from the top down.
    index = len(result) - 1
    while index >= 1:
        upper, lower = devices.get(result[index].lower), devices.get(result[index - 1].lower)
        folds = (_is_pex(upper, _PEX_GEN4) and _is_pex(lower, _PEX_GEN4)) or (
            _is_pex(upper, _PEX_GEN5_UPPER) and _is_pex(lower, _PEX_GEN5_LOWER)
        )
        if not folds or index < 2:
            index -= 1
            continue
        below, above = result[index - 2], result[index]
        result[index] = Step(above.lower, above.upper, above.mbps, False)
        result[index - 2] = Step(below.lower, above.lower, below.mbps, below.believed)
        del result[index - 1]
        index -= 2
    return tuple(result)
