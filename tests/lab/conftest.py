"""What the lab's tests share: a rack of two nodes, one of each Debian, and virtual machines, one that boots once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from xdist.remote import Producer

from tests.lab import packages, racks, sharing
from tests.lab.lab import Lab, Node
from tests.lab.setup import unready, vm_unready
from tests.lab.vm import saved
from tests.lab.vm.layout import layout
from tests.lab.vm.machine import Vm
from tests.rotation import share, takes_turns


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long tests that take turns are left out but for this run's share; not skipped, for another run has them."""
    turning = [item for item in items if takes_turns(getattr(item, "function", None))]
    left = [item for item in turning if item not in share(turning)]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in left]
    items.sort(key=lambda item: sharing.rank(item.path))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> sharing.ByFile:
    return sharing.ByFile(config, log)


@pytest.fixture(scope="session")
def ready() -> None:
    """Skips where no lab node can be brought up."""
    if why := unready():
        pytest.skip(why)


@pytest.fixture(scope="session")
def vm_ready() -> None:
    """Skips where no virtual machine can be brought up."""
    if why := vm_unready():
        pytest.skip(why)


@pytest.fixture(scope="session")
def nic_vm(vm_ready: None) -> Iterator[Vm]:
    """The virtual machine that tests of NICs share. Whoever changes it leaves it answering, its NICs up and bound."""
    machine = saved.up(f"n{os.getpid()}", layout("two-nodes"))
    try:
        yield machine
    finally:
        machine.down()


@pytest.fixture(scope="session")
def rack(ready: None) -> Iterator[Lab]:
    with racks.raised("t") as lab:
        yield lab


@pytest.fixture(scope="session")
def bookworm(rack: Lab) -> Node:
    return rack.nodes[0]


@pytest.fixture(scope="session")
def trixie(rack: Lab) -> Node:
    return rack.nodes[1]


@pytest.fixture(scope="session")
def archive(rack: Lab, tmp_path_factory: pytest.TempPathFactory) -> packages.Archive:
    """The stand-ins' archive, served and known to both nodes."""
    made = packages.make(Path(tmp_path_factory.mktemp("archive")) / "made", packages.standins())
    address = packages.serve(rack.run, made)
    for node in rack.nodes:
        packages.subscribe(node, made, address)
    return made


@pytest.fixture(scope="session")
def booted(
    vm_ready: None, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[sharing.Booted]:
    """A machine that every module with a `before_boot` had its hands on, after a reboot."""
    machine = saved.up(f"b{os.getpid()}", layout("two-nodes"))
    try:
        outcomes = sharing.before_the_boot(request.session.items, machine, tmp_path_factory)
        machine.reboot()
        yield sharing.Booted(machine, outcomes)
    finally:
        machine.down()
