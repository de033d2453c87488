"""The operating system: name, kernel, boot, firmware, virtualisation, driver, modules and sysctls."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Optional

from ..model import Host, InputError, Module, Nic
from .login import read_login_ms
from .tree import Tree

# Sysctls that a plan may set, with what reads them: NUMA and memory placement, the socket buffers that NCCL's bootstrap
# and storage clients use, ARP on several rails in one subnet (Documentation/networking/ip-sysctl.rst), huge pages, and
# the limits that training jobs meet. What files in /etc/sysctl.d name is read besides.
SYSCTLS = (
    "fs.aio-max-nr",
    "fs.file-max",
    "fs.inotify.max_user_instances",
    "fs.inotify.max_user_watches",
    "fs.nr_open",
    "kernel.nmi_watchdog",
    "kernel.numa_balancing",
    "kernel.panic",
    "kernel.panic_on_oops",
    "kernel.pid_max",
    "kernel.sched_autogroup_enabled",
    "kernel.threads-max",
    "kernel.timer_migration",
    "kernel.watchdog",
    "kernel.yama.ptrace_scope",
    "net.core.busy_poll",
    "net.core.busy_read",
    "net.core.default_qdisc",
    "net.core.netdev_budget",
    "net.core.netdev_max_backlog",
    "net.core.optmem_max",
    "net.core.rmem_default",
    "net.core.rmem_max",
    "net.core.somaxconn",
    "net.core.wmem_default",
    "net.core.wmem_max",
    "net.ipv4.conf.all.arp_announce",
    "net.ipv4.conf.all.arp_filter",
    "net.ipv4.conf.all.arp_ignore",
    "net.ipv4.conf.all.rp_filter",
    "net.ipv4.conf.default.arp_announce",
    "net.ipv4.conf.default.arp_filter",
    "net.ipv4.conf.default.arp_ignore",
    "net.ipv4.conf.default.rp_filter",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.neigh.default.gc_thresh1",
    "net.ipv4.neigh.default.gc_thresh2",
    "net.ipv4.neigh.default.gc_thresh3",
    "net.ipv4.tcp_congestion_control",
    "net.ipv4.tcp_low_latency",
    "net.ipv4.tcp_mtu_probing",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_sack",
    "net.ipv4.tcp_timestamps",
    "net.ipv4.tcp_wmem",
    "vm.compaction_proactiveness",
    "vm.dirty_background_ratio",
    "vm.dirty_ratio",
    "vm.max_map_count",
    "vm.min_free_kbytes",
    "vm.nr_hugepages",
    "vm.overcommit_memory",
    "vm.swappiness",
    "vm.zone_reclaim_mode",
)
# The same for each port's netdev: which of several interfaces in one subnet answers and speaks (ARP flux).
INTERFACE_SYSCTLS = ("accept_local", "arp_announce", "arp_filter", "arp_ignore", "rp_filter")

_MODULES = re.compile(
    r"(?:nvidia(?:_.*)?|nv_peer_mem|gdrdrv|nouveau|nova_.*|amdgpu|mlx[45]_.*|mlxfw|mlx_compat|ib_.*|rdma_.*|iw_cm|iw_cxgb4"
    r"|irdma|i40iw|ice|bnxt_en|bnxt_re|efa|ena|ionic|ionic_rdma|mana|mana_ib|hfi1|rdmavt|qedr|erdma|siw|smc|knem|xpmem"
    r"|vfio|vfio_pci|vfio_iommu_type1|nvme|nvme_core|nvme_rdma|nvme_fabrics|lustre|virtio_net)"
)
_VERSION = re.compile(r"Module(?: for \S+)?\s+(\d+\.\d+(?:\.\d+)?)\b", re.ASCII)
_LINUX = re.compile(r"^Linux version (\S+)")
_OS_FIELD = re.compile(r"""^([A-Z_]+)=(["']?)(.*)\2$""")
_SYSCTL_LINE = re.compile(r"^-?\s*([A-Za-z0-9_./-]+?)\s*=")
_SECURE_BOOT = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
# DMI vendor or product, as virtual machines name themselves (systemd's src/basic/virt.c has the same marks).
_DMI_MARKS = (
    ("QEMU", "kvm"),
    ("KVM", "kvm"),
    ("OpenStack", "kvm"),
    ("VMware", "vmware"),
    ("VMW", "vmware"),
    ("VirtualBox", "oracle"),
    ("innotek", "oracle"),
    ("Xen", "xen"),
    ("Bochs", "bochs"),
    ("Parallels", "parallels"),
    ("BHYVE", "bhyve"),
    ("Virtual Machine", "microsoft"),
    ("Google Compute Engine", "google"),
    ("Amazon EC2", "amazon"),
)
_TABLE_BYTES = 4 * 1024 * 1024
_NCCL_CONF_BYTES = 64 * 1024
_NCCL_LINE = re.compile(r"([A-Z][A-Z0-9_]{0,63})=([ -~]{0,255})", re.ASCII)
# How every file begins that the planner writes.
OUR_HEADER = "# Written by Railwright"


def read_host(tree: Tree, cpuinfo: dict[str, str], nics: tuple[Nic, ...], sysctls: Sequence[str]) -> Host:
    """The host around the devices; `sysctls` are keys that were asked for. Raises InputError."""
    system = _os_release(tree)
    return Host(
        name=tree.text("etc/hostname") or tree.text("proc/sys/kernel/hostname") or None,
        os_id=system.get("ID"),
        os_version=system.get("VERSION_ID"),
        kernel=_kernel(tree),
        cmdline=tree.text("proc/cmdline"),
        boot_id=tree.text("proc/sys/kernel/random/boot_id"),
        product=_product(tree),
        virtual=_virtual(tree, cpuinfo),
        secure_boot=_secure_boot(tree),
        iommu=bool(tree.names("sys/class/iommu")) if tree.is_folder("sys/class/iommu") else None,
        driver=_driver(tree),
        modules=_modules(tree),
        sysctls=_sysctls(tree, nics, sysctls),
        bios=tree.text("sys/class/dmi/id/bios_version") or None,
        nccl_conf=_nccl_conf(tree),
        login_ms=read_login_ms(tree),
    )


def _nccl_conf(tree: Tree) -> Optional[dict[str, str]]:
    """What a file that is not ours sets, as NCCL reads it (src/misc/param.cc setEnvFile): a name's first value counts.

    None for what cannot be read, or is not in a form that NCCL's variables have.
    """
    if not tree.is_folder("etc"):
        return None
    try:
        text = tree.text("etc/nccl.conf", _NCCL_CONF_BYTES)
    except InputError:
        return None
    lines = (text or "").splitlines()
    if lines and lines[0].startswith(OUR_HEADER):
        return {}
    found: dict[str, str] = {}
    for line in lines:
        match = _NCCL_LINE.fullmatch(line)
        if match:
            found.setdefault(match[1], match[2])
    return found


def sysctl_path(key: str) -> str:
    """The file of a sysctl, relative to the root. As in sysctl(8) the first separator decides which one is meant:
    "net.ipv4.conf.eth0/1.rp_filter" and "net/ipv4/conf/eth0.1/rp_filter" are the same key.
    """
    first = next((character for character in key if character in "./"), ".")
    return "proc/sys/" + (key if first == "/" else key.translate(str.maketrans("./", "/.")))


def _os_release(tree: Tree) -> dict[str, str]:
    text = tree.text("etc/os-release")
    if text is None:
        text = tree.text("usr/lib/os-release")
    matches = (_OS_FIELD.match(line.strip()) for line in (text or "").splitlines())
    return {match[1]: match[3] for match in matches if match and match[3]}


def _kernel(tree: Tree) -> Optional[str]:
    release = tree.text("proc/sys/kernel/osrelease")
    if release:
        return release
    version = tree.text("proc/version")
    if version is None:
        return None
    match = _LINUX.match(version)
    if match is None:
        raise InputError(
            tree.where("proc/version"), f"found {version[:80]!r}", "expected 'Linux version ...'"
        )
    return match[1]


def _dmi(tree: Tree) -> dict[str, str]:
    names = ("sys_vendor", "product_name", "board_vendor", "bios_vendor", "chassis_vendor")
    texts = ((name, tree.text(f"sys/class/dmi/id/{name}")) for name in names)
    return {name: text for name, text in texts if text}


def _product(tree: Tree) -> Optional[str]:
    dmi = _dmi(tree)
    words = [dmi[name] for name in ("sys_vendor", "product_name") if name in dmi]
    # Boards without DMI (device tree) name their model there.
    return " ".join(words) or (tree.text("sys/firmware/devicetree/base/model") or "").strip("\0") or None


def _virtual(tree: Tree, cpuinfo: dict[str, str]) -> Optional[str]:
    """What it runs in; "" only where something says that this is the bare machine."""
    if _in_container(tree):
        return "container"
    dmi = _dmi(tree)
    kind = next((kind for mark, kind in _DMI_MARKS if any(mark in text for text in dmi.values())), None)
    flags = cpuinfo.get("flags")
    if flags is not None:
        # The bit is reserved for hypervisors (CPUID 1, ECX 31). EC2 and others name themselves alike on bare metal.
        return (kind or "vm") if "hypervisor" in flags.split() else ""
    if kind is not None:
        return "" if dmi.get("product_name", "").endswith((".metal", "-metal")) else kind
    return "" if dmi else None


def _in_container(tree: Tree) -> bool:
    if any(tree.exists(path) for path in ("run/.containerenv", ".dockerenv", "run/systemd/container")):
        return True
    environment = tree.data("proc/1/environ", _TABLE_BYTES) or b""
    return any(item.startswith(b"container=") and item != b"container=" for item in environment.split(b"\0"))


def _secure_boot(tree: Tree) -> Optional[bool]:
    if not tree.is_folder("sys/firmware"):
        return None
    if not tree.is_folder("sys/firmware/efi"):
        return False
    data = tree.data(_SECURE_BOOT)
    if data is None:
        # An empty folder is a file system that nobody has mounted.
        return False if tree.names("sys/firmware/efi/efivars") and not tree.exists(_SECURE_BOOT) else None
    # Four bytes of attributes, then the variable: one byte (UEFI Specification 2.10, 3.3).
    if len(data) != 5 or data[4] > 1:
        raise InputError(
            tree.where(_SECURE_BOOT), f"found {data.hex()}", "expected four bytes and then 00 or 01"
        )
    return data[4] == 1


def _driver(tree: Tree) -> Optional[str]:
    text = tree.text("proc/driver/nvidia/version")
    if text is None:
        return tree.text("sys/module/nvidia/version")
    match = _VERSION.search(text)
    if match is None:
        raise InputError(
            tree.where("proc/driver/nvidia/version"),
            f"found {text[:80]!r}",
            "expected 'NVRM version: ... Module  550.54.14'",
        )
    return match[1]


def _modules(tree: Tree) -> Optional[tuple[Module, ...]]:
    """Loaded or built-in modules that matter to GPUs, RDMA and storage; None where proc/modules is not readable."""
    text = tree.text("proc/modules", _TABLE_BYTES)
    if text is None:
        return None
    names = {line.split(" ", 1)[0] for line in text.splitlines()} | set(tree.names("sys/module"))
    wanted = sorted(name for name in names if _MODULES.fullmatch(name))
    return tuple(Module(name, tree.text(f"sys/module/{name}/version") or None) for name in wanted)


def _sysctls(tree: Tree, nics: tuple[Nic, ...], asked: Sequence[str]) -> dict[str, str]:
    """Values by key, sorted. A key that this kernel does not have is left out."""
    for key in asked:
        if not _is_sysctl(key):
            raise InputError(f"sysctls.{key}", "is no sysctl", "expected a name like vm.swappiness")
    netdevs = sorted({nic.netdev for nic in nics if nic.netdev is not None})
    keys = {
        *SYSCTLS,
        *asked,
        *(key for key in _named_sysctls(tree) if _is_sysctl(key)),
        *(f"net.ipv4.conf.{name.replace('.', '/')}.{what}" for name in netdevs for what in INTERFACE_SYSCTLS),
    }
    found = {}
    for key in sorted(keys):
        text = tree.text(sysctl_path(key))
        if text is not None:
            found[key] = " ".join(text.split())
    return found


def _is_sysctl(key: str) -> bool:
    # A key that would lead out of proc/sys is nobody's sysctl.
    return "\0" not in key and not {".", "..", ""} & set(sysctl_path(key).split("/"))


def _named_sysctls(tree: Tree) -> set[str]:
    """Keys in /etc/sysctl.conf and /etc/sysctl.d."""
    names = (name for name in tree.names("etc/sysctl.d") if name.endswith(".conf"))
    found = set()
    for path in ("etc/sysctl.conf", *(f"etc/sysctl.d/{name}" for name in names)):
        for line in (tree.text(path, _TABLE_BYTES) or "").splitlines():
            match = _SYSCTL_LINE.match(line.strip())
            if match:
                found.add(match[1])
    return found
