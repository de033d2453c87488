"""The typed form of one machine's description: what a person would state about a machine, and nothing derived."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Interface, IPv6Interface

from .errors import MachineError

PORTS = ("endpoint", "root-port", "upstream", "downstream", "to-pci", "integrated", "conventional")
BRIDGES = ("root-port", "upstream", "downstream", "to-pci")
ACS_BITS = ("SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans")
SPEEDS = ("2.5", "5.0", "8.0", "16.0", "32.0", "64.0")
NUMBERINGS = ("half-split", "odd-even", "adjacent")
PORT_STATES = {"DOWN": 1, "INIT": 2, "ARMED": 3, "ACTIVE": 4}
PHYSICAL_STATES = {"Sleep": 1, "Polling": 2, "Disabled": 3, "LinkUp": 5, "LinkErrorRecovery": 6}
LINK_LAYERS = ("Ethernet", "InfiniBand")

_ADDRESS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")
_BUS = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2})")


@dataclass(frozen=True, order=True)
class Address:
    """Domain, bus, device, function: the order of PCI enumeration."""

    domain: int
    bus: int
    device: int
    function: int

    @staticmethod
    def parse(text: str, where: str) -> Address:
        """`0000:0f:00.0`, or `0f:00.0` in domain 0."""
        match = _ADDRESS.fullmatch(text)
        if match is None:
            raise MachineError(where, f"'{text}' is no PCI address", "write 0000:0f:00.0 or 0f:00.0, quoted")
        domain, bus, device, function = match.groups()
        return Address(int(domain or "0", 16), int(bus, 16), int(device, 16), int(function, 16))

    @property
    def bus_name(self) -> str:
        return f"{self.domain:04x}:{self.bus:02x}"

    def __str__(self) -> str:
        return f"{self.domain:04x}:{self.bus:02x}:{self.device:02x}.{self.function:x}"


@dataclass(frozen=True)
class Link:
    """A PCIe link's speed in GT/s, as a text of `SPEEDS`, and its width; None where the hardware does not say."""

    speed: str | None
    width: int | None

    @staticmethod
    def parse(text: str, where: str) -> Link:
        """`32.0x16`, or `unknown`."""
        if text == "unknown":
            return Link(None, None)
        speed, _, width = text.partition("x")
        if speed not in SPEEDS or not width.isdigit():
            raise MachineError(where, f"'{text}' is no link", f"write SPEEDxWIDTH with a speed of {SPEEDS}")
        return Link(speed, int(width))

    def meet(self, other: Link) -> Link:
        """What two ends agree on."""
        speeds = [speed for speed in (self.speed, other.speed) if speed is not None]
        widths = [width for width in (self.width, other.width) if width is not None]
        return Link(min(speeds, key=SPEEDS.index, default=None), min(widths, default=None))


@dataclass(frozen=True)
class Bar:
    """One base address register: its size in bytes and what kind of memory it decodes."""

    size: int
    prefetchable: bool
    wide: bool


@dataclass(frozen=True)
class Vectors:
    """The MSI or MSI-X vectors a driver takes: fixed names first, then `count` queue vectors."""

    fixed: tuple[str, ...]
    queues: str
    count: int
    managed: bool


@dataclass(frozen=True)
class Rdma:
    """What an RDMA device says of its model."""

    hca_type: str
    board_id: str
    firmware: str
    gid_entries: int


@dataclass(frozen=True)
class Part:
    """A kind of PCI function."""

    name: str
    vendor: int
    device: int
    subvendor: int
    subdevice: int
    class_code: int
    revision: int
    port: str
    link: Link
    payload_supported: int
    payload: int
    read_request: int
    relaxed_ordering: bool
    extended_tags: bool
    ten_bit_completer: bool
    ten_bit_requester: bool
    ten_bit_enabled: bool
    acs: tuple[str, ...] | None
    aer: bool
    ari: bool
    ats: bool | None
    functions_max: int
    bars: Mapping[int, Bar]
    msi: int
    msix: int
    driver: str | None
    vectors: Vectors | None
    rdma: Rdma | None
    vpd_name: str | None
    vpd_fields: Mapping[str, str]


@dataclass(frozen=True)
class Device:
    """A PCI function at its place."""

    address: Address
    part: Part
    under: Address | None
    host: str
    link: Link
    now: Link | None
    acs: tuple[str, ...]
    read_request: int
    relaxed_ordering: bool
    numa: int | None
    slot: int | None
    label: str | None
    secondary: int | None
    driver: str | None
    serial: str | None


@dataclass(frozen=True)
class Nic:
    """A network port: an RDMA device, a netdev, or both over one PCI function."""

    label: str
    at: Address
    rdma: str | None
    netdev: str | None
    via: str | None
    mac: str
    layer: str
    state: str
    physical: str
    gbps: int
    mtu: int
    ipv4: tuple[IPv4Interface, ...]
    ipv6: tuple[IPv6Interface, ...]
    node_guid: int
    image_guid: int
    lid: int
    channels: int | None
    irq_cpus: tuple[int, ...] | None
    firmware: str | None
    board_id: str | None


@dataclass(frozen=True)
class Cache:
    """A cache: its level, kind, size and ways, and how many neighbouring cores share one (0: the whole socket)."""

    name: str
    level: int
    kind: str
    size: int
    ways: int
    cores: int


@dataclass(frozen=True)
class Cpus:
    """The processors. Either a regular shape or, with `nodes`, the CPUs of each NUMA node one by one."""

    vendor: str
    family: int
    model: int
    stepping: int
    name: str
    flags: str
    mhz: int
    sockets: int
    cores: int
    threads: int
    numbering: str
    nodes_per_socket: int
    nodes: Mapping[int, tuple[int, ...]] | None
    sibling_distance: int | None
    possible: int | None
    offline: tuple[int, ...]
    caches: tuple[Cache, ...]
    governor: str | None
    scaling_driver: str | None


@dataclass(frozen=True)
class Module:
    """A loaded kernel module."""

    name: str
    size: int
    users: tuple[str, ...]
    references: int
    version: str | None
    taint: str
    parameters: Mapping[str, str]


@dataclass(frozen=True)
class Nvidia:
    """The loaded NVIDIA driver."""

    version: str
    open_modules: bool
    build: str
    compiler: str
    model: str
    vbios: str
    uuids: Mapping[Address, str]


@dataclass(frozen=True)
class Machine:
    """One machine."""

    name: str
    about: str
    source: str
    architecture: str
    dmi: Mapping[str, str]
    os_release: Mapping[str, str]
    hostname: str
    kernel: str
    kernel_build: str
    cmdline: str
    boot_id: str
    secure_boot: bool | None
    lockdown: str
    transparent_hugepages: str
    sysctls: Mapping[str, str]
    modules: tuple[Module, ...]
    cpus: Cpus
    memory_gib: Mapping[int, int]
    distances: Mapping[int, tuple[int, ...]]
    iommu: str
    hosts: Mapping[str, int]
    devices: tuple[Device, ...]
    nics: tuple[Nic, ...]
    default_nic: str | None
    default_gateway: str | None
    default_metric: int
    irq_first: int
    irq_chip: str
    irq_default_cpus: tuple[int, ...] | None
    nvidia: Nvidia | None
    files: Mapping[str, str]
    symlinks: Mapping[str, str]
    cut: Mapping[str, int]
    absent: tuple[str, ...]

    @cached_property
    def by_address(self) -> dict[Address, Device]:
        return {device.address: device for device in self.devices}
