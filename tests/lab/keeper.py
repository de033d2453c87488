"""python -m tests.lab.keeper SPEC: one lab node, from its first boot to its power-off.

It is the first process of namespaces of its own, made by whoever starts it. All that a node has lies in there: its
root and its hardware on memory, its mounts, its processes. When this process ends, however it ends, the kernel takes
all of it away. SPEC is the page of `node.Spec`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from . import hardware, processes
from .errors import LabError
from .namespaces import mount, overlay
from .shell import call
from .spec import Spec

# Below /run, which is this namespace's own by then.
WORK = Path("/run/lab")
# systemd-nspawn(1): the payload asked for a reboot.
REBOOT = 133
CAPABILITIES = "CAP_NET_ADMIN,CAP_IPC_LOCK,CAP_SYS_RAWIO"
HALT_SECONDS = 15.0
# The kernel keeps these while the network namespace lives, and a reboot forgets them.
NETWORK = Path("/proc/sys/net/ipv4")


class Keeper:
    """The loop from boot to boot."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.nspawn: subprocess.Popen[bytes] | None = None
        self.halting = False

    def halt(self, *_: Any) -> None:
        """Asks the node to power off; nspawn tells its first process so on SIGTERM."""
        self.halting = True
        if self.nspawn is not None:
            self.nspawn.send_signal(signal.SIGTERM)

    def keep(self) -> int:
        """Boots until the node powers off. Returns nspawn's last code."""
        root = self._prepare()
        fresh: dict[Path, bytes] | None = None
        while True:
            if fresh is None:
                fresh = network_sysctls()
            else:
                restore(fresh)
            serving = self._hardware()
            code = self._boot(root)
            for place in (WORK / "irq", WORK / "hardware/merged"):
                call(["umount", "--lazy", str(place)])
            # It ends when nobody has a file of it open any more.
            serving.wait()
            if code != REBOOT or self.halting:
                return code

    def _prepare(self) -> Path:
        record = self.spec.folder.parent.parent / "processes" / f"{self.spec.name}.keeper"
        begun = record.with_suffix(".keeper.new")
        begun.write_text(processes.this(), "ascii")
        begun.rename(record)
        mount("proc", Path("/proc"))
        mount("tmpfs", Path("/run"), "mode=755")
        own_cgroup(self.spec.cgroup)
        mount("tmpfs", WORK, "size=4g,mode=755")
        root = overlay(self.spec.root, WORK / "root")
        shutil.copytree(self.spec.folder / "seed", root, symlinks=True, dirs_exist_ok=True)
        wired = self.spec.folder / "wired"
        while not wired.exists():
            if self.halting:
                raise SystemExit(0)
            time.sleep(0.02)
        return root

    def _hardware(self) -> subprocess.Popen[bytes]:
        """The recorded machine as it is after power-on, and the server of its interrupts."""
        tree, irq = self.spec.machine / "tree", WORK / "irq"
        for place in ("hardware", "sysctls"):
            with suppress(FileNotFoundError):
                shutil.rmtree(WORK / place)
        overlay(tree, WORK / "hardware")
        hardware.own_sysctls(tree, WORK / "sysctls", self.spec.name)
        irq.mkdir(exist_ok=True)
        argv = [sys.executable, "-m", "tests.lab.irqfs", str(self.spec.machine), str(irq)]
        serving = subprocess.Popen(
            [*argv, "--full", str(self.spec.folder / "full-cpus")], cwd=hardware.TESTS.parent
        )
        deadline = time.monotonic() + 30
        while not os.path.ismount(irq):
            if serving.poll() is not None or time.monotonic() > deadline:
                raise LabError("irqfs", "is not up", f"see {self.spec.folder / 'console.log'}")
            time.sleep(0.02)
        return serving

    def _boot(self, root: Path) -> int:
        argv = [
            "systemd-nspawn", "--quiet", "--boot", "--register=no", "--keep-unit", f"--machine={self.spec.name}",
            f"--directory={root}", "--network-namespace-path=/proc/self/ns/net", "--resolv-conf=off", "--timezone=off",
            "--link-journal=no", f"--capability={CAPABILITIES}", "--console=pipe",
            f"--bind={WORK / 'hardware/merged'}:/lab/hardware", f"--bind={WORK / 'irq'}:/lab/irq",
            f"--bind={WORK / 'sysctls'}:/lab/sysctls",
        ]  # fmt: skip
        self.nspawn = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
        if self.halting:
            self.nspawn.send_signal(signal.SIGTERM)
        return self.nspawn.wait()


def own_cgroup(name: str) -> None:
    """Moves this process into a cgroup of its own, under a lone cgroup2: systemd in two nodes must not share one."""
    top = Path("/sys/fs/cgroup")
    if not (top / "cgroup.controllers").exists():
        call(["umount", "--recursive", str(top)])
        mount("cgroup2", top)
    (top / name).mkdir(exist_ok=True)
    (top / name / "cgroup.procs").write_text("0", "ascii")


def network_sysctls() -> dict[Path, bytes]:
    """The network's values that can be read and written, as they are."""
    found = {}
    for folder, _, names in os.walk(NETWORK):
        for path in (Path(folder, name) for name in names):
            if path.stat().st_mode & 0o200:
                with suppress(OSError):
                    found[path] = path.read_bytes()
    return found


def restore(values: dict[Path, bytes]) -> None:
    """Writes back what is another value now."""
    for path, value in values.items():
        with suppress(OSError):
            if path.read_bytes() != value:
                path.write_bytes(value)


def main(argv: list[str]) -> int:
    spec = Spec.read(Path(argv[0]))
    keeper = Keeper(spec)
    signal.signal(signal.SIGTERM, keeper.halt)
    code = keeper.keep()
    print(f"lab: {spec.name} has ended with {code}", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
