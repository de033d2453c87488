"""`mlxconfig -d DEVICE [-e] query`: what the firmware is set to and nothing else shows a host.

Whether a BlueField is set up as a NIC or a DPU, and whether the NIC takes part in adaptive routing over Ethernet.

With -e it shows what is in force; without, only what the next boot brings.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from railwright.node.model import Facts, InputError, Nic, normalise_address, sort_key

from .fields import facts_of, lines_of, refuse_crowd
from .source import Source

_DEVICE = re.compile(r"^Device #\d{1,3}:$", re.ASCII)
_FIELD = re.compile(r"^(Device type|Device):\s+(\S+)$", re.ASCII)
_COLUMNS = re.compile(r"^Configurations:\s+(.+)$", re.ASCII)
# NVIDIA's "BlueField Modes of Operation": 0 is DPU mode, 1 is NIC mode. An asterisk marks what is not the default.
_ENGINE = re.compile(r"^\*?\s*INTERNAL_CPU_OFFLOAD_ENGINE\s+(\S.*)$", re.ASCII)
_ROUTING = re.compile(r"^\*?\s*ROCE_ADAPTIVE_ROUTING_EN\s+(\S.*)$", re.ASCII)
_SWITCH = {"False(0)": "", "True(1)": "on"}
_MODES = {"ENABLED(0)": "dpu", "DISABLED(1)": "nic"}


@dataclass
class _Card:
    line: int
    type: str | None = None
    device: str | None = None
    columns: tuple[str, ...] = ()
    mode: str | None = None
    routing: str | None = None
    next_boot: bool = False


def read_mlxconfig(source: Source) -> Facts:
    """The cards' functions with `bluefield`. Raises InputError with file and line."""
    cards: list[_Card] = []
    for line in lines_of(source):
        where, text = source.at(line.number), line.text.strip()
        if _DEVICE.match(text):
            cards.append(_Card(line.number))
            refuse_crowd(len(cards), "devices", where)
        elif cards:
            _add(cards[-1], text, where)
    notes: list[str] = []
    nics: dict[str, Nic] = {}
    for card in cards:
        where = source.at(card.line)
        if card.type is None or card.device is None:
            raise InputError(
                where, "a device without its type and address", "give the whole output of mlxconfig"
            )
        if card.device.startswith("/"):
            raise InputError(
                where,
                f"names the device {card.device[:40]}, not its PCI address",
                "ask again with the address: mlxconfig -d 0000:c1:00.0 -e query",
            )
        address = normalise_address(card.device, where)
        if address in nics:
            raise InputError(where, f"{address} stands twice", "give one machine at a time")
        mode = card.mode if card.type.startswith("BlueField") else ""
        if mode and card.next_boot:
            notes.append(
                f"{address}: mlxconfig without -e shows the mode after the next boot ({mode}), not the one in force"
            )
            mode = None
        routing = None if card.routing is None or card.next_boot else card.routing == "on"
        nics[address] = Nic(address, address, bluefield=mode, adaptive_routing=routing)
    if not nics:
        raise InputError(
            source.name, "names no device", "give the whole output of mlxconfig -d ADDRESS -e query"
        )
    ordered = tuple(nics[address] for address in sorted(nics, key=sort_key))
    return facts_of("mlxconfig", source, nics=ordered, notes=tuple(notes))


def _add(card: _Card, text: str, where: str) -> None:
    if found := _FIELD.match(text):
        if found[1] == "Device":
            card.device = found[2]
        else:
            card.type = found[2]
    elif columns := _COLUMNS.match(text):
        card.columns = tuple(re.split(r"\s{2,}", columns[1].strip()))
    elif engine := _ENGINE.match(text):
        card.mode = _in_force(card, engine[1], _MODES, where)
    elif routing := _ROUTING.match(text):
        card.routing = _in_force(card, routing[1], _SWITCH, where)


def _in_force(card: _Card, said: str, meanings: dict[str, str], where: str) -> str:
    """What a setting means now; without -e, after the next boot."""
    values = said.split()
    if len(values) != len(card.columns) or not set(values) <= set(meanings):
        raise InputError(
            where,
            f"found {said[:80]!r}",
            f"expected {' or '.join(meanings)} under each column of the heading",
        )
    told = dict(zip(card.columns, values, strict=True))
    card.next_boot = "Current" not in told
    return meanings[told.get("Current") or values[-1]]
