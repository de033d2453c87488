"""What the shape of facts alone does not say.

Facts come from machines that others had root on and from files that others send; a plan must be able to trust what
they name, for names go into configuration files and commands.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Optional

from . import container_facts, limit_facts
from .codec import InputError
from .cpulist import parse_cpulist
from .pci import normalise_address
from .values import like, one_of

if TYPE_CHECKING:
    from .facts import Facts, PciDevice

P2P_STATES = ("OK", "CNS", "GNS", "TNS", "NS", "DR", "U")
P2P_CAPABILITIES = ("read", "write", "nvlink", "atomics", "pcie")
_BLUEFIELD = ("nic", "dpu", "", None)
# What a planner is asked to think about: eight times the GPUs of the largest node sold, ten NICs with all their VFs.
_MOST_GPUS = 128
_MOST_NICS = 2048
_LEVELS = ("PIX", "PXB", "PHB", "NODE", "SYS")
_NAME = re.compile(r"[A-Za-z0-9_.:@+-]{1,64}")
_UDEV_PATH = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


def must_be_sound(facts: Facts, where: str) -> None:
    """Raises InputError for facts that name things no machine has, or one thing twice, or a tree that loops."""
    _name(facts.host.name, f"{where}.host.name")
    for what, found, most in (("gpus", facts.gpus, _MOST_GPUS), ("nics", facts.nics, _MOST_NICS)):
        if len(found) > most:
            raise InputError(f"{where}.{what}", f"found {len(found)} entries", f"expected at most {most}")
    for n, device in enumerate(facts.pci):
        _address(device.address, f"{where}.pci[{n}].address")
        for field in ("speed", "width", "max_speed", "max_width"):
            _not_negative(getattr(device.link, field), f"{where}.pci[{n}].link.{field}")
    for n, gpu in enumerate(facts.gpus):
        _address(gpu.address, f"{where}.gpus[{n}].address")
        _cpulist(gpu.cpus, f"{where}.gpus[{n}].cpus")
        _name(gpu.name, f"{where}.gpus[{n}].name")
    for n, nic in enumerate(facts.nics):
        _address(nic.address, f"{where}.nics[{n}].address")
        _not_negative(nic.rate, f"{where}.nics[{n}].rate")
        for field in ("name", "rdma", "netdev", "master", "mac"):
            name = getattr(nic, field)
            _name(name, f"{where}.nics[{n}].{field}")
        for m, address in enumerate(nic.functions):
            _address(address, f"{where}.nics[{n}].functions[{m}]")
        if nic.bluefield not in _BLUEFIELD:
            raise InputError(
                f"{where}.nics[{n}].bluefield", f"found {nic.bluefield!r}", "expected nic, dpu, empty or null"
            )
    for n, function in enumerate(facts.pcie.functions):
        _address(function.address, f"{where}.pcie.functions[{n}].address")
    for n, errors in enumerate(facts.pcie_errors):
        _address(errors.address, f"{where}.pcie_errors[{n}].address")
    for n, queues in enumerate(facts.queues):
        _name(queues.netdev, f"{where}.queues[{n}].netdev")
    for n, port in enumerate(facts.qos):
        _address(port.device, f"{where}.qos[{n}].device")
        _name(port.netdev, f"{where}.qos[{n}].netdev")
    for n, master in enumerate(facts.network.masters):
        _name(master.name, f"{where}.network.masters[{n}].name")
    for n, local in enumerate(facts.network.addresses):
        _name(local.interface, f"{where}.network.addresses[{n}].interface")
    for n, managed in enumerate(facts.managers.ports):
        _name(managed.netdev, f"{where}.managers.ports[{n}].netdev")
        _address(managed.device, f"{where}.managers.ports[{n}].device")
        _udev_path(managed.path, f"{where}.managers.ports[{n}].path")
    for n, fabric in enumerate(facts.network.infiniband):
        _name(fabric.nic, f"{where}.network.infiniband[{n}].nic")
    for n, node in enumerate(facts.numa):
        _cpulist(node.cpus, f"{where}.numa[{n}].cpus")
    for n, path in enumerate(facts.paths):
        one_of(path.level, _LEVELS, f"{where}.paths[{n}].level")
    for n, pair in enumerate(facts.p2p):
        if pair.status not in P2P_STATES or pair.capability not in (*P2P_CAPABILITIES, None):
            raise InputError(
                f"{where}.p2p[{n}]",
                f"found {pair.status!r} of {pair.capability!r}",
                f"expected a state of {', '.join(P2P_STATES)} and one of {', '.join(P2P_CAPABILITIES)}",
            )
        _name(pair.a, f"{where}.p2p[{n}].a")
        _name(pair.b, f"{where}.p2p[{n}].b")
    if facts.limits is not None:
        limit_facts.must_be_sound(facts.limits, f"{where}.limits")
    if facts.containers is not None:
        container_facts.must_be_sound(facts.containers, f"{where}.containers")
    _unique((device.address for device in facts.pci), f"{where}.pci", "address")
    _unique((gpu.name for gpu in facts.gpus), f"{where}.gpus", "name")
    _unique((str(gpu.index) for gpu in facts.gpus), f"{where}.gpus", "index")
    _unique((nic.name for nic in facts.nics), f"{where}.nics", "name")
    _unique((str(node.id) for node in facts.numa), f"{where}.numa", "id")
    must_be_a_tree(facts.pci, where)


def _address(address: Optional[str], where: str) -> None:
    if address is not None and normalise_address(address, where) != address:
        raise InputError(where, f"found {address!r}", f"expected {normalise_address(address, where)!r}")


def _name(name: Optional[str], where: str) -> None:
    """Names go into configuration files and commands."""
    like(name, _NAME, where, "a name of letters, digits and _ . : @ + -")


def _udev_path(path: Optional[str], where: str) -> None:
    """A path of a device goes into files that read it as a pattern."""
    like(path, _UDEV_PATH, where, "a path of udev's like pci-0000:18:00.0")


def _not_negative(value: Optional[float], where: str) -> None:
    if value is not None and value < 0:
        raise InputError(where, f"found {value}", "expected a number that is not negative, or null")


def _cpulist(cpus: Optional[str], where: str) -> None:
    if cpus is not None:
        parse_cpulist(cpus, where)


def _unique(values: Iterable[str], where: str, what: str) -> None:
    seen: set[str] = set()
    for n, value in enumerate(values):
        if value in seen:
            raise InputError(f"{where}[{n}].{what}", f"{value!r} stands twice", "each device has one entry")
        seen.add(value)


def must_be_a_tree(devices: Iterable[PciDevice], where: str) -> None:
    """Raises InputError for a PCI function that hangs below itself."""
    parent = {device.address: device.parent for device in devices}
    sound: set[str] = set()
    for address in parent:
        way: set[str] = set()
        here: Optional[str] = address
        while here is not None and here in parent and here not in sound:
            if here in way:
                raise InputError(
                    f"{where}.pci", f"{here} is its own parent", "expected a tree of PCI functions"
                )
            way.add(here)
            here = parent[here]
        sound |= way
