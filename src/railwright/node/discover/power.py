"""How the processors save power: clock driver, governors, idle states, huge pages, tuned."""

from __future__ import annotations

from typing import Optional

from ..model import InputError
from ..model.software import IdleState, Power
from .tree import Tree

_CPU = "sys/devices/system/cpu"
_LONGEST_US = 10**7


def read_power(tree: Tree) -> Power:
    """Of the first CPU that has them: all CPUs of a machine have the same. Raises InputError."""
    clock = _first(tree, "cpufreq")
    governors = (tree.text(f"{clock}/scaling_available_governors") or "").split() if clock else []
    bias = _first(tree, "power/energy_perf_bias")
    return Power(
        driver=(tree.text(f"{clock}/scaling_driver") or None) if clock else None,
        governor=(tree.text(f"{clock}/scaling_governor") or None) if clock else None,
        governors=tuple(governors),
        energy_bias=bias is not None,
        min_perf_pct=tree.integer(f"{_CPU}/intel_pstate/min_perf_pct"),
        idle=_idle(tree),
        transparent_hugepage=_chosen(tree, "sys/kernel/mm/transparent_hugepage/enabled"),
        tuned=_tuned(tree),
    )


def _first(tree: Tree, what: str) -> Optional[str]:
    names = (name for name in tree.names(_CPU) if name[3:].isdigit() and name.startswith("cpu"))
    return next((f"{_CPU}/{name}/{what}" for name in names if tree.exists(f"{_CPU}/{name}/{what}")), None)


def _idle(tree: Tree) -> tuple[IdleState, ...]:
    folder = _first(tree, "cpuidle")
    if folder is None:
        return ()
    found = []
    for name in tree.names(folder):
        if not name.startswith("state") or not name[5:].isdigit():
            continue
        latency = tree.integer(f"{folder}/{name}/latency")
        label = tree.text(f"{folder}/{name}/name")
        if latency is None or not label:
            continue
        if not 0 <= latency <= _LONGEST_US:
            raise InputError(
                tree.where(f"{folder}/{name}/latency"), f"found {latency}", f"expected 0 to {_LONGEST_US}"
            )
        disabled = tree.integer(f"{folder}/{name}/disable") == 1
        found.append(IdleState(int(name[5:]), label, latency, disabled))
    return tuple(sorted(found, key=lambda state: state.index))


def _chosen(tree: Tree, path: str) -> Optional[str]:
    words = (tree.text(path) or "").split()
    return next((word[1:-1] for word in words if word.startswith("[") and word.endswith("]")), None)


def _tuned(tree: Tree) -> Optional[str]:
    """tuned's profile where tuned runs: it has a file with its process number in /run."""
    if not tree.exists("run/tuned/tuned.pid"):
        return None
    return tree.text("etc/tuned/active_profile") or ""
