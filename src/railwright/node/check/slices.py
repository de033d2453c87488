"""Each entry of a plan's slices against what the facts say of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, Callable, Optional

from ..discover import IRQBALANCE
from ..discover.host import sysctl_path
from ..model import Facts, FileFact, Finding, InputError, Irq, Plan, Unit, format_cpulist, parse_cpulist
from ..state.irq_item import is_control
from ..state.kernel_items import chosen
from . import containers, cuda, devices, lossless, rail_items, rdma, runtimes, software
from .answer import Answer, listed, unseen

Entry = dict[str, Any]
# The node's own name has no place in a command that an operator pastes: a tenant may have chosen it.
_RETUNE = "run `ansible-playbook -i INVENTORY playbooks/retune.yml -l NODE`"
_READ_AGAIN = "read the node again with the plan's files and units: railwright check PLAN"


def answers(plan: Plan, facts: Facts) -> Iterator[Answer]:
    """Answers for every entry, in the order of the plan. Raises InputError for an entry that lacks a key."""
    asked = _Asked(facts)
    for name, part in plan.slices.items():
        for number, entry in enumerate(part.entries):
            kind = entry.get("kind")
            examine = _KINDS.get(str(kind))
            by_facts = _BY_FACTS.get(str(kind))
            if by_facts is not None:
                examine = _of_facts(by_facts, facts)
            if examine is None:
                why = f"no witness tells of a {kind}"
                yield unseen(f"{name}.{kind}", f"slices.{name}.entries[{number}]", why, "look at the node")
                continue
            try:
                yield from examine(asked, name, entry)
            except KeyError as error:
                raise InputError(f"plan.slices.{name}.entries[{number}]", f"has no {error}") from None
    if any(entry.get("kind") == "irq_affinity" for part in plan.slices.values() for entry in part.entries):
        yield _irqbalance(plan, asked)


# Kinds that are looked up in the facts by themselves.
_BY_FACTS = {
    **containers.KINDS,
    **cuda.KINDS,
    **devices.KINDS,
    **lossless.KINDS,
    **rail_items.KINDS,
    **rdma.KINDS,
    **runtimes.KINDS,
    **software.KINDS,
}


def _of_facts(
    examine: Callable[[Facts, str, Entry], Iterator[Answer]], facts: Facts
) -> Callable[[_Asked, str, Entry], Iterator[Answer]]:
    return lambda _, name, entry: examine(facts, name, entry)


class _Asked:
    """The facts, found by name."""

    def __init__(self, facts: Facts) -> None:
        self.files = {file.path: file for file in facts.files}
        self.units = {unit.name: unit for unit in facts.units}
        self.sysctls = {sysctl_path(key): value for key, value in facts.host.sysctls.items()}
        self.irqs: dict[str, list[Irq]] = {}
        for irq in facts.irqs:
            self.irqs.setdefault(irq.device, []).append(irq)

    def drift(self, code: str, where: str, why: str, severity: str = "error") -> Answer:
        return Answer(code, Finding(code, severity, where, why, _RETUNE))


# ----- files ---------------------------------------------------------------------------------------------------------


def _file(asked: _Asked, name: str, entry: Entry) -> Iterator[Answer]:
    path = entry["path"]
    content = f"{name}.{_noun(name, path)}"
    found = asked.files.get(path)
    if found is None:
        yield unseen(content, path, f"the facts hold nothing of {path}", _READ_AGAIN)
        return
    if found.mode is None or found.sha256 is None or found.mode == "link":
        what = "is not there" if found.mode is None else f"is a {found.mode}, expected a file"
        yield asked.drift(content, path, what)
        return
    digest = entry["sha256"] if "sha256" in entry else hashlib.sha256(entry["content"].encode()).hexdigest()
    if found.sha256 == digest:
        yield Answer(content)
    else:
        why = f"has another content (sha256 {found.sha256[:12]}, planned {digest[:12]})"
        yield asked.drift(content, path, why)
    yield from _mode(asked, f"{name}.mode", entry, found)


def _noun(name: str, path: str) -> str:
    """The boot unit's program and units have names of their own; all else is content."""
    if name != "boot_unit":
        return "content"
    return {"pyz": "zipapp", "service": "unit", "path": "unit"}.get(path.rpartition(".")[2], "content")


