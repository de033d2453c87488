"""What only tools tell of the cards: firmware settings of NICs, and what rdma_topo says of ACS."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ..model import Nic, PciDevice, Tool
from ..model.pci import MELLANOX, is_data_direct
from ..nvconfig import TOOLS
from .tools import run_tool

# A card answers in a second; ten of them, and one whose firmware hangs, have to fit.
CARD_SECONDS = 10.0
ALL_SECONDS = 30.0
_TEXT_BYTES = 256 * 1024
_STOPPED = 124
TOPOLOGY = "rdma-topo"


def run_hardware_tools(nics: Sequence[Nic], devices: Sequence[PciDevice], arch: str) -> tuple[Tool, ...]:
    """Firmware settings of each card with an RDMA port, and rdma_topo's word where it has one. Nothing is changed."""
    deadline = time.monotonic() + ALL_SECONDS
    found: list[Tool] = []
    for address in cards(nics, devices):
        left = min(CARD_SECONDS, deadline - time.monotonic())
        if left <= 0:
            found.append(Tool(firmware_tool(address), (TOOLS[0], "-d", address, "-e", "q"), _STOPPED, ""))
            continue
        told = _ask(address, left)
        found.append(told)
        if told.code is None:
            break  # none of the twins is there: once is enough
    if arch == "aarch64" or any(is_data_direct(device.vendor, device.class_code) for device in devices):
        found.append(run_tool(TOPOLOGY, ("rdma_topo", "check"), CARD_SECONDS, _TEXT_BYTES))
    return tuple(found)


def cards(nics: Sequence[Nic], devices: Sequence[PciDevice]) -> tuple[str, ...]:
    """A physical function of each of NVIDIA's cards with an RDMA port; never an NVSwitch's management function."""
    ours = {device.address for device in devices if device.vendor == MELLANOX}
    first: dict[str, str] = {}
    for nic in nics:
        if nic.address in ours and nic.rdma and not nic.physical_function and not nic.management:
            first.setdefault(nic.address.rpartition(".")[0], nic.address)
    return tuple(first.values())


def firmware_tool(address: str) -> str:
    """The name under which a card's firmware settings are kept."""
    return f"nvconfig-{address}"


def _ask(address: str, seconds: float) -> Tool:
    name = firmware_tool(address)
    for program in TOOLS:
        told = run_tool(name, (program, "-d", address, "-e", "q"), seconds, _TEXT_BYTES)
        if told.code is not None:
            return told
    return Tool(name, (TOOLS[0], "-d", address, "-e", "q"), None, "")
