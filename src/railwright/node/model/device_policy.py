"""What the policy asks of NICs and PCIe: registers, ACS, queues, interrupts' keeper, firmware. The default is to look.

Every value here is written only when it is asked for; what would be good is said as a finding.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Optional

from .codec import InputError
from .pci import normalise_address
from .values import like, one_of, within

ACS_SCENARIOS = ("bare-metal", "virtual", "direct-nic")
ACS_WRITERS = ("register", "kernel")
IRQBALANCE = ("leave-rails",)
_READ_REQUESTS = (128, 256, 512, 1024, 2048, 4096)
_MOST_CHANNELS = 1024
_MOST_RING = 65536
_SETTING = re.compile(r"[A-Z][A-Z0-9_]{1,63}", re.ASCII)
_VALUE = re.compile(r"[A-Za-z0-9_]{1,64}", re.ASCII)
_VERSION = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,5}){1,3}", re.ASCII)


@dataclass(frozen=True)
class PciePolicy:
    """acs: what the node is for, which decides the bits of the bridges above GPUs and rails: "bare-metal" (peer traffic
    turns round in the switch), "virtual" (GPUs and NICs are passed to virtual machines), "direct-nic" (a ConnectX-8
    with its function for direct data beside each GPU). acs_by: "register" (now and at every boot) or "kernel" (a
    parameter of the command line, in force before groups of the IOMMU are formed). acs_except: bridges that are left.
    read_request: bytes, of the rail NICs (4096: NVIDIA's and Oracle's value). relaxed_ordering: of the rail NICs.
    """

    acs: Optional[str] = None
    acs_by: str = "register"
    acs_except: tuple[str, ...] = ()
    read_request: Optional[int] = None
    relaxed_ordering: Optional[bool] = None


@dataclass(frozen=True)
class QueuesPolicy:
    """Of each rail's netdev. None leaves it to the driver.

    channels: combined ones, each with an interrupt. rx_ring, tx_ring: packets. adaptive_rx, adaptive_tx, rx_usecs,
    tx_usecs: coalescing. xps: transmit queues belong to the CPUs of their interrupts. rps: False takes the kernel's
    spreading of received packets off.
    """

    channels: Optional[int] = None
    rx_ring: Optional[int] = None
    tx_ring: Optional[int] = None
    adaptive_rx: Optional[bool] = None
    adaptive_tx: Optional[bool] = None
    rx_usecs: Optional[int] = None
    tx_usecs: Optional[int] = None
    xps: bool = False
    rps: Optional[bool] = None
    irqbalance: Optional[str] = None


@dataclass(frozen=True)
class NicFirmwarePolicy:
    """settings: NVCONFIG values that the rail NICs should have, by name. They are looked at; write: they are set too.

    versions: firmware that is allowed, by board ("MT_0000000838") or PCI id ("15b3:1021"); a NIC of another kind is not
    judged.
    """

    settings: dict[str, str] = field(default_factory=dict)
    write: bool = False
    versions: dict[str, tuple[str, ...]] = field(default_factory=dict)


def must_be_sound(pcie: PciePolicy, queues: QueuesPolicy, firmware: NicFirmwarePolicy, where: str) -> None:
    """Raises InputError with the place of what no NIC takes."""
    one_of(pcie.acs, ACS_SCENARIOS, f"{where}.pcie.acs")
    one_of(pcie.acs_by, ACS_WRITERS, f"{where}.pcie.acs_by")
    one_of(pcie.read_request, _READ_REQUESTS, f"{where}.pcie.read_request")
    for number, address in enumerate(pcie.acs_except):
        place = f"{where}.pcie.acs_except[{number}]"
        if normalise_address(address, place) != address:
            raise InputError(place, f"found {address!r}", f"expected {normalise_address(address, place)!r}")
    if pcie.acs_by == "kernel" and pcie.acs is None:
        raise InputError(
            f"{where}.pcie.acs_by", "asks for nothing without a scenario", f"set {where}.pcie.acs"
        )
    one_of(queues.irqbalance, IRQBALANCE, f"{where}.queues.irqbalance")
    within(queues.channels, 1, _MOST_CHANNELS, f"{where}.queues.channels")
    for name in ("rx_ring", "tx_ring"):
        within(getattr(queues, name), 1, _MOST_RING, f"{where}.queues.{name}")
    for name in ("rx_usecs", "tx_usecs"):
        within(getattr(queues, name), 0, _MOST_RING, f"{where}.queues.{name}")
    for way, switch, wait in (
        ("rx", queues.adaptive_rx, queues.rx_usecs),
        ("tx", queues.adaptive_tx, queues.tx_usecs),
    ):
        if switch and wait is not None:
            raise InputError(
                f"{where}.queues.{way}_usecs",
                f"found {wait} beside adaptive_{way}: true, which has the driver choose it",
                f"leave it out, or set adaptive_{way} to false",
            )
    if queues.rps:
        raise InputError(
            f"{where}.queues.rps",
            "found true",
            "expected false or nothing: RDMA NICs have queues enough of their own",
        )
    for name, value in firmware.settings.items():
        if not _SETTING.fullmatch(name) or not _VALUE.fullmatch(value):
            raise InputError(
                f"{where}.nic_firmware.settings.{name}",
                f"found {value!r}",
                'expected a form like CNP_DSCP_P1: "48"',
            )
    if firmware.write and not firmware.settings:
        raise InputError(f"{where}.nic_firmware.write", "there is nothing to be written", "name settings")
    for kind, versions in firmware.versions.items():
        for number, version in enumerate(versions):
            like(
                version, _VERSION, f"{where}.nic_firmware.versions.{kind}[{number}]", "a form like 28.39.1002"
            )
