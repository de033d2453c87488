"""A small machine with software, for tests of what is installed: GPUs, kernels, a driver's packages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from railwright.node.model import (
    Cpus,
    Facts,
    Gpu,
    Host,
    Link,
    Nic,
    PciDevice,
    Platform,
    Policy,
    Root,
    Witness,
)
from railwright.node.model.facts import SCHEMA
from railwright.node.model.software import Dkms, Kernel, Package, Software

OLD, NEW = "6.1.0-49-amd64", "6.1.0-50-amd64"
H100, B200, V100 = "0x2330", "0x2901", "0x1db4"


def machine(*devices: str, switches: int = 0, **changes: Any) -> Facts:
    """devices: GPUs by their PCI device id. switches: NVSwitches as PCI functions. changes: of `Facts`."""
    pci = [
        PciDevice(
            f"0000:{0x10 + number:02x}:00.0",
            "pci0000:00",
            "0x10de",
            device,
            class_code="0x030200",
            link=Link(),
        )
        for number, device in enumerate(devices)
    ]
    gpus = tuple(Gpu(f"GPU{number}", number, device.address) for number, device in enumerate(pci))
    pci += [
        PciDevice(
            f"0000:{0x40 + number:02x}:00.0",
            "pci0000:00",
            "0x10de",
            "0x22a3",
            class_code="0x068000",
            link=Link(),
        )
        for number in range(switches)
    ]
    facts = Facts(
        schema=SCHEMA,
        witnesses=(Witness("sysfs", "a test"),),
        host=Host(name="n1", os_id="debian", os_version="12", kernel=NEW, secure_boot=False),
        cpus=Cpus(arch="x86_64"),
        roots=(Root("pci0000:00", 0),),
        pci=tuple(pci),
        gpus=gpus,
        platform=Platform(compilers={"gcc": 12, "gcc-12": 12}),
        software=software(),
    )
    return replace(facts, **changes)


def software(**changes: Any) -> Software:
    """Two kernels with headers; nothing of a driver."""
    kernels = tuple(
        Kernel(release, headers=True, initramfs=True, compiler="gcc-12") for release in (OLD, NEW)
    )
    return replace(
        Software(system="dpkg", architecture="amd64", kernels=kernels, boot_loader="grub", next_kernel=NEW),
        **changes,
    )


def with_driver(facts: Facts, version: str, loaded: str | None = None, **others: str) -> Facts:
    """The same with a driver's packages, its modules for both kernels, and one that is loaded. others: version by
    package, with _ for -."""
    names = {"nvidia-open": version, "nvidia-kernel-open-dkms": version, "nvidia-persistenced": version}
    names.update({name.replace("_", "-"): each for name, each in others.items()})
    installed = tuple(Package(name, f"{each}-1", held=True) for name, each in names.items())
    built = tuple(Dkms("nvidia", version, release, "x86_64", "installed") for release in (OLD, NEW))
    known = facts.software or software()
    return replace(
        facts,
        host=replace(facts.host, driver=loaded, modules=()),
        software=replace(known, packages=installed, dkms=built),
    )


def policy(version: str | None = "580.173.02", **more: Any) -> Policy:
    """A policy with a driver. more: keys of the policy; `driver` adds to the driver's."""
    driver = {"version": version, **more.pop("driver", {})}
    return Policy.read({"driver": driver, **more})


def rail(name: str, **more: Any) -> Nic:
    return Nic(name, rdma=name, link_layer="InfiniBand", state="active", rate=400_000, **more)
