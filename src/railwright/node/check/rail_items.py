"""The entry of the rails' network against the facts: each port has the address that the plan gives it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Callable

from ..model import Facts, Finding
from .answer import Answer, unseen

Entry = dict[str, Any]
_AGAIN = "run `ansible-playbook -i INVENTORY playbooks/tune.yml -l NODE --tags rail_network`"


def network(facts: Facts, name: str, entry: Entry) -> Iterator[Answer]:
    """One answer for each port of the entry."""
    code = f"{name}.address"
    for port in entry["ports"]:
        device, address = port["device"], port["address"]
        nics = [nic for nic in facts.nics if nic.address == device and nic.netdev is not None]
        if not nics:
            yield unseen(
                code, device, "the facts hold no netdev of it", f"ls /sys/bus/pci/devices/{device}/net"
            )
            continue
        nic = nics[0]
        if address in nic.addresses:
            yield Answer(code)
            continue
        held = ", ".join(nic.addresses) or "no address"
        why = f"has {held}, planned {address}"
        yield Answer(code, Finding(code, "error", nic.netdev or nic.name, why, _AGAIN))


KINDS: dict[str, Callable[[Facts, str, Entry], Iterator[Answer]]] = {"network": network}
