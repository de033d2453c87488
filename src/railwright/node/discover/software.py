"""Packages, kernels, boot loader and locks, read from files; of rpm's record by rpm itself, on a live node only."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Optional

from ..model.rdma_facts import is_beside
from ..model.software import Dkms, Kernel, Package, PackageLock, Software
from ..packages import cmdline, dpkg, locks, rpm
from .apt_history import HISTORY, HISTORY_BYTES, last_move
from .module_age import plain_name
from .pcie import read_lockdown
from .tools import run_tool
from .tree import Tree

# Names that a GPU node's stack is made of, in every archive that supplies it.
_RELEVANT = re.compile(
    r"(?:linux-(?:image|headers|(?:main-)?modules|generic|cloud|nvidia|hwe|virtual|restricted)|kernel(?:-|$)"
    r"|nvidia|libnvidia|xserver-xorg-video-nvidia|cuda|libcuda|libnccl|libcudnn|libcublas|nvlsm|libnvsdm|datacenter-gpu"
    r"|dcgm|doca|mlnx|mft(?:-|$)|mstflint"
    r"|kernel-mft|rdma|librdmacm|libibverbs|ibverbs|libib(?:umad|mad|netdisc)|infiniband-diags|ofed-scripts|iser|srp-dkms"
    r"|kmod-mlnx|ibacm$|srptools$|srp_daemon$|iwpmd$|python3-pyverbs$"
    r"|gdrcopy|libgdrapi|dkms(?:$|-)|gcc-\d|unattended-upgrades|needrestart|tuned|podman|crun$|runc$|moby-engine$"
    r"|enroot|pyxis|slurm|nvidia-container|libnvidia-container|docker|containerd|openmpi|libnvpl|initramfs-tools$|dracut$)"
)
_MODULES = re.compile(
    r"(?:^|/)((?:nvidia(?:[-_]\w+)*|nouveau|nova[-_]\w+|mlx5_core|mlx5_ib|ib_umad|ib_core|gdrdrv|nv_peer_mem)\.ko(?:\.\w+)?)$"
)
_STATUS_BYTES = 64 * 1024 * 1024
_MODULES_BYTES = 16 * 1024 * 1024
_RELEASE = re.compile(r"[0-9][A-Za-z0-9._+~-]{0,127}", re.ASCII)
_COMPILER = re.compile(r'^#define LINUX_COMPILER "(.+)"$|^CONFIG_CC_VERSION_TEXT="(.+)"$', re.MULTILINE)
_GCC = re.compile(r"\bgcc[^0-9]*?(?:-(\d+)\b|.*?\s(\d+)\.\d+)")
_DEFAULT = re.compile(r'^\s*set default="([^"$]*)"', re.MULTILINE)
_TITLE = re.compile(
    r"^(\s*)(menuentry|submenu) '([^']*)'(?:.*?\$menuentry_id_option '([^']*)')?", re.MULTILINE
)
_DRIVER = re.compile(r"[0-9]{3}\.[0-9]{1,3}(?:\.[0-9]{1,3})?", re.ASCII)
_RPM_SECONDS = 20.0
_MODINFO_SECONDS, _WORD_BYTES = 5.0, 4096
_RPM_PLACES = ("var/lib/rpm", "usr/lib/sysimage/rpm")


def read_software(tree: Tree, asked: Sequence[str] = ()) -> Software:
    """The software of a node. asked: packages that are wanted besides. Raises InputError for a record that is none."""
    system = _system(tree)
    found, architecture, interrupted = _packages(tree, system, frozenset(asked))
    loader = cmdline.loader_of(lambda path: tree.exists(path.lstrip("/")))
    kernels = _kernels(tree)
    return Software(
        system=system,
        architecture=architecture,
        packages=found,
        locks=_locks(tree) if tree.live else (),
        interrupted=interrupted,
        kernels=kernels,
        dkms=_dkms(tree),
        boot_loader=loader,
        next_kernel=_next_kernel(tree, loader, kernels),
        boot_lines=tuple(dict.fromkeys(_boot_lines(tree, loader))),
        lockdown=read_lockdown(tree),
        boot_free=_free("/boot") if tree.live else None,
        var_free=_free("/var") if tree.live else None,
        moved=last_move(tree.text(HISTORY, HISTORY_BYTES) or "") if tree.exists(HISTORY) else None,
    )


def _system(tree: Tree) -> Optional[str]:
    if tree.exists("var/lib/dpkg/status"):
        return "dpkg"
    return "rpm" if any(tree.is_folder(place) for place in _RPM_PLACES) else None


def _packages(
    tree: Tree, system: Optional[str], asked: frozenset[str]
) -> tuple[tuple[Package, ...], Optional[str], tuple[str, ...]]:
    if system == "dpkg":
        text = tree.text("var/lib/dpkg/status", _STATUS_BYTES) or ""
        places = [
            f"var/lib/dpkg/updates/{name}" for name in tree.names("var/lib/dpkg/updates") if name.isdigit()
        ]
        noted = [tree.text(place, _STATUS_BYTES) or "" for place in places]
        known, native = dpkg.read_record(text, noted, tree.where("var/lib/dpkg/status"))
        interrupted = dpkg.interrupted(known, noted)
        whole = [
            Package(name, one.version or "", one.status, one.held)
            for name, one in sorted(known.items())
            if one.cell is not None and (name in asked or _RELEVANT.match(name))
        ]
        return tuple(whole), native, interrupted
    if system == "rpm" and tree.live:
        tool = run_tool("rpm", rpm.QUERY, _RPM_SECONDS, _STATUS_BYTES)
        if tool.code != 0:
            return (), None, ()
        locked = rpm.read_locks(tree.text(rpm.LOCK_LIST.lstrip("/")) or "")
        found = rpm.read_query(tool.output, locked)
        kept = [
            Package(name, one.cell or "", "installed", one.held)
            for name, one in sorted(found.items())
            if name in asked or _RELEVANT.match(name)
        ]
        return tuple(kept), os.uname().machine, ()
    return (), None, ()


def _locks(tree: Tree) -> tuple[PackageLock, ...]:
    held = []
    for path in (*locks.DPKG, *locks.RPM, *locks.DNF):
        number = None
        with suppress(OSError):  # of a user who may not open it, nobody can tell
            number = locks.holder_of(path, path)
        if number is not None:
            held.append(PackageLock(path, locks.process_words(number)))
    return tuple(held)


def _kernels(tree: Tree) -> tuple[Kernel, ...]:
    """Kernels in /boot, by release; a rescue image is none."""
    names = set(tree.names("boot"))
    releases = sorted(
        {
            name.partition("-")[2]
            for name in names
            if name.startswith(("vmlinuz-", "vmlinux-"))
            and _RELEASE.fullmatch(name.partition("-")[2])
            and not name.partition("-")[2].startswith(cmdline.RESCUE)
        },
        key=release_key,
    )
    return tuple(_kernel(tree, release, names) for release in releases)


def _kernel(tree: Tree, release: str, boot: set[str]) -> Kernel:
    folder = f"lib/modules/{release}"
    if not tree.is_folder(folder):
        folder = f"usr/lib/modules/{release}"
    build = _build_folder(tree, folder)
    headers = [place for place in (build, f"usr/src/linux-headers-{release}") if place is not None]
    modules = _module_files(tree.text(f"{folder}/modules.dep", _MODULES_BYTES) or "")
    return Kernel(
        release=release,
        headers=any(tree.exists(f"{place}/Makefile") for place in headers),
        initramfs=f"initrd.img-{release}" in boot or f"initramfs-{release}.img" in boot,
        modules=modules,
        compiler=_compiler(tree, release, build),
        driver=_driver(f"/{folder}/{modules['nvidia']}") if tree.live and "nvidia" in modules else None,
    )


def _driver(path: str) -> Optional[str]:
    told = run_tool("modinfo", ("modinfo", "-F", "version", path), _MODINFO_SECONDS, _WORD_BYTES)
    words = told.output.split()
    return words[0] if told.code == 0 and words and _DRIVER.fullmatch(words[0]) else None


def _build_folder(tree: Tree, folder: str) -> Optional[str]:
    """Where the kernel's modules are built: a link, mostly an absolute one, which means a place in the same tree."""
    target = tree.link(f"{folder}/build")
    if target is None:
        return f"{folder}/build" if tree.is_folder(f"{folder}/build") else None
    return posixpath.normpath(posixpath.join("/", folder, target)).lstrip("/") or None


