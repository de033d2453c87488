"""The rack that the lab's tests share: two nodes, one of each Debian, under a name that no other run has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import packages, racks
from tests.lab.lab import Lab, Node
from tests.lab.setup import unready, vm_unready


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
