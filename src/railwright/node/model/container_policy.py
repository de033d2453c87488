"""Policy of containers: which runtime, with the NVIDIA container toolkit by CDI, and what their daemons are told."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from typing import Any, Optional

from .codec import InputError
from .values import like, one_of, packages, version

RUNTIMES = ("docker", "podman", "containerd")
CDI = ("refresh", "generate", "none")
CGROUP_DRIVERS = ("systemd", "cgroupfs")
_POINTER = re.compile(r"(?:/(?:[^/~]|~[01])+)+")
_PLUGIN = re.compile(r"/(?!.*\.\./)[A-Za-z0-9_./+-]{1,200}\.so", re.ASCII)
_LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", re.ASCII)


@dataclass(frozen=True)
class ContainerRuntimePolicy:
    """Containers on this node.

    runtime: "docker", "podman" or "containerd"; None leaves the runtime alone (enroot, labels and packages go without).
    packages: its packages with their exact versions, held; None is "must not be there". toolkit: exact version of the
    NVIDIA container toolkit's packages. cdi: who writes the CDI file of the GPUs: "refresh" (the toolkit's own unit,
    from 1.18 on), "generate" (a unit of ours that calls nvidia-ctk) or "none" (a device plugin or the GPU operator);
    None: by the toolkit's version. cgroup_driver: of Docker or containerd; None leaves it. daemon: further keys of
    Docker's daemon.json, RFC 6901 pointer to value. restart: whether the daemon is started again when its configuration
    is newer and no container runs. pyxis: path of its plugin, which has to be built for this Slurm. enroot_settings:
    of enroot.conf, by name. labels: of a Kubernetes node, besides those that are planned; None writes no file.
    """

    runtime: Optional[str] = None
    packages: dict[str, Optional[str]] = field(default_factory=dict)
    toolkit: Optional[str] = None
    cdi: Optional[str] = None
    cgroup_driver: Optional[str] = None
    daemon: dict[str, Any] = field(default_factory=dict)
    restart: bool = False
    pyxis: Optional[str] = None
    enroot_settings: dict[str, str] = field(default_factory=dict)
    labels: Optional[dict[str, str]] = None


_NOTHING = ContainerRuntimePolicy()


def must_be_sound(policy: ContainerRuntimePolicy, where: str) -> None:
    """Raises InputError with the place of what no runtime takes, and for a group that names nothing."""
    if replace(policy, restart=False, cdi=None if policy.cdi == "none" else policy.cdi) == _NOTHING:
        raise InputError(
            where,
            "names nothing",
            "state a runtime, packages, toolkit, cdi, pyxis, enroot_settings or labels, or leave the group out",
        )
    one_of(policy.runtime, RUNTIMES, f"{where}.runtime")
    one_of(policy.cdi, CDI, f"{where}.cdi")
    one_of(policy.cgroup_driver, CGROUP_DRIVERS, f"{where}.cgroup_driver")
    packages(policy.packages, f"{where}.packages")
    version(policy.toolkit, f"{where}.toolkit", "a version to the last digit, like 1.18.1-1")
    for pointer, value in policy.daemon.items():
        like(pointer, _POINTER, f"{where}.daemon", "pointers to keys, like /log-opts/max-size")
        _not_ours(pointer, policy, f"{where}.daemon")
        above = next((other for other in policy.daemon if pointer.startswith(f"{other}/")), None)
        if above is not None:
            raise InputError(
                f"{where}.daemon", f"{pointer} lies in {above}, which is set too", "set one of the two"
            )
        _json(value, f"{where}.daemon.{pointer}")
    if policy.daemon and policy.runtime != "docker":
        raise InputError(
            f"{where}.daemon", "are keys of Docker's daemon.json", "state runtime: docker, or leave it out"
        )
    if policy.cgroup_driver is not None and policy.runtime not in ("docker", "containerd"):
        raise InputError(
            f"{where}.cgroup_driver", "is Docker's or containerd's", "state the runtime, or leave it out"
        )
    like(policy.pyxis, _PLUGIN, f"{where}.pyxis", "the path of spank_pyxis.so")
    for name, value in policy.enroot_settings.items():
        like(
            name,
            re.compile(r"ENROOT_[A-Z0-9_]{1,60}"),
            f"{where}.enroot_settings",
            "names like ENROOT_DATA_PATH",
        )
        like(value, re.compile(r"[!-~]+(?: [!-~]+)*"), f"{where}.enroot_settings.{name}", "one line")
    for name, value in (policy.labels or {}).items():
        like(name, _LABEL, f"{where}.labels", "names of labels, without a namespace")
        like(value, _LABEL, f"{where}.labels.{name}", "a value of at most 63 letters, digits, -, _ and .")


def _not_ours(pointer: str, policy: ContainerRuntimePolicy, where: str) -> None:
    """Raises InputError for a key of Docker that is planned already, or with which it does not start."""
    if pointer == "/features" or f"{pointer}/".startswith("/features/cdi/"):
        raise InputError(where, f"{pointer} takes CDI away", "name single features: /features/buildkit")
    if pointer.startswith("/exec-opts") and policy.cgroup_driver is not None:
        raise InputError(where, f"{pointer} and cgroup_driver are one key", "leave one of the two out")
    if pointer.startswith("/hosts"):
        # docs.docker.com, "Troubleshoot conflicts between the daemon.json and startup scripts": both units say -H fd://.
        raise InputError(
            where,
            f"{pointer} and the -H of Docker's own unit: it does not start with both",
            "give docker.socket a further ListenStream= by a drop-in",
        )


def _json(value: Any, where: str) -> None:
    """Raises InputError, which never tells the value, for what daemon.json cannot hold: a proxy may have a password."""
    remedy = "expected texts, numbers, true, false, null, lists and mappings with texts as keys"
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        text.encode("utf-8")
        if json.loads(text) != value:
            raise ValueError
    except (TypeError, ValueError, RecursionError):
        raise InputError(where, "is nothing that JSON knows", remedy) from None
