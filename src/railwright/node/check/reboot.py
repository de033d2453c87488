"""Before a node is rebooted: what speaks against it now. A node that does not come back costs a visit."""

from __future__ import annotations

from collections.abc import Iterator

from ..model import Facts, Plan
from . import gate


def refusals(facts: Facts, plan: Plan) -> tuple[str, ...]:
    """Sentences, each a reason to leave the node as it runs; () where nothing speaks against a reboot."""
    return (*_of_software(facts), *gate.gate(facts, plan))


def _of_software(facts: Facts) -> Iterator[str]:
    software = facts.software
    if software is None:
        yield "what is installed on this node is not known, so whether it would come back is not either"
        return
    if software.interrupted:
        yield f"dpkg left {', '.join(software.interrupted[:4])} half-way: run dpkg --configure -a first"
    for lock in software.locks:
        yield f"{lock.holder} is at work ({lock.path}): wait until it has ended"
    with_one = [kernel.release for kernel in software.kernels if kernel.initramfs]
    for kernel in software.kernels:
        if with_one and not kernel.initramfs:
            yield (
                f"kernel {kernel.release} has no initramfs, and it may be the one that boots: "
                f"update-initramfs -c -k {kernel.release} (dracut --kver {kernel.release})"
            )
    releases = [kernel.release for kernel in software.kernels]
    if software.next_kernel is not None and software.next_kernel not in releases:
        yield f"the boot loader's default is kernel {software.next_kernel}, which is not in /boot"
