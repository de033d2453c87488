"""containerd's part of the slice `container_runtime`: a drop-in where its configuration takes one, else what to do."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from typing import Optional

from ..node.model import ContainerRuntimePolicy, Facts, Finding
from ..node.model.container_facts import ContainerdConfig
from .entries import HEADER, Entry, file
from .stack import containers as known

CONFIG = "/etc/containerd/config.toml"
DROPIN = "/etc/containerd/conf.d/60-railwright.toml"
IMPORT = 'imports = ["/etc/containerd/conf.d/*.toml"]'


def entries(facts: Facts, asked: ContainerRuntimePolicy) -> Iterator[Entry]:
    """The drop-in, and the configuration that imports it where nobody has written one."""
    config = _config(facts)
    form = 2 if config is None else config.version
    if any(True for _ in against(facts, asked)) or brings_its_own(facts, asked):
        return
    if config is None or config.ours:
        yield file(CONFIG, f"{HEADER}version = {form}\n{IMPORT}\n")
    if _needed(config, asked):
        yield file(DROPIN, drop_in(form, asked))


def brings_its_own(facts: Facts, asked: ContainerRuntimePolicy) -> bool:
    """Whether a package comes with this run that has a config.toml of its own: where CNI's plugins lie stands there."""
    software = facts.software
    return _config(facts) is None and any(
        asked.packages.get(name) is not None and (software is None or software.package(name) is None)
        for name in known.RUNTIMES["containerd"]
    )


def paths(facts: Facts, asked: ContainerRuntimePolicy) -> tuple[str, ...]:
    """The files that containerd has to be started again for."""
    return tuple(entry["path"] for entry in entries(facts, asked))


def drop_in(form: int, asked: ContainerRuntimePolicy) -> str:
    """The text of the drop-in. form: of the configuration, 2 or 3."""
    section = f'plugins."{known.SECTIONS[form]}"' if form == 2 else f"plugins.'{known.SECTIONS[form]}'"
    lines = [
        f"version = {form}", "", f"[{section}]", "  enable_cdi = true",
        '  cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]',
    ]  # fmt: skip
    if asked.cgroup_driver is not None:
        word = "true" if asked.cgroup_driver == "systemd" else "false"
        lines += [
            "", f"[{section}.containerd.runtimes.runc]", '  runtime_type = "io.containerd.runc.v2"',
            "", f"[{section}.containerd.runtimes.runc.options]", f"  SystemdCgroup = {word}",
        ]  # fmt: skip
    return HEADER + "\n".join(lines) + "\n"


def against(facts: Facts, asked: ContainerRuntimePolicy) -> Iterator[Finding]:
    """What keeps a drop-in from being read, or would make it take others' settings away."""
    config = _config(facts)
    if config is None:
        return
    if config.others and config.version < known.FIRST_WITH_MERGED_SECTIONS and _needed(config, asked):
        yield _refused(
            "containerd_drop_ins", f"{', '.join(config.others)[:200]} set the CRI plugin too, and before containerd 2 "
            "of several files with that section only the last one counts: one would take the other's settings away",
            f"set there, in one of them: {'; '.join(_wanted(asked))}",
        )  # fmt: skip
    if config.ours:
        return
    if config.why:
        yield _refused("containerd_config", f"it cannot be read: {config.why}", "mend the file")
    elif config.version not in known.SECTIONS:
        yield _refused(
            "containerd_version", f"its form is version {config.version}, and a drop-in needs 2 or 3",
            "`containerd config migrate` tells it in the newest form",
        )  # fmt: skip
    elif not _needed(config, asked):
        return
    elif {"cri", "io.containerd.grpc.v1.cri"} & set(config.disabled):
        yield _refused(
            "containerd_cri", "it disables the CRI plugin, as the package of Docker's archive does, so neither "
            "Kubernetes nor CDI by it is to be had",
            "take it out of disabled_plugins, or leave policy.container_runtime.runtime out where only Docker uses it",
        )  # fmt: skip
    elif config.version < known.FIRST_WITH_MERGED_SECTIONS and config.cri:
        yield _refused(
            "containerd_section", f'it has a section [plugins."{known.SECTIONS[2]}"] already, and before containerd 2 '
            "a drop-in takes the place of the whole section: sandbox image, runtimes and registries would be gone",
            f"set there: {'; '.join(_wanted(asked))}",
        )  # fmt: skip
    elif not any(fnmatch.fnmatchcase(DROPIN, _absolute(pattern)) for pattern in config.imports):
        yield _refused(
            "containerd_imports", "it imports no folder of drop-ins, and the file is somebody else's",
            f"add this line above its first table: {IMPORT}",
        )  # fmt: skip


def _needed(config: Optional[ContainerdConfig], asked: ContainerRuntimePolicy) -> bool:
    """Whether the configuration lacks anything: with form 3 CDI is on unless it says otherwise."""
    if config is None or config.ours:
        return True
    cdi = config.enable_cdi is True or (config.version >= 3 and config.enable_cdi is None)
    if asked.cgroup_driver is None:
        return not cdi
    return not cdi or config.systemd_cgroup is not (asked.cgroup_driver == "systemd")


def _wanted(asked: ContainerRuntimePolicy) -> Iterator[str]:
    yield "enable_cdi = true"
    yield 'cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]'
    if asked.cgroup_driver is not None:
        word = "true" if asked.cgroup_driver == "systemd" else "false"
        yield f"and SystemdCgroup = {word} in .containerd.runtimes.runc.options"


def _absolute(pattern: str) -> str:
    return pattern if pattern.startswith("/") else f"/etc/containerd/{pattern}"


def _config(facts: Facts) -> Optional[ContainerdConfig]:
    return None if facts.containers is None else facts.containers.containerd


def _refused(noun: str, why: str, remedy: str) -> Finding:
    return Finding(
        f"container_runtime.{noun}", "error", CONFIG, f"{why}; nothing of the slice is written", remedy
    )
