"""Cabling: which leaf port each rail is on, which one it should be on, and what to do where the two differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from railwright.node.model import Facts, Finding, InputError, Nic, normalise_address
from railwright.node.words import some_of

from .form import Member
from .neighbours import Cable

_SECONDS = 30
K = TypeVar("K", tuple[str, str], tuple[str, int])


@dataclass(frozen=True)
class End:
    """The switch's end of a cable, and who says so."""

    leaf: str
    port: str
    source: str

    def __str__(self) -> str:
        return f"{self.leaf}/{self.port}"


@dataclass
class Wiring:
    """ends: (node, PCI address) to the switch's end. rails: (node, rail) to it, where a table tells rails only."""

    ends: dict[tuple[str, str], End] = field(default_factory=dict)
    rails: dict[tuple[str, int], End] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


class Directory:
    """Finds the NIC that a cable's end means. nodes: name to (member, facts of its form)."""

    def __init__(self, nodes: Mapping[str, tuple[Member, Facts]]) -> None:
        self._nodes = nodes
        self._short: dict[str, list[str]] = {}
        for name in nodes:
            self._short.setdefault(name.split(".")[0], []).append(name)
        self._by_mark: dict[str, tuple[str, str]] = {}
        for name, (member, facts) in nodes.items():
            for nic in facts.nics:
                if nic.address is not None:
                    for mark in (nic.mac, nic.guid):
                        value = member.value(mark)
                        if value is not None and _mark(value):
                            self._by_mark.setdefault(_mark(value), (name, nic.address))

    def node(self, text: str) -> str | None:
        """The inventory's name of a node, which may be told with or without its domain."""
        if text in self._nodes:
            return text
        alike = self._short.get(text.split(".", maxsplit=1)[0], [])
        return alike[0] if len(alike) == 1 else None

    def nic(self, cable: Cable) -> tuple[str, str] | None:
        """(node, PCI address) of the cable's lower end; None where nobody answers to it."""
        word = cable.nic.removeprefix("guid ")
        is_mark = word != cable.nic or _looks_like_mark(word)
        marked = self._by_mark.get(_mark(word)) if is_mark else None
        if marked is not None:
            return marked
        name = None if cable.node is None else self.node(cable.node)
        if name is None:
            return None
        for nic in self._nodes[name][1].nics:
            if nic.address is not None and (word in (nic.netdev, nic.rdma, nic.name) or word == nic.address):
                return name, nic.address
        try:
            address = normalise_address(word, cable.source)
        except InputError:
            return None
        return (name, address) if any(nic.address == address for nic in self._nodes[name][1].nics) else None


def _hex(text: str) -> str:
    return "".join(text.lower().removeprefix("0x").replace(":", "").replace("-", "").replace(".", "").split())


def _mark(text: str) -> str:
    """A MAC or GUID however it is written; ibnetdiscover leaves leading zeros out."""
    return _hex(text).lstrip("0")


def _looks_like_mark(text: str) -> bool:
    digits = _hex(text)
    return len(digits) in (12, 16) and all(digit in "0123456789abcdef" for digit in digits)


def wire(cables: Iterable[Cable], directory: Directory) -> Wiring:
    """Cables with their NICs. Two witnesses that disagree are a finding, and the first one is kept."""
    wiring = Wiring()
    strangers: dict[str, list[str]] = {}
    for cable in cables:
        end = End(cable.leaf, cable.port, cable.source)
        if cable.nic.startswith("rail "):
            name = None if cable.node is None else directory.node(cable.node)
            if name is None:
                strangers.setdefault(cable.source, []).append(f"{cable.node} {cable.nic}")
                continue
            _keep(wiring, wiring.rails, (name, int(cable.nic.removeprefix("rail "))), end)
            continue
        found = directory.nic(cable)
        if found is None:
            strangers.setdefault(cable.source, []).append(" ".join(filter(None, (cable.node, cable.nic))))
            continue
        _keep(wiring, wiring.ends, found, end)
    for source, names in strangers.items():
        wiring.findings.append(
            Finding(
                "cabling.unknown_end",
                "info",
                source,
                f"{len(names)} ends of cables belong to no NIC of this fleet: {some_of(names, 5)}",
                "correct the name in the table; neighbours that are no node of this fleet may be left",
            )
        )
    wiring.findings += [*_ports_of_two_nodes(wiring.ends), *_ports_of_two_nodes(wiring.rails)]
    return wiring


