"""Slices: the exact items that each tune role writes, so that Ansible and the boot unit write the same bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from ..node.model import BootPolicy, Facts, Finding, InputError, PlannedGpu, Policy, Setting, Slice
from . import containers, nccl, nccl_topology, sysctls
from .cores import Cores
from .policy_bytes import canonical

GPU_ORDER = "CUDA_DEVICE_ORDER=PCI_BUS_ID"
_HEADER = "# Written by Railwright; changes made here are lost.\n"
ZIPAPP = "/usr/local/lib/railwright/railwright.pyz"
NCCL_CONF = "/etc/nccl.conf"
# One address or name a line (NVIDIA IMEX service guide).
IMEX_NODES = "/etc/nvidia-imex/nodes_config.cfg"
POLICY_FILE = "/etc/railwright/policy.json"
BOOT_UNIT = "railwright.service"

SLICES = ("gpu_order", "nccl_conf", "irq_affinity", "sysctls", "imex", "boot_unit")

Entry = dict[str, Any]


def check(policy: Policy) -> None:
    """Raises InputError for a slice that there is none of: a misspelt one would be written after all."""
    for name in policy.manage:
        if name not in SLICES:
            raise InputError(f"policy.manage.{name}", "there is no such slice", f"one of {', '.join(SLICES)}")


@dataclass(frozen=True)
class Decided:
    """What the slices are made from.

    digest: the policy's. topology: the text of NCCL's topology file, where there is one. imex_nodes: what IMEX is told.
    """

    gpus: Sequence[PlannedGpu]
    ports: Sequence[nccl.RailPort]
    cores: Cores
    settings: tuple[Setting, ...]
    values: Mapping[str, str]
    digest: str
    topology: Optional[str] = None
    imex_nodes: Sequence[str] = ()


def slices_of(facts: Facts, policy: Policy, decided: Decided) -> tuple[dict[str, Slice], list[Finding]]:
    """All slices that the policy manages, and a finding for each that it leaves alone."""
    kernel, findings = sysctls.chosen(policy, facts.host, decided.settings)
    made = {
        "gpu_order": _gpu_order(decided.gpus, policy),
        "nccl_conf": _nccl_conf(decided, policy),
        "irq_affinity": _irq_affinity(facts, decided.ports, decided.cores),
        "sysctls": _sysctls(kernel, policy),
        "imex": _imex(decided.imex_nodes),
        "boot_unit": None if policy.boot is None else _boot_unit(policy, policy.boot),
    }
    kept: dict[str, Slice] = {}
    for name, slice_ in made.items():
        if slice_ is None:
            continue
        if policy.manage.get(name, True):
            kept[name] = slice_
        else:
            findings.append(
                Finding(
                    f"{name}.unmanaged",
                    "info",
                    name,
                    f"the policy leaves {name} alone: nothing of it is written",
                    f"set policy.manage.{name} to true to have it written",
                )
            )
    return kept, findings


def _file(path: str, content: str, mode: str = "0644") -> Entry:
    return {"kind": "file", "path": path, "content": content, "mode": mode}


def _nccl_conf(decided: Decided, policy: Policy) -> Optional[Slice]:
    if not decided.values:
        return None
    entries = [_file(NCCL_CONF, nccl.conf_bytes(decided.values, decided.digest))]
    if decided.topology is not None:
        entries.insert(0, _file(nccl_topology.PATH, decided.topology))
    carried = [entry["path"] for entry in entries]
    if "cdi" in policy.containers:
        order = [GPU_ORDER] if policy.manage.get("gpu_order", True) else []
        entries.append(_file(*containers.cdi("nccl", order, carried)))
    if "enroot" in policy.containers:
        entries.append(_file(*containers.enroot_mounts("nccl", carried)))
    return Slice(
        "runtime",
        tuple(entries),
        "NCCL reads it in every process; the exact list keeps NICs that are no rails out, in one order on all nodes",
    )


def _gpu_order(gpus: Sequence[PlannedGpu], policy: Policy) -> Slice:
    entries = [
        _file(
            "/etc/systemd/system.conf.d/60-railwright-gpu-order.conf",
            f"{_HEADER}[Manager]\nDefaultEnvironment={GPU_ORDER}\n",
        ),
        _file("/etc/environment.d/60-railwright-gpu-order.conf", f"{_HEADER}{GPU_ORDER}\n"),
        _file("/etc/profile.d/railwright-gpu-order.sh", f"{_HEADER}export {GPU_ORDER}\n"),
    ]
    if "cdi" in policy.containers:
        entries.append(_file(*containers.cdi("gpu-order", [GPU_ORDER])))
    if "enroot" in policy.containers:
        entries.append(_file(*containers.enroot_variables("gpu-order", [GPU_ORDER])))
    if all(gpu.pci is not None for gpu in gpus):
        entries.append(_file("/etc/railwright/gpus.tsv", gpu_table(gpus)))
    return Slice(
        "runtime",
        tuple(entries),
        "CUDA numbers GPUs by speed unless told otherwise; PCI order is the same for all",
    )


def gpu_table(gpus: Sequence[PlannedGpu]) -> str:
    """The technician's table: physical slot, CUDA index, PCI address, rail and NICs; "-" is unknown or none.

    Without UUIDs: the driver tells them only once a client has used the GPU, and a file must not change with that.
    """
    rows = ["slot\tcuda\tpci\trail\tnic"]
    for gpu in gpus:
        cells = (gpu.slot, gpu.index, gpu.pci, gpu.rail, ",".join(gpu.nics))
        rows.append("\t".join("-" if cell is None or cell == "" else str(cell) for cell in cells))
    return "\n".join(rows) + "\n"


def _irq_affinity(facts: Facts, ports: Sequence[nccl.RailPort], cores: Cores) -> Optional[Slice]:
    interrupting = {irq.device for irq in facts.irqs}
    entries: dict[str, Entry] = {}
    for port in ports:
        address = port.nic.address
        cpus, control = cores.vectors.get(port.nic.name), cores.control.get(port.nic.name)
        if address is None or not cpus or (facts.irqs and address not in interrupting):
            continue
        entry: Entry = {"kind": "irq_affinity", "device": address, "cpus": cpus}
        if control:
            entry["control_cpus"] = control
        entries.setdefault(address, entry)
    if not entries:
        return None
    return Slice(
        "runtime",
        tuple(entries[address] for address in entries),
        "each rail NIC interrupts its own cores on its own NUMA node, away from ranks and from other NICs",
    )


def _sysctls(settings: Mapping[str, str], policy: Policy) -> Optional[Slice]:
    if not settings:
        return None
    entries = [_file("/etc/sysctl.d/90-railwright.conf", sysctls.conf_bytes(settings))]
    entries += [{"kind": "sysctl", "name": name, "value": value} for name, value in settings.items()]
    return Slice(
        "runtime",
        tuple(entries),
        f"kernel settings for {policy.workload}, each with its source in the plan's settings",
    )


def _imex(nodes: Sequence[str]) -> Optional[Slice]:
    if not nodes:
        return None
    return Slice(
        "runtime",
        (_file(IMEX_NODES, "".join(f"{node}\n" for node in nodes)),),
        "IMEX carries NVLink over nodes and wants the same list on all nodes of the clique; it reads it when it starts "
        "only, and a restart breaks jobs, so nothing here restarts it",
    )


def _boot_unit(policy: Policy, boot: BootPolicy) -> Slice:
    unit = f"/etc/systemd/system/{BOOT_UNIT}"
    return Slice(
        "runtime",
        (
            {"kind": "file", "path": ZIPAPP, "sha256": boot.sha256, "mode": "0644"},
            _file(POLICY_FILE, canonical(policy)),
            _file(unit, _UNIT),
            {
                "kind": "systemd_unit",
                "name": BOOT_UNIT,
                "enabled": True,
                "state": "started",
                "restart_if_older_than": [ZIPAPP, POLICY_FILE, unit],
            },
        ),
        "interrupts and the like are forgotten at every boot; this unit plans again from the policy and puts them back",
    )


# It is ordered before what runs work, never before sshd, and it ends: a node that cannot be tuned must stay reachable.
_UNIT = f"""{_HEADER}[Unit]
Description=Railwright: put this node's plan back
Documentation=file:{POLICY_FILE}
After=local-fs.target systemd-modules-load.service systemd-udev-settle.service openibd.service network.target
Before=slurmd.service kubelet.service docker.service containerd.service
ConditionPathExists={POLICY_FILE}

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/python3 {ZIPAPP} boot
TimeoutStartSec=120

[Install]
WantedBy=multi-user.target
"""
