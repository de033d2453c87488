"""The slice `container_runtime`: runtime and toolkit, pinned; CDI; daemons' settings, merged into what is there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Optional

from ..node.model import ContainerRuntimePolicy, Facts, Finding, Policy, Slice
from ..node.model.container_facts import spoken
from ..node.words import without_users
from . import container_findings, container_use, containerd, containers, packages
from .container_asked import (
    CGROUP_DRIVER,
    DAEMON_JSON,
    PLUGSTACK,
    SET,
    options,
    package_versions,
    refresher,
    release,
)
from .entries import HEADER, Entry, file
from .nvidia_driver import wants
from .stack import containers as known

DEV_CHAR = "/etc/udev/rules.d/71-railwright-nvidia-dev-char.rules"
CDI_UNIT = "/etc/systemd/system/railwright-cdi.service"
CDI_WANTED = "/etc/systemd/system/multi-user.target.d/60-railwright-cdi.conf"
_WHY_HELD = (
    "// A runtime that is replaced by night takes its containers down, or leaves them without their GPUs.\n"
)


def slice_of(
    facts: Facts, policy: Policy, rails: Optional[int] = None
) -> tuple[Optional[Slice], list[Finding]]:
    """The slice, and what there is to know. None: the policy asks for none, or it cannot be.

    rails: how many the plan has; None where it has none to tell of.
    """
    asked = policy.container_runtime
    if asked is None:
        return None, []
    entries = list(_entries(facts, policy, asked, rails))
    against = [*_against(facts, asked)]
    # The toolkit's own scripts have systemd read its units again (nvidia-container-toolkit-base.postinst, 1.18).
    if asked.toolkit is not None or any(_is_unit(entry) for entry in entries):
        against += container_use.reload_breaks(facts, SET)
    if any(finding.severity == "error" for finding in against):
        return None, against
    if not entries:
        return None, [*against, *container_findings.of_nothing(asked)]
    because = (
        "containers get GPUs by CDI, which every runtime reads alike and which outlives a reload of systemd; what "
        "others keep in a runtime's configuration stays, and nothing is started again while a container runs"
    )
    return Slice("persistent", tuple(entries), because), [
        *against,
        *container_findings.findings(facts, asked),
    ]


def _is_unit(entry: Entry) -> bool:
    return str(entry.get("path", "")).startswith("/etc/systemd/system/")


# ----- what is written -----------------------------------------------------------------------------------------------


def _entries(
    facts: Facts, policy: Policy, asked: ContainerRuntimePolicy, rails: Optional[int]
) -> Iterator[Entry]:
    versions = package_versions(asked)
    if asked.runtime == "docker":
        yield from _docker(facts, asked)
    if asked.runtime == "containerd":
        yield from containerd.entries(facts, asked)
    if versions:
        yield packages.packages_entry(SET, versions, facts, policy)
        if packages.system_of(facts) != "rpm":
            yield packages.hold_file(SET, versions, _WHY_HELD)
    yield from _cdi(asked)
    if asked.pyxis is not None:
        # spank(8): one that is required and does not load, after an upgrade of Slurm say, ends every job of the node.
        yield file(PLUGSTACK, f"{HEADER}optional {asked.pyxis}\n")
    if asked.enroot_settings:
        yield file(*containers.enroot_settings("settings", asked.enroot_settings))
    if asked.labels is not None:
        yield file(containers.LABELS, containers.labels(_planned_labels(facts, rails), asked.labels))
    yield from _daemon(facts, asked)


def _docker(facts: Facts, asked: ContainerRuntimePolicy) -> Iterator[Entry]:
    values = _docker_values(facts)
    keys: dict[str, Any] = {"/features/cdi": True}
    if asked.cgroup_driver is not None:
        # The list is others' too: what they have in it stays, in its order.
        kept = [word for word in options(values) if not word.startswith(CGROUP_DRIVER)]
        keys["/exec-opts"] = [*kept, f"{CGROUP_DRIVER}{asked.cgroup_driver}"]
    entry: Entry = {"kind": "json_keys", "path": DAEMON_JSON, "keys": {**keys, **asked.daemon}}
    # An address of a proxy or a mirror often holds its password.
    told = json.dumps(asked.daemon)
    secret = any(key.startswith("/proxies") for key in asked.daemon) or without_users(told) != told
    yield {**entry, "secret": True} if secret else entry


def _docker_values(facts: Facts) -> dict[str, Any]:
    """What daemon.json holds of the keys that matter; one that cannot be read is refused elsewhere."""
    config = None if facts.containers is None else facts.containers.docker
    return {} if config is None else config.values


def _cdi(asked: ContainerRuntimePolicy) -> Iterator[Entry]:
    who = refresher(asked)
    if asked.toolkit is not None or who != "none":
        yield file(DEV_CHAR, _DEV_CHAR_RULE)
    if who == "refresh":
        # The package enables both where systemd runs; where it is installed into an image, nobody does.
        yield file(CDI_WANTED, wants(f"{known.REFRESH_PATH} {known.REFRESH_SERVICE}"))
    elif who == "generate":
        yield file(CDI_UNIT, _CDI_UNIT)
        yield file(CDI_WANTED, wants(CDI_UNIT.rpartition("/")[2]))


# NVIDIA/nvidia-docker#1730: runc asks systemd for a device by its number, and systemd looks for it below /dev/char.
# The driver makes no such links, since its device files are made by nvidia-modprobe and not by the kernel.
_DEV_CHAR_RULE = (
    f"{HEADER}# Without these links containers lose their GPUs whenever systemd reads its units again.\n"
    'ACTION=="add", DEVPATH=="/bus/pci/drivers/nvidia", '
    'RUN+="/usr/bin/nvidia-ctk system create-dev-char-symlinks --create-all"\n'
)
_CDI_UNIT = f"""{HEADER}[Unit]
Description=Railwright: the GPUs of this node as a CDI file
Documentation=man:nvidia-ctk(1)
ConditionPathExists=/usr/bin/nvidia-ctk
ConditionPathExists=/proc/driver/nvidia/version
After=systemd-modules-load.service nvidia-persistenced.service nvidia-fabricmanager.service
Before=docker.service containerd.service crio.service slurmd.service kubelet.service
StartLimitIntervalSec=600
StartLimitBurst=30

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/mkdir -p /var/run/cdi
ExecStart=/usr/bin/nvidia-ctk cdi generate --output={known.CDI_FILE}
Restart=on-failure
RestartSec=5
"""


def _daemon(facts: Facts, asked: ContainerRuntimePolicy) -> Iterator[Entry]:
    """Started again where that was asked for; the writer refuses it while a container runs."""
    if not asked.restart or asked.runtime not in ("docker", "containerd"):
        return
    paths = [DAEMON_JSON] if asked.runtime == "docker" else list(containerd.paths(facts, asked))
    if paths:
        unit = f"{asked.runtime}.service"
        yield {"kind": "container_daemon", "name": unit, "restart_if_older_than": paths}


def _planned_labels(facts: Facts, rails: Optional[int]) -> dict[str, str]:
    """What a scheduler chooses nodes by and no other feature source tells."""
    found = {"railwright-gpu-order": "PCI_BUS_ID"}
    if facts.gpus:
        found["railwright-gpus"] = str(len(facts.gpus))
    if rails is not None:
        found["railwright-rails"] = str(rails)
    return found


# ----- what stands against it ----------------------------------------------------------------------------------------


def _against(facts: Facts, asked: ContainerRuntimePolicy) -> Iterator[Finding]:
    here = facts.containers
    versions = package_versions(asked)
    if versions and packages.system_of(facts) is None:
        yield packages.unknown_system(SET)
    for name in known.TOOLKIT:
        why = known.BAD_TOOLKITS.get(versions.get(name) or "")
        if why is not None:
            yield _refused("toolkit", f"{name} {versions[name]}", why, "take another version")
            break
    yield from _two_dockers(facts, asked, versions)
    yield from _busy(facts, versions)
    yield from _without_cdi(facts, asked, versions)
    if asked.runtime == "docker" and here is not None and here.docker is not None and here.docker.why:
        yield _refused(
            "daemon_json", DAEMON_JSON,
            f"{here.docker.why}; nothing can be merged into it without a loss",
            "mend the file: JSON knows no comments and no byte order mark, and needs no comma behind the last key",
        )  # fmt: skip
    if asked.runtime == "containerd":
        yield from containerd.against(facts, asked)
    who = refresher(asked)
    numbers = None if asked.toolkit is None else release(asked.toolkit)
    first = known.FIRST_WITH_REFRESH if who == "refresh" else known.FIRST_WITH_GENERATE
    if who != "none" and numbers is not None and numbers < first:
        spoken_first = ".".join(map(str, first))
        yield _refused(
            "cdi", f"policy.container_runtime.cdi {who}",
            f"the toolkit has that from {spoken_first} on, and {asked.toolkit} is asked for", "take a later toolkit",
        )  # fmt: skip


def _two_dockers(
    facts: Facts, asked: ContainerRuntimePolicy, versions: dict[str, Optional[str]]
) -> Iterator[Finding]:
    software = facts.software
    for names in known.RUNTIMES.values():
        wanted = [name for name in names if versions.get(name) is not None]
        there = [
            name
            for name in names
            if name not in versions and software is not None and software.package(name) is not None
        ]
        if len(wanted) > 1 or (wanted and there):
            yield _refused(
                "packages", ", ".join((*wanted, *there)),
                "these are one program of different archives, and a node has one of them",
                f"name the others as null in policy.container_runtime.packages: {', '.join(there or wanted[1:])}",
            )  # fmt: skip


def _busy(facts: Facts, versions: dict[str, Optional[str]]) -> Iterator[Finding]:
    """A package that changes starts its daemon again by its own scripts, which no item of ours could keep from it."""
    software, here = facts.software, facts.containers
    if here is None or not here.running or software is None:
        return
    moving = [
        f"{name} {one.version}"
        for name in known.DAEMONS
        if name in versions and (one := software.package(name)) is not None and one.version != versions[name]
    ]
    if moving:
        yield _refused(
            "busy", ", ".join(moving),
            f"{spoken(here.running)}, and to change these packages starts their daemon again or ends it",
            "wait until no container runs, or drain the node",
        )  # fmt: skip


def _without_cdi(
    facts: Facts, asked: ContainerRuntimePolicy, versions: dict[str, Optional[str]]
) -> Iterator[Finding]:
    """A runtime whose containers cannot ask for a CDI device."""
    runtime = asked.runtime
    if runtime is None:
        return
    for name in known.RUNTIMES[runtime]:
        software = facts.software
        standing = None if software is None else software.package(name)
        text = versions.get(name, None if standing is None else standing.version)
        numbers = None if text is None else release(text)
        first = known.FIRST_WITH_CDI[runtime]
        if numbers is not None and numbers < first:
            yield _refused(
                "no_cdi", f"{name} {text}",
                f"its containers cannot ask for a CDI device; {runtime} can from {first[0]}.{first[1]} on",
                f"take a later {runtime}, or leave policy.container_runtime.runtime out and give containers their GPUs "
                "in the old way",
            )  # fmt: skip


def _refused(noun: str, where: str, why: str, remedy: str) -> Finding:
    return Finding(f"{SET}.{noun}", "error", where, f"{why}; nothing of the slice is written", remedy)
