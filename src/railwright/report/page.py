"""`index.html`: the run as one page that needs nothing but itself.

Everything shown goes through `visible` and Jinja's escaping, by configuration and not by care at each place. A content
security policy lets only this page's own style and script in, so that what slips through could not run.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup

from railwright.node.model import CutLink, Facts, Finding, Plan, PlannedGpu, PlannedNic
from railwright.node.words import some_of
from railwright.plan import nvlink

from . import palette, svg
from .certificate import Gauge, gauges, link_ends, proof
from .collect import Check, Item, Node
from .document import document, own_checks, rails_over_nodes
from .fabric import FabricView
from .numbers import count, rate
from .rack import RackView
from .rack_picture import rack_svg
from .rails import Stop, kind_of, rails_of
from .verdict import PLANNED, REFUSED, Verdict, failed, judge, skipped
from .visible import shorten, visible

_LONG = 60
_NUMBER = re.compile(r"(\d) ")
_MANY_NODES = 3
_MOST_NAMES = 6
# Remedies that are a command as a whole, without backticks around it.
_COMMANDS = ("ansible-playbook ", "railwright ")


@dataclass(frozen=True)
class Row:
    """One GPU with its NIC, for the technician's table."""

    gpu: PlannedGpu
    nic_pci: str | None
    netdev: str | None
    leaf_port: str | None = None


@dataclass(frozen=True)
class Change:
    """One thing that the writer touched, or found as it should be."""

    item: Item
    before: str | None
    after: str | None
    long: bool


@dataclass(frozen=True)
class SliceView:
    """One slice: what it is for and what became of it. changed None: nothing is known of it."""

    name: str
    because: str
    stage: str
    changed: bool | None
    changes: tuple[Change, ...]
    same: int


@dataclass(frozen=True)
class Kin:
    """Findings of one kind with one remedy: the first is told whole, the others after it."""

    first: Finding
    others: tuple[Finding, ...]


@dataclass(frozen=True)
class NodeView:
    """One node as the template shows it."""

    number: int
    node: Node
    verdict: Verdict
    machine: tuple[str, ...]
    picture: Markup | None
    narrow: Markup | None
    rails: tuple[int, ...]
    rows: tuple[Row, ...]
    gauges: tuple[Gauge, ...]
    proof: str
    cut: tuple[tuple[str, CutLink], ...]
    names: dict[str, str]
    open: tuple[Kin, ...]
    notes: tuple[Kin, ...]
    accepted: tuple[Kin, ...]
    failed: tuple[Check, ...]
    skipped: tuple[Check, ...]
    passed: tuple[Check, ...]
    slices: tuple[SliceView, ...]
    nvlink: tuple[str, ...]
    nccl: str
    nccl_path: str
    unfolded: bool

    @property
    def gpus(self) -> int | None:
        """How many GPUs the node has, planned or not."""
        if self.node.plan is not None and self.node.plan.gpus:
            return len(self.node.plan.gpus)
        return len(self.node.facts.gpus) if self.node.facts is not None else None

    @property
    def signal(self) -> str:
        """What the semaphore shows: clear, stop or dark."""
        if self.verdict.ok:
            return "clear"
        return "stop" if self.verdict.status in (PLANNED, REFUSED) else "dark"

    @property
    def word(self) -> str:
        """The state in a word or two."""
        if self.verdict.ok:
            return "good"
        return "not good" if self.verdict.status == PLANNED else self.verdict.status

    def severity(self, severity: str) -> int:
        """How many open findings have this severity."""
        return sum(1 + len(kin.others) for kin in (*self.open, *self.notes) if kin.first.severity == severity)


@dataclass(frozen=True)
class Unseen:
    """One check that was skipped, and on which nodes."""

    name: str
    detail: str
    where: str


