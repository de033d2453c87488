#!/usr/bin/python3
"""A stand-in for nvidia-smi on a lab node: what the recorded machine has, in the form in which nvidia-smi says it."""

import json
import os
import re
import sys

STATE = "/run/nvidia-smi.json"
LASTING = "/var/lib/nvidia-smi.json"
PCI = "/sys/bus/pci/devices"
NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA "
    "driver is installed and running.\n"
)
NAMES = {"0x2330": "NVIDIA H100 80GB HBM3", "0x2335": "NVIDIA H200", "0x2901": "NVIDIA B200"}
CAPABILITIES = {"0x2330": "9.0", "0x2335": "9.0", "0x2901": "10.0"}


def text(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return None


def driver() -> str | None:
    version = text("/sys/module/nvidia/version")
    if version is None:
        found = re.search(r"Module(?: for \S+)?\s+(\d[\d.]+)", text("/proc/driver/nvidia/version") or "")
        version = found[1] if found else None
    return version


def gpus() -> list[str]:
    found = []
    for name in sorted(os.listdir(PCI)):
        place = os.path.join(PCI, name)
        if text(f"{place}/vendor") == "0x10de" and (text(f"{place}/class") or "").startswith(
            ("0x0302", "0x0300")
        ):
            found.append(place)
    return found


def state(path: str) -> dict[str, str]:
    kept: dict[str, str] = json.loads(text(path) or "{}")
    return kept


def keep(path: str, values: dict[str, str]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(values, file)


def fields(index: int, place: str) -> dict[str, str]:
    """The fields of --query-gpu that this stand-in knows."""
    address = os.path.basename(place)
    device = text(f"{place}/device") or "unknown"
    bus = f"0000{address}".upper()
    ecc = state(LASTING).get("ecc", "Enabled")
    return {
        "index": str(index),
        "name": NAMES.get(device, f"NVIDIA Device {device}"),
        "gpu_name": NAMES.get(device, f"NVIDIA Device {device}"),
        "pci.bus_id": bus,
        "gpu_bus_id": bus,
        "uuid": f"GPU-00000000-0000-0000-0000-{address.replace(':', '').replace('.', ''):0>12}",
        "compute_cap": CAPABILITIES.get(device, "[N/A]"),
        "driver_version": driver() or "[N/A]",
        "count": str(len(gpus())),
        "persistence_mode": state(STATE).get("persistence", "Disabled"),
        "ecc.mode.pending": ecc,
        "pcie.link.width.current": text(f"{place}/current_link_width") or "[N/A]",
        "pcie.link.width.max": text(f"{place}/max_link_width") or "[N/A]",
        "clocks_event_reasons.active": "0x0000000000000000",
    }


def query(wanted: list[str], form: list[str]) -> int:
    rows = [fields(index, place) for index, place in enumerate(gpus())]
    for name in wanted:
        if rows and name not in rows[0]:
            print(f'Field "{name}" is not a valid field to query.\n')
            return 2
    if "noheader" not in form:
        print(", ".join(wanted))
    for row in rows:
        print(", ".join(row[name] for name in wanted))
    return 0


def chain(place: str) -> list[str]:
    return [part for part in os.path.realpath(place).split("/") if re.match(r"^(pci)?[0-9a-f]{4}:", part)]


def path(one: str, other: str) -> str:
    """PIX, PXB, PHB, NODE or SYS, as the legend of `topo -m` tells them."""
    a, b = chain(one), chain(other)
    if a[0] == b[0]:
        shared = sum(1 for x, y in zip(a, b, strict=False) if x == y)
        if shared == 1:
            return "PHB"
        # Bridges between them, less the root complex: one switch has an upstream and two downstream ports.
        return "PIX" if len(a) - shared <= 2 and len(b) - shared <= 2 else "PXB"
    return "NODE" if text(f"{one}/numa_node") == text(f"{other}/numa_node") else "SYS"


def topology() -> int:
    devices = [(f"GPU{n}", place) for n, place in enumerate(gpus())]
    rdma = sorted(
        os.listdir("/sys/class/infiniband"), key=lambda name: int(re.sub(r"\D", "", name.split("_")[-1]) or 0)
    )
    nics = [
        (f"NIC{n}", os.path.realpath(f"/sys/class/infiniband/{name}/device")) for n, name in enumerate(rdma)
    ]
    everything = devices + nics
    print("\t" + "\t".join(name for name, _ in everything) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID")
    for name, place in everything:
        cells = []
        for other, there in everything:
            if other == name:
                cells.append(" X ")
            elif name.startswith("GPU") and other.startswith("GPU"):
                cells.append("NV18")
            else:
                cells.append(path(place, there))
        row = [name, *cells]
        if name.startswith("GPU"):
            row += [text(f"{place}/local_cpulist") or "", text(f"{place}/numa_node") or "N/A", "N/A"]
        print("\t".join(row))
    print("\nLegend:\n\n  X    = Self\n  PIX  = Connection traversing at most a single PCIe bridge\n")
    print("NIC Legend:\n")
    for n, name in enumerate(rdma):
        print(f"  NIC{n}: {name}")
    return 0


def set_mode(path_: str, key: str, word: str, said: str) -> int:
    if os.geteuid() != 0:
        print("Insufficient Permissions: run this as root.")
        return 4
    keep(path_, {**state(path_), key: word})
    for place in gpus():
        print(f"{said} for GPU 0000{os.path.basename(place).upper()}.")
    print("All done.")
    return 0


def main(argv: list[str]) -> int:
    if driver() is None:
        sys.stdout.write(NO_DRIVER)
        return 9
    options = dict(arg.split("=", 1) for arg in argv if arg.startswith("--") and "=" in arg)
    if "--query-gpu" in options:
        return query(options["--query-gpu"].split(","), options.get("--format", "csv").split(","))
    if argv == ["topo", "-m"]:
        return topology()
    if argv == ["-L"]:
        for index, place in enumerate(gpus()):
            row = fields(index, place)
            print(f"GPU {index}: {row['name']} (UUID: {row['uuid']})")
        return 0
    if len(argv) == 2 and argv[0] in ("-pm", "--persistence-mode") and argv[1] in ("0", "1"):
        word = "Enabled" if argv[1] == "1" else "Disabled"
        return set_mode(STATE, "persistence", word, f"{word} persistence mode")
    if len(argv) == 2 and argv[0] in ("-e", "--ecc-config") and argv[1] in ("0", "1"):
        word = "Enabled" if argv[1] == "1" else "Disabled"
        return set_mode(LASTING, "ecc", word, f"{word} Ecc support")
    print(f"Invalid combination of input arguments. This stand-in does not know: {' '.join(argv)}")
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
