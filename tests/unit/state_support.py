"""Small nodes for tests of the writer: a folder with files, a stand-in for systemd, and a tree's fingerprint."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from railwright.node.state import Outcome

LONG_AGO = 1_000_000_000_123_456_789
DEVICE = "0000:18:00.0"


def make_node(folder: Path) -> Path:
    """A node with nothing but the folders that every Linux has, dated long ago."""
    for name in ("etc", "run", "var/lib", "proc/sys", "sys"):
        (folder / name).mkdir(parents=True)
    return folder


def plant(root: Path, path: str, content: str | bytes, mode: int = 0o644) -> Path:
    """A file that was there before, dated long ago."""
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content.encode() if isinstance(content, str) else content)
    place.chmod(mode)
    os.utime(place, ns=(LONG_AGO, LONG_AGO))
    return place


def fingerprint(root: Path) -> dict[str, tuple[Any, ...]]:
    """Everything that `revert` promises: names, kinds, modes, owners, content, attributes and the times of files."""
    found: dict[str, tuple[Any, ...]] = {}
    for folder, names, others in os.walk(root):
        for name in (*names, *others):
            path = Path(folder, name)
            info = path.lstat()
            entry: tuple[Any, ...] = (stat.filemode(info.st_mode), info.st_uid, info.st_gid)
            if path.is_symlink():
                entry += (os.readlink(path),)
            elif stat.S_ISREG(info.st_mode):
                attributes = {key: os.getxattr(path, key) for key in os.listxattr(path)}
                entry += (
                    hashlib.sha256(path.read_bytes()).hexdigest(),
                    info.st_mtime_ns,
                    sorted(attributes.items()),
                )
            found[str(path.relative_to(root))] = entry
    return found


def stamps(root: Path) -> dict[str, tuple[int, int, int]]:
    """Inode and times of everything: what may not move when nothing is to be done."""
    return {
        str(path): (path.lstat().st_ino, path.lstat().st_mtime_ns, path.lstat().st_ctime_ns)
        for path in (root, *root.rglob("*"))
    }


def items(outcome: Outcome, name: str) -> dict[str, dict[str, Any]]:
    """The items of a slice by their id."""
    return {item["id"]: item for item in outcome.to_json()["slices"][name]["items"]}


def item(outcome: Outcome) -> dict[str, Any]:
    """The one item of an outcome."""
    (only,) = [item for part in outcome.to_json()["slices"].values() for item in part["items"]]
    return dict(only)


def file_entry(path: str, content: str, **more: Any) -> dict[str, Any]:
    return {
        "kind": "file",
        "path": path,
        "content": content,
        "owner": str(os.getuid()),
        "group": str(os.getgid()),
        **more,
    }


def plant_irqs(node: Path, names: dict[int, str | None], cpus: int = 10, device: str = DEVICE) -> None:
    """A PCI function with these MSI vectors, as Linux 6.8 on x86 shows them."""
    rows = ["".join(f"{f'CPU{n}':>11}" for n in range(cpus))]
    for irq, name in names.items():
        plant(node, f"/sys/bus/pci/devices/{device}/msi_irqs/{irq}", "msix\n")
        plant(node, f"/proc/irq/{irq}/smp_affinity_list", "0-9\n")
        counts = "".join(f"{irq * n:>11}" for n in range(cpus))
        rows.append(
            f"{irq:>4}:{counts}  IR-PCI-MSIX-{device} {irq}-edge     {' ' + name if name else ''}".rstrip()
        )
    rows += [
        "",
        "NMI:" + "".join(f"{5:>11}" for _ in range(cpus)) + "   Non-maskable interrupts",
        "ERR:          0",
    ]
    plant(node, "/proc/interrupts", "\n".join(rows) + "\n")


MLX5: dict[int, str | None] = {
    9: f"mlx5_async0@pci:{DEVICE}",
    10: f"mlx5_comp0@pci:{DEVICE}",
    100: f"mlx5_comp3@pci:{DEVICE}",
    11: f"mlx5_comp1@pci:{DEVICE}",
    12: f"mlx5_comp2@pci:{DEVICE}",
    13: None,
}


class Systemd:
    """A systemd with the unit files of a folder: what it loaded, what is enabled, what runs since when.

    It answers as systemd 252 does (seen with `systemctl show --timestamp=us+utc`).
    """

    def __init__(self, root: Path, *, booted: bool = True) -> None:
        self.root = root
        self.units = root / "etc/systemd/system"
        if booted:
            (root / "run/systemd/system").mkdir(parents=True)
        self.loaded: dict[str, int] = {}
        self.enabled: dict[str, str] = {}
        self.since: dict[str, datetime] = {}
        self.properties: dict[str, dict[str, str]] = {}
        self.fails: dict[str, str] = {}
        self.calls: list[str] = []

    def __call__(self, arguments: list[str]) -> tuple[int, str, str]:
        verb, *rest = arguments
        if verb not in ("show", "is-enabled"):
            self.calls.append(" ".join(arguments))
        if verb in self.fails:
            return 1, "", self.fails[verb]
        name = rest[-1] if rest else ""
        return {
            "daemon-reload": self._reload,
            "disable": self._disable,
            "enable": self._enable,
            "is-enabled": self._is_enabled,
            "reset-failed": self._nothing,
            "restart": self._start,
            "show": self._show,
            "start": self._start,
            "stop": self._stop,
        }[verb](name)

    def run_since(self, name: str, nanoseconds: int) -> None:
        self._load(name)
        self.since[name] = datetime.fromtimestamp(nanoseconds / 1e9, UTC)

    def _stamp(self, name: str) -> int | None:
        path = self.units / name
        return path.stat().st_mtime_ns if path.exists() else None

    def _load(self, name: str) -> None:
        stamp = self._stamp(name)
        if stamp is not None:
            self.loaded.setdefault(name, stamp)

    def _reload(self, name: str) -> tuple[int, str, str]:
        self.loaded.clear()
        return 0, "", ""

    def _nothing(self, name: str) -> tuple[int, str, str]:
        return 0, "", ""

    def _is_enabled(self, name: str) -> tuple[int, str, str]:
        if name in self.enabled:
            return (0 if self.enabled[name] == "enabled" else 1), self.enabled[name] + "\n", ""
        if self._stamp(name) is None:
            return 1, "", f"Failed to get unit file state for {name}: No such file or directory\n"
        return 1, "disabled\n", ""

    def _enable(self, name: str) -> tuple[int, str, str]:
        if "[Install]" in (self.units / name).read_text():
            self.enabled[name] = "enabled"
        return 0, "", ""

    def _disable(self, name: str) -> tuple[int, str, str]:
        self.enabled.pop(name, None)
        return 0, "", ""

    def _start(self, name: str) -> tuple[int, str, str]:
        self._load(name)
        self.since[name] = datetime.now(UTC)
        return 0, "", ""

    def _stop(self, name: str) -> tuple[int, str, str]:
        self.since.pop(name, None)
        return 0, "", ""

    def _show(self, name: str) -> tuple[int, str, str]:
        self._load(name)
        loaded = name in self.loaded
        since = self.since.get(name)
        properties: Mapping[str, str] = {
            "Type": "oneshot" if loaded else "",
            "RemainAfterExit": "yes" if loaded else "no",
            "LoadState": "loaded" if loaded else "not-found",
            "ActiveState": "inactive" if since is None else "active",
            "SubState": "dead" if since is None else "exited",
            "ActiveEnterTimestamp": "" if since is None else since.strftime("%a %Y-%m-%d %H:%M:%S.%f UTC"),
            "NeedDaemonReload": "yes" if loaded and self.loaded[name] != self._stamp(name) else "no",
            **self.properties.get(name, {}),
        }
        return 0, "".join(f"{key}={value}\n" for key, value in properties.items()), ""


def register(device: str, capability: str, offset: int, mask: str, value: str) -> dict[str, Any]:
    """An entry that sets these bits of a 16-bit register of PCI configuration space."""
    return {
        "kind": "pci_register",
        "device": device,
        "capability": capability,
        "offset": offset,
        "width": 2,
        "mask": mask,
        "value": value,
    }
