"""Plans, facts, findings and runs as a person reads them on a terminal.

Names come from machines that others had root on: everything goes through `visible`, so that no escape sequence and no
right-to-left mark reaches the terminal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from railwright.fleet.play import Outcome, Step
from railwright.node.model import Bound, Facts, Finding, Plan
from railwright.plan import nvlink
from railwright.plan.slices import INSTALL_SLICES
from railwright.report.visible import visible

_SEVERITY_STYLE = {"error": "bold red", "warning": "yellow", "info": "dim"}
_STATE_STYLE = {"ok": "green", "changed": "yellow", "failed": "bold red", "unreachable": "bold red"}


def show_plan(out: Console, plan: Plan, facts: Facts) -> None:
    """Summary, tables, proof and findings of one plan."""
    witnesses = ", ".join(f"{witness.kind} {visible(witness.source)}" for witness in facts.witnesses)
    _heading(out, f"Plan from {witnesses}" if plan.status == "planned" else f"Refused: {witnesses}")
    if plan.status == "refused":
        show_findings(out, plan.refusals, "Why")
    else:
        for sentence in plan.summary:
            say(out, sentence)
    if plan.gpus:
        out.print()
        out.print(_gpu_table(plan))
    if plan.nics:
        out.print()
        out.print(_nic_table(plan))
    if plan.bound.achieved_gbytes is not None:
        _show_bound(out, plan.bound)
    linked = nvlink.told(plan.nvlink)
    if linked:
        _heading(out, "NVLink")
        for line in linked:
            say(out, line)
    if plan.nccl:
        _heading(out, "NCCL")
        for name, value in plan.nccl.items():
            out.print(Text(f"  {visible(name)}={visible(value)}"), soft_wrap=True)
    installed = [name for name in INSTALL_SLICES if name in plan.slices]
    if installed:
        _heading(out, "Installed by install.yml")
        for name in installed:
            say(out, f"{name}: {plan.slices[name].because}")
    show_findings(out, plan.findings, "Findings")


def _gpu_table(plan: Plan) -> Table:
    head = ("GPU", "PCI", "slot", "NUMA", "rail", "NIC", "path", "cores", "because")
    return _table(
        head,
        (
            (
                gpu.name,
                gpu.pci,
                gpu.slot,
                gpu.numa,
                gpu.rail,
                " ".join(gpu.nics),
                gpu.path,
                gpu.cpus,
                gpu.because,
            )
            for gpu in plan.gpus
        ),
    )


def _nic_table(plan: Plan) -> Table:
    head = ("NIC", "PCI", "role", "rail", "netdev", "IRQ cores", "because")
    return _table(
        head,
        ((nic.name, nic.pci, nic.role, nic.rail, nic.netdev, nic.irq_cpus, nic.because) for nic in plan.nics),
    )


def _show_bound(out: Console, bound: Bound) -> None:
    _heading(out, "Rate guaranteed to each GPU with all GPUs sending")
    rows = (
        ("this plan", bound.of_plan),
        ("without links that are not believed", bound.credible_gbytes),
        ("several NICs per GPU, upper bound", bound.per_gpu_gbytes),
        ("GPU k to NIC k", bound.index_pairing_gbytes),
        ("nearest NIC, first on ties", bound.nearest_gbytes),
        ("NCCL on its own", bound.nccl_gbytes),
    )
    for name, rate in rows:
        out.print(Text(f"  {name:<38}" + ("unknown" if rate is None else f"{rate:7.2f} GB/s")))
    if bound.certificate is not None:
        proof = bound.certificate
        links = ", ".join(link.link for link in proof.links)
        say(
            out,
            f"proof: at the next rate, {proof.rate_gbytes:.2f} GB/s, these links admit {proof.admits} of "
            f"{proof.gpus} flows: {links}",
        )


def show_facts(out: Console, facts: Facts) -> None:
    """What a machine is, in a few lines."""
    host, cpus = facts.host, facts.cpus
    sockets = {core.socket for core in cpus.cores if core.socket is not None}
    _heading(out, f"{visible(host.name or 'This machine')}: {visible(host.product or 'product unknown')}")
    rows = (
        ("system", f"{host.os_id or 'unknown'} {host.os_version or ''}, kernel {host.kernel or 'unknown'}"),
        ("kind", "unknown" if host.virtual is None else host.virtual or "bare metal"),
        (
            "processors",
            f"{cpus.model_name or cpus.vendor or 'unknown'}: {len(sockets) or 'unknown'} sockets, "
            f"{len(facts.numa) or 'unknown'} NUMA nodes, {len(cpus.cores) or 'unknown'} cores",
        ),
        ("GPUs", f"{len(facts.gpus)}"),
        ("NIC ports", f"{len(facts.nics)}, {sum(nic.state == 'active' for nic in facts.nics)} active"),
        ("NVIDIA driver", host.driver or "not loaded"),
    )
    for name, value in rows:
        out.print(Text(f"  {name:<14} {visible(value)}"))
    for note in facts.notes:
        say(out, f"note: {note}", style="dim")


def show_findings(out: Console, findings: Iterable[Finding], title: str) -> None:
    """Each finding with its remedy, errors first; nothing printed is nothing found."""
    listed = sorted(findings, key=lambda finding: list(_SEVERITY_STYLE).index(finding.severity))
    if not listed:
        return
    _heading(out, title)
    for finding in listed:
        style = _SEVERITY_STYLE[finding.severity]
        out.print(
            Text.assemble("  ", (finding.severity, style), f" {finding.code} at {visible(finding.where)}")
        )
        say(out, finding.why, 4)
        if finding.accepted is not None:
            say(out, f"accepted: {finding.accepted}", 4, "dim")
        elif finding.remedy:
            say(out, f"-> {finding.remedy}", 4)


def show_table(out: Console, title: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """One table under its heading."""
    _heading(out, title)
    out.print(_table(head, rows))


def show_run(out: Console, verdict: Mapping[str, Any], outcome: Outcome, *, check: bool = False) -> None:
    """What a run over nodes found, decided, changed and proved; check: what it would have changed."""
    rows = []
    for name, node in verdict["nodes"].items():
        checks = node.get("checks") or []
        failed = sum(not check["ok"] and not check["skipped"] for check in checks)
        skipped = sum(bool(check["skipped"]) for check in checks)
        changes = sum(
            bool(item.get("changed"))
            for part in (node.get("slices") or {}).values()
            for item in part.get("items") or []
        )
        rate = node.get("achieved_gbytes")
        rows.append(
            (
                name,
                f"{len(node.get('gpus') or [])} GPUs",
                f"{node.get('status')}, {len(node.get('rails') or [])} rails"
                + ("" if rate is None else f", {rate:.1f} GB/s each"),
                f"{changes} things" if changes else "nothing",
                len(_open_findings(node)),
                f"{len(checks) - failed - skipped} good, {failed} failed, {skipped} skipped",
            )
        )
    _heading(out, "The run, in check mode: nothing was written" if check else "The run")
    head = ("node", "found", "decided", "would change" if check else "changed", "findings", "checks")
    out.print(_table(head, rows))
    for name, node in verdict["nodes"].items():
        _show_open(out, name, node)
    for step in outcome.failures:
        out.print(Text(f"  {step.host}: {visible(step.message)}", style="red"))


def _open_findings(node: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Of a node in the report: what somebody has to do something about."""
    found = node.get("findings") or []
    return [finding for finding in found if finding["severity"] != "info" and not finding["accepted"]]


