"""Which CPUs of a node ranks and interrupts may have: those that are online, allowed and not isolated."""

from __future__ import annotations

from typing import Optional

from ..node.model import Core, Facts, Finding, format_cpulist, parse_cpulist


def usable(facts: Facts) -> list[Core]:
    """Cores with only the CPUs that are online, allowed and not isolated, lowest first."""
    cpus = facts.cpus
    barred = _listed(cpus.isolated, "isolated") | _listed(cpus.offline, "offline")
    allowed = None if cpus.allowed is None else _listed(cpus.allowed, "allowed")
    usable = []
    for core in cpus.cores:
        left = tuple(
            sorted(cpu for cpu in core.cpus if cpu not in barred and (allowed is None or cpu in allowed))
        )
        if left:
            usable.append(Core(left, core.socket, core.numa, core.l3))
    usable.sort(key=lambda core: core.cpus[0])
    return usable


def _listed(cpulist: Optional[str], what: str) -> set[int]:
    return set(parse_cpulist(cpulist or "", f"facts.cpus.{what}"))


def left_out(facts: Facts) -> list[Finding]:
    """CPUs that no rank and no interrupt gets, and why, each CPU under the first reason."""
    cpus = facts.cpus
    present = {cpu for core in cpus.cores for cpu in core.cpus}
    offline = _listed(cpus.offline, "offline")
    isolated = (_listed(cpus.isolated, "isolated") & present) - offline
    beyond = (
        set() if cpus.allowed is None else present - _listed(cpus.allowed, "allowed") - isolated - offline
    )
    found = []
    if offline:
        found.append(
            _unused(
                "cores.offline",
                "info",
                offline,
                "are offline or not there, and left out",
                "if they should work, look at nosmt and maxcpus on the kernel command line and at "
                "/sys/devices/system/cpu/cpu<n>/online",
            )
        )
    if isolated:
        found.append(
            _unused(
                "cores.isolated",
                "info",
                isolated,
                "are isolated on the kernel command line and left out",
                "take isolcpus off the command line if ranks are to use them",
            )
        )
    if beyond:
        found.append(
            _unused(
                "cores.allowed",
                "warning",
                beyond,
                "are barred by the cgroup or affinity of who read the node, and left out",
                "read the node as root on the host, outside of containers and of services with AllowedCPUs or "
                "CPUAffinity",
            )
        )
    return found


def _unused(code: str, severity: str, cpus: set[int], why: str, remedy: str) -> Finding:
    named = format_cpulist(cpus)
    return Finding(code, severity, named, f"CPUs {named} {why}", remedy)