def _mode(asked: _Asked, code: str, entry: Entry, found: FileFact) -> Iterator[Answer]:
    mode = entry.get("mode", "0644")
    wanted = [_number(entry.get(key, "root")) for key in ("owner", "group")]
    if None in wanted:
        why = "the facts hold numbers of owners, and the plan names"
        yield unseen(code, found.path, why, f"stat {found.path}")
    elif found.mode != mode or [found.uid, found.gid] != wanted:
        now = f"{found.mode} {found.uid}:{found.gid}"
        yield asked.drift(code, found.path, f"is {now}, planned {mode} {wanted[0]}:{wanted[1]}")
    else:
        yield Answer(code)


def _number(owner: str) -> Optional[int]:
    return 0 if owner == "root" else int(owner) if owner.isdigit() else None


def _json_keys(asked: _Asked, name: str, entry: Entry) -> Iterator[Answer]:
    path = entry["path"]
    found = asked.files.get(path)
    if found is not None and found.mode is None:
        yield asked.drift(f"{name}.content", path, "is not there")
        return
    keys = ", ".join(entry["keys"])
    yield unseen(f"{name}.content", path, f"the facts hold no single keys of a file ({keys})", f"cat {path}")


# ----- values of the kernel ------------------------------------------------------------------------------------------


def _sysctl(asked: _Asked, name: str, entry: Entry) -> Iterator[Answer]:
    key, wanted = entry["name"], entry["value"]
    found = asked.sysctls.get(sysctl_path(key))
    if found is None:
        yield unseen(f"{name}.value", key, f"the facts hold no {key}", f"sysctl {key}")
    elif found.split() == wanted.split():
        yield Answer(f"{name}.value")
    else:
        yield asked.drift(f"{name}.value", key, f"is {found}, planned {wanted}")


def _sysfs(asked: _Asked, name: str, entry: Entry) -> Iterator[Answer]:
    path, wanted = entry["path"], entry["value"]
    found = asked.files.get(path)
    if found is None or (found.text is None and found.mode is not None):
        yield unseen(f"{name}.value", path, f"the facts hold no text of {path}", _READ_AGAIN)
    elif found.text is None:
        yield asked.drift(f"{name}.value", path, "is not there")
    elif chosen(found.text).split() == wanted.split():
        yield Answer(f"{name}.value")
    else:
        yield asked.drift(f"{name}.value", path, f"is {chosen(found.text)}, planned {wanted}")


# ----- interrupts ----------------------------------------------------------------------------------------------------


def _irq_affinity(asked: _Asked, name: str, entry: Entry) -> Iterator[Answer]:
    """Completion vectors in the order of their numbers take turns on the planned CPUs; see node.state."""
    code, device = f"{name}.placement", entry["device"]
    cpus = parse_cpulist(entry["cpus"], f"plan.slices.{name}.{device}.cpus")
    vectors = [irq for irq in asked.irqs.get(device, ()) if irq.action is not None and not irq.managed]
    data = [irq for irq in vectors if not is_control(irq.action or "")]
    if not asked.irqs:
        yield unseen(code, device, "the facts hold no interrupt", _READ_AGAIN)
        return
    if not data:
        why = "has no completion vector in use; its driver asks for them when the interface comes up"
        yield asked.drift(code, device, why, "warning")
    wanted = [(irq, (cpus[position % len(cpus)],)) for position, irq in enumerate(data)]
    yield from _placed(asked, code, device, wanted, "error")
    if "control_cpus" in entry:
        control = parse_cpulist(entry["control_cpus"], f"plan.slices.{name}.{device}.control_cpus")
        rest = [(irq, control) for irq in vectors if is_control(irq.action or "")]
        # Commands and events come seldom: where they are served is told, and matters little.
        yield from _placed(asked, code, device, rest, "info")


