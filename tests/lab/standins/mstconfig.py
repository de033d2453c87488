#!/usr/bin/python3
"""A stand-in for mstconfig: a card's lasting settings. What is set takes effect at the next boot."""

import json
import os
import re
import sys
from typing import Any

STATE = "/var/lib/mstconfig"
DEFAULTS = {
    "ADVANCED_PCI_SETTINGS": "False(0)", "ATS_ENABLED": "False(0)", "CNP_DSCP_P1": "48", "LINK_TYPE_P1": "ETH(2)",
    "MAX_ACC_OUT_READ": "0", "NUM_OF_VFS": "8", "PCI_WR_ORDERING": "per_mkey(0)", "ROCE_CC_PRIO_MASK_P1": "255",
    "SRIOV_EN": "False(0)",
}  # fmt: skip
# Shown and taken only once the switch for them is in force.
HIDDEN = ("MAX_ACC_OUT_READ", "PCI_WR_ORDERING")
WORDS = {
    "False(0)": ("False(0)", "True(1)"),
    "ETH(2)": ("", "IB(1)", "ETH(2)"),
    "per_mkey(0)": ("per_mkey(0)", "force_relax(1)"),
}


def boot() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def load(device: str) -> dict[str, Any]:
    """Current and next values; those that were set before this boot are current now."""
    try:
        with open(f"{STATE}/{device}.json", encoding="utf-8") as file:
            kept: dict[str, Any] = json.load(file)
    except OSError:
        kept = {"boot": boot(), "current": {}, "next": {}}
    if kept["boot"] != boot():
        kept.update(boot=boot(), current=dict(kept["next"]))
    return kept


def shown(kept: dict[str, Any]) -> list[str]:
    """What the card shows."""
    advanced = kept["current"].get("ADVANCED_PCI_SETTINGS") == "True(1)"
    return [name for name in sorted(DEFAULTS) if advanced or name not in HIDDEN]


def worded(name: str, value: str) -> str:
    words = WORDS.get(DEFAULTS[name])
    if words is None:
        if not re.fullmatch(r"\d+", value):
            raise ValueError(f"-E- Failed to parse {name}={value}: a number is expected")
        return value
    for word in words:
        number = re.search(r"\((\d+)\)", word)
        if number and value.lower() in (number[1], word.split("(")[0].lower()):
            return word
    raise ValueError(f"-E- Unknown value {value} of {name}")


def query(address: str, kept: dict[str, Any], names: list[str]) -> None:
    print(f"\nDevice #1:\n----------\n\nDevice type:    ConnectX7\nDevice:         {address}\n")
    print(f"Configurations:{'':<41}Default         Current         Next Boot")
    for name in names or shown(kept):
        values = [DEFAULTS[name], *(kept[when].get(name, DEFAULTS[name]) for when in ("current", "next"))]
        mark = "*" if values[1] != values[2] else " "
        print(f"{mark}       {name:<40}        {values[0]:<16}{values[1]:<16}{values[2]:<16}")
    if kept["current"] != kept["next"]:
        print("The '*' shows parameters with next value different from default/current value.")


def main(argv: list[str]) -> int:
    if len(argv) < 3 or argv[0] != "-d":
        print("usage: mstconfig -d DEVICE [-e] [-y] query [NAME...] | set NAME=VALUE... | reset")
        return 1
    device, rest = argv[1], [arg for arg in argv[2:] if arg not in ("-e", "-y", "--yes")]
    address = device if re.match(r"^[0-9a-f]{4}:", device) else f"0000:{device}"
    place = f"/sys/bus/pci/devices/{address}"
    try:
        with open(f"{place}/vendor", encoding="ascii") as file:
            ours = file.read().strip() == "0x15b3"
    except OSError:
        ours = False
    if not ours:
        print(f"-E- Failed to open the device {device}: no such device")
        return 3
    kept = load(address)
    verb, names = (rest[0], rest[1:]) if rest else ("query", [])
    unknown = [name.partition("=")[0] for name in names if name.partition("=")[0] not in shown(kept)]
    if unknown:
        print(f"-E- The Device doesn't support {unknown[0]} parameter")
        return 3
    if verb in ("q", "query"):
        query(address, kept, names)
        return 0
    if verb not in ("set", "reset"):
        print(f"-E- Unknown command: {verb}")
        return 1
    if "-y" not in argv and "--yes" not in argv:
        print("Apply new Configuration? (y/n) [n] : -I- Aborted by user.")
        return 1
    try:
        pairs = [name.partition("=")[::2] for name in names if verb == "set"]
        wished = {name: worded(name, value) for name, value in pairs}
    except ValueError as error:
        print(error)
        return 3
    kept["next"] = {} if verb == "reset" else {**kept["next"], **wished}
    os.makedirs(STATE, exist_ok=True)
    with open(f"{STATE}/{address}.json", "w", encoding="utf-8") as file:
        json.dump(kept, file)
    print("Applying... Done!\n-I- Please reboot machine to load new configurations.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
