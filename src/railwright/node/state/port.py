"""One network port as an item meets it: its names, its link, and whether somebody is at work on it.

Entries name a port by its PCI function, since a netdev may be renamed between two runs.
"""

from __future__ import annotations

import json
import os
import re
import time
from typing import Optional

from ..model import normalise_address
from .command import Said
from .fields import Fields
from .item import Node
from .kernel_items import read_value
from .outcome import Refused
from .program import tools_of
from .switch_function import must_be_no_switch

# A representor stands beside the port that it belongs to (Documentation/networking/devlink/devlink-port.rst).
_REPRESENTOR = re.compile(r"(?:c\d+)?pf\d+(?:vf|sf)\d+", re.ASCII)
# A link that was toggled trains within seconds; one with a long optic or a stubborn peer takes longer.
LINK_SECONDS = 60.0
# The kernel hears of a link's end from the card, which is after the write that ended it.
HEARD_SECONDS = 2.0
_BETWEEN = 0.1
_PORTS = re.compile(r"[A-Za-z0-9_.:@-]{1,64}", re.ASCII)


def device_of(fields: Fields) -> str:
    """The `device` of an entry: a PCI address. Raises InputError."""
    return normalise_address(fields.text("device"), f"{fields.where}.device")


def folder(node: Node, device: str) -> str:
    return node.at(f"/sys/bus/pci/devices/{device}")


def missing(device: str) -> Refused:
    """Why a function that is not there cannot be set."""
    return Refused(f"the node has no PCI function {device}", "see what has become of the card: lspci -D")


def netdev_of(node: Node, device: str) -> Optional[str]:
    """The netdev of a function; None where its driver shows none. Raises Refused where it cannot be told, and for an
    NVSwitch's management function."""
    must_be_no_switch(node, device)
    own = [name for name in _names(f"{folder(node, device)}/net") if not _is_representor(node, device, name)]
    if len(own) > 1:
        raise Refused(f"{device} has several netdevs: {', '.join(own)}", "leave this port to its owner")
    return own[0] if own else None


def must_have_netdev(node: Node, device: str) -> str:
    """The netdev of a function. Raises Refused."""
    if not os.path.isdir(folder(node, device)):
        raise missing(device)
    netdev = netdev_of(node, device)
    if netdev is None:
        raise Refused(f"{device} has no netdev: its driver is not bound", "see the kernel's log: dmesg")
    return netdev


def rdma_of(node: Node, device: str) -> Optional[str]:
    """The RDMA device of a function, None where there is none. Raises Refused where there are several, and for an
    NVSwitch's management function."""
    must_be_no_switch(node, device)
    names = _names(f"{folder(node, device)}/infiniband")
    if len(names) > 1:
        raise Refused(
            f"{device} has several RDMA devices: {', '.join(names)}", "leave this port to its owner"
        )
    return names[0] if names else None


def has_carrier(node: Node, netdev: str) -> bool:
    """Whether the link is up; an interface that is closed has none."""
    try:
        return read_value(node.at(f"/sys/class/net/{netdev}/carrier")) == "1"
    except OSError:  # EINVAL while the interface is closed
        return False


def losses(node: Node, netdev: str) -> Optional[int]:
    """How often the link has gone down; None where this kernel does not count (before 4.16)."""
    text = read_value(node.at(f"/sys/class/net/{netdev}/carrier_down_count")) or ""
    return int(text) if text.isdecimal() else None


def await_carrier(node: Node, netdev: str, seconds: float, before: Optional[int] = None) -> bool:
    """Waits until the link is up; False when it is not after so many seconds.

    before: its `losses` before a write that may take it away. A link that has not gone since is looked at for
    HEARD_SECONDS more, since the loss may not have been heard of.
    """
    start = time.monotonic()
    while not has_carrier(node, netdev) or (
        losses(node, netdev) == before is not None and time.monotonic() - start < min(HEARD_SECONDS, seconds)
    ):
        if time.monotonic() - start >= seconds:
            return False
        time.sleep(_BETWEEN)
    return True


def must_be_free(node: Node, device: str, what: str) -> None:
    """Raises Refused while a program or the kernel has a connection over this port, or where that cannot be told.

    what: the act that would take the link away, as in "a change of PFC".
    """
    rdma = rdma_of(node, device)
    if rdma is None:
        return
    users = _users(ask(node, "rdma", "-j", "resource", "show", "qp"), rdma)
    if users:
        raise Refused(
            f"{what} takes the link of {rdma} away for a moment, and it is in use by {', '.join(users)}",
            "run again when the job is over",
        )


def ask(node: Node, *argv: str) -> Said:
    """What a program of the node says. Raises Refused where the node has none to be asked."""
    return tools_of(node)(argv)


def _users(said: Said, rdma: str) -> list[str]:
    """Who holds connections over an RDMA device, from `rdma -j resource show qp`."""
    if not said.ok:
        why = "iproute2's rdma is not installed" if said.code is None else said.word
        raise Refused(f"whether {rdma} is in use cannot be told: {why}", "install iproute2 with its rdma")
    try:
        rows = json.loads(said.out or "[]")
        if not isinstance(rows, list):
            raise TypeError(type(rows).__name__)
        held = [row for row in rows if row["ifname"] == rdma and _is_connection(row)]
        return sorted({_owner(row) for row in held})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise Refused(
            f"whether {rdma} is in use cannot be told: rdma says {said.out[:60]!r}",
            "expected the JSON of `rdma -j resource show qp`",
        ) from None


def _is_connection(row: dict[str, object]) -> bool:
    """Each port has queue pairs of the kernel's own for management; all else carries somebody's data."""
    return row.get("pid") is not None or row["type"] in ("RC", "UC", "XRC_INI", "XRC_TGT")


def _owner(row: dict[str, object]) -> str:
    who, pid = str(row.get("comm", "a program"))[:64], row.get("pid")
    who = "".join(mark if mark.isprintable() else "?" for mark in who)
    return who if pid is None else f"{who} (process {pid})"


def _is_representor(node: Node, device: str, name: str) -> bool:
    try:
        told = read_value(f"{folder(node, device)}/net/{name}/phys_port_name") or ""
    except OSError:  # EOPNOTSUPP: the driver names no ports
        return False
    return _REPRESENTOR.fullmatch(told) is not None


def _names(place: str) -> list[str]:
    try:
        names = sorted(os.listdir(place))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [name for name in names if _PORTS.fullmatch(name) and not name.startswith("-")]
