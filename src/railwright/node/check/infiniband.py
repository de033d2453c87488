"""InfiniBand: whether a subnet manager serves the ports, and whether they are full members of their partitions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

from ..model import Facts, Finding, Plan
from .answer import Answer

_MEMBER = 0x8000


def answers(plan: Plan, facts: Facts) -> Iterator[Answer]:
    """Nothing where no port of the plan speaks InfiniBand. A subnet manager on this host is told in any case."""
    meant = {nic.name for nic in plan.nics if nic.role in ("rail", "second-port", "storage", "down")}
    ports = [port for port in facts.network.infiniband if port.nic in meant]
    for port in ports:
        yield from _manager(port.nic, port.lid, port.sm_lid, port.physical)
        if port.pkeys is None:
            yield Answer("infiniband.pkey", seen=False, why=f"{port.nic} shows no partition keys")
        else:
            yield Answer("infiniband.pkey", _membership(port.nic, port.pkeys))
    yield from _own_manager(facts, bool(ports))


def _manager(
    nic: str, lid: Optional[int], sm_lid: Optional[int], physical: Optional[str]
) -> Iterator[Answer]:
    code = "infiniband.sm"
    if sm_lid is None:
        yield Answer(code, seen=False, why=f"{nic} does not show its subnet manager")
    elif physical not in (None, "LinkUp"):
        # A port without a link has no manager either: the link is the fault.
        yield Answer(code, why=f"{nic}: {physical}")
    elif sm_lid == 0 or lid == 0:
        yield Answer(
            code,
            Finding(
                code,
                "error",
                nic,
                "its link is up, and no subnet manager has given it an address (LID 0)"
                if lid == 0
                else f"has LID {lid}, and no subnet manager serves it now",
                "is the subnet manager running (UFM, a managed switch, opensm on one pair of nodes)? `sminfo` asks it",
            ),
        )
    else:
        yield Answer(code)


def _membership(nic: str, pkeys: tuple[str, ...]) -> Optional[Finding]:
    if any(int(key, 16) & _MEMBER for key in pkeys):
        return None
    held = ", ".join(pkeys) or "none"
    return Finding(
        "infiniband.pkey",
        "error",
        nic,
        f"is no full member of any partition (partition keys: {held}): limited members cannot talk to each other",
        "give the port full membership in the subnet manager's partitions (opensm's partitions.conf needs "
        "`Default=0x7fff, ipoib, ALL=full;`: a file without it makes all ports limited members)",
    )


def _own_manager(facts: Facts, asked: bool) -> Iterator[Answer]:
    code = "infiniband.opensm"
    managers = facts.network.subnet_managers
    if managers:
        numbers = ", ".join(map(str, managers))
        yield Answer(
            code,
            Finding(
                code,
                "warning",
                f"process {numbers}",
                "opensm runs on this node: a subnet manager on every host fights over the fabric, and a tenant who is "
                "root here owns it",
                "`systemctl disable --now opensm`; the subnet manager belongs on UFM, on managed switches or on one "
                "pair of nodes (accept this on these two)",
            ),
        )
    elif asked:
        why = "no opensm runs here" if managers is not None else "the facts hold no processes"
        yield Answer(code, seen=managers is not None, why=why)
