"""What there is to know of containers beside what is written: restarts, CDI files, others' choices, Slurm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Optional

from ..node.model import ContainerRuntimePolicy, Facts, Finding
from ..node.model.container_facts import Containers, spoken
from . import containerd
from .container_asked import CGROUP_DRIVER, DAEMON_JSON, PLUGSTACK, SET, options, refresher, release
from .stack import containers as known
from .stack.pairs import version


def findings(facts: Facts, asked: ContainerRuntimePolicy) -> Iterator[Finding]:
    """Nothing of it keeps the slice from being written."""
    here = facts.containers
    if here is None:
        yield Finding(
            f"{SET}.unknown", "info", "containers",
            "the facts do not tell of containers on this node: what stands in a runtime's configuration is not known",
            "read the node itself (railwright discover)",
        )  # fmt: skip
        return
    if asked.runtime == "containerd" and containerd.brings_its_own(facts, asked):
        yield Finding(
            f"{SET}.containerd_again", "warning", containerd.CONFIG,
            "its package comes with this run and brings one of its own, which nobody has read yet: of CDI nothing is "
            "written into it",
            "plan and install once more when the package is there",
        )  # fmt: skip
    yield from _of_daemon(here, asked)
    yield from _of_cdi(facts, here, asked)
    if asked.runtime == "docker" and here.docker is not None:
        yield from _of_docker(here.docker.values, asked)
    if here.unlinked:
        yield Finding(
            f"{SET}.dev_char", "warning", ", ".join(here.unlinked),
            "nothing below /dev/char leads to these device files: containers whose cgroups systemd keeps lose their "
            "GPUs when it reads its units again; the rule of udev makes the links when the driver is loaded next",
            "run `nvidia-ctk system create-dev-char-symlinks --create-all` on the node",
        )  # fmt: skip
    yield from _of_slurm(here, asked)


def of_nothing(asked: ContainerRuntimePolicy) -> Iterator[Finding]:
    """What there is to say of a runtime for which nothing is written: it reads CDI files by itself."""
    yield Finding(
        f"{SET}.nothing", "info", f"policy.container_runtime.runtime {asked.runtime}",
        f"no package, toolkit or setting is named, and {asked.runtime} takes CDI devices by itself: nothing is written",
        "name packages and toolkit with their versions to have them installed and held",
    )  # fmt: skip


def _of_daemon(here: Containers, asked: ContainerRuntimePolicy) -> Iterator[Finding]:
    if asked.runtime not in ("docker", "containerd"):
        return
    unit = f"{asked.runtime}.service"
    if not asked.restart:
        yield Finding(
            f"{SET}.restart", "info", unit,
            "what is written for it takes effect when it is started again, and nothing here does that",
            f"systemctl restart {unit} when no container runs, or set policy.container_runtime.restart: it is then "
            "started again where no container runs",
        )  # fmt: skip
    elif here.running:
        yield Finding(
            f"{SET}.restart", "warning", unit,
            f"{spoken(here.running)}: {unit} is not started again where its configuration is newer, and the run fails",
            "wait until no container runs, or drain the node",
        )  # fmt: skip


def _of_cdi(facts: Facts, here: Containers, asked: ContainerRuntimePolicy) -> Iterator[Finding]:
    ours = [one for one in here.cdi if one.kind == known.CDI_KIND]
    if len(ours) > 1:
        yield Finding(
            f"{SET}.cdi_twice", "warning", ", ".join(one.path for one in ours),
            f"several files describe {known.CDI_KIND}: of two folders the one in /var/run/cdi counts, of one folder "
            "neither, and then no container finds its GPUs",
            "remove those that nobody writes any more",
        )  # fmt: skip
    for one in ours:
        driver = facts.host.driver
        if driver is not None and one.drivers and driver not in one.drivers:
            yield Finding(
                f"{SET}.cdi_stale", "warning", one.path,
                f"it names libraries of driver {', '.join(one.drivers)}, and {driver} is loaded: no container starts",
                f"nvidia-ctk cdi generate --output={one.path}",
            )  # fmt: skip
    yield from _not_refreshed(facts, asked)
    others = [one for one in here.cdi if one.kind in known.OTHERS_KINDS]
    if others and refresher(asked) != "none":
        yield Finding(
            f"{SET}.cdi_others", "info", ", ".join(one.path for one in others),
            "a device plugin or the GPU operator writes CDI files of its own here, of other kinds; both may stand",
            "set policy.container_runtime.cdi to none where nobody but Kubernetes starts containers",
        )  # fmt: skip
    if not facts.gpus and refresher(asked) != "none":
        yield Finding(
            f"{SET}.no_gpu", "info", "gpus",
            "no GPU is here, as where an image is made: the CDI file is written at the first boot that has the driver",
            "verify on the first node that boots the image",
        )  # fmt: skip


def _not_refreshed(facts: Facts, asked: ContainerRuntimePolicy) -> Iterator[Finding]:
    """Kernels whose GPU module the toolkit's own unit does not find: it ends well, and writes nothing."""
    if refresher(asked) != "refresh" or asked.toolkit is None or facts.software is None:
        return
    # A toolkit from before has no such unit at all, which is refused elsewhere.
    if (release(asked.toolkit) or (0, 0)) < known.FIRST_WITH_REFRESH:
        return
    toolkit = version(asked.toolkit.rpartition(":")[2])
    for kernel in facts.software.kernels:
        path = kernel.modules.get("nvidia")
        if path is None or known.refreshes(toolkit, path.rpartition("/")[2]):
            continue
        yield Finding(
            f"{SET}.cdi_refresh", "warning", f"kernel {kernel.release}, {path}",
            f"{known.REFRESH_SERVICE} of toolkit {asked.toolkit} does not know a GPU module of this name: it does "
            "nothing, and no CDI file of the GPUs is written (NVIDIA/nvidia-container-toolkit#1395, #1517)",
            "set policy.container_runtime.cdi: generate, which has a unit of ours write it",
        )  # fmt: skip


