"""GPU modules against the RDMA stack's that lie beside the kernel's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..discover.module_age import plain_name
from ..model import Facts, Finding, Plan
from .answer import Answer, elsewhere, listed, unseen

Entry = dict[str, Any]
_CODE = "rdma_stack.gpu_modules"
_PEERMEM = "nvidia_peermem"
_INSTALL = "run `ansible-playbook -i INVENTORY playbooks/install.yml -l NODE`"
_DMABUF = "DMA-BUF (open modules, kernel 5.12 or later; policy.driver.rdma: dma-buf)"


# What it means is answered from the whole plan: see `answers`.
KINDS = {"dkms_module": elsewhere}


def answers(plan: Plan, facts: Facts) -> Iterator[Answer]:
    """Nothing where the plan has no GPU modules built again."""
    for part in plan.slices.values():
        for entry in part.entries:
            if entry.get("kind") == "dkms_module":
                yield from _gpu_modules(plan, facts, entry["name"])


def _gpu_modules(plan: Plan, facts: Facts, name: str) -> Iterator[Answer]:
    behind = None if facts.rdma_stack is None else facts.rdma_stack.behind
    if behind is None:
        why = "no kernel here has both GPU modules and an RDMA stack's beside its own"
        yield unseen(_CODE, name, why, "look at /lib/modules/*/updates")
        return
    if not behind:
        yield Answer(_CODE)
        return
    if not _is_used(plan, facts):
        why = f"nvidia_peermem for kernel {listed(behind)} does not go with the RDMA stack, and nothing loads it"
        remedy = f"nothing with {_DMABUF}"
        yield Answer(_CODE, Finding(_CODE, "info", name, why, remedy), why=why)
        return
    foreign = [release for release in behind if not _by_dkms(facts, name, release)]
    ours = [release for release in behind if release not in foreign]
    if ours:
        why = f"they were built against another RDMA stack for kernel {listed(ours)}"
        yield Answer(_CODE, Finding(_CODE, "error", name, why, _INSTALL))
    if foreign:
        why = f"those for kernel {listed(foreign)} are not by DKMS and do not go with the RDMA stack"
        yield unseen(
            _CODE, name, why, f"have DKMS build the driver (policy.driver.build: dkms), or use {_DMABUF}"
        )


def _is_used(plan: Plan, facts: Facts) -> bool:
    """Whether a file of the plan has nvidia_peermem loaded, or it is; where no fact tells, it may be."""
    loaded = facts.host.modules
    return (
        loaded is None
        or any(one.name == _PEERMEM for one in loaded)
        or any(
            _PEERMEM in str(entry.get("content", ""))
            for part in plan.slices.values()
            for entry in part.entries
        )
    )


def _by_dkms(facts: Facts, name: str, release: str) -> bool:
    """Whether DKMS has installed them for this kernel; where no fact tells, it may have."""
    return facts.software is None or any(
        (plain_name(one.module), one.kernel, one.state) == (name, release, "installed")
        for one in facts.software.dkms
    )
