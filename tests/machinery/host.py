"""What is of the machine as a whole: kernel, modules, sysctls, DMI, Secure Boot, OS, NVIDIA driver."""

from __future__ import annotations

from collections.abc import Mapping

from .interrupts import Interrupt
from .model import Address, Machine, Module, Nvidia
from .tree import Tree

_EFI_GLOBAL = "8be4df61-93ca-11d2-aa0d-00e098032b8c"  # UEFI 2.10, 3.3: EFI_GLOBAL_VARIABLE
_EFI_BOOT_AND_RUN = bytes((6, 0, 0, 0))  # attributes that efivarfs puts before a value


def add_host(tree: Tree, machine: Machine, owned: Mapping[Address, tuple[Interrupt, ...]]) -> None:
    """Everything that belongs to no device."""
    _add_kernel(tree, machine)
    _add_sysctls(tree, machine)
    for module in machine.modules:
        _add_module(tree, module)
    tree.file("proc/modules", "".join(_module_line(module) for module in machine.modules))
    tree.lines("sys/devices/virtual/dmi/id", dict(machine.dmi))
    tree.link("sys/class/dmi/id", "sys/devices/virtual/dmi/id")
    tree.file("etc/os-release", "".join(f'{key}="{value}"\n' for key, value in machine.os_release.items()))
    tree.lines("etc", {"hostname": machine.hostname})
    _add_firmware(tree, machine)
    if machine.nvidia is not None:
        _add_nvidia(tree, machine, machine.nvidia, owned)


def _add_kernel(tree: Tree, machine: Machine) -> None:
    build = machine.kernel_build
    tree.lines("proc", {"cmdline": machine.cmdline, "version": f"Linux version {machine.kernel} {build}"})
    tree.lines(
        "proc/sys/kernel",
        {
            "hostname": machine.hostname,
            "osrelease": machine.kernel,
            "ostype": "Linux",
            "version": build[build.index("#") :] if "#" in build else build,
            "random/boot_id": machine.boot_id,
        },
    )
    tree.lines(
        "sys/kernel/mm/transparent_hugepage",
        {
            "enabled": _chosen(("always", "madvise", "never"), machine.transparent_hugepages),
            "defrag": _chosen(("always", "defer", "defer+madvise", "madvise", "never"), "madvise"),
        },
    )
    for size in (2048, 1048576):
        tree.lines(f"sys/kernel/mm/hugepages/hugepages-{size}kB", {"nr_hugepages": 0, "free_hugepages": 0})
    modes = ("none", "integrity", "confidentiality")
    tree.lines("sys/kernel/security", {"lockdown": _chosen(modes, machine.lockdown)})


def _chosen(words: tuple[str, ...], chosen: str) -> str:
    """The kernel's way to show a choice: `always [madvise] never`."""
    return " ".join(f"[{word}]" if word == chosen else word for word in words)


def _add_sysctls(tree: Tree, machine: Machine) -> None:
    for name, value in machine.sysctls.items():
        tree.lines("proc/sys", {name.replace(".", "/"): value})


def _module_line(module: Module) -> str:
    users = "".join(f"{user}," for user in module.users) or "-"
    taint = f" ({module.taint})" if module.taint else ""
    return f"{module.name} {module.size} {module.references} {users} Live 0x0000000000000000{taint}\n"


def _add_module(tree: Tree, module: Module) -> None:
    folder = f"sys/module/{module.name}"
    tree.lines(
        folder,
        {"coresize": module.size, "initstate": "live", "refcnt": module.references, "taint": module.taint},
    )
    if module.version is not None:
        tree.lines(folder, {"version": module.version})
    tree.lines(f"{folder}/parameters", dict(module.parameters))
    for user in module.users:
        tree.link(f"{folder}/holders/{user}", f"sys/module/{user}")


def _add_firmware(tree: Tree, machine: Machine) -> None:
    if machine.secure_boot is None:
        tree.folder("sys/firmware")
        return
    for name, value in (("SecureBoot", machine.secure_boot), ("SetupMode", False)):
        tree.file(
            f"sys/firmware/efi/efivars/{name}-{_EFI_GLOBAL}", _EFI_BOOT_AND_RUN + bytes((1 if value else 0,))
        )
    tree.lines("sys/firmware/efi", {"fw_platform_size": 64})


def _add_nvidia(
    tree: Tree, machine: Machine, driver: Nvidia, owned: Mapping[Address, tuple[Interrupt, ...]]
) -> None:
    # kernel-open/nvidia/nv-procfs.c of open-gpu-kernel-modules 570.
    kind = "Open Kernel Module for x86_64" if driver.open_modules else "x86_64 Kernel Module"
    release = f"  Release Build  {driver.build}" if driver.open_modules else f"  {driver.build}"
    tree.file(
        "proc/driver/nvidia/version",
        f"NVRM version: NVIDIA UNIX {kind}  {driver.version}{release}\nGCC version:  {driver.compiler}\n",
    )
    gpus = [device.address for device in machine.devices if device.driver == "nvidia"]
    for minor, address in enumerate(gpus):
        lines = [
            f"Model: \t\t {driver.model}",
            f"IRQ:   \t\t {owned[address][0].number if address in owned else 0}",
            f"GPU UUID: \t {driver.uuids.get(address, 'GPU-????????-????-????-????-????????????')}",
            f"Video BIOS: \t {driver.vbios}",
            "Bus Type: \t PCIe",
            "DMA Size: \t 52 bits",
            "DMA Mask: \t 0xfffffffffffff",
            f"Bus Location: \t {address}",
            f"Device Minor: \t {minor}",
            f"GPU Firmware: \t {driver.version}",
            "GPU Excluded:\t No",
        ]
        tree.file(f"proc/driver/nvidia/gpus/{address}/information", "".join(f"{line}\n" for line in lines))
