"""How each archive names the driver's parts: by archive, flavour of the modules and branch.

Sources: NVIDIA's driver installation guide r590 (2025-12) and r610 (2026-08), "Kernel Modules", "Version locking" and
"Ubuntu 590 and later packages"; packages.ubuntu.com, noble and jammy (2026-11); packages.debian.org, bookworm and
trixie (2026-11); azhpc-images components/install_nvidiagpudriver.sh (2026-08).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Optional

from .pairs import version

# Branches whose packages may stand on a node from before, so that none is left beside the wanted one: those that these
# archives still have (NVIDIA's branch table, 2026-11).
BRANCHES = (535, 550, 560, 565, 570, 575, 580, 590, 595, 610)


@dataclass(frozen=True)
class Names:
    """One archive's names for branches from `since` on and before `until`. {branch} is filled in.

    systems: ids of os-release. modules: by "flavour/build". user: of the driver's version besides. fabric_manager,
    nscq, imex: None where the archive has none. nvlink5: besides, for NVSwitches of NVLink 5. revision: what
    usually stands behind the version, {system} is the release ("24.04"). module_stream: of dnf, numbered; one that
    follows the newest would move the branch at every run. meta: by flavour, the package that brings the rest.
    beside: what that brings of the same version.
    """

    archive: str
    systems: tuple[str, ...]
    since: int
    until: int
    modules: dict[str, tuple[str, ...]]
    user: tuple[str, ...]
    fabric_manager: Optional[str]
    nscq: Optional[str]
    imex: Optional[str]
    revision: str
    nvlink5: tuple[str, ...] = ()
    module_stream: Optional[str] = None
    meta: dict[str, str] = field(default_factory=dict)
    beside: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        """Every name of the row, with {branch} in it."""
        parts = [name for names in self.modules.values() for name in names]
        single = [name for name in (self.fabric_manager, self.nscq, self.imex) if name is not None]
        return (*parts, *self.user, *single, *self.meta.values(), *self.beside)


_LAST = 10_000
_DEB_BESIDE = (
    "firmware-nvidia-gsp", "libcuda1", "libcudadebugger1", "libnvidia-cfg1", "libnvidia-ml1",
    "libnvidia-ptxjitcompiler1", "nvidia-driver", "nvidia-driver-cuda", "nvidia-driver-libs",
    "nvidia-kernel-common", "nvidia-modprobe",
    "nvidia-settings", "nvidia-smi", "nvidia-utils", "nvidia-xconfig",
)  # fmt: skip
_BRANCH_BESIDE = (
    "libnvidia-cfg1-{branch}", "libnvidia-common-{branch}", "libnvidia-compute-{branch}", "libnvidia-decode-{branch}",
    "libnvidia-encode-{branch}", "libnvidia-extra-{branch}", "libnvidia-fbc1-{branch}", "libnvidia-gl-{branch}",
    "nvidia-driver-{branch}", "nvidia-driver-{branch}-open", "nvidia-firmware-{branch}",
    "nvidia-kernel-common-{branch}", "nvidia-kernel-source-{branch}", "nvidia-kernel-source-{branch}-open",
    "xserver-xorg-video-nvidia-{branch}",
)  # fmt: skip
NAMES: tuple[Names, ...] = (
    Names(
        "nvidia", ("debian",), 560, _LAST,
        {"open/dkms": ("nvidia-kernel-open-dkms",), "proprietary/dkms": ("nvidia-kernel-dkms",)},
        ("nvidia-persistenced",), "nvidia-fabricmanager", "libnvidia-nscq", "nvidia-imex", "1",
        nvlink5=("libnvsdm",), meta={"open": "nvidia-open", "proprietary": "cuda-drivers"}, beside=_DEB_BESIDE,
    ),
    Names(
        "nvidia", ("ubuntu",), 590, _LAST,
        {"open/dkms": ("nvidia-dkms-open",), "proprietary/dkms": ("nvidia-dkms",)},
        ("nvidia-persistenced",), "nvidia-fabricmanager", "libnvidia-nscq", "nvidia-imex", "1ubuntu1",
        nvlink5=("libnvsdm",), meta={"open": "nvidia-open", "proprietary": "cuda-drivers"}, beside=_DEB_BESIDE,
    ),
    Names(
        "nvidia", ("ubuntu",), 580, 590,
        {"open/dkms": ("nvidia-dkms-{branch}-open",), "proprietary/dkms": ("nvidia-dkms-{branch}",)},
        ("nvidia-compute-utils-{branch}", "nvidia-utils-{branch}"),
        "nvidia-fabricmanager", "libnvidia-nscq", "nvidia-imex", "0ubuntu1",
        nvlink5=("libnvsdm",),
        meta={"open": "nvidia-open-{branch}", "proprietary": "cuda-drivers-{branch}"},
        beside=_BRANCH_BESIDE,
    ),
    Names(
        "nvidia", ("ubuntu",), 560, 580,
        {"open/dkms": ("nvidia-dkms-{branch}-open",), "proprietary/dkms": ("nvidia-dkms-{branch}",)},
        ("nvidia-compute-utils-{branch}", "nvidia-utils-{branch}"),
        "nvidia-fabricmanager-{branch}", "libnvidia-nscq-{branch}", "nvidia-imex-{branch}", "0ubuntu1",
        nvlink5=("libnvsdm",),
        meta={"open": "nvidia-open-{branch}", "proprietary": "cuda-drivers-{branch}"},
        beside=_BRANCH_BESIDE,
    ),
    Names(
        "ubuntu", ("ubuntu",), 535, _LAST,
        {
            "open/dkms": ("nvidia-dkms-{branch}-server-open",),
            "proprietary/dkms": ("nvidia-dkms-{branch}-server",),
            # Signed by Canonical, so Secure Boot takes them; the meta follows the kernel's meta package.
            "open/prebuilt": ("linux-modules-nvidia-{branch}-server-open-generic",),
            "proprietary/prebuilt": ("linux-modules-nvidia-{branch}-server-generic",),
        },
        ("nvidia-compute-utils-{branch}-server", "nvidia-utils-{branch}-server", "libnvidia-compute-{branch}-server"),
        "nvidia-fabricmanager-{branch}", "libnvidia-nscq-{branch}", "nvidia-imex-{branch}",
        "0ubuntu0.{system}.1",
        meta={
            "open": "nvidia-headless-no-dkms-{branch}-server-open",
            "proprietary": "nvidia-headless-no-dkms-{branch}-server",
        },
    ),
    Names(
        "debian", ("debian",), 535, _LAST,
        {"open/dkms": ("nvidia-open-kernel-dkms",), "proprietary/dkms": ("nvidia-kernel-dkms",)},
        (), None, None, None, "1", meta={},
    ),
    Names(
        "nvidia", ("rhel", "rocky"), 570, _LAST,
        {"open/dkms": ("kmod-nvidia-open-dkms",), "proprietary/dkms": ("kmod-nvidia-latest-dkms",)},
        ("nvidia-driver-cuda", "nvidia-persistenced"),
        "nvidia-fabricmanager", "libnvidia-nscq", "nvidia-imex", "1.el9",
        nvlink5=("libnvsdm",), module_stream="{branch}-open",
        meta={"open": "nvidia-open", "proprietary": "cuda-drivers"},
    ),
)  # fmt: skip
# The rpms carry an epoch, which is a part of an exact version.
RPM_EPOCH = "3:"


def names_of(archive: str, system: str, driver: str) -> Optional[Names]:
    """The row for a driver of an archive on a system; None where the archive has no such thing there."""
    (branch, *_) = version(driver)
    return next(
        (
            row
            for row in NAMES
            if row.archive == archive and system in row.systems and row.since <= branch < row.until
        ),
        None,
    )


def filled(name: str, branch: int) -> str:
    """A name with its branch in it."""
    return name.format(branch=branch)


def unwanted(system: str, wanted: Sequence[str]) -> tuple[str, ...]:
    """Names of the system's archives that must not stand beside the wanted ones: other branches, flavours, archives.

    The same for every state that the node may be in, so that a plan does not change with what it has done.
    """
    found: dict[str, None] = {}
    for row in NAMES:
        if system in row.systems:
            for name in row.all:
                named = "{branch}" in name
                branches = (
                    [branch for branch in BRANCHES if row.since <= branch < row.until] if named else [0]
                )
                found.update(dict.fromkeys(filled(name, branch) for branch in branches))
    beside = {name for row in NAMES for name in row.beside}
    return tuple(sorted(name for name in found if name not in wanted and name not in beside))
