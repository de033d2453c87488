"""The slice `rdma_stack`: the distribution's own stack or DOCA-OFED, never a mix; its modules before the GPUs'."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Optional

from ..node.model import Facts, Finding, Policy, RdmaStackPolicy, Slice
from . import container_use, packages
from .entries import HEADER, Entry, file
from .stack import rdma as known

SET = "rdma_stack"
# Before 60-railwright-nvidia.conf: files of modules-load.d are read in the order of their names.
LOADED = "/etc/modules-load.d/50-railwright-rdma.conf"
AFTER_OPENIBD = "/etc/systemd/system/openibd.service.d/50-railwright-order.conf"
_GPU_UNITS = "nvidia-persistenced.service nvidia-fabricmanager.service nvidia-imex.service"
_WHY_HELD = "// User space, modules and firmware tools are of one stack: they change together, when nobody uses them.\n"
_NAMES = {"inbox": "the distribution's own stack", "doca": "DOCA-OFED"}


def slice_of(facts: Facts, policy: Policy) -> tuple[Optional[Slice], list[Finding]]:
    """The slice, and what there is to know. None: the policy names no stack, or it would be a mix."""
    asked = policy.rdma_stack
    if asked is None:
        return None, []
    said = [*_versions(facts, asked), *_libraries(facts), *_peer_memory(facts, policy)]
    if asked.stack is None:
        return None, [*_standing(facts), *said]
    entries = list(_entries(facts, policy, asked))
    against = [*_mixed(facts, asked)]
    if asked.packages and packages.system_of(facts) is None:
        against.append(packages.unknown_system(SET))
    if asked.stack == "doca":
        against += container_use.reload_breaks(facts, SET)
    if against:
        return None, [*against, *said]
    because = (
        f"{_NAMES[asked.stack]}, whole: modules, user space and tools of two stacks beside each other load and then "
        "disagree about symbols. What is changed is in force after the next boot; nothing here loads or unloads a "
        "module of a network card, for that takes its links down"
    )
    if not entries:
        return None, said
    return Slice("persistent", tuple(entries), because), [*said, *_waits(facts, asked)]


def modules(facts: Facts, asked: RdmaStackPolicy) -> tuple[str, ...]:
    """Modules that are loaded at boot: ib_umad where a port is InfiniBand, for tools and subnet managers need it."""
    if asked.modules is not None:
        return asked.modules
    return ("ib_umad",) if any(nic.link_layer == "InfiniBand" for nic in facts.nics) else ()


def _entries(facts: Facts, policy: Policy, asked: RdmaStackPolicy) -> Iterator[Entry]:
    if asked.packages:
        yield packages.packages_entry(SET, asked.packages, facts, policy, reboot=True)
        if packages.system_of(facts) != "rpm":
            yield packages.hold_file(SET, asked.packages, _WHY_HELD)
    loaded = modules(facts, asked)
    if asked.stack == "doca":
        lines = "".join(f"ExecStartPost=-/sbin/modprobe {name}\n" for name in loaded)
        # openibd loads DOCA-OFED's modules late; what is on the GPUs' side wants them first.
        text = f"{HEADER}[Unit]\nBefore={_GPU_UNITS}\n" + (f"\n[Service]\n{lines}" if lines else "")
        yield file(AFTER_OPENIBD, text, reboot=True)
        # Only where modules lie beside the kernel's own can the GPUs' be older than they are.
        yield {"kind": "dkms_module", "name": "nvidia", "reboot": True}
    elif loaded:
        yield file(LOADED, HEADER + "".join(f"{name}\n" for name in loaded), reboot=True)


# ----- a mix ---------------------------------------------------------------------------------------------------------


def _packages_of(facts: Facts, which: str) -> list[str]:
    """Packages on the node that are of this stack, as "name version"."""
    software = facts.software
    if software is None:
        return []
    is_one = known.is_doca if which == "doca" else known.is_inbox
    return [f"{one.name} {one.version}" for one in software.packages if is_one(one.name, one.version)]


def _mixed(facts: Facts, asked: RdmaStackPolicy) -> Iterator[Finding]:
    """Packages of the other stack that would stay: here and not named, or named with a version of the other's."""
    other = "inbox" if asked.stack == "doca" else "doca"
    is_other = known.is_doca if other == "doca" else known.is_inbox
    moved = {known.bare(name) for name in asked.packages}
    here = [text for text in _packages_of(facts, other) if known.bare(text.partition(" ")[0]) not in moved]
    named = [
        f"{name} {version}"
        for name, version in asked.packages.items()
        if version is not None and is_other(name, version)
    ]
    if here:
        names = ", ".join(text.partition(" ")[0] for text in here)
        yield Finding(
            f"{SET}.mix", "error", ", ".join(here),
            f"these are of {_NAMES[other]}, and the policy asks for {_NAMES[asked.stack or '']}; nothing is written",
            f"name each in policy.rdma_stack.packages, with its version in the wanted stack, or as null: {names}",
        )  # fmt: skip
    if named:
        yield Finding(
            f"{SET}.mix", "error", ", ".join(named),
            f"policy.rdma_stack.packages asks for these, which are of {_NAMES[other]}, in {_NAMES[asked.stack or '']}; "
            "nothing is written",
            "take them from one stack: the version tells whose a package is (mlnx in it: DOCA-OFED's)",
        )  # fmt: skip


