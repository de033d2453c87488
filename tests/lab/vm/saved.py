"""Machines that are up in seconds: each layout boots once and is saved, and every run goes on from there."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from .. import cache, debian
from ..errors import LabError
from ..lab import must_be_root, write_inventory, write_ssh_config
from ..run import Run
from . import assemble, disk, emulator, layout
from .layout import Layout
from .machine import Vm

DISK, MEMORY = "disk.qcow2", "memory"
_SAVE_SECONDS = 300.0
# grub-install and update-grub want to see the disk that they are on, so they run here and not where it was made.
_READY = "grub-install --target=i386-pc /dev/vda && update-grub && rm -f /root/.bash_history && sync"


def up(name: str, shape: Layout, *, cold: bool = False) -> Vm:
    """Brings a machine up: it goes on from its saved state or, if `cold`, boots. May raise LabError."""
    must_be_root()
    ready = saved(shape)
    run = Run(name)
    run.begin()
    try:
        vm = Vm.new(run, shape, disk.disk(shape))
        for write in (write_inventory, write_ssh_config):
            write(run, {vm.name: vm.host_entry()})

        def begin() -> None:
            vm.overlay(ready / DISK, "qcow2")
            if cold:
                vm.launch()
            else:
                vm.resume(ready / MEMORY)

        vm.settle(begin, begin)
        if not cold:
            vm.wake()
    except BaseException:
        run.down(grace=0)
        raise
    return vm


def saved(shape: Layout) -> Path:
    """The folder of a layout's disk and memory, made where it is absent: a boot, about 70 s. Raises LabError."""
    return cache.kept(f"state-{shape.name}", name(shape), lambda place: _save(shape, place))


def name(shape: Layout) -> str:
    """Of the cache: another disk, layout, emulator or command line is another state."""
    recipe = debian.recipe(__file__, layout.__file__, emulator.__file__)
    return cache.key(recipe, disk.name(shape).encode(), emulator.version().encode())


def _save(shape: Layout, place: Path) -> None:
    image = disk.disk(shape)
    run = Run(f"save-{os.getpid()}")
    run.begin()
    try:
        vm = Vm.new(run, shape, image)

        def begin() -> None:
            vm.overlay(image / assemble.DISK, "raw")
            vm.launch()

        vm.settle(begin, begin)
        vm.must(_READY, timeout=_SAVE_SECONDS)
        place.mkdir(parents=True)
        _to_files(vm, place)
    finally:
        run.down(grace=0)


def _to_files(vm: Vm, place: Path) -> None:
    """Stops the machine and writes its memory and its disk."""
    vm.disconnect()
    process = vm.emulator
    vm.qmp("stop")
    vm.qmp("migrate", uri=f"file:{place / MEMORY}")
    deadline = time.monotonic() + _SAVE_SECONDS
    while (said := vm.qmp("query-migrate"))["status"] != "completed":
        if said["status"] in ("failed", "cancelled") or time.monotonic() > deadline:
            why = said.get("error-desc", said["status"])
            raise LabError(vm.name, f"cannot be saved: {why}", f"see {vm.emulator_log}")
        time.sleep(0.1)
    vm.qmp("quit")
    if not process.wait(_SAVE_SECONDS):
        raise LabError(vm.name, "does not end on quit", f"see {vm.emulator_log}")
    shutil.move(vm.disk, place / DISK)
