"""The command line of QEMU for a layout: a machine in software, reached on this machine's loopback and nowhere else."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import LabError
from ..shell import call
from .layout import FRONT_MAC, MANAGEMENT_MAC, Layout, rail_mac

PROGRAM = "qemu-system-x86_64"
# igb, the NIC with SR-IOV, came with 8.0; 10.0 is what was tried.
LEAST = 10
# With one thread for all CPUs QEMU 10.0 boots reliably; with a thread each it aborted in three of four boots
# (physmem.c: iotlb_to_section: Assertion `section_index < d->map.sections_nb' failed).
ACCELERATOR = "tcg,thread=single,tb-size=512"
# la57 would have a kernel build page tables of five levels, for nothing. With erms and fsrm it clears and copies pages
# by `rep stosb` and `rep movsb`, which the emulator does byte by byte: a boot takes a fifth more, programs a third.
CPU = "max,-la57,-erms,-fsrm"


@dataclass(frozen=True)
class Wiring:
    """What of a machine differs from run to run. state: a saved one to go on from."""

    disk: Path
    port: int
    console: Path
    monitor: Path
    state: Path | None = None


def argv(layout: Layout, wiring: Wiring) -> list[str]:
    """QEMU's command line."""
    return [_program(), *(word for words in _words(layout, wiring) for word in words)]


@functools.cache
def version() -> str:
    """As QEMU says it. Raises LabError where there is none, or one without what the machine needs."""
    said = call([_program(), "--version"]).splitlines()[0]
    number = said.partition("version ")[2]
    major = number.partition(".")[0]
    if not major.isdigit() or int(major) < LEAST:
        raise LabError(PROGRAM, f"says {said!r}", f"version {LEAST} or newer is needed: run `make lab-setup`")
    return number


def _program() -> str:
    found = shutil.which(PROGRAM)
    if found is None:
        raise LabError(PROGRAM, "is not installed here", "run `make lab-setup`")
    return found


def _words(layout: Layout, wiring: Wiring) -> Iterator[tuple[str, ...]]:
    yield ("-nodefaults", "-no-user-config", "-display", "none")
    yield ("-machine", "q35,sata=off,smbus=off", "-accel", ACCELERATOR, "-cpu", CPU)
    yield ("-m", str(layout.memory), "-rtc", "base=utc,clock=host")
    sockets, cores, threads = layout.sockets, layout.cores, layout.threads
    yield ("-smp", f"{layout.cpus},sockets={sockets},cores={cores},threads={threads}")
    yield from _memory(layout)
    # "unsafe" leaves out only what would survive a power loss of this machine.
    yield ("-drive", f"if=none,id=disk,file={wiring.disk},format=qcow2,cache=unsafe,discard=unmap")
    yield ("-device", "virtio-blk-pci,drive=disk,bootindex=0")
    yield ("-device", "virtio-rng-pci")
    yield ("-netdev", f"user,id=management,restrict=on,hostfwd=tcp:127.0.0.1:{wiring.port}-:22")
    yield ("-device", f"virtio-net-pci,netdev=management,mac={MANAGEMENT_MAC},romfile=")
    yield ("-serial", f"file:{wiring.console}", "-qmp", f"unix:{wiring.monitor},server=on,wait=off")
    yield from _tree(layout)
    if wiring.state is not None:
        yield ("-incoming", f"file:{wiring.state}")


def _memory(layout: Layout) -> Iterator[tuple[str, ...]]:
    each = layout.memory // layout.nodes
    for node in range(layout.nodes):
        cpus = layout.cpus_of(node)
        yield ("-object", f"memory-backend-ram,id=memory{node},size={each}M")
        yield ("-numa", f"node,nodeid={node},memdev=memory{node},cpus={cpus[0]}-{cpus[-1]}")
    for one in range(layout.nodes):
        for other in range(layout.nodes):
            if one != other:
                yield ("-numa", f"dist,src={one},dst={other},val={layout.distance(one, other)}")


def _tree(layout: Layout) -> Iterator[tuple[str, ...]]:
    """A root bus a node; below it switches, each with a rail's NIC, a GPU's stand-in and an empty slot."""
    rails, gpus = iter(layout.rails), iter(layout.gpus)
    chassis = iter(range(1, 256))
    for node in range(layout.nodes):
        yield _device("pxb-pcie", f"root{node}", bus_nr=layout.root_bus(node), numa_node=node, bus="pcie.0")
        for switch in range(layout.switches):
            here = f"{node}{switch}"
            yield _root_port(f"port{here}", node, switch, next(chassis))
            yield _device("x3130-upstream", f"switch{here}", bus=f"port{here}")
            for number, slot in enumerate(("rail", "gpu", "spare")):
                yield _device(
                    "xio3130-downstream",
                    f"{slot}slot{here}",
                    bus=f"switch{here}",
                    chassis=next(chassis),
                    slot=number,
                )
            rail = next(rails).number
            yield from _nic(f"rail{rail}", rail, f"railslot{here}", rail_mac(rail))
            yield _device("edu", f"gpu{next(gpus).number}", bus=f"gpuslot{here}")
    yield _root_port("frontslot", layout.front.node, layout.switches, next(chassis))
    yield from _nic("front", len(layout.rails), "frontslot", FRONT_MAC)


def _root_port(name: str, node: int, number: int, chassis: int) -> tuple[str, ...]:
    return _device("pcie-root-port", name, bus=f"root{node}", chassis=chassis, slot=number, addr=number + 1)


def _nic(name: str, hub: int, bus: str, mac: str) -> Iterator[tuple[str, ...]]:
    # A hub with one port: the link is up and nothing leaves it.
    yield ("-netdev", f"hubport,id={name}net,hubid={hub}")
    yield _device("igb", name, netdev=f"{name}net", bus=bus, mac=mac, romfile="")


def _device(kind: str, name: str, **settings: str | int) -> tuple[str, ...]:
    return ("-device", ",".join([kind, f"id={name}", *(f"{key}={value}" for key, value in settings.items())]))
