"""DCBX given back to the firmware: iproute2's dcb can take it for the host and has no word for the way back."""

from __future__ import annotations

import os
import socket
import struct

from .item import Node
from .outcome import Refused

# linux/rtnetlink.h, linux/dcbnl.h.
_RTM_SETDCB, _CMD_SDCBX, _ATTR_IFNAME, _ATTR_DCBX = 79, 23, 1, 14
_NLM_F_REQUEST, _NLMSG_ERROR = 1, 2
_SECONDS = 10.0
_HEADER = struct.Struct("=IHHII")


def release(node: Node, netdev: str) -> None:
    """Tells the driver that the host owns DCBX no more: mode 0 (torvalds/linux mlx5 en_dcbnl.c, setdcbx).

    Raises Refused where it does not take it.
    """
    if node.root != "/":
        raise Refused(f"{netdev}: DCBX can be given back on the node itself only", "run it there")
    try:
        answer = _say(_request(netdev))
    except OSError as error:
        raise Refused(f"{netdev}: DCBX cannot be given back: {error.strerror}", "run as root") from None
    if answer:
        raise Refused(
            f"{netdev}: the driver does not take DCBX back ({answer})", "see the kernel's log: dmesg"
        )


def _request(netdev: str) -> bytes:
    name = netdev.encode() + b"\0"
    body = (
        struct.pack("=BBH", 0, _CMD_SDCBX, 0) + _attribute(_ATTR_IFNAME, name) + _attribute(_ATTR_DCBX, b"\0")
    )
    return _HEADER.pack(_HEADER.size + len(body), _RTM_SETDCB, _NLM_F_REQUEST, 1, 0) + body


def _attribute(kind: int, data: bytes) -> bytes:
    size = 4 + len(data)
    return struct.pack("=HH", size, kind) + data + b"\0" * (-size % 4)


def _say(request: bytes) -> str:
    """What the kernel says to it; "" when it was done."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as link:
        link.settimeout(_SECONDS)
        link.bind((0, 0))
        link.send(request)
        answer = link.recv(65536)
    kind = _HEADER.unpack_from(answer)[1]
    if kind == _NLMSG_ERROR:
        code = struct.unpack_from("=i", answer, _HEADER.size)[0]
        return os.strerror(-code) if code else ""
    # The reply carries what setdcbx returned: 0 is done, all else a refusal.
    value = answer[_HEADER.size + 4 + 4 : _HEADER.size + 4 + 5]
    return "" if value == b"\0" else f"it answers {value.hex() or 'nothing'}"
