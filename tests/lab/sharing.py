"""One boot of the virtual machine for all that want one, and the files of the lab shared out among pytest's workers.

A boot in emulation takes a minute, a machine of the saved state five seconds. So a test file that wants to see what a
boot makes of its changes has a function of its own,

    def before_boot(vm: Vm, folder: Path) -> Any

which gets the machine before that boot and returns what the file's tests want to know later. They ask the fixture
`booted` for the machine as it came up again and, by `booted.before(request.module)`, for what was returned.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from .vm.machine import Vm

BEFORE_BOOT = "before_boot"
# The files that take longest, after those of the one boot: what is short fills the gaps at the end.
_LONG = ("test_lab_odd", "test_lab_road", "test_lab_vm_teardown", "test_lab_vm")


@dataclass(frozen=True)
class Booted:
    """The machine after the one boot; outcomes: what each module's `before_boot` gave, or failed with, by its name."""

    vm: Vm
    outcomes: Mapping[str, Any]

    def before(self, module: ModuleType) -> Any:
        """Raises what `before_boot` of that module raised."""
        outcome = self.outcomes[module.__name__]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def before_the_boot(
    items: Iterable[pytest.Item], vm: Vm, folders: pytest.TempPathFactory
) -> Mapping[str, Any]:
    """Calls `before_boot` of each module that has a test in this run, in their order."""
    modules = {item.module.__name__: item.module for item in items if isinstance(item, pytest.Function)}
    outcomes: dict[str, Any] = {}
    for name, module in modules.items():
        if hasattr(module, BEFORE_BOOT):
            try:
                outcomes[name] = getattr(module, BEFORE_BOOT)(vm, folders.mktemp(BEFORE_BOOT))
            except Exception as error:  # for the tests of this module, and no others
                outcomes[name] = error
    return outcomes


class ByFile(LoadScopeScheduling):  # type: ignore[misc]
    """The tests of a file go to one worker, and all files that wait for the one boot to the same."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return BEFORE_BOOT if _waits_for_the_boot(self.config.rootpath / file) else file


def rank(file: Path) -> int:
    """By which the files are sorted: the longest first."""
    if _waits_for_the_boot(file):
        return 0
    return 1 + (_LONG.index(file.stem) if file.stem in _LONG else len(_LONG))


@functools.cache
def _waits_for_the_boot(file: Path) -> bool:
    return f"\ndef {BEFORE_BOOT}(" in file.read_text("utf-8")