def _standing(facts: Facts) -> Iterator[Finding]:
    """A mix that stands there, whatever is asked for: user space of one and modules of the other, or half of each."""
    doca, inbox = _packages_of(facts, "doca"), _packages_of(facts, "inbox")
    if doca and inbox:
        yield Finding(
            f"{SET}.mix", "error", f"{len(doca)} packages of DOCA-OFED, {len(inbox)} of the distribution",
            f"two stacks are mixed: {', '.join(doca[:6])} beside {', '.join(inbox[:6])}",
            "state policy.rdma_stack.stack and packages, those of the other stack as null",
        )  # fmt: skip


# ----- versions ------------------------------------------------------------------------------------------------------


def _versions(facts: Facts, asked: RdmaStackPolicy) -> Iterator[Finding]:
    yield from _family(facts)
    yield from _kernel_side(facts)
    yield from _firmware(facts, asked)
    yield from _tools(facts)


def _family(facts: Facts) -> Iterator[Finding]:
    """The packages of one source have one version."""
    software = facts.software
    found: dict[str, list[str]] = {}
    for one in () if software is None else software.packages:
        if one.name in known.USER_SPACE:
            found.setdefault(one.version, []).append(one.name)
    if len(found) > 1:
        told = "; ".join(f"{version}: {', '.join(names)}" for version, names in sorted(found.items()))
        yield Finding(
            f"{SET}.user_space", "warning", "rdma-core", f"its packages are of different versions ({told})",
            "install all of them at one version: a provider that is older than libibverbs is not loaded",
        )  # fmt: skip


def _kernel_side(facts: Facts) -> Iterator[Finding]:
    software = facts.software
    if software is None:
        return
    doca = [
        one
        for one in software.packages
        if one.name.startswith(("mlnx-ofed-kernel", "kmod-mlnx-ofa_kernel", "mlnx-ofa_kernel"))
    ]
    for kernel in software.kernels:
        path = kernel.modules.get("mlx5_core")
        if doca and path is not None and path.startswith("kernel/"):
            yield Finding(
                f"{SET}.kernel", "error", f"kernel {kernel.release}",
                f"{doca[0].name} {doca[0].version} is installed, and for this kernel mlx5_core is the kernel's own "
                f"({path}): a boot into it runs DOCA-OFED's user space on other modules",
                f"dkms autoinstall -k {kernel.release}, with its headers installed",
            )  # fmt: skip
    loaded = {module.name: module.version for module in facts.host.modules or ()}
    version = loaded.get("mlx5_core")
    if doca and "mlx5_core" in loaded and version is None:
        yield Finding(
            f"{SET}.loaded", "warning", "mlx5_core",
            f"the kernel's own is loaded, and {doca[0].name} {doca[0].version} is installed", "reboot the node",
        )  # fmt: skip
    if not doca and version is not None:
        yield Finding(
            f"{SET}.loaded", "warning", "mlx5_core",
            f"DOCA-OFED's {version} is loaded, and its package is gone", "reboot the node",
        )  # fmt: skip
    behind = None if facts.rdma_stack is None else facts.rdma_stack.behind
    for release in behind or ():
        yield Finding(
            f"{SET}.gpu_modules", "warning", f"kernel {release}",
            "its GPU modules are older than the RDMA stack's: nvidia_peermem was built against another ib_core and is "
            'refused ("disagrees about version of symbol")',
            "the slice builds them again with DKMS; a driver of another kind has to be installed again",
        )  # fmt: skip


