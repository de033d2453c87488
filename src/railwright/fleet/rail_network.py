"""What only several nodes show of the rails: one address on two nodes, and an MTU that is not the peers'."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from railwright.node.model import Finding, Nic
from railwright.node.words import some_of

from .form import Member


@dataclass(frozen=True)
class RailsOf:
    """One node's rails. ports: rail to its port, in the facts of the node's form."""

    name: str
    member: Member
    ports: Mapping[int, Nic]


def findings(nodes: Iterable[RailsOf]) -> tuple[Finding, ...]:
    """Findings on the rails of the fleet, the worst first."""
    every = tuple(nodes)
    return (*_duplicates(every), *_mtus(every))


def _duplicates(nodes: tuple[RailsOf, ...]) -> Iterator[Finding]:
    holders: dict[str, list[str]] = {}
    for node in nodes:
        for rail, nic in sorted(node.ports.items()):
            for text in nic.addresses:
                address = (node.member.value(text) or "").partition("/")[0]
                # An IPv6 address that begins so is good on its own link only, and every link may have it.
                if address and not address.lower().startswith("fe80:"):
                    holders.setdefault(address, []).append(f"rail{rail} of {node.name}")
    for address, names in holders.items():
        if len({name.partition(" of ")[2] for name in names}) > 1:
            yield Finding(
                "rails.duplicate_address",
                "error",
                some_of(names, 4),
                f"{address} is on {len(names)} rails: answers go to whichever was heard last",
                "correct the list of nodes (`railwright inventory` gives each its own), then tune these nodes again",
            )


def _mtus(nodes: tuple[RailsOf, ...]) -> Iterator[Finding]:
    """Nodes whose rail has another MTU than most nodes have on it. Where no value has a majority all are named."""
    by_rail: dict[int, dict[str, int]] = {}
    for node in nodes:
        for rail, nic in node.ports.items():
            if nic.mtu is not None and nic.link_layer == "Ethernet":
                by_rail.setdefault(rail, {})[node.name] = nic.mtu
    odd: dict[tuple[str, str, str], list[int]] = {}
    for rail, sizes in sorted(by_rail.items()):
        most, count = max(sorted(Counter(sizes.values()).items()), key=lambda item: item[1])
        if count == len(sizes):
            continue
        if count * 2 > len(sizes):
            for name, mtu in sizes.items():
                if mtu != most:
                    said = f"MTU {mtu}, where {count} of {len(sizes)} nodes have {most}"
                    odd.setdefault((name, said, str(most)), []).append(rail)
        else:
            values = ", ".join(
                f"{mtu} on {some_of([name for name, size in sizes.items() if size == mtu], 3)}"
                for mtu in sorted(set(sizes.values()))
            )
            odd.setdefault(("the fleet", f"MTU {values}", "9000"), []).append(rail)
    for (name, said, wanted), rails in odd.items():
        yield Finding(
            "rails.mtu",
            "error",
            f"{', '.join(f'rail{rail}' for rail in rails)} of {name}",
            f"{said}: large messages between them fail where small ones pass",
            f"give all the same (policy.rails.mtu, {wanted}), and the switches 9216",
        )
