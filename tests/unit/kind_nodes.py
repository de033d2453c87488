"""One small node for each kind of item: what stands there before, what is wished, how it drifts, and what an eye that
is not the writer's sees of each item."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.unit.state_support import DEVICE, MLX5, Systemd, file_entry, make_node, plant, plant_irqs

Entry = dict[str, Any]
SECRET = "hunter2-" + hashlib.sha256(b"a secret").hexdigest()
UNIT = "rail.service"
UNIT_FILE = f"/etc/systemd/system/{UNIT}"


@dataclass(frozen=True)
class Kind:
    """plant: lays out what was there before. entries: what is wished. drift: one thing that happens to the node.
    see: what stands on the node for each item, by its id."""

    plant: Callable[[Path], None]
    entries: tuple[Entry, ...]
    drift: Callable[[Path, random.Random, Systemd], None]
    see: Callable[[Path, Systemd], dict[str, Any]]

    def node(self, folder: Path) -> tuple[Path, Systemd]:
        node = make_node(folder)
        self.plant(node)
        return node, Systemd(node)

    @property
    def slices(self) -> dict[str, list[Entry]]:
        return {"part": list(self.entries)}


def see_file(path: Path) -> Any:
    if path.is_symlink():
        return ("link", os.readlink(path))
    if path.is_dir():
        return "folder"
    if not path.exists():
        return None
    found = path.stat()
    return (path.read_bytes(), oct(found.st_mode), found.st_uid, found.st_gid)


def _replace(place: Path, what: str, rng: random.Random, text: str) -> None:
    """Something else in the place of a file."""
    owner = place.parent
    owner.mkdir(parents=True, exist_ok=True)
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    elif os.path.lexists(place):
        place.unlink()
    if what == "edit":
        place.write_text(text)
        place.chmod(rng.choice([0o644, 0o600, 0o666]))
    elif what == "link":
        place.symlink_to(rng.choice(["old", "/etc/passwd", "nowhere"]))
    elif what == "folder":
        place.mkdir()


def _mode(place: Path, rng: random.Random) -> None:
    if place.is_file() and not place.is_symlink():
        place.chmod(rng.choice([0o600, 0o640, 0o644, 0o4755]))
        if os.geteuid() == 0:
            os.chown(place, rng.choice([0, 1000]), rng.choice([0, 1000]))


FILES = ("/etc/old", "/etc/deep/er/new", "/etc/mode", "/etc/secret")


def _plant_files(node: Path) -> None:
    plant(node, "/etc/old", "old\n")
    plant(node, "/etc/mode", "mode\n")
    plant(node, "/etc/secret", "the old secret\n", 0o600)


def _drift_file(node: Path, rng: random.Random, systemd: Systemd) -> None:
    place = node / rng.choice(FILES)[1:]
    what = rng.choice(["edit", "remove", "mode", "link", "folder", "touch"])
    if what == "mode":
        _mode(place, rng)
    elif what == "touch":
        if place.is_file() and not place.is_symlink():
            os.utime(place, ns=(1, rng.randrange(10**18)))
    else:
        _replace(place, what, rng, rng.choice(["", "old\n", "new\n", "mode\n", "somebody's\n" * 900]))


DOCUMENT = '{\n    "log-driver": "journald",\n    "log-opts": {"tag": "x"}\n}\n'
JSONS: Mapping[str, dict[str, Any]] = {
    "/etc/docker/daemon.json": {"/default-runtime": "nvidia", "/log-opts/max-size": "10m"},
    "/etc/new.json": {"/a/b": [1, 2.50], "/token": SECRET},
}


def _plant_json(node: Path) -> None:
    plant(node, "/etc/docker/daemon.json", DOCUMENT, 0o640)


def _drift_json(node: Path, rng: random.Random, systemd: Systemd) -> None:
    place = node / rng.choice(list(JSONS))[1:]
    texts = [
        "{}",
        DOCUMENT,
        '{"default-runtime": "runc", "a": {"b": [1, 2.50]}}',
        '{"default-runtime": "nvidia", "log-opts": {"max-size": "10m"}, "a": {"b": [1, 2.5]}, "more": true}',
        '{"log-opts": 7, "a": 7}',
        "nonsense",
        "[]",
    ]
    what = rng.choice(["edit", "edit", "edit", "edit", "remove", "mode", "link", "folder"])
    if what == "mode":
        _mode(place, rng)
    else:
        _replace(place, what, rng, rng.choice(texts))


def _see_json(node: Path, systemd: Systemd) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path, keys in JSONS.items():
        place = node / path[1:]
        seen = see_file(place)
        if isinstance(seen, tuple) and seen[0] != "link":
            try:
                document = json.loads(seen[0])
            except ValueError:
                document = None
            # The text of a number counts: 2.50 is what the file says.
            seen = [seen[0], [_pick(document, pointer.split("/")[1:]) for pointer in keys]]
        found[f"json_keys:{path}"] = seen
    return found


def _pick(document: Any, names: list[str]) -> str:
    for name in names:
        if not isinstance(document, dict) or name not in document:
            return "absent"
        document = document[name]
    return json.dumps(document)


def _values(prefix: str, paths: Mapping[str, str]) -> Callable[[Path, Systemd], dict[str, Any]]:
    """prefix: of the id; paths: file by the rest of the id."""

    def see(node: Path, systemd: Systemd) -> dict[str, Any]:
        found = {}
        for name, path in paths.items():
            place = node / path[1:]
            found[f"{prefix}:{name}"] = place.read_text().split() if place.is_file() else None
        return found

    return see


SYSCTLS = {
    "vm.swappiness": "/proc/sys/vm/swappiness",
    "vm.zone_reclaim_mode": "/proc/sys/vm/zone_reclaim_mode",
    "net.ipv4.tcp_rmem": "/proc/sys/net/ipv4/tcp_rmem",
}
SYSFS = {
    "/sys/kernel/mm/transparent_hugepage/defrag": "/sys/kernel/mm/transparent_hugepage/defrag",
    "/sys/devices/system/cpu/smt/control": "/sys/devices/system/cpu/smt/control",
}


def _plant_sysctls(node: Path) -> None:
    for path, text in zip(SYSCTLS.values(), ("60\n", "1\n", "4096\t131072\t6291456\n"), strict=True):
        plant(node, path, text)


def _plant_sysfs(node: Path) -> None:
    for path, text in zip(SYSFS.values(), ("madvise\n", "on\n"), strict=True):
        plant(node, path, text)


def _drift_value(
    paths: Mapping[str, str], texts: list[str]
) -> Callable[[Path, random.Random, Systemd], None]:
    def drift(node: Path, rng: random.Random, systemd: Systemd) -> None:
        place = node / rng.choice(list(paths.values()))[1:]
        what = rng.choice(["set", "set", "set", "gone"])
        place.unlink(missing_ok=True)
        if what == "set":
            place.write_text(rng.choice(texts) + "\n")

    return drift


PORT = "0000:29:00.0"
KNOBS = {
    name: f"/sys/kernel/debug/mlx5/{PORT}/cc_params/{name}"
    for name in ("np_cnp_dscp", "np_cnp_prio", "rp_ai_rate")
}
MARKS = {
    "tos": "/sys/kernel/config/rdma_cm/mlx5_9/ports/1/default_roce_tos",
    "traffic_class": "/sys/class/infiniband/mlx5_9/tc/1/traffic_class",
}


def _plant_port(paths: Mapping[str, str]) -> Callable[[Path], None]:
    def lay_out(node: Path) -> None:
        plant(node, f"/sys/bus/pci/devices/{PORT}/net/rail9/dev_port", "0\n")
        plant(node, f"/sys/bus/pci/devices/{PORT}/infiniband/mlx5_9/node_guid", "x\n")
        for path in paths.values():
            plant(node, path, "4\n")

    return lay_out


def _drift_port(paths: Mapping[str, str], texts: list[str]) -> Callable[[Path, random.Random, Systemd], None]:
    """A driver shows its files all its life."""

    def drift(node: Path, rng: random.Random, systemd: Systemd) -> None:
        (node / rng.choice(list(paths.values()))[1:]).write_text(rng.choice(texts) + "\n")

    return drift


def _see_port(prefix: str, paths: Mapping[str, str]) -> Callable[[Path, Systemd], dict[str, Any]]:
    def see(node: Path, systemd: Systemd) -> dict[str, Any]:
        texts = {path: node / path[1:] for path in paths.values()}
        return {
            f"{prefix}:{PORT}": {
                path: place.read_text() if place.is_file() else None for path, place in texts.items()
            }
        }

    return see


def _plant_irqs(node: Path) -> None:
    plant_irqs(node, MLX5)
    for irq in (20, 21):
        plant(node, f"/sys/bus/pci/devices/0000:3b:00.0/msi_irqs/{irq}", "msix\n")
        plant(node, f"/proc/irq/{irq}/smp_affinity_list", "0-9\n")
    table = node / "proc/interrupts"
    counts = "".join(f"{0:>11}" for _ in range(10))
    rows = [
        f"  {irq}:{counts}  IR-PCI-MSIX-0000:3b:00.0 {irq}-edge      ice-eth0-TxRx-{irq}\n"
        for irq in (20, 21)
    ]
    lines = table.read_text().splitlines(keepends=True)
    table.write_text("".join([*lines[:-3], *rows, *lines[-3:]]))


IRQS = {DEVICE: (9, 10, 11, 12, 13, 100), "0000:3b:00.0": (20, 21)}


def _drift_irq(node: Path, rng: random.Random, systemd: Systemd) -> None:
    irq = rng.choice([irq for irqs in IRQS.values() for irq in irqs])
    place = node / f"proc/irq/{irq}/smp_affinity_list"
    if rng.random() < 0.2 and place.exists():
        shutil.rmtree(place.parent)
    elif place.exists():
        place.write_text(rng.choice(["0-9", "4", "6", "2", "8", "1", "4-5"]) + "\n")


def _see_irqs(node: Path, systemd: Systemd) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for device, irqs in IRQS.items():
        places = {irq: node / f"proc/irq/{irq}/smp_affinity_list" for irq in irqs}
        found[f"irq_affinity:{device}"] = {
            irq: place.read_text().strip() for irq, place in places.items() if place.exists()
        }
    return found


REGISTER = f"/sys/bus/pci/devices/{DEVICE}/config"


def _plant_register(node: Path) -> None:
    """Config space with its one capability, Express, at 0x60 and Device Control 0x2910 eight bytes on."""
    data = bytearray(256)
    data[0x06], data[0x34], data[0x60] = 0x10, 0x60, 0x10
    data[0x68:0x6A] = bytes([0x10, 0x29])
    plant(node, REGISTER, bytes(data))
    plant(node, REGISTER.replace("/config", "/class"), "0x020000\n")


def _drift_register(node: Path, rng: random.Random, systemd: Systemd) -> None:
    place = node / REGISTER[1:]
    if not place.exists():
        _plant_register(node)
    elif rng.random() < 0.1:
        place.unlink()
    else:
        data = bytearray(place.read_bytes())
        data[0x68], data[0x69] = rng.choice([0x10, 0x00]), rng.choice([0x29, 0x59, 0x59, 0x09])
        place.write_bytes(data)


def _see_register(node: Path, systemd: Systemd) -> dict[str, Any]:
    place = node / REGISTER[1:]
    found = place.read_bytes()[0x69] & 0x70 if place.exists() else None
    return {f"pci_register:{DEVICE}:CAP_EXP+8.w:7000": found}


UNIT_TEXT = "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n"


def _plant_units(node: Path) -> None:
    plant(node, "/etc/rail.conf", "old\n")
    plant(node, "/etc/systemd/system/other.service", UNIT_TEXT)


def _drift_unit(node: Path, rng: random.Random, systemd: Systemd) -> None:
    what = rng.choice(
        ["edit unit", "remove unit", "edit", "touch", "stop", "disable", "start other", "enable other"]
    )
    if what == "edit unit":
        (node / UNIT_FILE[1:]).write_text("[Service]\n[Install]\n")
    elif what == "remove unit":
        (node / UNIT_FILE[1:]).unlink(missing_ok=True)
    elif what == "edit":
        (node / "etc/rail.conf").write_text("somebody's\n")
    elif what == "touch":
        plant(node, "/etc/rail.conf", "new\n")
        os.utime(node / "etc/rail.conf")
    elif what == "stop":
        systemd.since.pop(UNIT, None)
    elif what == "disable":
        systemd.enabled.pop(UNIT, None)
    elif what == "start other":
        systemd.run_since("other.service", 10**18)
    elif what == "enable other":
        systemd.enabled["other.service"] = "enabled"


def _see_units(node: Path, systemd: Systemd) -> dict[str, Any]:
    found: dict[str, Any] = {
        f"file:{path}": see_file(node / path[1:]) for path in (UNIT_FILE, "/etc/rail.conf")
    }
    for unit in (UNIT, "other.service"):
        # Whether systemd knows a unit at all is its own matter: it forgets one that nobody asks for.
        stale = unit in systemd.loaded and systemd.loaded[unit] != systemd._stamp(unit)
        found[f"systemd_unit:{unit}"] = (systemd.enabled.get(unit), systemd.since.get(unit), stale)
    return found


KINDS: Mapping[str, Kind] = {
    "file": Kind(
        _plant_files,
        (
            file_entry("/etc/old", "new\n", mode="0600", reboot=True),
            file_entry("/etc/deep/er/new", "new\n"),
            file_entry("/etc/mode", "mode\n", mode="0640"),
            file_entry("/etc/secret", f"token={SECRET}\n", mode="0600", secret=True),
        ),
        _drift_file,
        lambda node, systemd: {f"file:{path}": see_file(node / path[1:]) for path in FILES},
    ),
    "json_keys": Kind(
        _plant_json,
        (
            {
                "kind": "json_keys",
                "path": "/etc/docker/daemon.json",
                "keys": JSONS["/etc/docker/daemon.json"],
            },
            {"kind": "json_keys", "path": "/etc/new.json", "keys": JSONS["/etc/new.json"], "secret": True},
        ),
        _drift_json,
        _see_json,
    ),
    "sysctl": Kind(
        _plant_sysctls,
        (
            {"kind": "sysctl", "name": "vm.swappiness", "value": "10"},
            {"kind": "sysctl", "name": "vm.zone_reclaim_mode", "value": "0"},
            {"kind": "sysctl", "name": "net.ipv4.tcp_rmem", "value": "4096 87380 16777216"},
        ),
        _drift_value(SYSCTLS, ["10", "0", "7", "4096\t87380\t16777216", "4096 87380 16777216"]),
        _values("sysctl", SYSCTLS),
    ),
    "sysfs": Kind(
        _plant_sysfs,
        tuple(
            {"kind": "sysfs", "path": path, "value": value}
            for path, value in zip(SYSFS, ("never", "off"), strict=True)
        ),
        _drift_value(SYSFS, ["never", "off", "always [never] defer", "[always] never", "7"]),
        _values("sysfs", SYSFS),
    ),
    "pci_register": Kind(
        _plant_register,
        (
            {
                "kind": "pci_register",
                "device": DEVICE,
                "capability": "CAP_EXP",
                "offset": 8,
                "width": 2,
                "mask": "7000",
                "value": "5000",
            },
        ),
        _drift_register,
        _see_register,
    ),
    "congestion": Kind(
        _plant_port(KNOBS),
        (
            {
                "kind": "congestion",
                "device": PORT,
                "values": {"np_cnp_dscp": 48, "np_cnp_prio": 6, "rp_ai_rate": 4},
            },
        ),
        _drift_port(KNOBS, ["48", "6", "4", "0"]),
        _see_port("congestion", KNOBS),
    ),
    "rdma_marking": Kind(
        _plant_port(MARKS),
        ({"kind": "rdma_marking", "device": PORT, "tos": 106, "traffic_class": 106},),
        _drift_port(MARKS, ["106", "4", "0"]),
        _see_port("rdma_marking", MARKS),
    ),
    "irq_affinity": Kind(
        _plant_irqs,
        (
            {"kind": "irq_affinity", "device": DEVICE, "cpus": "4,6,8", "control_cpus": "2"},
            {"kind": "irq_affinity", "device": "0000:3b:00.0", "cpus": "1"},
        ),
        _drift_irq,
        _see_irqs,
    ),
    "systemd_unit": Kind(
        _plant_units,
        (
            file_entry(UNIT_FILE, UNIT_TEXT),
            file_entry("/etc/rail.conf", "new\n"),
            {
                "kind": "systemd_unit",
                "name": UNIT,
                "enabled": True,
                "state": "started",
                "restart_if_older_than": ["/etc/rail.conf", UNIT_FILE],
            },
            {"kind": "systemd_unit", "name": "other.service", "enabled": False, "state": "stopped"},
        ),
        _drift_unit,
        _see_units,
    ),
}


def every_kind() -> Kind:
    """A node with all of them, in one slice."""
    kinds = tuple(KINDS.values())

    def see(node: Path, systemd: Systemd) -> dict[str, Any]:
        return {key: value for kind in kinds for key, value in kind.see(node, systemd).items()}

    def lay_out(node: Path) -> None:
        for kind in kinds:
            kind.plant(node)

    return Kind(
        lay_out,
        tuple(entry for kind in kinds for entry in kind.entries),
        lambda node, rng, systemd: rng.choice(kinds).drift(node, rng, systemd),
        see,
    )


def elder(kind: Kind) -> dict[str, list[Entry]]:
    """What an elder plan wished for the same node: other values, and a file and a value more."""
    entries = [dict(entry) for entry in kind.entries]
    for entry in entries:
        if entry["kind"] == "file" and entry["path"] != UNIT_FILE:
            entry["content"] = f"elder {entry['content']}"
        elif entry["kind"] == "json_keys":
            entry["keys"] = {**dict.fromkeys(list(entry["keys"])[:1], "elder"), "/elder": [1]}
        elif entry["kind"] in ("sysctl", "sysfs"):
            entry["value"] = "1"
        elif entry["kind"] == "irq_affinity":
            entry["cpus"] = "5"
        elif entry["kind"] == "congestion":
            entry["values"] = {"np_cnp_dscp": 46}
        elif entry["kind"] == "rdma_marking":
            entry["tos"] = 104
        elif entry["kind"] == "dcb":
            entry["cable"], entry["pfc"] = 20, []
        elif entry["kind"] == "pause":
            entry.pop("tx")
        elif entry["kind"] == "queue_cpus" and entry["cpus"]:
            entry["cpus"] = "7"
    return {"part": [*entries, file_entry("/etc/elder/file", "elder\n")]}
