"""A virtual machine that runs: reach it, reboot it, take its power away, ask its monitor."""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from .. import processes
from ..errors import LabError
from ..host import Ended, Host, ssh_options
from ..run import Run
from ..shell import call
from . import assemble, emulator, qmp
from .layout import Layout, layout

_LOG = logging.getLogger(__name__)
# A boot takes 60 s on two free cores, and has taken five minutes on busy ones.
BOOT_SECONDS = 1800.0
# An orderly halt takes 10 s on two free cores.
HALT_SECONDS = 600.0
# A handshake in emulation takes its time, and the emulator accepts a connection before the guest does.
_CONNECT = "ConnectTimeout=30"
_ADDRESS = "127.0.0.1"
_RECORD = "emulator"
# What a machine that goes on from a saved state has to be told: what time it is, and something that no other knows.
# RNDRESEEDCRNG, linux/random.h.
_WAKE = """\
date --set=@{now} > /dev/null &&
perl -e 'open(my $pool, "+>", "/dev/urandom") or die; syswrite($pool, <STDIN>); ioctl($pool, 0x5207, 0) or die'
"""


@dataclass(frozen=True)
class Vm(Host):
    """port: of this machine's loopback, which leads to the guest's sshd; image: the folder that `disk.disk` gives."""

    run: Run
    layout: Layout
    port: int
    image: Path
    # Emulation on a busy machine.
    patience: ClassVar[float] = 600.0

    @classmethod
    def new(cls, run: Run, shape: Layout, image: Path) -> Vm:
        """A machine of a run that has just begun: nothing runs yet."""
        vm = cls(run, shape, free_port(), image)
        shutil.copy(image / assemble.KEY, run.key)
        public = (image / assemble.HOST_KEY).read_text("ascii").split()
        run.known_hosts.write_text(f"[{_ADDRESS}]:{vm.port} {public[0]} {public[1]}\n", "ascii")
        page = {"layout": shape.name, "port": vm.port, "image": str(image)}
        (run.folder / "vm.json").write_text(json.dumps(page), "utf-8")
        return vm

    @classmethod
    def find(cls, name: str) -> Vm:
        """The machine of a run that is up. Raises LabError."""
        run = Run(name)
        try:
            page = json.loads((run.folder / "vm.json").read_text("utf-8"))
        except FileNotFoundError as error:
            raise LabError(name, "is no virtual machine that is up", "python -m tests.lab list") from error
        return cls(run, layout(page["layout"]), page["port"], Path(page["image"]))

    @property
    def name(self) -> str:
        return self.run.name

    @property
    def alive(self) -> bool:
        return _RECORD in self.run.processes()

    @property
    def emulator(self) -> processes.Process:
        """Raises LabError where it does not run."""
        return self.run.process(_RECORD)

    @property
    def log(self) -> Path:
        """What GRUB, the kernel and systemd wrote to the serial console."""
        return self.run.folder / "console.log"

    @property
    def emulator_log(self) -> Path:
        return self.run.folder / "emulator.log"

    @property
    def disk(self) -> Path:
        return self.run.folder / "disk.qcow2"

    @property
    def inventory(self) -> Path:
        return self.run.folder / "hosts.yml"

    def entry(self, *options: str) -> list[str]:
        words = [item for option in (_CONNECT, *ssh_options(self.run), *options) for item in ("-o", option)]
        return ["ssh", "-F", "/dev/null", *words, "-p", str(self.port), f"root@{_ADDRESS}"]

    def host_entry(self) -> dict[str, Any]:
        """What an inventory says of it."""
        return {"ansible_host": _ADDRESS, "ansible_port": self.port}

    def qmp(self, command: str, **arguments: Any) -> Any:
        """What the emulator's monitor answers; an argument's `_` is sent as `-`. Raises LabError."""
        return qmp.ask(self.run.folder / "monitor", command, **arguments)

    def overlay(self, disk: Path, form: str) -> None:
        """Gives it a disk that is `disk` and takes its own changes."""
        self.disk.unlink(missing_ok=True)
        call(["qemu-img", "create", "-q", "-f", "qcow2", "-b", str(disk), "-F", form, str(self.disk)])

    def launch(self) -> None:
        """Switches it on, and does not wait."""
        self._launch(None)

    def resume(self, state: Path) -> None:
        """Lets it go on from the memory of a machine that was stopped, and does not wait until it answers."""
        self._launch(state)
        deadline = time.monotonic() + BOOT_SECONDS
        while self._reads_state():
            if time.monotonic() > deadline:
                raise LabError(self.name, "does not read its saved state", f"see {self.emulator_log}")
            time.sleep(0.1)
        self.qmp("cont")

    def _reads_state(self) -> bool:
        if not self.alive:
            raise Ended(self.name, "the emulator has ended", f"see {self.emulator_log}")
        try:
            return bool(self.qmp("query-status")["status"] == "inmigrate")
        except qmp.Silent:
            return True

    def _launch(self, state: Path | None) -> None:
        record = self.run.record(_RECORD)
        record.unlink(missing_ok=True)
        wiring = emulator.Wiring(self.disk, self.port, self.log, self.run.folder / "monitor", state)
        processes.launch(record, emulator.argv(self.layout, wiring), self.emulator_log)

    def settle(self, begin: Callable[[], None], again: Callable[[], None], not_boot: str = "") -> str:
        """Begins, and waits until it is up; once more, by `again`, where the emulator has ended meanwhile.

        Returns its boot id. Raises LabError.
        """
        try:
            begin()
            return self.wait(BOOT_SECONDS, not_boot)
        except (Ended, qmp.Silent):
            if self.alive:
                raise
            said = self.emulator_log.read_text("utf-8", "replace").strip().splitlines()[-1:]
            words = said[0] if said else "nothing"
            _LOG.warning("%s: the emulator has ended and is started once more; it said: %s", self.name, words)
        self.disconnect()
        again()
        return self.wait(BOOT_SECONDS, not_boot)

    def wake(self) -> None:
        """Tells a machine that goes on from a saved state the time, and makes its random numbers its own."""
        self.must(_WAKE.format(now=f"{time.time():.3f}"), stdin=os.urandom(64).hex())

    def reboot(self) -> None:
        """Reboots it, in order, and waits until it is up again."""
        self._again(lambda: self.ssh("systemctl reboot"))

    def reset(self) -> None:
        """Takes its power away for a moment and waits until it is up again."""
        self._again(lambda: self.qmp("system_reset"))

    def halt(self) -> None:
        """Presses its power button and waits until it is off. Raises LabError where it does not go."""
        process = self.emulator
        self.disconnect()
        self.qmp("system_powerdown")
        if not process.wait(HALT_SECONDS):
            raise LabError(self.name, f"is not off after {HALT_SECONDS:.0f} s", f"see {self.log}")

    def boot(self) -> str:
        """Switches it on and waits until it is up. Returns its boot id."""
        return self.settle(self.launch, self.launch)

    def down(self) -> None:
        """Ends it and takes away all that was made for it."""
        self.run.down(grace=0)

    def _again(self, how: Callable[[], Any]) -> None:
        before = self.read("/proc/sys/kernel/random/boot_id")

        def begin() -> None:
            how()
            self.disconnect()

        self.settle(begin, self.launch, before)


def free_port() -> int:
    """A port of the loopback that nobody uses now."""
    with socket.socket() as probe:
        probe.bind((_ADDRESS, 0))
        port: int = probe.getsockname()[1]
        return port
