"""Policy of the driver and the fabric manager: what a site says of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Optional

from .values import like, one_of, within

ARCHIVES = ("nvidia", "ubuntu", "debian")
FLAVOURS = ("open", "proprietary")
BUILDS = ("dkms", "prebuilt")
RDMA = ("dma-buf", "nvidia_peermem")
PARTITION_MODES = ("full", "shared", "vgpu")
_VERSION = re.compile(r"[0-9]{3}\.[0-9]{1,3}(?:\.[0-9]{1,3})?", re.ASCII)
_FULL = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+:~-]{0,80}", re.ASCII)
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9.+-]{1,100}", re.ASCII)
_OPTION = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}", re.ASCII)
_VALUE = re.compile(r'[A-Za-z0-9_.:;=,/"-]{1,200}', re.ASCII)


@dataclass(frozen=True)
class FabricManagerPolicy:
    """The fabric manager, on nodes with NVSwitches. None: not managed by that value.

    partition_mode: "full" (the node is one machine), "shared" or "vgpu" (Fabric Manager User Guide, FABRIC_MODE 0, 1
    and 2); None leaves the package's own configuration, which is "full". nvlsm: exact version of the NVLink subnet
    manager's package, needed where NVLink 5 is. wait: seconds that a fabric may take until it is complete.
    """

    partition_mode: Optional[str] = None
    nvlsm: Optional[str] = None
    wait: int = 600


@dataclass(frozen=True)
class DriverPolicy:
    """The driver of all GPUs of the node. version None: Railwright installs none, and leaves what is there.

    version: to the last digit, "580.173.02"; modules, user space and fabric manager are all of it. archive: whose
    packages: "nvidia", "ubuntu" or "debian". revision: what the archive puts behind the version ("1"); None: as it is
    usual there. flavour: "open" or "proprietary" kernel modules; None: by the GPUs' generation. build: "dkms", or
    "prebuilt" modules that the distribution has signed; modules_version: the exact version of their package.
    packages: more packages of the driver's version. options: of the module nvidia, by name. rdma: "dma-buf" or
    "nvidia_peermem"; None: by the flavour. persistence: whether the driver stays loaded with no client.
    """

    version: Optional[str] = None
    archive: str = "nvidia"
    revision: Optional[str] = None
    flavour: Optional[str] = None
    build: str = "dkms"
    modules_version: Optional[str] = None
    packages: tuple[str, ...] = ()
    options: dict[str, str] = field(default_factory=dict)
    rdma: Optional[str] = None
    persistence: bool = True


def must_be_known(driver: DriverPolicy, fabric_manager: FabricManagerPolicy, where: str) -> None:
    """Raises InputError for words of which there are few, and for what cannot be a package, version or option."""
    one_of(driver.archive, ARCHIVES, f"{where}.driver.archive")
    one_of(driver.build, BUILDS, f"{where}.driver.build")
    one_of(driver.flavour, FLAVOURS, f"{where}.driver.flavour")
    one_of(driver.rdma, RDMA, f"{where}.driver.rdma")
    one_of(fabric_manager.partition_mode, PARTITION_MODES, f"{where}.fabric_manager.partition_mode")
    like(driver.version, _VERSION, f"{where}.driver.version", "a whole version like 580.173.02")
    like(driver.revision, _FULL, f"{where}.driver.revision", "what stands behind the version, like 1")
    like(driver.modules_version, _FULL, f"{where}.driver.modules_version", "a version like 6.8.0-90.91")
    like(fabric_manager.nvlsm, _FULL, f"{where}.fabric_manager.nvlsm", "a version like 2025.10.11-1")
    for name in driver.packages:
        like(name, _PACKAGE, f"{where}.driver.packages", "names of packages")
    for name, value in driver.options.items():
        like(name, _OPTION, f"{where}.driver.options", "names like NVreg_RestrictProfilingToAdminUsers")
        like(value, _VALUE, f"{where}.driver.options.{name}", "a value without blanks")
    within(fabric_manager.wait, 1, 3600, f"{where}.fabric_manager.wait")