def _placed(
    asked: _Asked, code: str, device: str, wanted: Sequence[tuple[Irq, tuple[int, ...]]], severity: str
) -> Iterator[Answer]:
    """One answer for each vector in its place, and one for all that share a fault."""
    elsewhere: list[str] = []
    waiting: list[str] = []
    dark: list[str] = []
    for irq, cpus in wanted:
        # What is in force counts. It is empty until the interrupt is set up, and some kernels do not tell it.
        served = irq.effective or irq.affinity
        told = f"IRQ {irq.number} ({irq.action}) is on CPU {served}, planned {format_cpulist(cpus)}"
        if served is None:
            dark.append(f"IRQ {irq.number}")
        elif _within(served, cpus, told):
            yield Answer(code)
        elif irq.affinity is not None and _within(irq.affinity, cpus, told):
            waiting.append(told)
        else:
            elsewhere.append(told)
    if elsewhere:
        yield asked.drift(code, device, listed(elsewhere), severity)
    if waiting:
        why = f"set, and moving at the next interrupt: {listed(waiting)}"
        yield Answer(code, Finding(code, "info", device, why, "wait for traffic, then check again"))
    if dark:
        yield unseen(code, device, f"the facts do not tell the CPUs of {', '.join(dark)}", _READ_AGAIN)


def _within(text: str, wanted: tuple[int, ...], where: str) -> bool:
    return set(parse_cpulist(text, where)) <= set(wanted)


def _irqbalance(plan: Plan, asked: _Asked) -> Answer:
    """irqbalance moves what was placed, unless the plan has told it what to leave."""
    code = "irq_affinity.irqbalance"
    if IRQBALANCE in plan.units() or any("irqbalance" in path for path in plan.files()):
        return Answer(code, why="the plan has its own word on irqbalance")
    unit = asked.units.get(IRQBALANCE)
    if unit is None:
        return unseen(code, IRQBALANCE, "the facts hold no systemd unit", _READ_AGAIN)
    if unit.active != "active":
        return Answer(code, why="irqbalance is not active")
    remedy = "set policy.queues.irqbalance to leave-rails, or systemctl disable --now irqbalance"
    why = "irqbalance is active and moves the interrupts that were placed"
    return Answer(code, Finding(code, "warning", IRQBALANCE, why, remedy))


# ----- units ---------------------------------------------------------------------------------------------------------


def _unit(asked: _Asked, name: str, entry: Entry) -> Iterator[Answer]:
    code, unit = f"{name}.unit", entry["name"]
    found = asked.units.get(unit)
    if found is None:
        yield unseen(code, unit, f"the facts hold nothing of {unit}", _READ_AGAIN)
        return
    problems = list(_unit_problems(entry, found))
    if not problems:
        yield Answer(code)
    for why in problems:
        yield asked.drift(code, unit, why)


def _unit_problems(entry: Entry, found: Unit) -> Iterator[str]:
    if found.load not in {"loaded", "masked"} and (entry.get("enabled") or entry.get("state") == "started"):
        yield f"systemd cannot load it: {found.load}"
        return
    enabled = found.enabled in {"enabled", "alias"}
    if entry.get("enabled") is not None and enabled != entry["enabled"]:
        yield f"is {found.enabled or 'not enabled'}, planned {'enabled' if entry['enabled'] else 'disabled'}"
    running = found.active in {"active", "reloading", "refreshing", "activating"}
    if entry.get("state") == "started" and not running and not found.done:
        yield f"is {found.active or 'unknown'}, planned started"
    if entry.get("state") == "stopped" and running:
        yield f"is {found.active}, planned stopped"
    if found.needs_reload:
        yield "systemd runs it by an older unit file than the one that lies there"


_KINDS: dict[str, Callable[[_Asked, str, Entry], Iterator[Answer]]] = {
    "file": _file,
    "irq_affinity": _irq_affinity,
    "json_keys": _json_keys,
    "sysctl": _sysctl,
    "sysfs": _sysfs,
    "systemd_unit": _unit,
}
