#!/usr/bin/python3
"""A stand-in for mstfwreset: it tells which resets a card supports, and resets none."""

import os
import sys

LEVELS = """\
Reset-levels:
0: Driver, PCI link, network link will remain up ("live-Patch")  -Not Supported
3: Driver restart and PCI reset                                  -Supported     (default)
4: Warm Reboot                                                   -Supported
5: Cold Reboot                                                   -Supported
"""


def main(argv: list[str]) -> int:
    if len(argv) != 3 or argv[0] != "-d" or argv[2] not in ("q", "query"):
        print("-E- this stand-in answers `mstfwreset -d DEVICE q` only")
        return 1
    if not os.path.isdir(f"/sys/bus/pci/devices/{argv[1]}"):
        print(f"-E- Failed to open the device {argv[1]}")
        return 1
    print(LEVELS, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
