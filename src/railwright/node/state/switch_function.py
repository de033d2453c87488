"""Functions through which NVSwitches are managed: they look like InfiniBand NICs, and none is ever written."""

from __future__ import annotations

import os
import re

from .item import Node
from .outcome import Refused

_INFINIBAND = "0x0207"
_SWITCH_MANAGEMENT = b"SW_MNG"
_VPD_BYTES = 32 * 1024
_FUNCTION = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)


def must_be_no_switch(node: Node, device: str) -> None:
    """Raises Refused for a function through which NVSwitches are managed: its vital product data says what it is (DGX
    B200: SW_MNG)."""
    folder = node.at(f"/sys/bus/pci/devices/{device}")
    try:
        with open(f"{folder}/class", encoding="ascii", errors="replace") as file:
            if not file.read().startswith(_INFINIBAND):
                return
        with open(f"{folder}/vpd", "rb") as data:
            told = data.read(_VPD_BYTES)
    except OSError:  # a function without vital product data
        return
    if _SWITCH_MANAGEMENT in told:
        raise Refused(f"{device} manages NVSwitches: nothing of it is ever written", "leave it out")


def must_be_of_no_switch(node: Node, path: str) -> None:
    """Raises Refused for a file of the kernel's that is such a function's, by whichever of its names."""
    names = path.split("/")
    places = [path]
    if names[1:3] == ["sys", "class"] and len(names) > 4:
        places.append("/".join([*names[:5], "device"]))
    found = {
        name
        for place in places
        for way in (place, os.path.realpath(node.at(place)))
        for name in way.split("/")
        if _FUNCTION.fullmatch(name)
    }
    for device in sorted(found):
        must_be_no_switch(node, device)
