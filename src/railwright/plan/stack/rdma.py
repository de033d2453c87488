"""What belongs to which RDMA stack, with source and date.

Sources: packages of rdma-core in Debian 12, Debian 13, Ubuntu 24.04 and RHEL 9 (2026-11); DOCA documentation 3.2, "DOCA
installation", profile doca-ofed (2026-08); azhpc-images and lsr hpc (2026-08).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

# DOCA-OFED's alone. kernel-mft-dkms and mft come with it, and are also in NVIDIA's CUDA archive; doca-host holds no
# more than the archive itself.
DOCA_ONLY: tuple[str, ...] = (
    "doca-ofed*", "doca-extra", "doca-networking", "doca-all", "mlnx-ofed-kernel*", "kmod-mlnx-ofa_kernel*",
    "mlnx-ofa_kernel*", "mlnx-fw-updater*", "ofed-scripts", "mlnx-ethtool", "mlnx-iproute2", "iser-dkms", "isert-dkms",
    "srp-dkms", "mlnx-nvme-dkms", "mlnx-nfsrdma-dkms", "linux-modules-doca-ofed-*", "linux-main-modules-doca-ofed-*",
)  # fmt: skip
# Whose build of the modules a package brings, by patterns of its name. Canonical's are in Ubuntu 26.04: prebuilt ones
# for each flavour of the kernel, and their source for DKMS, by DOCA's release (packages.ubuntu.com, resolute, 2026-11).
PREBUILT, CANONICAL = "Canonical's prebuilt modules", "Canonical's source for DKMS"
BUILDS: dict[str, tuple[str, ...]] = {
    "NVIDIA's modules": ("mlnx-ofed-kernel*", "kmod-mlnx-ofa_kernel*", "mlnx-ofa_kernel*"),
    PREBUILT: ("linux-modules-doca-ofed-*", "linux-main-modules-doca-ofed-*"),
    CANONICAL: ("doca-ofed-*-dkms",),
}
# Those two bring packages of one name; the version tells whose it is ("2507mlnx58-1", "58mlnx43-1.58203").
USER_SPACE: tuple[str, ...] = (
    "rdma-core", "rdmacm-utils", "libibverbs1", "libibverbs", "libibverbs-dev", "ibverbs-providers", "ibverbs-utils",
    "librdmacm1", "librdmacm", "librdmacm-dev", "librdmacm1t64", "libibumad3", "libibumad", "libibumad-dev",
    "libibmad5", "libibmad-dev", "infiniband-diags", "libibnetdisc5", "libibnetdisc5t64", "libibnetdisc-dev",
    "rdma-core-devel", "libibverbs-utils", "librdmacm-utils", "ibacm", "srptools", "srp_daemon", "iwpmd",
    "python3-pyverbs",
)  # fmt: skip
FIRMWARE_TOOLS: tuple[str, ...] = ("mstflint", "mft")
_VENDOR = re.compile(r"mlnx|doca", re.IGNORECASE)


def bare(name: str) -> str:
    """A package's name without its architecture."""
    return name.partition(":")[0]


def builds(names: Iterable[str]) -> dict[str, list[str]]:
    """Which builds of DOCA-OFED's modules these packages bring, each with its packages."""
    found: dict[str, list[str]] = {}
    for name in names:
        for build, patterns in BUILDS.items():
            if any(fnmatchcase(bare(name), pattern) for pattern in patterns):
                found.setdefault(build, []).append(name)
    return found


def is_doca(name: str, version: str) -> bool:
    """Whether a package is a part of DOCA-OFED. name: with or without its architecture (libibverbs1:amd64)."""
    name = bare(name)
    if any(fnmatchcase(name, pattern) for pattern in DOCA_ONLY):
        return True
    return name in USER_SPACE and _VENDOR.search(version) is not None


def is_inbox(name: str, version: str) -> bool:
    """Whether a package is of the distribution's own rdma-core."""
    return bare(name) in USER_SPACE and _VENDOR.search(version) is None
