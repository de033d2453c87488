"""Fleets for tests: recorded machines, each node with what is its own, and faults planted one by one."""

from __future__ import annotations

import copy
import functools
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from railwright.node.discover import discover
from railwright.node.model import to_json
from tests.machinery import build
from tests.unit.plan_machines import cores, hgx, with_cores

Json = dict[str, Any]
MACHINES = Path(__file__).parents[1] / "machines"

# Five builds. "clean" and "backwards" are one chassis whose kernel numbers the NICs differently.
RECORDED = {
    "clean": "2s_8xh100_10xcx7",
    "backwards": "2s_8xh100_10xcx7_backwards",
    "snc": "2s_8xh200_8xcx7_snc2",
    "pcie": "2s_4xh100pcie_2xcx6",
}
BUILT = {"eight": 8, "four": 4}
SHAPES = ("clean", "snc", "pcie", "eight", "four")


@functools.cache
def machine(kind: str) -> Json:
    """Facts of one machine as JSON. Copy before changing."""
    if kind in BUILT:
        rails = BUILT[kind]
        built = with_cores(hgx(rails, product=f"Example Systems GX-{rails}").facts(), *cores(2, 2, 32))
        return to_json(built)  # type: ignore[no-any-return]
    with tempfile.TemporaryDirectory() as folder:
        build(MACHINES / RECORDED[kind], Path(folder) / "tree")
        facts: Json = to_json(discover(Path(folder) / "tree"))
    for device in facts["pci"]:
        # The storage card is a board of its own, with two ports.
        if device["address"].startswith("0000:4b:00."):
            device["subsystem_device"] = "0x0042"
    return facts


def node(kind: str, number: int) -> Json:
    """The facts of one node: the machine with names, addresses, GUIDs and interrupts of its own."""
    facts = copy.deepcopy(machine(kind))
    chance = random.Random(f"{kind} {number}")  # noqa: S311
    facts["host"]["name"] = f"node{number}"
    facts["host"]["boot_id"] = f"{chance.getrandbits(128):032x}"
    facts["witnesses"][0]["source"] = f"node{number}:/"
    facts["software"] = {
        **(facts.get("software") or {"system": "dpkg"}),
        "boot_free": chance.randrange(1 << 30),
        "var_free": chance.randrange(1 << 40),
        "boot_lines": [f"root=UUID={chance.getrandbits(64):x} ro quiet"],
    }
    for place, gpu in enumerate(facts["gpus"]):
        gpu["uuid"] = f"GPU-{number:08x}-{place}"
    cards: dict[str, str] = {}
    for place, nic in enumerate(facts["nics"]):
        nic["mac"] = f"02:00:{number >> 16 & 255:02x}:{number >> 8 & 255:02x}:{number & 255:02x}:{place:02x}"
        nic["guid"] = f"0200:00{number >> 16 & 255:02x}:{number & 0xFFFF:04x}:{place:04x}"
        if nic["sys_image_guid"] is not None:
            nic["sys_image_guid"] = cards.setdefault(nic["sys_image_guid"], nic["guid"])
        nic["addresses"] = [f"10.{place}.{number >> 8 & 255}.{number & 255}/31" for _ in nic["addresses"]]
        for gid in nic["gids"]:
            gid["gid"] = f"fe80::{number:x}:{place:x}:{gid['index']:x}"
    first = chance.randrange(50, 500)
    for irq in facts["irqs"]:
        irq["number"] += first
        irq["affinity"] = str(chance.randrange(32))
    return facts


# -- faults, each with the code of the one finding that it must give and a word that the finding must name --


def _device(facts: Json, address: str) -> Json:
    return next(device for device in facts["pci"] if device["address"] == address)


def _gone(facts: Json, address: str) -> None:
    for key in ("pci", "gpus", "nics"):
        facts[key] = [entry for entry in facts[key] if entry["address"] != address]
    for index, gpu in enumerate(facts["gpus"]):
        gpu["index"], gpu["name"] = index, f"GPU{index}"
    facts["irqs"] = [irq for irq in facts["irqs"] if irq["device"] != address]


def _moved(facts: Json, old: str, new: str, port: str) -> None:
    device = _device(facts, old)
    device["address"], device["parent"], device["slot"] = new, port, "99"
    for key in ("gpus", "nics"):
        for entry in facts[key]:
            if entry["address"] == old:
                entry["address"] = new
    for irq in facts["irqs"]:
        if irq["device"] == old:
            irq["device"] = new
    facts["nics"].sort(key=lambda nic: str(nic["address"]))


def _swap(facts: Json, one: str, other: str) -> None:
    first, second = _device(facts, one), _device(facts, other)
    for field in ("vendor", "device", "subsystem_vendor", "subsystem_device"):
        first[field], second[field] = second[field], first[field]