def _module_files(text: str) -> dict[str, str]:
    found = {}
    for line in text.splitlines():
        path = line.partition(":")[0]
        match = _MODULES.search(path)
        if match is not None:
            name = plain_name(match[1].partition(".")[0])
            # What DKMS or a vendor laid below updates/ comes before the kernel's own (depmod.d(5), search).
            if name not in found or is_beside(path):
                found[name] = path
    return found


def _compiler(tree: Tree, release: str, build: Optional[str]) -> Optional[str]:
    """The compiler's major version, of the kernel's own configuration."""
    more = () if build is None else (f"{build}/.config", f"{build}/include/generated/compile.h")
    for path in (f"boot/config-{release}", *more):
        match = _COMPILER.search(tree.text(path, _MODULES_BYTES) or "") if tree.exists(path) else None
        if match is not None:
            gcc = _GCC.search(match[1] or match[2])
            return None if gcc is None else f"gcc-{gcc[1] or gcc[2]}"
    return None


def _dkms(tree: Tree) -> tuple[Dkms, ...]:
    """As `dkms status` tells it, of its own tree: MODULE/VERSION/KERNEL/ARCH, and MODULE/kernel-KERNEL-ARCH for what is
    installed (dkms.in of dkms 3)."""
    found = []
    for module in tree.names("var/lib/dkms"):
        place = f"var/lib/dkms/{module}"
        if not tree.is_folder(place):
            continue
        installed = {
            name: tree.link(f"{place}/{name}") or ""
            for name in tree.names(place)
            if name.startswith("kernel-")
        }
        for version in tree.names(place):
            if version in installed or "source" not in tree.names(f"{place}/{version}"):
                continue
            built = list(_builds(tree, f"{place}/{version}"))
            if not built:
                found.append(Dkms(module, version))
            for kernel, architecture in built:
                link = installed.get(f"kernel-{kernel}-{architecture}", "")
                state = "installed" if link.startswith(f"{version}/") else "built"
                found.append(Dkms(module, version, kernel, architecture, state))
    return tuple(found)


