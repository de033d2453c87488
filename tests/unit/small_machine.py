"""Small file trees for tests of the reader: one page of text each, nothing that the test does not talk about."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

# Two CPUs that share a core, one NUMA node: the least that is a machine.
LEAST: Mapping[str, str | bytes] = {
    "sys/devices/system/cpu/online": "0-1\n",
    "sys/devices/system/cpu/cpu0/topology/core_cpus_list": "0-1\n",
    "sys/devices/system/cpu/cpu0/topology/physical_package_id": "0\n",
    "sys/devices/system/cpu/cpu1/topology/core_cpus_list": "0-1\n",
    "sys/devices/system/cpu/cpu1/topology/physical_package_id": "0\n",
    "sys/devices/system/node/node0/cpulist": "0-1\n",
    "sys/devices/system/node/node0/distance": "10\n",
    "proc/cpuinfo": "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n"
    "model name\t: Intel(R) Xeon(R) Platinum 8480C\nflags\t\t: fpu lm\n",
}


def plant(
    root: Path, files: Mapping[str, str | bytes | None], links: Mapping[str, str] | None = None
) -> Path:
    """LEAST with `files` over it (None takes one out) and `links` (path to target) beside them."""
    for path, content in {**LEAST, **files}.items():
        if content is not None:
            place = root / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content.encode() if isinstance(content, str) else content)
    for path, target in (links or {}).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        os.symlink(target, root / path)
    return root


def function(
    place: str, kind: str, vendor: str = "0x15b3", device: str = "0x1021", **attributes: str
) -> tuple[dict[str, str], dict[str, str]]:
    """Files and links of one PCI function. place: "pci0000:00/0000:00:01.0/0000:01:00.0"; kind: its class."""
    folder = f"sys/devices/{place}"
    files = {f"{folder}/class": kind, f"{folder}/vendor": vendor, f"{folder}/device": device}
    files.update({f"{folder}/{name}": text for name, text in attributes.items()})
    return files, {f"sys/bus/pci/devices/{place.rpartition('/')[2]}": f"../../../devices/{place}"}


def functions(*each: tuple[dict[str, str], dict[str, str]]) -> tuple[dict[str, str], dict[str, str]]:
    """Several functions as one."""
    files: dict[str, str] = {}
    links: dict[str, str] = {}
    for more, beside in each:
        files.update(more)
        links.update(beside)
    return files, links


def gpu_node(root: Path, **policy: object) -> Path:
    """A node of a hundred files that can be planned, with its policy: two GPUs, each with a rail beside it.

    CPUs 0-15, eight cores, one node. Rail 0 is mlx5_0 at 0000:16:00.0, beside the GPU at 0000:17:00.0; rail 1 is mlx5_1
    at 0000:26:00.0. Each rail has one control vector (10, 20) and two completion vectors.
    """
    files: dict[str, str] = {}
    links: dict[str, str] = {}
    table = ["           CPU0       CPU1"]
    for rail, bus in enumerate(("1", "2")):
        port = f"pci0000:{bus}5/0000:{bus}5:01.0"
        nic, gpu = f"{port}/0000:{bus}6:00.0", f"{port}/0000:{bus}7:00.0"
        wide = {
            "max_link_speed": "32.0 GT/s PCIe",
            "max_link_width": "16",
            "numa_node": "0",
            "local_cpulist": "0-15",
        }
        for more, beside in (
            function(port, "0x060400", "0x1000", "0xc030", **wide),
            function(nic, "0x020700", "0x15b3", "0x1021", **wide),
            function(gpu, "0x030200", "0x10de", "0x2330", **wide),
        ):
            files |= more
            links |= beside
        device = f"sys/devices/{nic}/infiniband/mlx5_{rail}"
        files |= {
            f"{device}/node_guid": f"b83f:d203:0000:001{rail}",
            f"{device}/sys_image_guid": f"b83f:d203:0000:001{rail}",
            f"{device}/ports/1/state": "4: ACTIVE",
            f"{device}/ports/1/rate": "400 Gb/sec (4X NDR)",
            f"{device}/ports/1/link_layer": "InfiniBand",
            f"sys/devices/{nic}/vpd": "ConnectX-7",
        }
        links[f"sys/class/infiniband/mlx5_{rail}"] = f"../../devices/{nic}/infiniband/mlx5_{rail}"
        for number, name in enumerate(("async0", "comp0", "comp1"), start=10 * (rail + 1)):
            files[f"sys/devices/{nic}/msi_irqs/{number}"] = "msix"
            files[f"proc/irq/{number}/smp_affinity_list"] = "0-15\n"
            files[f"proc/irq/{number}/effective_affinity_list"] = "0\n"
            table.append(f" {number}:   1   0  PCI-MSI {number}-edge      mlx5_{name}@pci:0000:{bus}6:00.0")
    for cpu in range(16):
        files[f"sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list"] = f"{cpu % 8},{cpu % 8 + 8}"
        files[f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"] = "0"
    files |= {
        "sys/devices/system/cpu/online": "0-15",
        "sys/devices/system/node/node0/cpulist": "0-15",
        "proc/interrupts": "\n".join(table) + "\n",
        "proc/sys/kernel/numa_balancing": "1\n",
        "etc/hostname": "gpu-a\n",
        "etc/railwright/policy.json": json.dumps({"schema": "railwright.policy/1", **policy}),
        "run/.keep": "",
    }
    return plant(root, files, links)
