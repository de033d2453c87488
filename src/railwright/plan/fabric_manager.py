"""The slice `fabric_manager`: what NVSwitches need beside the packages, which are a part of the driver's set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

from ..node.model import Facts, Finding, Policy, Slice
from . import nvswitch
from .entries import HEADER, Entry, file
from .nvidia_driver import wants
from .stack import generations

SERVICE = "nvidia-fabricmanager.service"
IMEX_SERVICE = "nvidia-imex.service"
CONFIG = "/usr/share/nvidia/nvswitch/fabricmanager.cfg"
CONDITION = f"/etc/systemd/system/{SERVICE}.d/60-railwright-nvswitch.conf"
WANTED = "/etc/systemd/system/multi-user.target.d/60-railwright-fabricmanager.conf"
IB_UMAD = "/etc/modules-load.d/60-railwright-nvlink.conf"
# FABRIC_MODE (Fabric Manager User Guide 2.3, 2025-05): bare metal or full passthrough, shared NVSwitch, vGPU.
_MODES = {"full": 0, "shared": 1, "vgpu": 2}
_RENDERED = "what is written for it is text that no NVSwitch of ours has read"


def slice_of(facts: Facts, policy: Policy) -> tuple[Optional[Slice], list[Finding]]:
    """The slice, and what there is to know. None where no driver is managed, or there is no NVSwitch."""
    if policy.driver.version is None:
        return None, []
    if not nvswitch.has_switches(facts) and not nvswitch.may_be_here(policy):
        return None, list(_unseen(facts))
    if nvswitch.is_nvlink5(facts) and policy.fabric_manager.nvlsm is None:
        return None, [
            Finding(
                "fabric_manager.nvlsm", "error", ", ".join(nvswitch.management_ports(facts)) or "NVLink 5",
                "the switches of NVLink 5 need nvlsm, and the policy names no version of it: without it the fabric "
                "manager ends with NV_WARN_NOTHING_TO_DO and CUDA with error 802; nothing is written",
                "state policy.fabric_manager.nvlsm",
            )
        ]  # fmt: skip
    because = (
        "NVSwitches carry nothing before the fabric manager, of the driver's version to the last digit, has set them "
        "up; it is never restarted on a node in use, for GPUs that were not reset keep the old fabric"
    )
    return Slice("persistent", tuple(_entries(facts, policy)), because), list(_findings(facts, policy))


def _unseen(facts: Facts) -> Iterator[Finding]:
    boards = nvswitch.board_gpus(facts)
    if boards:
        yield Finding(
            "fabric_manager.unseen", "warning", ", ".join(boards),
            "these GPUs are sold on boards with NVSwitches only, and no switch, no management function and no "
            "fabric is seen: no fabric manager is installed",
            "see that the switches' ConnectX functions are on the bus (`lspci -d 15b3:`), and their VPD",
        )  # fmt: skip
    if not facts.gpus:
        yield Finding(
            "fabric_manager.no_gpu", "info", "gpus",
            "no GPU is here, as where an image is made, so nobody sees whether it will have NVSwitches beside it: no "
            "fabric manager is installed, and a node with NVSwitches that is made from this finds its set incomplete",
            "for an image whose chassis may have NVSwitches state policy.image.may_have: [nvswitch], and bake again",
        )  # fmt: skip


def _without_nvlsm(facts: Facts) -> Iterator[Finding]:
    boards = nvswitch.board_gpus(facts)
    if facts.gpus and not boards:
        return
    code, severity = ("unseen", "warning") if boards else ("nvlsm.no_gpu", "info")
    yield Finding(
        f"fabric_manager.{code}", severity, ", ".join(boards) or "gpus",
        "the policy names no version of nvlsm, so an image of it has nothing of what boards with NVLink 5 need (B200, "
        "B300): the fabric manager does not start there, and CUDA answers 802",
        "for such boards state policy.fabric_manager.nvlsm, and bake again",
    )  # fmt: skip


def _entries(facts: Facts, policy: Policy) -> Iterator[Entry]:
    mode = policy.fabric_manager.partition_mode
    if mode is not None:
        yield file(CONFIG, config(mode), reboot=True)
    if nvswitch.is_nvlink5(facts) or nvswitch.may_be_nvlink5(policy):
        text = f"{HEADER}# nvlsm speaks to the switches' management functions through it.\nib_umad\n"
        yield file(IB_UMAD, text, reboot=True)
    if nvswitch.may_be_here(policy):
        yield file(CONDITION, _condition(nvswitch.may_be_nvlink5(policy)))
    # It starts with the boot that brings the driver, and never beside clients.
    units = f"{SERVICE} {IMEX_SERVICE}" if nvswitch.over_nodes(facts) else SERVICE
    yield file(WANTED, wants(units))


def _condition(nvlink5: bool) -> str:
    """Starts the service where switches are, and elsewhere leaves it out, which is no failure (ExecCondition=,
    systemd.service(5)): by the switches' PCI functions; with NVLink 5's set in the image, also by GPUs that are sold on
    boards with those switches only."""
    boards = " || ".join(f"test $$i -ge {first} -a $$i -le {last}" for first, last in generations.ON_BOARDS)
    others = f"0x03*) ;; *) continue ;; esac; i=$$((i)); if {boards}; then exit 0; fi" if nvlink5 else "esac"
    return (
        f"{HEADER}# An image for chassis with NVSwitches and without.\n[Service]\n"
        "ExecCondition=/bin/sh -c 'cd /sys/bus/pci/devices || exit 1; for d in *; do "
        'read -r v < "$$d/vendor"; read -r c < "$$d/class"; read -r i < "$$d/device"; '
        'test "$$v" = 0x10de || continue; case "$$c" in 0x0680*) exit 0 ;; '
        f"{others}; done; exit 1'\n"
    )


def config(mode: str) -> str:
    """The whole file: the package's defaults, and the mode (Fabric Manager User Guide 2.3, 2025-05, 2.6)."""
    values = {
        "LOG_LEVEL": "4",
        "LOG_FILE_NAME": "/var/log/fabricmanager.log",
        "LOG_APPEND_TO_LOG": "1",
        "LOG_FILE_MAX_SIZE": "1024",
        "LOG_USE_SYSLOG": "0",
        "DAEMONIZE": "1",
        "BIND_INTERFACE_IP": "127.0.0.1",
        "STARTING_TCP_PORT": "16000",
        "FABRIC_MODE": str(_MODES[mode]),
        "FABRIC_MODE_RESTART": "0",
        "STATE_FILE_NAME": "/var/tmp/fabricmanager.state",  # noqa: S108
        "FM_CMD_BIND_INTERFACE": "127.0.0.1",
        "FM_CMD_PORT_NUMBER": "6666",
        "FM_STAY_RESIDENT_ON_FAILURES": "0",
        "ACCESS_LINK_FAILURE_MODE": "0",
        "TRUNK_LINK_FAILURE_MODE": "0",
        "NVSWITCH_FAILURE_MODE": "0",
        "ABORT_CUDA_JOBS_ON_FM_EXIT": "1",
        "TOPOLOGY_FILE_PATH": "/usr/share/nvidia/nvswitch",
        "DATABASE_PATH": "/usr/share/nvidia/nvswitch",
    }
    return HEADER + "".join(f"{name}={value}\n" for name, value in values.items())


def _findings(facts: Facts, policy: Policy) -> Iterator[Finding]:
    mode = policy.fabric_manager.partition_mode
    if mode is not None:
        yield Finding(
            "fabric_manager.partition_mode", "info", CONFIG,
            f"partition mode {mode}; {_RENDERED}. It takes effect when GPUs and switches are reset",
            "reboot the node, or drain it, stop the fabric manager, reset all GPUs and start it",
        )  # fmt: skip
    if nvswitch.may_be_here(policy) and not nvswitch.may_be_nvlink5(policy):
        yield from _without_nvlsm(facts)
    unit = next((unit for unit in facts.units if unit.name == SERVICE), None)
    if unit is not None and unit.active == "failed":
        yield Finding(
            "fabric_manager.failed", "error", SERVICE,
            "the fabric manager has failed, so GPUs behind NVSwitches answer CUDA with error 802",
            f"journalctl -u {SERVICE}; then drain the node, reset all GPUs and start it, or reboot: a plain restart "
            "leaves GPUs on the old fabric",
        )  # fmt: skip
