"""The reader's view of the devices against that of other tools on the node."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Optional

from ..discover.nvidia_smi import listed_addresses
from ..discover.tools import silence
from ..model import Facts, Finding, InputError, PciDevice, Tool
from .answer import Answer

_CODE = "facts.disagree"
_REMEDY = (
    "find out which is right before anything is planned on it: railwright discover, then the tool by hand"
)
_HEADER = re.compile(
    r"^(?P<address>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) .*?\[(?P<kind>[0-9a-f]{4})\]: "
    r".*\[(?P<vendor>[0-9a-f]{4}):(?P<device>[0-9a-f]{4})\]"
)
_NUMA = re.compile(r"^\tNUMA node: (\d+)$", re.MULTILINE)
# Of the Express capability alone: some functions show a second link in another capability (open-mpi/hwloc#653).
_CAPABLE = re.compile(r"^\t\tLnkCap:\s+.*?Speed (\S+?)(?:GT/s)?, Width x(\d+)", re.MULTILINE)
_STATUS = re.compile(r"^\t\tLnkSta:\s+Speed (\S+?)(?:GT/s)?(?: \(\w+\))?, Width x(\d+)", re.MULTILINE)
_CONTROL = re.compile(r"^\t\tACSCtl:\s+(.*)$", re.MULTILINE)
# Devices that a plan speaks of: what lspci lists of these and the facts do not is a hole in the facts.
_WANTED = re.compile(r"^(?:10de:(?:0300|0302|0680)|....:(?:0200|0207))$")


@dataclass(frozen=True)
class LspciFunction:
    """One function as `lspci -D -nn -vvv` shows it; None where it does not."""

    address: str
    class_code: str
    vendor: str
    device: str
    numa: Optional[int]
    max_speed: Optional[float]
    max_width: Optional[int]
    width: Optional[int]
    acs_control: Optional[frozenset[str]]


def answers(facts: Facts) -> Iterator[Answer]:
    """What the tools say, and conflicts that the reader met itself."""
    yield from _lspci(facts)
    yield from _nvidia_smi(facts)
    for conflict in facts.conflicts:
        said = "; ".join(f"{claim.witness} says {claim.value}" for claim in conflict.claims)
        yield Answer("facts.witnesses", Finding(_CODE, "error", conflict.where, said, _REMEDY))


def parse_lspci(text: str) -> dict[str, LspciFunction]:
    """Functions by address. Warnings between them are skipped. Raises InputError where there is no function at all."""
    blocks: dict[str, list[str]] = {}
    headers: dict[str, re.Match[str]] = {}
    current: Optional[str] = None
    for line in text.splitlines():
        match = _HEADER.match(line)
        if match is not None:
            current = match["address"]
            headers[current] = match
            blocks[current] = []
        elif current is not None:
            blocks[current].append(line)
    if not headers:
        raise InputError("lspci:1", f"found {text[:80]!r}", "expected the output of lspci -D -nn -vvv")
    return {address: _function(headers[address], "\n".join(lines)) for address, lines in blocks.items()}


def _function(header: re.Match[str], block: str) -> LspciFunction:
    numa = _NUMA.search(block)
    capable = _CAPABLE.search(block)
    status = _STATUS.search(block)
    control = _CONTROL.search(block)
    return LspciFunction(
        address=header["address"],
        class_code=f"0x{header['kind']}",
        vendor=f"0x{header['vendor']}",
        device=f"0x{header['device']}",
        numa=int(numa[1]) if numa else None,
        max_speed=_speed(capable[1]) if capable else None,
        max_width=_width(capable[2]) if capable else None,
        width=_width(status[2]) if status else None,
        acs_control=frozenset(re.findall(r"(\w+)\+", control[1])) if control else None,
    )


def _speed(text: str) -> Optional[float]:
    try:
        return float(text)
    except ValueError:
        return None  # "unknown"


def _width(text: str) -> Optional[int]:
    return None if text in {"0", "63"} else int(text)


def _named(facts: Facts, name: str) -> Optional[Tool]:
    return next((tool for tool in facts.tools if tool.name == name), None)


def _absent(check: str, tool: Optional[Tool], otherwise: str) -> Optional[Answer]:
    """Why a tool's word is not to be had, or None. An absent tool is no fault of the devices."""
    if tool is None:
        return Answer(check, seen=False, why=f"{otherwise} was not asked")
    why = silence(tool)
    return None if why is None else Answer(check, seen=False, why=why)


