"""The slice `rdma_stack`: the distribution's own stack or DOCA-OFED, never a mix; its modules before the GPUs'."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Optional

from ..node.model import Facts, Finding, Policy, RdmaStackPolicy, Slice
from ..node.model.rdma_facts import is_beside
from ..node.model.software import Package
from . import container_use, packages
from .entries import HEADER, Entry, file
from .stack import rdma as known

SET = "rdma_stack"
# Before 60-railwright-nvidia.conf: files of modules-load.d are read in the order of their names.
LOADED = "/etc/modules-load.d/50-railwright-rdma.conf"
AFTER_OPENIBD = "/etc/systemd/system/openibd.service.d/50-railwright-order.conf"
_GPU_UNITS = "nvidia-persistenced.service nvidia-fabricmanager.service nvidia-imex.service"
_WHY_HELD = "// User space, modules and firmware tools are of one stack: they change together, when nobody uses them.\n"
# Packages of the module from before driver 470 (Mellanox/nv_peer_memory, debian/control and nvidia_peer_memory.spec).
_OLD_PEER_MEMORY = ("nvidia-peer-memory", "nvidia_peer_memory")
# Builds that come without openibd and without a user space of their own.
_CANONICALS = {known.PREBUILT, known.CANONICAL}
_NAMES = {"inbox": "the distribution's own stack", "doca": "DOCA-OFED"}


def slice_of(facts: Facts, policy: Policy) -> tuple[Optional[Slice], list[Finding]]:
    """The slice, and what there is to know. None: the policy names no stack, or it would be a mix."""
    asked = policy.rdma_stack
    if asked is None:
        return None, []
    said = [
        *_prebuilt(facts, asked),
        *_versions(facts, asked),
        *_libraries(facts),
        *_peer_memory(facts, policy),
        *_behind(facts, policy),
    ]
    if asked.stack is None:
        return None, [*_nothing(asked), *_standing(facts), *_two_builds(facts, asked), *said]
    entries = list(_entries(facts, policy, asked))
    against = [*_mixed(facts, asked), *_two_builds(facts, asked)]
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
    if asked.stack == "doca" and not _builds(facts, asked).keys() & _CANONICALS:
        lines = "".join(f"ExecStartPost=-/sbin/modprobe {name}\n" for name in loaded)
        # openibd loads DOCA-OFED's modules late; what is on the GPUs' side wants them first.
        text = f"{HEADER}[Unit]\nBefore={_GPU_UNITS}\n" + (f"\n[Service]\n{lines}" if lines else "")
        yield file(AFTER_OPENIBD, text, reboot=True)
    elif loaded:
        yield file(LOADED, HEADER + "".join(f"{name}\n" for name in loaded), reboot=True)
    if asked.stack == "doca" and policy.driver.rdma != "dma-buf":
        # Only where modules lie beside the kernel's own can the GPUs' be built against others; it is nvidia_peermem
        # alone that is linked with them.
        yield {"kind": "dkms_module", "name": "nvidia", "reboot": True}


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
    if asked.stack == "doca" and _modules_alone(facts, asked):
        return
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
    if doca and inbox and not _modules_alone(facts, RdmaStackPolicy()):
        yield Finding(
            f"{SET}.mix", "error", f"{len(doca)} packages of DOCA-OFED, {len(inbox)} of the distribution",
            f"two stacks are mixed: {', '.join(doca[:6])} beside {', '.join(inbox[:6])}",
            "state policy.rdma_stack.stack and packages, those of the other stack as null",
        )  # fmt: skip


def _modules_alone(facts: Facts, asked: RdmaStackPolicy) -> bool:
    """Whether Canonical's modules are all that there will be of DOCA-OFED: user space is then the distribution's."""
    if not _builds(facts, asked).keys() <= _CANONICALS:
        return False
    moved = {known.bare(name) for name in asked.packages}
    stays = [(one.name, one.version) for one in _installed(facts) if known.bare(one.name) not in moved]
    comes = [(name, version) for name, version in asked.packages.items() if version is not None]
    doca = [name for name, version in (*stays, *comes) if known.is_doca(name, version)]
    return bool(doca) and all(known.builds((name,)) for name in doca)


def _builds(facts: Facts, asked: RdmaStackPolicy) -> dict[str, list[str]]:
    """Builds of DOCA-OFED's modules that will be on the node, each with its packages."""
    gone = {known.bare(name) for name, version in asked.packages.items() if version is None}
    coming = [name for name, version in asked.packages.items() if version is not None]
    here = () if facts.software is None else facts.software.packages
    staying = [one.name for one in here if known.bare(one.name) not in gone]
    return known.builds(dict.fromkeys((*staying, *coming)))