def _ports_of_two_nodes(ends: Mapping[K, End]) -> Iterator[Finding]:
    """A cable has one other end. Lanes of a split port are told under one name by some tables, so it is a warning."""
    nodes: dict[tuple[str, str], dict[str, End]] = {}
    for key, end in ends.items():
        nodes.setdefault((end.leaf, end.port), {}).setdefault(str(key[0]), end)
    for named in nodes.values():
        if len(named) > 1:
            end = next(iter(named.values()))
            yield Finding(
                "cabling.port_twice",
                "warning",
                str(end),
                f"{some_of(named, 4)} are said to be on this one port ({end.source})",
                "correct the table; where the port is split, name its lanes (leaf3/9/1, leaf3/9/2)",
            )


def _keep(wiring: Wiring, ends: dict[K, End], key: K, end: End) -> None:
    known = ends.setdefault(key, end)
    if (known.leaf, known.port) != (end.leaf, end.port):
        wiring.findings.append(
            Finding(
                "cabling.witnesses",
                "warning",
                f"{key[0]}: {key[1]}",
                f"{known.source} says {known}, {end.source} says {end}",
                "find out which is older and leave it out; the first one is used",
            )
        )


def check_node(
    name: str, ports: Mapping[int, Nic], wiring: Wiring, wanted: Wiring, leaves: Mapping[str, int]
) -> list[Finding]:
    """What is wrong with the cables of one node. ports: rail to its port. leaves: leaf to the rail that it carries."""
    found = []
    for rail, nic in sorted(ports.items()):
        address = nic.address or ""
        is_, should = wiring.ends.get((name, address)), wanted.ends.get((name, address))
        is_ = is_ if is_ is not None else wiring.rails.get((name, rail))
        should = should if should is not None else wanted.rails.get((name, rail))
        if is_ is not None and should is not None:
            if (is_.leaf, is_.port) != (should.leaf, should.port):
                mate = _whose(name, ports, wanted, is_)
                found.append(
                    _misplaced(
                        name, rail, nic, is_, f"should be {should}", f"move the cable to {should}", mate
                    )
                )
        elif should is not None and wiring.ends:
            found.append(
                Finding(
                    "cabling.unseen",
                    "warning",
                    f"rail{rail} of {name} ({_called(nic)})",
                    f"should be on {should}, and nobody sees it there",
                    f"is the link up, and does LLDP reach the host? {blink(name, nic)}",
                )
            )
        elif is_ is not None and leaves.get(is_.leaf, rail) != rail:
            right = sorted(leaf for leaf, number in leaves.items() if number == rail)
            told = f"{is_.leaf} carries rail {leaves[is_.leaf]}"
            found.append(
                _misplaced(
                    name,
                    rail,
                    nic,
                    is_,
                    told,
                    f"move the cable to {' or '.join(right[:4]) or f'the leaf of rail {rail}'}",
                    None,
                )
            )
    return found


def _whose(name: str, ports: Mapping[int, Nic], wanted: Wiring, end: End) -> str | None:
    """The rail of this node that should be where another one is."""
    for rail, nic in ports.items():
        should = wanted.ends.get((name, nic.address or "")) or wanted.rails.get((name, rail))
        if should is not None and (should.leaf, should.port) == (end.leaf, end.port):
            return f"rail{rail}"
    return None


def _misplaced(
    name: str, rail: int, nic: Nic, is_: End, should: str, remedy: str, mate: str | None
) -> Finding:
    swapped = f" (where {mate} belongs: the two are swapped)" if mate else ""
    return Finding(
        "cabling.misplaced",
        "error",
        f"rail{rail} of {name} ({_called(nic)})",
        f"rail{rail} of {name} is on {is_}{swapped}, {should}",
        f"{remedy}; {blink(name, nic)}",
    )


def _called(nic: Nic) -> str:
    return ", ".join(filter(None, (nic.netdev, nic.rdma, nic.address)))


def blink(node: str, nic: Nic) -> str:
    """How to make the port's light blink. ethtool(8) --identify; mlx5 InfiniBand netdevs do not know it."""
    if nic.netdev is not None and nic.link_layer != "InfiniBand":
        return (
            f"`ssh {node} sudo ethtool --identify {nic.netdev} {_SECONDS}` blinks the port for {_SECONDS} s"
        )
    return f"the port is {nic.rdma or nic.name} at PCI {nic.address}; no command here makes an InfiniBand port blink"
