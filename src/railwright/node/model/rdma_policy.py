"""Policy of the RDMA stack: the distribution's own or DOCA-OFED, never a mix of the two."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Optional

from .codec import InputError
from .values import like, one_of, packages

STACKS = ("inbox", "doca")
_MODULE = re.compile(r"[a-z0-9][a-z0-9_]{0,55}", re.ASCII)
_BOARD = re.compile(r"[A-Z]{2,3}_[A-Z0-9]{4,20}", re.ASCII)
_FIRMWARE = re.compile(r"[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,5}", re.ASCII)


@dataclass(frozen=True)
class RdmaStackPolicy:
    """The RDMA stack of this node.

    stack: "inbox" (the kernel's modules and the distribution's rdma-core) or "doca" (DOCA-OFED's). packages: with their
    exact versions, held; None is "must not be there". modules: loaded at boot after the stack's own, ib_umad where the
    list is not given and a rail is InfiniBand. firmware: the version that each board is meant to have, by its board id
    (PSID); a difference is told, and nothing here burns firmware.
    """

    stack: Optional[str] = None
    packages: dict[str, Optional[str]] = field(default_factory=dict)
    modules: Optional[tuple[str, ...]] = None
    firmware: dict[str, str] = field(default_factory=dict)


def must_be_sound(policy: RdmaStackPolicy, where: str) -> None:
    """Raises InputError with the place of what is no stack, package, module or firmware."""
    one_of(policy.stack, STACKS, f"{where}.stack")
    if policy.stack is None and (policy.packages or policy.modules):
        raise InputError(f"{where}.stack", "missing", f"state which: {' or '.join(STACKS)}")
    packages(policy.packages, f"{where}.packages")
    for module in policy.modules or ():
        like(module, _MODULE, f"{where}.modules", "names of modules, with _ for -")
    for board, version in policy.firmware.items():
        like(board, _BOARD, f"{where}.firmware", "board ids like MT_0000000838")
        like(version, _FIRMWARE, f"{where}.firmware.{board}", "a version like 28.43.1014")