def _show_open(out: Console, name: str, node: Mapping[str, Any]) -> None:
    """What a person has to know of a node besides the numbers: warnings and errors, and what nobody looked at."""
    counts = Counter((finding["severity"], finding["code"]) for finding in _open_findings(node))
    for (severity, code), number in counts.items():
        say(out, f"{name}: {severity} {code}" + (f", {number} times" if number > 1 else ""))
    for row in node.get("checks") or []:
        if row["skipped"]:
            say(out, f"{name}: not checked: {row['name']}: {row['detail']}", style="dim")


class Progress:
    """A line for each task with the hosts it ran on, as it happens."""

    # Ansible puts one such task before each role: of interest when it fails.
    _SILENT = "Validating arguments against arg spec"

    def __init__(self, out: Console) -> None:
        self._out = out
        self._task = ""
        self._hosts: dict[str, str] = {}

    def __call__(self, step: Step) -> None:
        """Take one step of a run."""
        if step.kind == "play":
            self.close()
            self._out.print(Text(visible(step.name), style="bold"))
        elif step.kind == "task":
            self.close()
            self._task = step.name
        elif step.kind == "warning":
            say(self._out, step.message.strip(), style="dim")
        elif step.kind != "skipped" and step.host:
            self._hosts[step.host] = step.kind

    def close(self) -> None:
        """Print the line of the task that just ended; a task that ran nowhere has none."""
        silent = self._task.startswith(self._SILENT) and set(self._hosts.values()) <= {"ok"}
        if self._hosts and not silent:
            line = Text(f"  {visible(self._task):<46}")
            for host, state in sorted(self._hosts.items()):
                line.append(f"  {visible(host)} ")
                line.append(state, style=_STATE_STYLE.get(state, ""))
            self._out.print(line, soft_wrap=True)
        self._task, self._hosts = "", {}


def _heading(out: Console, text: str) -> None:
    out.print()
    out.print(Text(text, style="bold"))


def say(out: Console, text: str, indent: int = 2, style: str = "") -> None:
    """One paragraph, its further lines as far in as its first."""
    out.print(Padding(Text(visible(text), style=style), (0, 0, 0, indent)))


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A table without the columns in which no row has anything."""
    cells = [[_cell(value) for value in row] for row in rows]
    table = Table(box=None, pad_edge=True, header_style="bold", show_edge=False)
    kept = [column for column in range(len(head)) if any(row[column].plain != "-" for row in cells)]
    for column in kept:
        wide = head[column] in ("because", "cores", "IRQ cores", "decided", "found")
        table.add_column(head[column], overflow="fold", no_wrap=not wide)
    for row in cells:
        table.add_row(*(row[column] for column in kept))
    return table


def _cell(value: object) -> Text:
    return Text("-" if value is None or value == "" else visible(str(value)))