def render(
    nodes: tuple[Node, ...],
    generated: str | None = None,
    fabric: FabricView | None = None,
    rack: RackView | None = None,
) -> str:
    """The page as text. The same nodes give the same text."""
    verdicts = {node.name: judge(node) for node in nodes}
    views = tuple(
        _view(number, node, verdicts[node.name], len(nodes), rack) for number, node in enumerate(nodes)
    )
    table = rails_over_nodes(nodes, verdicts)
    style = (
        f":root{{color-scheme:light dark;{palette.variables(palette.LIGHT)}}}\n"
        f"@media (prefers-color-scheme: dark){{:root{{{palette.variables(palette.DARK)}}}}}\n"
        # Paper is white whatever the screen is.
        f"@media print{{:root{{color-scheme:light;{palette.variables(palette.PAPER)}}}}}\n"
        + _file("page.css")
        + svg.css_text()
    )
    script = _file("page.js")
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            report=document(nodes, generated, fabric),
            fabric=fabric,
            fabric_open=_kin(fabric.open) if fabric is not None else (),
            fabric_notes=_kin(fabric.notes) if fabric is not None else (),
            fabric_accepted=_kin(fabric.accepted) if fabric is not None else (),
            rack=rack,
            # Everything in them was escaped where it was drawn.
            rack_picture=Markup(rack_svg(rack)) if rack is not None and rack.rows else None,  # noqa: S704
            rack_narrow=Markup(rack_svg(rack, narrow=True)) if rack is not None and rack.rows else None,  # noqa: S704
            views=views,
            table=table,
            kinds=_kinds(nodes, table),
            unseen=_unseen(nodes),
            unchecked=tuple(view for view in views if not view.passed and not view.failed),
            generated=generated,
            style=Markup(style),  # noqa: S704
            script=Markup(script),  # noqa: S704
            style_digest=_digest(style),
            script_digest=_digest(script),
            rail_colours=palette.RAILS,
        )
    )


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


@functools.lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(
        loader=DictLoader({"page.html.j2": _file("page.html.j2")}),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        rate=rate, pieces=_pieces, count=count, breakable=_breakable, kept=_kept, short=shorten
    )
    return environment


def _shown(value: Any) -> Any:
    if isinstance(value, Markup):
        return value
    return "–" if value is None else visible(str(value))


def _pieces(remedy: str) -> list[tuple[bool, str]]:
    """A remedy as (is a command, text): commands stand in backticks, as in the findings."""
    parts = remedy.split("`")
    if len(parts) == 1:
        return [(remedy.startswith(_COMMANDS), remedy)]
    if len(parts) % 2 == 0:
        return [(False, remedy)]
    return [(number % 2 == 1, part) for number, part in enumerate(parts) if part]


def _breakable(text: str) -> Markup:
    """Long lists may break after a comma, and nowhere inside a name."""
    return Markup(",<wbr>").join(visible(text).split(","))


def _kept(sentence: str) -> str:
    """The sentence with each number tied to the word after it: "1 refused" is not torn apart."""
    return _NUMBER.sub("\\1\N{NO-BREAK SPACE}", sentence)


# One node.


def _view(number: int, node: Node, verdict: Verdict, total: int, rack: RackView | None) -> NodeView:
    plan, facts = node.plan, node.facts
    own = own_checks(node)
    bad, unseen = failed(own), skipped(own)
    told = [finding for finding in verdict.findings if finding.accepted is None]
    nccl, path = _nccl(plan)
    names = _names(facts, plan)
    return NodeView(
        number=number,
        node=node,
        verdict=verdict,
        machine=_machine(facts, plan) if facts is not None else (),
        picture=_picture(number, node, verdict, narrow=False),
        narrow=_picture(number, node, verdict, narrow=True),
        rails=rails_of(plan) if plan is not None else (),
        rows=_rows(plan, node.name, rack) if plan is not None else (),
        gauges=gauges(plan.bound) if plan is not None else (),
        proof=proof(plan.bound) if plan is not None else "",
        cut=_cut(plan, names),
        names=names,
        open=_kin(finding for finding in told if finding.severity != "info"),
        notes=_kin(finding for finding in told if finding.severity == "info"),
        accepted=_kin(finding for finding in verdict.findings if finding.accepted is not None),
        failed=tuple(bad),
        skipped=tuple(unseen),
        passed=tuple(check for check in own if check.ok),
        slices=_slices(node),
        nvlink=nvlink.told(plan.nvlink) if plan is not None else (),
        nccl=nccl,
        nccl_path=path,
        unfolded=total <= _MANY_NODES or not verdict.ok,
    )


def _names(facts: Facts | None, plan: Plan | None) -> dict[str, str]:
    """What stands at an end of a link, by the name that the planner gives the end."""
    names = {} if facts is None else {f"numa{node.id}": f"NUMA node {node.id}" for node in facts.numa}
    devices: list[PlannedNic | PlannedGpu] = [] if plan is None else [*plan.nics, *plan.gpus]
    return {**names, **{device.pci: f"{device.name} ({device.pci})" for device in devices if device.pci}}


def _cut(plan: Plan | None, names: dict[str, str]) -> tuple[tuple[str, CutLink], ...]:
    if plan is None or plan.bound.certificate is None:
        return ()
    return tuple((link_ends(link.link, names), link) for link in plan.bound.certificate.links)


def _kin(findings: Iterable[Finding]) -> tuple[Kin, ...]:
    groups: dict[tuple[str, str, str, str | None], list[Finding]] = {}
    for finding in findings:
        key = (finding.severity, finding.code, finding.remedy, finding.accepted)
        groups.setdefault(key, []).append(finding)
    return tuple(Kin(group[0], tuple(group[1:])) for group in groups.values())


