"""Kernel settings of the slice `sysctls`: the workload's, then the policy's, as far as this kernel has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

from ..node.model import Finding, Host, Policy, Setting
from .effects import of_kind
from .workloads import TABLE

# Where more is better, a node that has more keeps it: a large network was sized by somebody.
_LEAST = frozenset(effect.name for effect in TABLE if effect.least)


def chosen(
    policy: Policy,
    host: Host,
    settings: tuple[Setting, ...],
    rails: Optional[Mapping[str, str]] = None,
    least: Optional[Mapping[str, int]] = None,
) -> tuple[dict[str, str], list[Finding]]:
    """Settings by name, in order, and findings. Only settings that this kernel has are chosen.

    rails: what the rails' network asks for. least: the same where more is as good. The policy's own word comes last.
    """
    wanted = {
        name: _value(name, value, host.sysctls.get(name, ""), policy)
        for name, value in of_kind(settings, "sysctl").items()
    }
    wanted.update(rails or {})
    for name, value in (least or {}).items():
        if name not in policy.effects:
            known = [text for text in (wanted.get(name, ""), host.sysctls.get(name, "")) if text.isdecimal()]
            wanted[name] = str(max(value, *map(int, known)))
    wanted.update(policy.sysctls)
    values = {name: value for name, value in sorted(wanted.items()) if value != "" and name in host.sysctls}
    asked = {name for name in policy.effects if name in wanted} | set(policy.sysctls)
    absent = [name for name in sorted(asked) if wanted[name] != "" and name not in host.sysctls]
    findings = [
        Finding(
            "sysctls.absent",
            "warning",
            name,
            f"the policy sets {name}, and this node's kernel did not show it",
            "correct the name, or load the module that brings it",
        )
        for name in (absent if host.sysctls else [])
    ]
    return values, findings


def _value(name: str, value: str, now: str, policy: Policy) -> str:
    """The table's value, or the node's where it has more of what may not be less; the policy's stands."""
    keeps = name in _LEAST and name not in policy.effects and now.isdecimal() and int(now) > int(value)
    return now if keeps else value


def conf_bytes(values: Mapping[str, str]) -> str:
    """The text of the sysctl.d file."""
    lines = [
        "# Written by Railwright; changes made here are lost. What is wanted stands in the node's policy."
    ]
    lines += [f"{name} = {value}" for name, value in values.items()]
    return "\n".join(lines) + "\n"
