"""Kinds of core as hwloc's XML (since 2.4) states them: groups of CPUs with what it knows of each group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# Intel's names, slowest first (hwloc's include/hwloc/cpukinds.h, info "CoreType").
_CORE_TYPES = ("IntelAtom", "IntelCore")


def core_kinds(
    groups: Sequence[tuple[tuple[int, ...], Mapping[str, str], Mapping[str, str]]],
) -> dict[int, int]:
    """CPU to its kind, 0 for the slowest; {} where there is one kind or the groups do not tell several.

    groups: CPUs, infos and attributes of each group. Groups that differ in clocks alone are one kind.
    """
    powers: dict[str, int] = {}
    named: list[tuple[tuple[int, ...], str]] = []
    for cpus, infos, attributes in groups:
        name = infos.get("CoreType") or infos.get("CPUPart")
        power = _power(infos, attributes)
        if name is None or power is None:
            return {}
        named.append((cpus, name))
        powers[name] = min(power, powers.get(name, power))
    ranked = sorted(powers, key=lambda name: (powers[name], name))
    return {cpu: ranked.index(name) for cpus, name in named for cpu in cpus} if len(ranked) > 1 else {}


def _power(infos: Mapping[str, str], attributes: Mapping[str, str]) -> int | None:
    """What orders kinds: Intel's by name, others by what Linux takes a core of theirs for."""
    kind = infos.get("CoreType")
    if kind in _CORE_TYPES:
        return _CORE_TYPES.index(kind)
    text = infos.get("LinuxCapacity") or attributes.get("forced_efficiency", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