def _picture(number: int, node: Node, verdict: Verdict, *, narrow: bool) -> Markup | None:
    if node.facts is None or node.plan is None:
        return None
    drawn = svg.draw(
        node.plan,
        node.facts,
        findings=verdict.findings,
        name=node.name,
        prefix=f"{'narrow' if narrow else 'wide'}-{number}",
        narrow=narrow,
    )
    # Everything in it was escaped where it was drawn.
    return Markup(drawn)  # noqa: S704


def _machine(facts: Facts, plan: Plan | None) -> tuple[str, ...]:
    """What the node is, in a few phrases; what is unknown is left to the facts."""
    host = facts.host
    words = []
    if host.product:
        words.append(host.product)
    models = {gpu.model for gpu in facts.gpus if gpu.model}
    words.append(
        f"{len(facts.gpus)} × {' and '.join(sorted(models))}" if models else count(len(facts.gpus), "GPU")
    )
    sockets = {core.socket for core in facts.cpus.cores if core.socket is not None}
    if facts.cpus.model_name:
        words.append(f"{len(sockets)} × {facts.cpus.model_name}" if sockets else facts.cpus.model_name)
    if host.virtual:
        words.append(f"virtual ({host.virtual})")
    if host.os_id:
        words.append(" ".join(part for part in (host.os_id, host.os_version, host.kernel) if part))
    if host.driver:
        words.append(f"driver {host.driver}")
    if plan is not None:
        words.append(f"workload {plan.workload}")
    witnesses = dict.fromkeys(witness.kind for witness in facts.witnesses)
    words.append(f"read from {', '.join(witnesses)}" if witnesses else "witness unknown")
    return tuple(words)


def _rows(plan: Plan, name: str, rack: RackView | None) -> tuple[Row, ...]:
    nics = {nic.name: nic for nic in plan.nics}
    rows = []
    for gpu in plan.gpus:
        nic = nics.get(gpu.nics[0]) if gpu.nics else None
        end = rack.leaf_port(name, gpu.rail) if rack is not None else None
        rows.append(
            Row(gpu, nic.pci if nic is not None else None, nic.netdev if nic is not None else None, end)
        )
    return tuple(rows)


def _slices(node: Node) -> tuple[SliceView, ...]:
    planned_slices = node.plan.slices if node.plan is not None else {}
    written = node.changes.slices if node.changes is not None else {}
    views = []
    for name in sorted({*planned_slices, *written}):
        items = written[name].items if name in written else ()
        views.append(
            SliceView(
                name,
                planned_slices[name].because if name in planned_slices else "not in the plan",
                planned_slices[name].stage if name in planned_slices else "",
                written[name].changed if name in written else None,
                tuple(_change(item) for item in items if item.changed or item.note),
                sum(not item.changed for item in items),
            )
        )
    return tuple(views)


def _change(item: Item) -> Change:
    before, after = _text(item.before), _text(item.after)
    long = any(text is not None and ("\n" in text or len(text) > _LONG) for text in (before, after))
    return Change(item, before, after, long)


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _nccl(plan: Plan | None) -> tuple[str, str]:
    """The lines for NCCL and where they go: the planned file where a slice holds it."""
    if plan is None:
        return "", ""
    path = ""
    for entry in plan.slices["nccl_conf"].entries if "nccl_conf" in plan.slices else ():
        if isinstance(entry.get("path"), str):
            path = path or entry["path"]
    return "".join(f"{name}={value}\n" for name, value in plan.nccl.items()), path


# All nodes.


def _kinds(nodes: tuple[Node, ...], table: dict[int, dict[str, Stop]]) -> list[tuple[str, int]]:
    """Kinds of machines over the columns of the table, each with how many columns it has."""
    facts = {node.name: node.facts for node in nodes}
    kinds: dict[str, int] = {}
    for name in next(iter(table.values()), {}):
        kind = kind_of(facts[name])
        kinds[kind] = kinds.get(kind, 0) + 1
    return list(kinds.items())


def _unseen(nodes: tuple[Node, ...]) -> tuple[Unseen, ...]:
    found: dict[tuple[str, str], list[str]] = {}
    for node in nodes:
        for check in skipped(own_checks(node)):
            found.setdefault((check.name, check.detail), []).append(node.name)
    return tuple(
        Unseen(name, detail, _nodes_in_words(names, len(nodes)))
        for (name, detail), names in sorted(found.items())
    )


def _nodes_in_words(names: list[str], total: int) -> str:
    if len(names) == total > 1:
        return "every node"
    return some_of(names, _MOST_NAMES)