def gpu_missing(facts: Json) -> None:
    _gone(facts, "0000:a8:00.0")


def nic_missing(facts: Json) -> None:
    _gone(facts, "0000:86:00.0")


def switch_missing(facts: Json) -> None:
    _gone(facts, "0000:e5:00.0")


def other_slot(facts: Json) -> None:
    _moved(facts, "0000:58:00.0", "0000:5b:01.0", "0000:5a:00.0")


def swapped(facts: Json) -> None:
    """The storage card in a rail's slot, and the rail's in that of the storage card."""
    _swap(facts, "0000:0c:00.0", "0000:4b:00.0")


def other_device(facts: Json) -> None:
    _device(facts, "0000:bd:00.0")["device"] = "0xa2dc"


def narrow_link(facts: Json) -> None:
    _device(facts, "0000:2a:00.0")["link"]["width"] = 8


def slow_link(facts: Json) -> None:
    _device(facts, "0000:2b:00.0")["link"]["max_speed"] = 16.0
    _device(facts, "0000:2d:00.0")["link"]["max_speed"] = 16.0


def nic_firmware(facts: Json) -> None:
    next(nic for nic in facts["nics"] if nic["address"] == "0000:d5:00.0")["firmware"] = "28.36.1010"


def nic_slower(facts: Json) -> None:
    next(nic for nic in facts["nics"] if nic["address"] == "0000:a5:00.0")["rate"] = 200_000


def acs_on(facts: Json) -> None:
    _device(facts, "0000:40:00.0")["acs"]["control"] = ["SrcValid", "ReqRedir"]


def read_request(facts: Json) -> None:
    _device(facts, "0000:41:00.0")["mrrs"] = 512


def bios(facts: Json) -> None:
    facts["host"]["bios"] = "2.2.9"


def kernel(facts: Json) -> None:
    facts["host"]["kernel"] = "5.15.0-25-generic"


def nodes_per_socket(facts: Json) -> None:
    """SNC2 switched on: four NUMA nodes, and the devices of each socket spread over two of them."""
    facts["numa"] = [
        {
            "id": n,
            "cpus": f"{28 * n}-{28 * n + 27},{112 + 28 * n}-{139 + 28 * n}",
            "distances": [],
            "memory": 512 << 30,
        }
        for n in range(4)
    ]
    for key in ("pci", "gpus", "nics", "roots"):
        for entry in facts[key]:
            if entry["numa"] is not None:
                entry["numa"] = 2 * entry["numa"]
    for core in facts["cpus"]["cores"]:
        core["numa"] = core["cpus"][0] // 28


def dimm(facts: Json) -> None:
    facts["numa"][1]["memory"] -= 64 << 30


def threads_off(facts: Json) -> None:
    for core in facts["cpus"]["cores"]:
        core["cpus"] = core["cpus"][:1]
    facts["cpus"]["online"] = "0-111"
    for n, entry in enumerate(facts["numa"]):
        entry["cpus"] = f"{56 * n}-{56 * n + 55}"


def secure_boot(facts: Json) -> None:
    facts["host"]["secure_boot"] = True


FAULTS: dict[str, tuple[Callable[[Json], None], str, str]] = {
    "a GPU is missing": (gpu_missing, "fleet.gpu_missing", "slot 26"),
    "a NIC is missing": (nic_missing, "fleet.nic_missing", "slot 45"),
    "an NVSwitch is missing": (switch_missing, "fleet.switch_missing", "0000:e5:00.0"),
    "a NIC is in another slot": (other_slot, "fleet.other_slot", "slot 44"),
    "two NICs are swapped": (swapped, "fleet.swapped", "slot 41"),
    "a NIC is of another model": (other_device, "fleet.other_device", "0000:bd:00.0"),
    "a link lost lanes": (narrow_link, "fleet.link_width", "0000:2a:00.0"),
    "a link is limited": (slow_link, "fleet.link_speed", "0000:2d:00.0"),
    "a NIC has other firmware": (nic_firmware, "fleet.nic_firmware", "0000:d5:00.0"),
    "a port is slower": (nic_slower, "fleet.nic_link", "0000:a5:00.0"),
    "ACS is on": (acs_on, "fleet.acs", "0000:41:00.0"),
    "a read request is small": (read_request, "fleet.read_request", "0000:41:00.0"),
    "the BIOS is older": (bios, "fleet.bios", "node"),
    "the kernel is older": (kernel, "fleet.kernel", "node"),
    "NUMA nodes are split": (nodes_per_socket, "fleet.numa", "node"),
    "a DIMM is missing": (dimm, "fleet.memory", "node"),
    "hyperthreads are off": (threads_off, "fleet.cpus", "node"),
    "Secure Boot is on": (secure_boot, "fleet.secure_boot", "node"),
}
