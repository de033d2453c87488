"""The slice `limits`: locked memory and open files, of logins by limits.d and of daemons by drop-ins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

from ..node.model import Facts, Finding, LimitsPolicy, Policy, Slice
from ..node.model.limit_facts import Limits, ProcessLimits
from ..node.model.limits_policy import UNLIMITED
from . import container_use
from .entries import HEADER, Entry, file

LOGINS = "/etc/security/limits.d/60-railwright.conf"
PODMAN = "/etc/containers/containers.conf.d/60-railwright-limits.conf"
DROPIN = "60-railwright-limits.conf"
# Of these no node is without: every login has a manager of its own.
_ALWAYS = ("user@.service",)
# fs.nr_open of a kernel that has just started (fs/file.c, sysctl_nr_open).
_NR_OPEN = 1024 * 1024


def slice_of(facts: Facts, policy: Policy) -> tuple[Optional[Slice], list[Finding]]:
    """The slice, and what there is to know. None: the policy asks for none, or it would lock people out."""
    limits = policy.limits
    if limits is None:
        return None, []
    against = [*_against(facts, policy, limits), *container_use.reload_breaks(facts, "limits")]
    if against:
        return None, against
    because = (
        'RDMA locks every buffer that it registers, and the usual 8 MiB end in "Cannot allocate memory"; limits.d '
        "reaches logins only and a drop-in its daemon only, so both are written. What runs keeps what it has until it "
        "is started again, and nothing here restarts it"
    )
    return Slice("persistent", tuple(_entries(facts, policy, limits)), because), list(
        _findings(facts, policy, limits)
    )


def services(facts: Facts, policy: Policy) -> tuple[str, ...]:
    """Units that get a drop-in: those on the node, those that the policy brings, and those that it names."""
    here = () if facts.limits is None else facts.limits.units
    asked = () if policy.limits is None else policy.limits.services
    return tuple(sorted({*here, *container_use.brought(policy), *asked, *_ALWAYS}))


def _entries(facts: Facts, policy: Policy, limits: LimitsPolicy) -> Iterator[Entry]:
    yield file(LOGINS, _logins(limits))
    for name in services(facts, policy):
        yield file(f"/etc/systemd/system/{name}.d/{DROPIN}", _drop_in(limits))
    if container_use.has_podman(facts, policy):
        yield file(PODMAN, _podman(limits))


def _logins(limits: LimitsPolicy) -> str:
    # pam_limits(8): a wildcard does not reach root.
    lines = [
        f"{who} {kind} {item} {value}"
        for who in ("*", "root")
        for item, value in (("memlock", limits.memlock), ("nofile", str(limits.nofile)))
        for kind in ("soft", "hard")
    ]
    return HEADER + "\n".join(lines) + "\n"


def _drop_in(limits: LimitsPolicy) -> str:
    memlock = "infinity" if limits.memlock == UNLIMITED else f"{limits.memlock}K"
    return f"{HEADER}[Service]\nLimitMEMLOCK={memlock}\nLimitNOFILE={limits.nofile}\n"


def _podman(limits: LimitsPolicy) -> str:
    # Podman has no daemon that a drop-in would reach; containers.conf(5) takes bytes, -1 is unlimited.
    memlock = -1 if limits.memlock == UNLIMITED else int(limits.memlock) * 1024
    wanted = [f"memlock={memlock}:{memlock}", f"nofile={limits.nofile}:{limits.nofile}"]
    listed = ", ".join(f'"{word}"' for word in wanted)
    return f"{HEADER}[containers]\ndefault_ulimits = [{listed}]\n"


# ----- what stands against it ----------------------------------------------------------------------------------------


def _against(facts: Facts, policy: Policy, limits: LimitsPolicy) -> Iterator[Finding]:
    known = facts.limits
    most, whose = _most_files(known, policy)
    if limits.nofile > most:
        yield Finding(
            "limits.nr_open", "error", f"policy.limits.nofile {limits.nofile}",
            f"nobody may have more than {most} open files (fs.nr_open, {whose}), and a login whose limit cannot be set "
            "is refused: nobody would get in; nothing is written",
            "take a smaller number, or raise fs.nr_open in policy.sysctls first and run this again",
        )  # fmt: skip
    if known is None:
        return
    if known.may_raise is False and known.first is not None and _less(known.first, limits, 1):
        yield Finding(
            "limits.capability", "error", "PID 1",
            f"it may not raise limits here (as in a container) and has {_spoken(known.first)}: "
            "a login whose limit cannot be set is refused, and nobody would get in; nothing is written",
            "set these limits where the container is started, or ask for no more than that",
        )  # fmt: skip


def _most_files(known: Optional[Limits], policy: Policy) -> tuple[int, str]:
    """The most open files that anybody may have, now and when the policy's sysctls are in force, and who says so."""
    now = (_NR_OPEN, "as kernels come") if known is None or known.nr_open is None else (known.nr_open, "now")
    asked = policy.sysctls.get("fs.nr_open", "")
    return min(now, (int(asked), "policy.sysctls")) if asked.isdecimal() else now


def _not_kept(known: Limits, policy: Policy, limits: LimitsPolicy) -> Iterator[Finding]:
    """More than a kernel allows when it starts: whoever raised that has to do it again at every boot."""
    if limits.nofile > _NR_OPEN and not policy.sysctls.get("fs.nr_open"):
        yield Finding(
            "limits.nr_open_kept", "warning", f"policy.limits.nofile {limits.nofile}",
            f"fs.nr_open is {known.nr_open} now, and no setting of this plan makes it so: a boot that leaves it at the "
            f"kernel's own {_NR_OPEN} lets nobody log in",
            f"set policy.sysctls fs.nr_open to {limits.nofile} or more, or take {_NR_OPEN}",
        )  # fmt: skip


