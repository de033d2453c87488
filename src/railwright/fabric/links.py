"""Headroom of every link of the contract, and of all links of a switch together."""

from __future__ import annotations

from dataclasses import dataclass

from railwright.node.model import Finding

from .contract import Contract, Port, Switch
from .headroom import Number, bound, host_nic, switch_number
from .platforms import PLATFORMS, Row


@dataclass(frozen=True)
class Link:
    """One leaf port with its cable. Bytes for one lossless class; None is not known.

    bound: the protocol's least. table: Xoff headroom of the platform's own table, for the nearest length that is not
    shorter (`table_m`). formula: the switch formula. host: the least lossless buffer of the host's NIC.
    """

    switch: str
    port: str
    host: str
    nic: str
    speed_gbps: int
    cable_m: int
    bound: Number
    host_buffer: Number
    table: Number | None = None
    table_m: int | None = None
    table_size: int | None = None
    formula: Number | None = None

    @property
    def headroom(self) -> Number:
        """What the switch will keep for the link: its table's word, else the formula's, else the bound."""
        return self.table or self.formula or self.bound


def links(contract: Contract) -> tuple[Link, ...]:
    """All links, in the order of the contract."""
    return tuple(
        _link(contract, name, switch, port, plug)
        for name, switch in contract.switches.items()
        for port, plug in switch.ports.items()
    )


def _link(contract: Contract, name: str, switch: Switch, port: str, plug: Port) -> Link:
    speed, cable = contract.speed(plug), contract.cable(plug)
    platform = PLATFORMS.get(switch.platform or "")
    row = platform.row(speed, cable) if platform is not None else None
    formula = None
    if platform is not None and platform.asic is not None:
        formula = switch_number(speed, cable, platform.asic, contract.switch_mtu, _lanes(switch, speed))
    return Link(
        name,
        port,
        plug.host,
        plug.nic,
        speed,
        cable,
        bound(speed, cable, contract.switch_mtu, contract.switch_mtu),
        host_nic(speed, cable, contract.host_mtu),
        _table(row, platform.source) if row is not None and platform is not None else None,
        row.cable_m if row is not None else None,
        row.size if row is not None else None,
        formula,
    )


def _lanes(switch: Switch, speed: int) -> int | None:
    # 800G ports of Spectrum-4 have eight lanes; of others the contract has to say so.
    return switch.lanes if switch.lanes is not None else 8 if speed == 800 else None


def _table(row: Row, source: str) -> Number:
    return Number(row.xoff, f"table: {row.speed_gbps}G, up to {row.cable_m} m", source, "A")


def headroom_findings(contract: Contract, every: tuple[Link, ...]) -> list[Finding]:
    """What is wrong or unknown about the headroom of the links, one finding for each kind on a switch."""
    found: list[Finding] = []
    for name, switch in contract.switches.items():
        mine = tuple(link for link in every if link.switch == name)
        found += _table_findings(name, switch, mine)
        found += _pool_findings(contract, name, switch, mine)
    return found


def _table_findings(name: str, switch: Switch, mine: tuple[Link, ...]) -> list[Finding]:
    if switch.platform is None:
        return [
            Finding(
                "fabric.headroom",
                "info",
                name,
                "not verified: no platform is stated, so headroom is the protocol's bound alone; vendors' tables are "
                "2 to 3 times apart",
                f"state fabric.switches.{name}.platform: one of {', '.join(PLATFORMS)}",
            )
        ]
    found = []
    groups: dict[tuple[int, int], list[Link]] = {}
    for link in mine:
        groups.setdefault((link.speed_gbps, link.cable_m), []).append(link)
    for (speed, cable), group in groups.items():
        where = f"{name} {ports_in_words([link.port for link in group])}"
        first = group[0]
        if first.table is None:
            lengths = [row.cable_m for row in PLATFORMS[switch.platform].rows if row.speed_gbps == speed]
            why = (
                f"the table of {switch.platform} ends at {max(lengths)} m for {speed}G, the cable has {cable} m"
                if lengths
                else f"the table of {switch.platform} has no {speed}G"
            )
            found.append(
                Finding(
                    "fabric.headroom_table",
                    "warning",
                    where,
                    f"{why}: the switch would take a shorter cable's headroom or none, and drop what is in flight",
                    f"give the switch a profile with Xoff headroom of at least {first.headroom.bytes} bytes "
                    f"({first.headroom.formula})",
                )
            )
        elif first.table.bytes < first.bound.bytes:
            found.append(
                Finding(
                    "fabric.headroom",
                    "warning",
                    where,
                    f"the platform keeps {first.table.bytes} bytes ({first.table.formula}), the protocol's bound is "
                    f"{first.bound.bytes} ({first.bound.formula}): a peer that takes all its time overruns it",
                    "measure with an incast under PFC that nothing is dropped, or give the switch a larger profile",
                )
            )
    return found


def _pool_findings(contract: Contract, name: str, switch: Switch, mine: tuple[Link, ...]) -> list[Finding]:
    classes = len(contract.lossless)
    total = pool_sum(contract, mine)
    said = f"headroom of {len(mine)} ports x {classes} lossless class{'es' if classes > 1 else ''}: {total} bytes"
    if switch.headroom_pool_bytes is None:
        return [
            Finding(
                "fabric.headroom_pool",
                "info",
                name,
                f"not verified: {said}; the switch's pool is not stated",
                f"state fabric.switches.{name}.headroom_pool_bytes",
            )
        ]
    if total <= switch.headroom_pool_bytes:
        return []
    remedy = "use a shared headroom pool with over-subscription"
    if classes > 1:
        remedy += f", or keep one lossless class: that needs {total // classes} bytes"
    return [
        Finding(
            "fabric.headroom_pool",
            "error",
            name,
            f"{said}, the pool has {switch.headroom_pool_bytes}: the last ports get no headroom and drop",
            remedy,
        )
    ]


def pool_sum(contract: Contract, mine: tuple[Link, ...]) -> int:
    """Headroom that these links want together, bytes, for all lossless classes."""
    return len(contract.lossless) * sum(link.headroom.bytes for link in mine)


def ports_in_words(ports: list[str]) -> str:
    """The first ports by name and how many more there are."""
    if len(ports) <= 3:
        return ", ".join(ports)
    return f"{ports[0]}, {ports[1]} and {len(ports) - 2} more"
