"""A host of the lab as its controller reaches it: over SSH, as root, with the run's own key."""

from __future__ import annotations

import subprocess
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from .errors import LabError
from .run import Run
from .shell import ask

UP_SECONDS = 120.0


class Ended(LabError):
    """What a host runs in has ended."""


class Host(ABC):
    """Each kind says how it is reached, whether it is there and where it tells of itself."""

    run: Run
    # Seconds that a command may take where nobody says otherwise.
    patience: ClassVar[float] = 60.0

    @property
    @abstractmethod
    def name(self) -> str:
        """As the inventory names it."""

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether what it runs in runs."""

    @property
    @abstractmethod
    def log(self) -> Path:
        """Where it tells of its boot."""

    @abstractmethod
    def entry(self, *options: str) -> list[str]:
        """The ssh command line to it, without the command. options: of ssh_config(5)."""

    @property
    def console(self) -> str:
        """What it told of its boot."""
        return self.log.read_text("utf-8", "replace")

    @property
    def master(self) -> Path:
        return self.run.master(self.name)

    def ssh(
        self, *argv: str, stdin: str | None = None, timeout: float | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command of one shell on the host, as root."""
        shared = ("ControlMaster=auto", f"ControlPath={self.master}", "ControlPersist=600")
        return ask([*self.entry(*shared), "--", *argv], stdin=stdin, timeout=timeout or self.patience)

    def must(self, *argv: str, stdin: str | None = None, timeout: float | None = None) -> str:
        """What the command printed. Raises LabError when it fails."""
        done = self.ssh(*argv, stdin=stdin, timeout=timeout)
        if done.returncode != 0:
            said = done.stderr.strip() or done.stdout.strip()
            command = f"{self.name}: {' '.join(argv)[:200]}"
            raise LabError(command, f"ended with {done.returncode}: {said}", f"see {self.log}")
        return done.stdout

    def read(self, path: str) -> str:
        return self.must("cat", path).strip()

    def disconnect(self) -> None:
        """Closes the connection that the commands share: a host that lost its power cannot."""
        ask(["ssh", "-F", "/dev/null", "-O", "exit", "-S", str(self.master), "host"])

    def wait(self, seconds: float = UP_SECONDS, not_boot: str = "") -> str:
        """Waits until it has booted and answers. Returns its boot id, which is not `not_boot`. Raises LabError."""
        deadline = time.monotonic() + seconds
        said = ""
        while time.monotonic() < deadline:
            if not self.alive:
                raise Ended(self.name, "has ended", f"see {self.log}")
            done = self.ssh(
                "cat /proc/sys/kernel/random/boot_id; systemctl is-system-running --wait", timeout=seconds
            )
            boot, _, state = done.stdout.strip().partition("\n")
            said = state or done.stderr.strip()
            if state in ("running", "degraded") and boot != not_boot:
                return boot
            time.sleep(0.2)
        raise LabError(self.name, f"is not up after {seconds:.0f} s: {said}", f"see {self.log}")

    def reboot(self) -> None:
        """Reboots it and waits until it is up again."""
        before = self.read("/proc/sys/kernel/random/boot_id")
        self.ssh("systemctl reboot")
        self.wait(not_boot=before)


def ssh_options(run: Run) -> tuple[str, ...]:
    return (
        f"IdentityFile={run.key}",
        f"UserKnownHostsFile={run.known_hosts}",
        "IdentitiesOnly=yes",
        "StrictHostKeyChecking=yes",
        "ConnectTimeout=10",
        "LogLevel=ERROR",
    )