def _findings(facts: Facts, policy: Policy, limits: LimitsPolicy) -> Iterator[Finding]:
    known = facts.limits
    if known is None:
        yield Finding(
            "limits.unknown", "info", "limits",
            "the facts do not tell of limits and of the daemons on this node: only what every node has is written",
            "read the node itself (railwright discover)",
        )  # fmt: skip
        return
    yield from _not_kept(known, policy, limits)
    yield from _logins_without(known)
    low = [
        one
        for one in known.processes
        if one.unit in _running_as(facts, policy, one.unit) and _less(one, limits, 0)
    ]
    for one in low:
        yield Finding(
            "limits.restart", "info", one.unit,
            f"{one.process} runs with {_spoken(one)} and keeps that, with all that it starts, until its next start",
            f"systemctl restart {one.unit} when nobody's work is below it"
            if not one.unit.startswith("user@")
            else "log out and in again",
        )  # fmt: skip
    yield from _propagated(known)
    if container_use.has_podman(facts, policy):
        yield Finding(
            "limits.podman", "info", PODMAN,
            "containers of users get these limits too, and a user whose login has less, one from before this run say, "
            "cannot start any (setrlimit: Operation not permitted)",
            "log out and in again",
        )  # fmt: skip
    yield from _of_docker(facts, limits)


def _of_docker(facts: Facts, limits: LimitsPolicy) -> Iterator[Finding]:
    """Docker's own word on its containers comes before what its daemon has."""
    config = None if facts.containers is None else facts.containers.docker
    ulimits = None if config is None else config.values.get("default-ulimits")
    memlock = ulimits.get("memlock") if isinstance(ulimits, dict) else None
    hard = memlock.get("Hard") if isinstance(memlock, dict) else None
    wanted = None if limits.memlock == UNLIMITED else int(limits.memlock) * 1024
    if isinstance(hard, int) and hard != -1 and (wanted is None or hard < wanted):
        yield Finding(
            "limits.docker", "warning", "/etc/docker/daemon.json",
            f"default-ulimits gives every container {hard} bytes of locked memory, whatever Docker itself has",
            "take memlock out of default-ulimits, or set it to -1",
        )  # fmt: skip


def _running_as(facts: Facts, policy: Policy, unit: str) -> tuple[str, ...]:
    """The unit itself where it gets a drop-in, an instance where its template does."""
    template = f"{unit.partition('@')[0]}@.service" if "@" in unit else unit
    return (unit,) if {unit, template} & set(services(facts, policy)) else ()


def _logins_without(known: Limits) -> Iterator[Finding]:
    if known.pam.get("sshd") is False:
        yield Finding(
            "limits.pam", "warning", "/etc/pam.d/sshd",
            "a session of sshd does not run pam_limits, so limits.d does not reach who logs in over SSH",
            "add the line `session required pam_limits.so` there",
        )  # fmt: skip
    if known.pam.get("sshd", True) is None:
        yield Finding(
            "limits.pam", "info", "/etc/pam.d/sshd",
            "its files do not tell whether a session runs pam_limits with limits.d",
            "log in and see `ulimit -l`",
        )  # fmt: skip
    if known.use_pam is False:
        yield Finding(
            "limits.use_pam", "warning", "/etc/ssh/sshd_config",
            "sshd opens no session of PAM (UsePAM no), so limits.d does not reach who logs in over SSH; such a login "
            "has what sshd itself has",
            "set UsePAM yes",
        )  # fmt: skip


def _propagated(known: Limits) -> Iterator[Finding]:
    slurm = known.slurm
    if slurm is None:
        return
    # slurm.conf(5): without either line it is ALL; of the two only one may stand there.
    excepted = slurm.but is not None and {"MEMLOCK", "ALL"} & set(slurm.but)
    none = slurm.propagate is not None and "NONE" in slurm.propagate
    listed = slurm.propagate is not None and not {"ALL", "NONE", "MEMLOCK"} & set(slurm.propagate)
    if not (excepted or none or listed):
        yield Finding(
            "limits.slurm", "warning", slurm.path,
            "Slurm gives a job the limits of the shell that it was submitted from: one with 8 MiB of locked memory "
            "brings them along, whatever slurmd has here",
            "set PropagateResourceLimitsExcept=MEMLOCK in the cluster's slurm.conf, or PropagateResourceLimits=NONE",
        )  # fmt: skip


def _less(one: ProcessLimits, limits: LimitsPolicy, which: int) -> bool:
    """Whether a process has less than is wanted. which: 0 of its soft limits, 1 of its hard ones."""
    memlock = None if limits.memlock == UNLIMITED else int(limits.memlock) * 1024
    return _below(one.memlock[which], memlock) or _below(one.nofile[which], limits.nofile)


def _below(word: str, wanted: Optional[int]) -> bool:
    """wanted: None is unlimited."""
    if word == UNLIMITED:
        return False
    return wanted is None or int(word) < wanted


def _spoken(one: ProcessLimits) -> str:
    return (
        f"locked memory {' / '.join(one.memlock)} bytes and {' / '.join(one.nofile)} open files (soft / hard)"
    )