def _two_builds(facts: Facts, asked: RdmaStackPolicy) -> Iterator[Finding]:
    """Canonical's builds are of one source with NVIDIA's and have other checksums of the same symbols."""
    found = _builds(facts, asked)
    if len(found) > 1:
        told = "; ".join(f"{build}: {', '.join(names)}" for build, names in found.items())
        yield Finding(
            f"{SET}.two_builds", "error", ", ".join(found),
            f"DOCA-OFED's modules come from more than one build ({told}): checksums of their symbols differ, and a "
            'module of one is refused beside the other ("disagrees about version of symbol")'
            + ("" if asked.stack is None else "; nothing is written"),
            "keep one of them, and name the packages of the others as null in policy.rdma_stack.packages",
        )  # fmt: skip


def _prebuilt(facts: Facts, asked: RdmaStackPolicy) -> Iterator[Finding]:
    found = _builds(facts, asked)
    if known.PREBUILT in found and len(found) == 1:
        yield Finding(
            f"{SET}.prebuilt", "warning", ", ".join(found[known.PREBUILT]),
            "DOCA-OFED's modules as Canonical has built and signed them: openibd is no part of it, user space comes "
            "from another archive, and nothing is known of checksums that a build of GPU modules could take, so "
            "nvidia_peermem by DKMS may be refused beside it",
            "use DMA-BUF (open modules, kernel 5.12 or later), or DOCA-OFED's modules from NVIDIA's archive instead",
        )  # fmt: skip


def _nothing(asked: RdmaStackPolicy) -> Iterator[Finding]:
    if asked == RdmaStackPolicy():
        yield Finding(
            f"{SET}.not_managed", "info", "policy.rdma_stack",
            "it names no stack: what stands on the node is looked at, and nothing is written",
            "state stack: inbox or doca, with packages to have them pinned",
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
    doca = [one for one in software.packages if known.builds((one.name,))]
    for kernel in software.kernels:
        path = kernel.modules.get("mlx5_core")
        if doca and path is not None and not is_beside(path):
            yield Finding(
                f"{SET}.kernel", "error", f"kernel {kernel.release}",
                f"{doca[0].name} {doca[0].version} is installed, and for this kernel mlx5_core is the kernel's own "
                f"({path}): a boot into it runs DOCA-OFED's user space on other modules",
                f"dkms autoinstall -k {kernel.release}, with its headers installed; of prebuilt modules: the package "
                "for this kernel",
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
    elif "nvidia_peermem" in loaded and facts.rdma_stack is not None and facts.rdma_stack.registered is False:
        yield Finding(
            f"{SET}.peermem", "warning", "nvidia_peermem",
            "it is loaded, and ib_core has no client for GPU memory (/sys/kernel/mm/memory_peers has no nv_mem): "
            "GPUDirect RDMA is disabled",
            "load it behind the stack's modules: modprobe -r nvidia_peermem, then modprobe nvidia_peermem, when no job "
            "runs; or use DMA-BUF",
        )  # fmt: skip
    old = [one.name for one in _installed(facts) if one.name.startswith(_OLD_PEER_MEMORY)]
    if old or "nv_peer_mem" in loaded:
        yield Finding(
            f"{SET}.nv_peer_mem", "warning", ", ".join(old) or "nv_peer_mem",
            "nvidia_peermem of the driver has taken its place: its service fails where the module is gone, and where "
            "it is loaded it is to be gone before the other is loaded (GPUDirect RDMA documentation)",
            "systemctl disable nv_peer_mem.service, and remove its package"
            + ("" if _has_peermem(facts) else "; no kernel here has nvidia_peermem: install the driver's modules"),
        )  # fmt: skip


def _behind(facts: Facts, policy: Policy) -> Iterator[Finding]:
    behind = None if facts.rdma_stack is None else facts.rdma_stack.behind
    for release in (behind or ()) if policy.driver.rdma != "dma-buf" else ():
        yield Finding(
            f"{SET}.gpu_modules", "warning", f"kernel {release}",
            "its GPU modules were built before the RDMA stack's or against others: nvidia_peermem wants another "
            'ib_core and is refused ("disagrees about version of symbol")',
            "the slice builds them again with DKMS; one that comes built has the same again: policy.driver.build dkms, "
            "or DMA-BUF (open modules, kernel 5.12 or later)",
        )  # fmt: skip


def _installed(facts: Facts) -> tuple[Package, ...]:
    return () if facts.software is None else facts.software.packages


def _has_peermem(facts: Facts) -> bool:
    kernels = () if facts.software is None else facts.software.kernels
    return any("nvidia_peermem" in kernel.modules for kernel in kernels)


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
