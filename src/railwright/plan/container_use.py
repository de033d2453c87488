"""What containers mean for other slices: which daemons the policy brings, and what a reload of systemd would break."""

from __future__ import annotations

from collections.abc import Iterator

from ..node.model import Facts, Finding, Policy
from ..node.model.container_facts import spoken
from .stack import containers as known

# By runtime; Docker runs its containers below containerd.
_UNITS = {
    "docker": ("docker.service", "containerd.service"),
    "podman": ("podman.service",),
    "containerd": ("containerd.service",),
}


def brought(policy: Policy) -> tuple[str, ...]:
    """Units that the policy's runtimes have, also before these are there: a plan must not change with what it does."""
    return tuple(dict.fromkeys(unit for runtime in _runtimes(policy) for unit in _UNITS.get(runtime, ())))


def has_podman(facts: Facts, policy: Policy) -> bool:
    """Whether podman is on the node, or comes."""
    here = facts.containers is not None and "podman" in facts.containers.programs
    return here or "podman" in _runtimes(policy)


def _runtimes(policy: Policy) -> tuple[str, ...]:
    """Those that the policy sets up, and those whose packages it names."""
    asked = policy.container_runtime
    if asked is None:
        return ()
    named = [
        runtime
        for runtime, names in known.RUNTIMES.items()
        if runtime == asked.runtime or any(asked.packages.get(name) is not None for name in names)
    ]
    return tuple(named)


def reload_breaks(facts: Facts, name: str) -> Iterator[Finding]:
    """A finding where systemd's next reload takes the GPUs away from containers that run (see stack/containers.py).

    name: of the slice whose drop-ins ask for one.
    """
    here = facts.containers
    if here is None or not here.running or not here.unlinked:
        return
    yield Finding(
        f"{name}.daemon_reload", "error", ", ".join(here.unlinked),
        f"{spoken(here.running)}, and nothing below /dev/char leads to these device files: when systemd reads its "
        "units again, which new drop-ins need, containers whose cgroups it keeps lose their GPUs (\"Failed to "
        'initialize NVML: Unknown Error"); nothing is written',
        "run `nvidia-ctk system create-dev-char-symlinks --create-all` on the node, or wait until no container runs",
    )  # fmt: skip