def _firmware(facts: Facts, asked: RdmaStackPolicy) -> Iterator[Finding]:
    by_board: dict[str, dict[str, list[str]]] = {}
    for nic in facts.nics:
        if nic.board is not None and nic.firmware is not None:
            by_board.setdefault(nic.board, {}).setdefault(nic.firmware, []).append(nic.name)
    for board, found in sorted(by_board.items()):
        told = "; ".join(f"{version}: {', '.join(names)}" for version, names in sorted(found.items()))
        wanted = asked.firmware.get(board)
        if wanted is not None and set(found) != {wanted}:
            yield Finding(
                f"{SET}.firmware", "warning", board, f"its firmware is {told}; the policy says {wanted}",
                "burn it with mstflint or mlxfwmanager on a drained node; it is in force after a reset of the card",
            )  # fmt: skip
        elif len(found) > 1:
            yield Finding(
                f"{SET}.firmware", "warning", board, f"cards of one board have different firmware: {told}",
                "bring them to one version, or a rail behaves unlike its neighbours",
            )  # fmt: skip


def _tools(facts: Facts) -> Iterator[Finding]:
    software = facts.software
    present = [
        name for name in known.FIRMWARE_TOOLS if software is not None and software.package(name) is not None
    ]
    if len(present) > 1:
        yield Finding(
            f"{SET}.tools", "info", ", ".join(present),
            "both sets of firmware tools are installed; they do the same, under other names",
            "keep one: mstflint with the distribution's stack, mft with DOCA-OFED",
        )  # fmt: skip


def _libraries(facts: Facts) -> Iterator[Finding]:
    found = () if facts.rdma_stack is None else facts.rdma_stack.libraries
    if len(found) > 1:
        yield Finding(
            f"{SET}.libraries", "warning", ", ".join(found),
            "libibverbs is there more than once: which one a program gets depends on its search path, and providers go "
            "with one of them only",
            "remove the one that belongs to no package (dpkg -S, rpm -qf)",
        )  # fmt: skip


def _peer_memory(facts: Facts, policy: Policy) -> Iterator[Finding]:
    """Inbox ib_core has no clients of peer memory, so nvidia_peermem loads there and registers nothing."""
    loaded = {module.name: module.version for module in facts.host.modules or ()}
    inbox = "mlx5_core" in loaded and loaded["mlx5_core"] is None
    asked = policy.rdma_stack is not None and policy.rdma_stack.stack == "inbox"
    if (inbox or asked) and ("nvidia_peermem" in loaded or policy.driver.rdma == "nvidia_peermem"):
        yield Finding(
            f"{SET}.peermem", "warning", "nvidia_peermem",
            "the kernel's own ib_core has no interface for it, so it may be loaded and GPUDirect RDMA is disabled all "
            "the same",
            "use DMA-BUF (open modules, kernel 5.12 or later), or DOCA-OFED",
        )  # fmt: skip


def _waits(facts: Facts, asked: RdmaStackPolicy) -> Sequence[Finding]:
    software = facts.software
    moving = [
        name
        for name, version in asked.packages.items()
        if software is not None
        and (None if (one := software.package(name)) is None else one.version) != version
    ]
    if not moving:
        return ()
    return (
        Finding(
            f"{SET}.reboot", "info", ", ".join(moving[:6]),
            "the stack changes on disk now and in the kernel at the next boot; until then programs that start may find "
            "user space and modules of different versions",
            "install on a drained node and reboot it: -e install_reboot=true",
        ),
    )  # fmt: skip