def _of_docker(values: dict[str, Any], asked: ContainerRuntimePolicy) -> Iterator[Finding]:
    default = values.get("default-runtime")
    if isinstance(default, str) and default not in ("runc", "io.containerd.runc.v2"):
        yield Finding(
            f"{SET}.default_runtime", "info", DAEMON_JSON,
            f"the default runtime is {default[:80]}, which stays: with CDI no other than runc is needed",
            "take default-runtime out where nobody needs it",
        )  # fmt: skip
    folders = values.get("cdi-spec-dirs")
    if isinstance(folders, list) and not {"/etc/cdi", "/var/run/cdi"} <= {
        str(one).rstrip("/") for one in folders
    }:
        yield Finding(
            f"{SET}.cdi_folders", "warning", DAEMON_JSON,
            f"cdi-spec-dirs is {', '.join(map(str, folders))[:200]}: Docker does not look into both /etc/cdi (the "
            "GPUs' order, NCCL's files) and /var/run/cdi (the GPUs)",
            "take cdi-spec-dirs out, or name both there",
        )  # fmt: skip
    now = [word.partition("=")[2] for word in options(values) if word.startswith(CGROUP_DRIVER)]
    if asked.cgroup_driver is not None and now and now[-1] != asked.cgroup_driver:
        yield Finding(
            f"{SET}.cgroup_driver", "warning", DAEMON_JSON,
            f"the cgroup driver goes from {now[-1]} to {asked.cgroup_driver}; containers that exist must be made anew",
            "leave policy.container_runtime.cgroup_driver out to keep it",
        )  # fmt: skip


def _of_slurm(here: Containers, asked: ContainerRuntimePolicy) -> Iterator[Finding]:
    if asked.pyxis is not None and not _includes(here.plugstack, PLUGSTACK):
        yield Finding(
            f"{SET}.plugstack", "warning", "/etc/slurm/plugstack.conf",
            "it is not there or does not include plugstack.conf.d, so Slurm does not load pyxis",
            "have the line `include /etc/slurm/plugstack.conf.d/*.conf` in the cluster's plugstack.conf",
        )  # fmt: skip
    wants_tools = asked.toolkit is None and "nvidia-container-cli" not in here.programs
    if (asked.pyxis is not None or asked.enroot_settings) and wants_tools:
        yield Finding(
            f"{SET}.enroot_tools", "warning", "nvidia-container-cli",
            "enroot's hook 98-nvidia.sh calls it for every container that asks for a GPU, and it is not on the node",
            "state policy.container_runtime.toolkit, whose libnvidia-container-tools bring it",
        )  # fmt: skip
    if asked.enroot_settings.get("ENROOT_RESTRICT_DEV", "").lower() in ("y", "yes"):
        yield Finding(
            f"{SET}.enroot_devices", "warning", "ENROOT_RESTRICT_DEV",
            "it hides /dev/infiniband and the other tasks' GPUs: GPUDirect RDMA and peer access do not work inside",
            "leave it out (no), or have hooks that mount these devices",
        )  # fmt: skip


def _includes(patterns: Optional[Sequence[str]], path: str) -> bool:
    folder = path.rpartition("/")[0]
    return any(
        pattern.rpartition("/")[0] in (folder, folder.rpartition("/")[2]) for pattern in patterns or ()
    )