def _lspci(facts: Facts) -> Iterator[Answer]:
    check = "facts.lspci"
    tool = _named(facts, "lspci")
    absent = _absent(check, tool, "lspci")
    if absent is not None or tool is None:
        yield absent or Answer(check, seen=False)
        return
    listed = parse_lspci(tool.output)
    told = any(function.numa is not None for function in listed.values())
    for device in facts.pci:
        function = listed.get(device.address)
        if function is None:
            yield _disagree(check, device.address, "sysfs has this function, lspci does not list it")
            continue
        differences = list(_differences(device, function, told))
        for what, ours, theirs in differences:
            yield _disagree(check, device.address, f"{what}: sysfs says {ours}, lspci says {theirs}")
        if not differences:
            yield Answer(check)
    known = {device.address for device in facts.pci}
    for address, function in listed.items():
        if address not in known and _WANTED.match(f"{function.vendor[2:]}:{function.class_code[2:]}"):
            yield _disagree(
                check, address, f"lspci lists {function.vendor[2:]}:{function.device[2:]}, the facts do not"
            )


def _disagree(check: str, where: str, why: str) -> Answer:
    return Answer(check, Finding(_CODE, "error", where, why, _REMEDY))


def _differences(
    device: PciDevice, function: LspciFunction, numa: bool
) -> Iterator[tuple[str, object, object]]:
    pairs: list[tuple[str, object, object]] = [
        ("class", (device.class_code or "")[:6] or None, function.class_code),
        ("vendor", device.vendor, function.vendor),
        ("device", device.device, function.device),
        ("most lanes", device.link.max_width, function.max_width),
        ("lanes", device.link.width, function.width),
        ("highest GT/s", device.link.max_speed, function.max_speed),
        ("ACS control", None if device.acs is None else frozenset(device.acs.control), function.acs_control),
    ]
    for what, ours, theirs in pairs:
        if ours is not None and theirs is not None and ours != theirs:
            yield what, _text(ours), _text(theirs)
    # lspci leaves the line out where the kernel does not know the node, and old ones always do.
    if numa and device.numa != function.numa:
        yield "NUMA node", _text(device.numa), _text(function.numa)


def _text(value: object) -> str:
    if isinstance(value, frozenset):
        return "+".join(sorted(value)) or "none"
    return "unknown" if value is None else str(value)


def _nvidia_smi(facts: Facts) -> Iterator[Answer]:
    check = "facts.nvidia_smi"
    tool = _named(facts, "nvidia-smi-query")
    absent = _absent(check, tool, "nvidia-smi")
    if absent is not None or tool is None:
        yield absent or Answer(check, seen=False)
        return
    ours = {gpu.address for gpu in facts.gpus if _is_nvidia(facts, gpu.address)}
    theirs = set(listed_addresses(tool))
    for address in sorted(ours ^ theirs, key=str):
        why = (
            "the GPU is on the bus and nvidia-smi does not list it (fallen off, or held by another driver)"
            if address in ours
            else "nvidia-smi lists a GPU here, sysfs does not"
        )
        yield _disagree(check, str(address), why)
    if ours == theirs:
        yield Answer(check, why=f"nvidia-smi lists the same {len(ours)} GPUs")


def _is_nvidia(facts: Facts, address: Optional[str]) -> bool:
    return any(device.address == address and device.vendor == "0x10de" for device in facts.pci)
