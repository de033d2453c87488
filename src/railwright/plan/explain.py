"""Why one device has its place, and what the workload asks for."""

from __future__ import annotations

from collections.abc import Iterator

from ..node.model import InputError, Plan, PlannedGpu, PlannedNic

WORKLOAD = "workload"


def explain(plan: Plan, device: str) -> str:
    """Why this GPU or NIC has its place, in lines for a person.

    device: a name, PCI address, RDMA device, netdev, CUDA index or UUID; or "workload", for all that it asks for, in a
    line each. Raises InputError for a device that the plan does not have.
    """
    if device == WORKLOAD:
        return "\n".join(_workload(plan))
    for gpu in plan.gpus:
        if device in (gpu.name, gpu.pci, gpu.uuid, str(gpu.index)):
            return "\n".join(_gpu(plan, gpu))
    for nic in plan.nics:
        if device in (nic.name, nic.pci, nic.rdma, nic.netdev):
            return "\n".join(_nic(plan, nic))
    names = ", ".join([gpu.name for gpu in plan.gpus] + [nic.name for nic in plan.nics])
    raise InputError(device, "the plan has no such device", f"one of {names}, or {WORKLOAD}")


def _workload(plan: Plan) -> Iterator[str]:
    """Value, who writes it, why, how sure and by whom."""
    yield f"{plan.workload} asks for (change any of it by name in policy.effects)"
    for setting in plan.settings:
        if setting.role is None:
            writer = "the planner follows it"
        elif setting.role in plan.slices:
            writer = f"written by {setting.role}"
        else:
            writer = f"for the role {setting.role}"
        value = "left out" if setting.value is None else setting.value
        yield (
            f"  {setting.name} = {value} ({writer}): {setting.because} "
            f"[{setting.confidence}: {setting.source}]"
        )


def _gpu(plan: Plan, gpu: PlannedGpu) -> Iterator[str]:
    place = f"CUDA index {gpu.index}" + (f", {gpu.pci}" if gpu.pci else "")
    yield f"{gpu.name} ({place}{f', NUMA node {gpu.numa}' if gpu.numa is not None else ''})"
    if gpu.nics:
        yield f"  rail {gpu.rail}: {', '.join(gpu.nics)} ({gpu.path})"
    else:
        yield "  no rail"
    yield f"  because {gpu.because}"
    if gpu.cpus:
        yield f"  cores {gpu.cpus}"
    for domain in plan.nvlink.domains or ():
        if gpu.name in domain.gpus:
            yield f"  NVLink: with {', '.join(name for name in domain.gpus if name != gpu.name)}: {domain.because}"
    for link in plan.links:
        if gpu.name in link.flows:
            yield f"  {_link(link.a, link.b, link.capacity_gbytes, link.load_gbytes, len(link.flows))}" + (
                ", the limit" if link.bottleneck else ""
            )
    yield from _findings(plan, gpu.name, gpu.pci)


def _nic(plan: Plan, nic: PlannedNic) -> Iterator[str]:
    known = [word for word in (nic.pci, nic.netdev) if word]
    yield f"{nic.name}{f' ({chr(44).join(known)})' if known else ''}: {nic.role}" + (
        f", rail {nic.rail}" if nic.rail is not None else ""
    )
    yield f"  because {nic.because}"
    if nic.gpus:
        yield f"  serves {', '.join(nic.gpus)}"
    if nic.irq_cpus:
        yield f"  interrupts on cores {nic.irq_cpus}"
    yield from _findings(plan, nic.name, nic.pci)


def _link(a: str, b: str, capacity: object, load: object, flows: int) -> str:
    if capacity is None or load is None:
        return f"{a} to {b}: rate unknown, {flows} GPU{'s' if flows > 1 else ''}"
    return f"{a} to {b}: {load:.4g} of {capacity:.4g} GB/s, {flows} GPU{'s' if flows > 1 else ''}"


def _findings(plan: Plan, *names: object) -> Iterator[str]:
    # A refusal holds for every device of the node, whichever it names.
    for refusal in plan.refusals:
        yield f"  refused at {refusal.where}: {refusal.why}; {refusal.remedy}"
    for finding in plan.findings:
        places = finding.where.split(", ")
        if any(name is not None and name in places for name in names):
            yield f"  {finding.severity}: {finding.why}; {finding.remedy}"