def _builds(tree: Tree, place: str) -> list[tuple[str, str]]:
    return [
        (kernel, architecture)
        for kernel in tree.names(place)
        if kernel not in ("source", "build")
        for architecture in tree.names(f"{place}/{kernel}")
        if tree.is_folder(f"{place}/{kernel}/{architecture}/module")
    ]


def _next_kernel(tree: Tree, loader: Optional[str], kernels: Sequence[Kernel]) -> Optional[str]:
    """The kernel of the entry that boots by default; None where that cannot be told from files."""
    if loader == cmdline.GRUB:
        return _next_of_menu(tree, {kernel.release for kernel in kernels})
    if loader == cmdline.BLS:
        return _next_of_entries(tree)
    return None


def _next_of_menu(tree: Tree, releases: set[str]) -> Optional[str]:
    menu = tree.text(cmdline.GRUB_MENU.lstrip("/"), _MODULES_BYTES) or ""
    saved = cmdline.grubenv(tree.text("boot/grub/grubenv") or "")
    once = saved.get("next_entry", "")
    defaults = [match[1] for match in _DEFAULT.finditer(menu) if match[1]]
    wanted = once or (defaults[-1] if defaults else "0")
    if 'set default="${saved_entry}"' in menu and not once:
        wanted = saved.get("saved_entry", "0")
    entry = _entry(menu, wanted)
    if entry is None:
        return None
    match = cmdline.kernel_of(entry)
    return match if match in releases else None


def _entry(menu: str, wanted: str) -> Optional[str]:
    """The text of the entry that GRUB's words mean: numbers, titles or ids, with > between levels."""
    place = menu
    for depth, word in enumerate(wanted.split(">")):
        entries = [match for match in _TITLE.finditer(place) if len(match[1].expandtabs(8)) == depth * 8]
        if not entries and depth:
            entries = list(_TITLE.finditer(place))[1:]
        if word.isdigit():
            chosen = entries[int(word)] if int(word) < len(entries) else None
        else:
            chosen = next((match for match in entries if word in (match[3], match[4])), None)
        if chosen is None:
            return None
        after = [match.start() for match in entries if match.start() > chosen.start()]
        place = place[chosen.start() : after[0] if after else len(place)]
    return place


def _boot_lines(tree: Tree, loader: Optional[str]) -> list[str]:
    if loader == cmdline.GRUB:
        return cmdline.grub_lines(tree.text(cmdline.GRUB_MENU.lstrip("/"), _MODULES_BYTES) or "")
    if loader != cmdline.BLS:
        return []
    return cmdline.bls_lines(
        tree.names(cmdline.BLS_FOLDER.lstrip("/")), lambda path: tree.text(path.lstrip("/"))
    )


def _next_of_entries(tree: Tree) -> Optional[str]:
    folder = cmdline.BLS_FOLDER.lstrip("/")
    names = [name for name in tree.names(folder) if name.endswith(".conf")]
    saved = cmdline.grubenv(tree.text(cmdline.GRUB_ENV.lstrip("/")) or "").get("saved_entry", "")
    chosen = f"{saved}.conf" if f"{saved}.conf" in names else None
    if chosen is None:
        return None
    match = re.search(r"^version\s+(\S+)$", tree.text(f"{folder}/{chosen}") or "", re.MULTILINE)
    return None if match is None else match[1]


def _free(path: str) -> Optional[int]:
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def release_key(release: str) -> tuple[tuple[int, str], ...]:
    """Kernels in the order of their numbers: 6.1.0-50 comes after 6.1.0-9."""
    return tuple(
        (int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", release) if part
    )
