"""From a description to a tree."""

from __future__ import annotations

from pathlib import Path

from .description import load
from .errors import MachineError
from .functions import functions
from .host import add_host
from .interrupts import add_interrupts, interrupts
from .model import Machine
from .networks import add_networks
from .nics import add_nics
from .pci import add_pci
from .topology import add_cpus, add_nodes, topology
from .tree import Tree


def tree_of(machine: Machine) -> Tree:
    """The machine's /sys, /proc and /etc in memory. The same description gives the same tree."""
    tree = Tree()
    shape = topology(machine.cpus)
    found = functions(machine)
    owned = interrupts(machine, shape, {address: function.node for address, function in found.items()})
    add_cpus(tree, machine, shape)
    add_nodes(tree, machine, shape)
    add_pci(tree, machine, shape, found, owned)
    add_nics(tree, machine, shape, found)
    add_interrupts(tree, machine, shape, owned)
    add_networks(tree, machine)
    add_host(tree, machine, owned)
    _overlay(tree, machine)
    return tree


def build(path: Path, dest: Path, *patches: object) -> Machine:
    """Lays out the machine described at `path` (a folder or a machine.yml) as a file tree at `dest`.

    patches: JSON merge patches (RFC 7386) over the description, in order. dest: absent or an empty folder.
    Raises MachineError where the description is wrong, OSError where a file cannot be read or written.
    """
    machine = load(path, *patches)
    tree_of(machine).write(dest)
    return machine


def _overlay(tree: Tree, machine: Machine) -> None:
    """What a description says of single files: the way to a tree that no healthy kernel shows."""
    for path in machine.absent:
        if not tree.remove(tree.resolve(path)):
            raise MachineError(
                f"{machine.name}.absent", f"{path}: there is nothing to take out", "correct the path"
            )
    for path, text in machine.files.items():
        tree.file(tree.resolve(path), text)
    for path, length in machine.cut.items():
        real = tree.resolve(path)
        if real not in tree.files:
            raise MachineError(f"{machine.name}.cut", f"{path}: there is no such file", "correct the path")
        tree.file(real, tree.files[real][:length])
    for path, target in machine.symlinks.items():
        tree.links[tree.resolve(path)] = target
