"""What the policy's word on containers comes to, for those who write it and those who judge it."""

from __future__ import annotations

import re
from typing import Any, Optional

from ..node.model import ContainerRuntimePolicy
from .stack import containers as known
from .stack.pairs import version

SET = "container_runtime"
DAEMON_JSON = "/etc/docker/daemon.json"
PLUGSTACK = "/etc/slurm/plugstack.conf.d/60-railwright-pyxis.conf"
CGROUP_DRIVER = "native.cgroupdriver="
_LEADING = re.compile(r"(?:\d+:)?(\d+)\.(\d+)")


def package_versions(asked: ContainerRuntimePolicy) -> dict[str, Optional[str]]:
    """Exact versions: those that the policy names, and the toolkit's packages, which are of one version."""
    toolkit = {} if asked.toolkit is None else dict.fromkeys(known.TOOLKIT, asked.toolkit)
    return {**toolkit, **asked.packages}


def options(values: dict[str, Any]) -> list[str]:
    """The texts of daemon.json's exec-opts."""
    found = values.get("exec-opts", [])
    return [word for word in found if isinstance(word, str)] if isinstance(found, list) else []


def refresher(asked: ContainerRuntimePolicy) -> str:
    """Who writes the CDI file of the GPUs: "refresh", "generate" or "none"."""
    if asked.cdi is not None:
        return asked.cdi
    if asked.toolkit is None:
        return "none"
    return "refresh" if (release(asked.toolkit) or (0, 0)) >= known.FIRST_WITH_REFRESH else "generate"


def release(text: str) -> Optional[tuple[int, ...]]:
    """Major and minor of a package's version ("5:28.3.3-1~debian" is 28.3); None where there are none."""
    match = _LEADING.match(text)
    return None if match is None else version(f"{match[1]}.{match[2]}")
