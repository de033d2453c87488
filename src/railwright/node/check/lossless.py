"""The QoS of ports against the plan: pause, DCB, congestion control, and how RDMA is marked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Callable, Optional

from ..model import Facts, Finding, Qos
from ..model.qos import same
from .answer import Answer, unseen

Entry = dict[str, Any]
_RETUNE = "run `ansible-playbook -i INVENTORY playbooks/retune.yml -l NODE`"
_READ_AGAIN = "read the node again: railwright check PLAN"
# What of dcb or ethtool tells a part, where it is called otherwise.
_TOLD_BY = {"rate": "maxrate", "cable": "pfc", "pause rx": "pause", "pause tx": "pause"}
_PARTS = ("dcbx", "trust", "app", "ets", "rate", "pfc", "cable", "buffer")


def pause(facts: Facts, name: str, entry: Entry) -> Iterator[Answer]:
    """802.3x pause."""
    port = _port(facts, entry["device"])
    for way in ("rx", "tx"):
        if way in entry:
            now = None if port is None else getattr(port, f"pause_{way}")
            yield _answer(
                f"{name}.pause", port, entry["device"], f"pause {way}", now, entry[way], now == entry[way]
            )


def dcb(facts: Facts, name: str, entry: Entry) -> Iterator[Answer]:
    """Each part of DCB; trust only where the driver tells it."""
    port = _port(facts, entry["device"])
    for part in _PARTS:
        if part not in entry:
            continue
        now = None if port is None else port.part(part)
        if part == "trust" and now is None and port is not None and port.backend is not None:
            continue  # it follows from the map
        if part == "buffer" and port is not None and "not supported" in port.unread.get(part, ""):
            yield Answer(
                f"{name}.{part}", why=f"{port.netdev} has no buffers to be set: its firmware sizes them"
            )
            continue
        fits = now is not None and same(part, now, entry[part])
        yield _answer(f"{name}.{part}", port, entry["device"], part, now, entry[part], fits)


def congestion(facts: Facts, name: str, entry: Entry) -> Iterator[Answer]:
    """DCQCN. What the driver shows nowhere is its firmware's, and is asked there."""
    port = _port(facts, entry["device"])
    for value, wanted in entry["values"].items():
        now = None if port is None else port.congestion.get(value)
        if now is None and port is not None and (port.backend is not None or port.congestion):
            yield Answer(f"{name}.congestion", why=f"{port.netdev} shows no {value}: its firmware decides")
        else:
            yield _answer(f"{name}.congestion", port, entry["device"], value, now, wanted, now == wanted)


def rdma_marking(facts: Facts, name: str, entry: Entry) -> Iterator[Answer]:
    """RDMA-CM's defaults and the class of all queue pairs."""
    port = _port(facts, entry["device"])
    for key, field in (("tos", "tos"), ("mode", "roce_mode"), ("traffic_class", "traffic_class")):
        if key not in entry:
            continue
        now = None if port is None else getattr(port, field)
        if now is None and key == "traffic_class" and port is not None and port.backend is not None:
            yield Answer(f"{name}.marking", why=f"{port.netdev}'s driver has no class for all queue pairs")
        else:
            yield _answer(f"{name}.marking", port, entry["device"], key, now, entry[key], now == entry[key])


KINDS: dict[str, Callable[[Facts, str, Entry], Iterator[Answer]]] = {
    "pause": pause,
    "dcb": dcb,
    "congestion": congestion,
    "rdma_marking": rdma_marking,
}


def _port(facts: Facts, device: str) -> Optional[Qos]:
    return next((port for port in facts.qos if port.device == device), None)


def _answer(
    check: str, port: Optional[Qos], device: str, what: str, now: Any, wanted: Any, fits: bool
) -> Answer:
    if fits:
        return Answer(check)
    if now is None:
        told = "" if port is None else port.unread.get(_TOLD_BY.get(what, what), port.refusal or "")
        return unseen(check, device, told or f"the facts do not tell its {what}", _READ_AGAIN)
    where = device if port is None or not port.netdev else f"{port.netdev} ({device})"
    return Answer(check, Finding(check, "error", where, f"{what} is {now}, planned {wanted}", _RETUNE))
