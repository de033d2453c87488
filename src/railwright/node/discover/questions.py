"""What a witness leaves open of a machine's network functions, and what would settle it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Optional

from ..model import Nic, PciDevice
from ..model.pci import MELLANOX
from .pci import NVIDIA, is_gpu

# pci.ids: network functions of BlueField, BlueField-2, BlueField-3 Lx, BlueField-3 and BlueField-4.
_BLUEFIELDS = {
    "0xa2d2": "BlueField",
    "0xa2d6": "BlueField-2",
    "0xa2d9": "BlueField-3 Lx",
    "0xa2dc": "BlueField-3",
    "0xa2df": "BlueField-4",
}
# pci.ids: NVIDIA numbers its data centre GPUs by generation, and GB100 (B200) is 0x2901. Before Blackwell no NVSwitch
# was managed through a ConnectX function.
_FIRST_BLACKWELL = 0x2900


def bluefield(device: Optional[PciDevice]) -> Optional[str]:
    """`Nic.bluefield` as far as PCI identifiers tell: "" for what is none, None for one whose mode they do not show."""
    if device is None or device.vendor is None or device.device is None:
        return None
    return None if device.vendor == MELLANOX and device.device in _BLUEFIELDS else ""


def questions(nics: Iterable[Nic], devices: Iterable[PciDevice]) -> tuple[str, ...]:
    """A sentence for each thing that is not known and that a plan would be better for."""
    functions = {device.address: device for device in devices}
    return tuple(_questions(tuple(nics), functions))


def _questions(nics: tuple[Nic, ...], functions: dict[str, PciDevice]) -> Iterator[str]:
    if any(_may_have_managed_switches(device) for device in functions.values()):
        unknown = [nic.name for nic in nics if _may_be_a_switch(nic, functions.get(nic.address or ""))]
        if unknown:
            yield (
                f"{', '.join(unknown)}: whether these are NVSwitch management functions is not known, since their vital"
                " product data is not shown: read the node as root, or give `lspci -nnvvv` of root"
            )
    cards: dict[str, list[Nic]] = {}
    for nic in nics:
        if _kind(functions.get(nic.address or "")) is not None:
            cards.setdefault((nic.address or "").rpartition(".")[0], []).append(nic)
    for ports in cards.values():
        # The mode is the card's: one function tells it for all.
        if not any(nic.bluefield for nic in ports):
            first = ports[0].address or ""
            yield (
                f"{', '.join(nic.name for nic in ports)}: {_kind(functions[first])}, of which the host does not show"
                f" whether it is in NIC or DPU mode; give `mlxconfig -d {first} -e query INTERNAL_CPU_OFFLOAD_ENGINE`"
            )


def _kind(device: Optional[PciDevice]) -> Optional[str]:
    if device is None or device.vendor != MELLANOX:
        return None
    return _BLUEFIELDS.get(device.device or "")


def _may_have_managed_switches(device: PciDevice) -> bool:
    if not is_gpu(device) or device.vendor != NVIDIA:
        return False
    return device.device is None or int(device.device, 16) >= _FIRST_BLACKWELL


def _may_be_a_switch(nic: Nic, device: Optional[PciDevice]) -> bool:
    """They look like ordinary InfiniBand functions of a ConnectX."""
    if nic.management is not None or nic.link_layer == "Ethernet" or nic.physical_function:
        return False
    if device is None:
        return False
    return device.vendor in {MELLANOX, None} and (device.class_code or "0x0207").startswith("0x0207")
