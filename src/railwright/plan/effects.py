"""What of the table of workloads holds under one policy: each effect can be left out or given another value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

from ..node.model import InputError, Policy, Setting
from .workloads import DISTANCE, EVEN, EXPECTED, OPTIONAL, RATE, TABLE, Effect

# What the planner itself follows: the values that it knows, first the one that it follows without any.
_OF_PLANNER = {"assignment": (RATE, EVEN, DISTANCE), "rails": (OPTIONAL, EXPECTED)}
# Who writes a setting of this kind; the plan has a slice for some of them.
_ROLES: dict[str, Optional[str]] = {
    "plan": None,
    "nccl": "nccl_conf",
    "sysctl": "sysctls",
    "kernel_parameter": "kernel",
    "power": "kernel",
    "memory": "kernel",
    "roce": "roce",
    "acceptance": "acceptance",
}


def check(policy: Policy) -> None:
    """Raises InputError for an effect that there is none of, and for a word that the planner does not know."""
    names = dict.fromkeys(effect.name for effect in TABLE)
    for name, value in policy.effects.items():
        where = f"policy.effects.{name}"
        if name not in names:
            raise InputError(where, "no workload has such an effect", f"one of {', '.join(names)}")
        known = _OF_PLANNER.get(name)
        if known is not None and value is not False and value not in known:
            raise InputError(where, f"found {value!r}", f"expected false or one of {', '.join(known)}")


def settings_of(policy: Policy) -> tuple[Setting, ...]:
    """What this policy's workload asks for, in the table's order; what is left out too, with None as value."""
    return tuple(_settings(policy))


def _settings(policy: Policy) -> Iterator[Setting]:
    own = {effect.name: effect for effect in TABLE if policy.workload in effect.workloads}
    for effect in own.values():
        yield _setting(effect, _word(policy, effect))
    others = {effect.name: effect for effect in TABLE if effect.name not in own}
    for effect in others.values():
        asked = _word(policy, effect)
        if isinstance(asked, str):
            yield _asked(effect, asked, f"the policy asks for it; {policy.workload} does not by itself")


def _word(policy: Policy, effect: Effect) -> object:
    """The policy's last word on an effect: False, a value, or None when it says nothing."""
    closer = {"sysctl": policy.sysctls, "nccl": policy.nccl.env}.get(effect.kind, {})
    if effect.name in closer:
        return closer[effect.name] or False
    return policy.effects.get(effect.name)


def _setting(effect: Effect, asked: object) -> Setting:
    if asked is False:
        why = f"the policy leaves it out; it would be {effect.value}, for {effect.why}"
        return Setting(
            effect.name, effect.kind, None, _ROLES[effect.kind], effect.confidence, effect.source, why
        )
    if isinstance(asked, str) and asked != effect.value:
        return _asked(effect, asked, f"the policy asks for it instead of {effect.value}")
    role = _ROLES[effect.kind]
    return Setting(effect.name, effect.kind, effect.value, role, effect.confidence, effect.source, effect.why)


def _asked(effect: Effect, value: str, why: str) -> Setting:
    return Setting(effect.name, effect.kind, value, _ROLES[effect.kind], "C", "the node's policy", why)


def followed(settings: tuple[Setting, ...], name: str) -> str:
    """What the planner follows of its own effects ("assignment", "rails")."""
    values = [setting.value for setting in settings if setting.name == name]
    return next((value for value in values if value is not None), _OF_PLANNER[name][0])


def of_kind(settings: tuple[Setting, ...], kind: str) -> dict[str, str]:
    """Values of one kind by name, without those that are left out."""
    return {
        setting.name: setting.value
        for setting in settings
        if setting.kind == kind and setting.value is not None
    }
