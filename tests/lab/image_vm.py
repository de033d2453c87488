"""A machine that boots the baked image's own disk, on a chassis of a layout, and is let in by its firmware.

The image has no key of anybody. A test's key comes as systemd's credential `ssh.authorized_keys.root` from SMBIOS, as a
cloud or a BMC would hand it in.
"""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from . import cache, image_overlay, processes
from .lab import must_be_root
from .run import Run
from .shell import call
from .vm import emulator
from .vm.layout import Layout
from .vm.machine import Vm, free_port

_RECORD = "emulator"
# Of Debian's package ovmf: UEFI without Secure Boot, and the variables that a machine has to begin with.
_UEFI, _VARIABLES = Path("/usr/share/OVMF/OVMF_CODE_4M.fd"), Path("/usr/share/OVMF/OVMF_VARS_4M.fd")


@dataclass(frozen=True)
class ImageVm(Vm):
    """without_gpu: the chassis lacks its first GPU; uefi: its firmware is UEFI and no BIOS."""

    without_gpu: bool = False
    uefi: bool = False

    def entry(self, *options: str) -> list[str]:
        # A node of an image makes its host key at its first boot: nobody can know it before.
        first = ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null")
        argv = super().entry(*options)
        return [argv[0], *(word for option in first for word in ("-o", option)), *argv[1:]]

    def start(self, state: Path | None = None) -> None:
        """Switches it on, or lets it go on from a saved state, and does not wait."""
        self._launch(state)

    def _launch(self, state: Path | None) -> None:
        record = self.run.record(_RECORD)
        record.unlink(missing_ok=True)
        wiring = emulator.Wiring(self.disk, self.port, self.log, self.run.folder / "monitor", state)
        processes.launch(record, [*self._argv(wiring)], self.emulator_log)

    def _argv(self, wiring: emulator.Wiring) -> Iterator[str]:
        argv = emulator.argv(self.layout, wiring)
        yield argv[0]
        # Options and their values take turns.
        for option, value in zip(argv[1::2], argv[2::2], strict=True):
            if not (self.without_gpu and value.startswith("edu,id=gpu0,")):
                yield from (option, value)
        key = (self.run.folder / "key.pub").read_bytes()
        text = base64.b64encode(key).decode()
        yield from ("-smbios", f"type=11,value=io.systemd.credential.binary:ssh.authorized_keys.root={text}")
        said = image_overlay.words(self.layout, self.without_gpu).replace(",", ",,")
        yield from ("-smbios", f"type=1,version={said}")
        if self.uefi:
            own = self.run.folder / "variables.fd"
            if not own.exists():
                shutil.copy(_VARIABLES, own)
            yield from ("-drive", f"if=pflash,unit=0,format=raw,readonly=on,file={_UEFI}")
            yield from ("-drive", f"if=pflash,unit=1,format=raw,file={own}")


@contextmanager
def machine(
    name: str, shape: Layout, disk: Path, *, form: str = "raw", without_gpu: bool = False, uefi: bool = False
) -> Iterator[ImageVm]:
    """A machine that is off, with a disk of its own over `disk`; it is taken away at the end."""
    must_be_root()
    run = Run(name)
    run.begin()
    try:
        for file in cache.kept("image-key", "1", _make_key).iterdir():
            shutil.copy(file, run.folder)
        vm = ImageVm(run, shape, free_port(), disk.parent, without_gpu, uefi)
        vm.overlay(disk, form)
        yield vm
    finally:
        run.down(grace=0)


def _make_key(place: Path) -> None:
    """One for all these machines: a disk that moves to another chassis keeps the key that it was given first."""
    place.mkdir()
    call(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", str(place / "key")])


def boot(vm: ImageVm, not_boot: str = "") -> str:
    """Switches it on and waits until it has booted and answers; its boot id."""
    return vm.settle(vm.launch, vm.launch, not_boot)
