"""The slice `dl_runtime`: environments of wheels, servers on the plan's GPUs and cores, images, a self-test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

from ..node import selftest
from ..node.model import (
    EnvironmentPolicy,
    Facts,
    Finding,
    NvlinkDomain,
    PlannedGpu,
    Policy,
    RuntimePolicy,
    ServerPolicy,
    Slice,
    format_cpulist,
    parse_cpulist,
)
from ..node.model.wheel_lock import Lock, read_lock
from . import cuda as toolkits
from .entries import HEADER, Entry, file
from .stack import cuda as table
from .stack import frameworks, pairs

SELF_TEST = "/usr/local/lib/railwright/self_test.py"
TOP = "/opt/railwright"
SERVE = "/etc/railwright/serve"
_UNITS = "/etc/systemd/system"
_PORT = "RAILWRIGHT_PORT"
_LAST_PORT = 65535


def slice_of(
    facts: Facts,
    policy: Policy,
    gpus: Sequence[PlannedGpu],
    domains: Sequence[NvlinkDomain] = (),
    nccl: Optional[Mapping[str, str]] = None,
) -> tuple[Optional[Slice], list[Finding]]:
    """The slice, and what there is to know.

    gpus, domains: as planned, with their cores. nccl: the variables that the plan writes. None: nothing is asked for.
    """
    runtime = policy.dl_runtime
    if runtime is None:
        return None, []
    findings: list[Finding] = []
    entries: list[Entry] = []
    for name, environment in sorted(runtime.environments.items()):
        lock = read_lock(environment.lock, f"policy.dl_runtime.environments.{name}.lock")
        against = list(_against(facts, policy, name, environment, lock))
        findings += against
        if not any(finding.severity == "error" for finding in against):
            entries.append(_environment(name, environment, lock))
    if entries:
        entries.append(file(SELF_TEST, _source(), "0755"))
    planned = {entry["name"] for entry in entries if entry["kind"] == "python_environment"}
    whole = [gpu for gpu in gpus if gpu.name not in _cut(facts)]
    taken: list[PlannedGpu] = []
    ports: dict[int, str] = {}
    for name, server in sorted(runtime.servers.items()):
        if server.environment not in planned:
            continue  # why is told of the environment
        groups, why = _groups(name, server, whole, domains, taken)
        why = why or _engine(name, server, runtime) or _ports(name, server, len(groups), ports)
        if why is not None:
            findings.append(why)
            continue
        ports.update({server.port + number: name for number in range(len(groups))})
        taken += [gpu for group in groups for gpu in group]
        entries += _server(name, server, groups, nccl or {})
        findings += _told(name, server, groups)
    entries += [
        {"kind": "container_image", "image": image, "tool": runtime.image_tool} for image in runtime.images
    ]
    if not entries:
        return None, findings
    because = (
        "what jobs import is one version, by hash, on every node; a new one is built beside the old one and shown by "
        "one rename, so that a running job keeps what it began with"
    )
    return Slice("persistent", tuple(entries), because), findings


# ----- environments --------------------------------------------------------------------------------------------------


def _environment(name: str, environment: EnvironmentPolicy, lock: Lock) -> Entry:
    entry: Entry = {
        "kind": "python_environment", "name": name, "python": environment.python, "lock": lock.text,
    }  # fmt: skip
    if environment.wheelhouse is not None:
        entry["wheelhouse"] = environment.wheelhouse
    else:
        entry["indexes"] = list(environment.indexes)
    asked = {"netrc": environment.netrc, "keep": environment.keep, "space": environment.space}
    return {**entry, **{key: value for key, value in asked.items() if value is not None}}


def _source() -> str:
    """The self-test's own text, from wherever this package was loaded: a folder, a zipapp or a module of Ansible."""
    loader: Any = selftest.__spec__.loader
    text = loader.get_source(selftest.__name__) if hasattr(loader, "get_source") else None
    if not isinstance(text, str):
        raise RuntimeError(f"{selftest.__name__} has no source beside it: keep the package's .py files")
    return text


def _against(
    facts: Facts, policy: Policy, name: str, environment: EnvironmentPolicy, lock: Lock
) -> Iterator[Finding]:
    """What stands against an environment, and what is to be known of it."""
    where = f"policy.dl_runtime.environments.{name}"
    engines = [engine.package for engine in frameworks.ENGINES.values()]
    wanted = frameworks.TRAINING if environment.profile == "training" else engines
    if not any(lock.pin(package) for package in wanted):
        yield Finding(
            "dl_runtime.profile", "error", f"{where}.lock",
            f"the profile is {environment.profile}, and the lock has no {' and no '.join(wanted)}",
            "lock it, too, or choose the other profile",
        )  # fmt: skip
    cuda, gpus = frameworks.cuda_of(lock), len(facts.gpus)
    if cuda == "cpu" and gpus:
        yield Finding(
            "dl_runtime.cpu_build", "warning", f"{where}.lock",
            f"the lock has a CPU build of torch, and this node has {gpus} GPUs",
            "lock a CUDA build",
        )  # fmt: skip
    driver = policy.driver.version or facts.host.driver
    newest = None if driver is None else pairs.newest_cuda(driver)
    if cuda not in (None, "cpu") and driver is not None and int(str(cuda).split(".")[0]) > int(newest or 0):
        speaks = f"runs programs of CUDA {newest}" if newest else "is older than CUDA 11"
        yield Finding(
            "dl_runtime.driver", "error" if gpus else "warning", f"{where}.lock",
            f"torch is built for CUDA {cuda}, and driver {driver} {speaks}: CUDA would not be available",
            f"take a driver for CUDA {str(cuda).split('.')[0]}, or lock a build for CUDA {newest or 'of the driver'}",
        )  # fmt: skip
    yield from _architectures(facts, where, cuda)
    brought, meant = frameworks.nccl_of(lock), policy.nccl.version
    if brought is not None and meant is not None and not f"{brought}.".startswith(f"{meant}."):
        yield Finding(
            "dl_runtime.nccl", "warning", f"{where}.lock",
            f"the wheels bring NCCL {brought}, which torch loads whatever else is installed, and {meant} is meant",
            f"lock a build with NCCL {meant}, or set policy.nccl.version to {brought}; "
            "`railwright audit libraries` tells what is loaded",
        )  # fmt: skip


def _architectures(facts: Facts, where: str, cuda: Optional[str]) -> Iterator[Finding]:
    """GPUs that no build for this CUDA can have code for; what a build really has its own list says alone."""
    if cuda is None or cuda == "cpu":
        return
    known, _ = toolkits.capabilities(facts)
    for capability in sorted(set(known.values()), key=pairs.version):
        row = table.ARCHITECTURES[capability]
        if table.code_for(cuda, capability) is not None:
            continue
        names = ", ".join(name for name, its in known.items() if its == capability)
        until = f", before {row.until}" if row.until else ""
        yield Finding(
            "dl_runtime.architecture", "error", f"{where}.lock",
            f"torch is built for CUDA {cuda}, which makes no code for {names} (compute capability {capability}): every "
            "kernel would end with \"no kernel image is available\"",
            f"lock a build for CUDA {row.since} or later{until}",
        )  # fmt: skip


# ----- servers -------------------------------------------------------------------------------------------------------


def _cut(facts: Facts) -> frozenset[str]:
    """GPUs that are cut into instances: CUDA gives a process one instance, so no index of theirs is a whole GPU."""
    return frozenset(gpu.name for gpu in facts.gpus if gpu.mig)


def _engine(name: str, server: ServerPolicy, runtime: RuntimePolicy) -> Optional[Finding]:
    package = frameworks.ENGINES[server.engine].package
    where = f"policy.dl_runtime.environments.{server.environment}.lock"
    if read_lock(runtime.environments[server.environment].lock, where).pin(package) is not None:
        return None
    return Finding(
        "dl_runtime.engine", "error", f"policy.dl_runtime.servers.{name}.engine",
        f"it is {server.engine}, and the lock of the environment {server.environment} has no {package}",
        "lock it, too, or choose the other engine",
    )  # fmt: skip


def _groups(
    name: str,
    server: ServerPolicy,
    gpus: Sequence[PlannedGpu],
    domains: Sequence[NvlinkDomain],
    taken: Sequence[PlannedGpu],
) -> tuple[list[list[PlannedGpu]], Optional[Finding]]:
    """GPUs of each replica, in PCI order; those that share NVLinks and a NUMA node are kept together."""
    where = f"policy.dl_runtime.servers.{name}"
    links = {gpu: number for number, domain in enumerate(domains) for gpu in domain.gpus}
    # A GPU without cores drives a screen, or its place is not known.
    free = [gpu for gpu in gpus if gpu.cpus is not None and gpu not in taken]
    free.sort(
        key=lambda gpu: (links.get(gpu.name, len(domains)), -1 if gpu.numa is None else gpu.numa, gpu.index)
    )
    size = server.tensor_parallel
    whole = len(free) // size
    count = whole if server.replicas is None else server.replicas
    if count == 0 or count > whole:
        return [], Finding(
            "dl_runtime.gpus", "error", where,
            f"{server.replicas or 'a'} replica{'s' if (server.replicas or 1) > 1 else ''} of {size} GPUs each are "
            f"asked for; of the node's {len(gpus)} GPUs {len(free)} with cores in the plan are left for it",
            "lower tensor_parallel or replicas",
        )  # fmt: skip
    groups = [free[start * size : (start + 1) * size] for start in range(count)]
    return [sorted(group, key=lambda gpu: gpu.index) for group in groups], None


def _server(
    name: str, server: ServerPolicy, groups: Sequence[Sequence[PlannedGpu]], nccl: Mapping[str, str]
) -> Iterator[Entry]:
    yield file(f"{_UNITS}/{unit_name(name)}", _unit(name, server))
    for number, group in enumerate(groups):
        yield file(f"{SERVE}/{name}-{number}.env", _variables(server, number, group, nccl))
        yield file(f"{_UNITS}/{unit_name(name, number)}.d/60-railwright.conf", _binding(group))
    if server.enabled:
        # At the next boot: nothing here starts or restarts what serves.
        for number in range(len(groups)):
            yield {"kind": "systemd_unit", "name": unit_name(name, number), "enabled": True}


def unit_name(name: str, number: Optional[int] = None) -> str:
    """The template of a server's replicas, or one of them."""
    return f"railwright-serve-{name}@{'' if number is None else number}.service"


def _unit(name: str, server: ServerPolicy) -> str:
    engine = frameworks.ENGINES[server.engine]
    place = f"{TOP}/{server.environment}/current"
    words = [
        f"{place}/{engine.program[0]}", *engine.program[1:], *engine.model, server.model,
        engine.parallel, str(server.tensor_parallel), "--host", server.host, "--port", f"${{{_PORT}}}",
        *server.arguments,
    ]  # fmt: skip
    return (
        f"{HEADER}[Unit]\n"
        f"Description={server.engine} of {name}, replica %i\n"
        "After=network-online.target railwright.service nvidia-fabricmanager.service nvidia-persistenced.service\n"
        "Wants=network-online.target\n"
        f"ConditionPathExists={place}/bin/python\n\n"
        "[Service]\n"
        "Type=exec\n"
        f"{'DynamicUser=yes' if server.user is None else f'User={server.user}'}\n"
        f"CacheDirectory=railwright-serve-{name}-%i\n"
        f"Environment=HOME=%C/railwright-serve-{name}-%i\n"
        # What the engines compile when they start they compile with the environment's own tools (ninja).
        f"Environment=PATH={place}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"
        f"EnvironmentFile={SERVE}/{name}-%i.env\n"
        f"ExecStart={' '.join(words)}\n"
        # A rank registers its buffers with the NIC, and loads of weights take minutes.
        "LimitMEMLOCK=infinity\n"
        "Restart=on-failure\n"
        "RestartSec=10\n\n"
        "[Install]\n"
        "WantedBy=multi-user.target\n"
    )


def _variables(
    server: ServerPolicy, number: int, group: Sequence[PlannedGpu], nccl: Mapping[str, str]
) -> str:
    lines = {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(str(gpu.index) for gpu in group),
        _PORT: str(server.port + number),
        **nccl,
    }
    return HEADER + "".join(f"{key}={value}\n" for key, value in lines.items())


def _binding(group: Sequence[PlannedGpu]) -> str:
    """The cores of all ranks of a replica, and their memory where it is one node's: preferred, never bound."""
    cpus = sorted({cpu for gpu in group if gpu.cpus for cpu in parse_cpulist(gpu.cpus, gpu.name)})
    text = f"{HEADER}[Service]\n"
    if cpus:
        text += f"CPUAffinity={format_cpulist(cpus)}\n"
    nodes = {gpu.numa for gpu in group}
    if len(nodes) == 1 and None not in nodes:
        text += f"NUMAPolicy=preferred\nNUMAMask={nodes.pop()}\n"
    return text


def _told(name: str, server: ServerPolicy, groups: Sequence[Sequence[PlannedGpu]]) -> Iterator[Finding]:
    if not server.enabled:
        units = f"railwright-serve-{name}@{{0..{len(groups) - 1}}}" if len(groups) > 1 else unit_name(name, 0)
        yield Finding(
            "dl_runtime.servers", "info", f"policy.dl_runtime.servers.{name}",
            f"{len(groups)} replica{'s are' if len(groups) > 1 else ' is'} written and not started",
            f"systemctl start {units}; at every boot: enabled: true",
        )  # fmt: skip
    for number, group in enumerate(groups):
        nodes = sorted({gpu.numa for gpu in group if gpu.numa is not None})
        if len(nodes) > 1:
            yield Finding(
                "dl_runtime.span", "info", f"policy.dl_runtime.servers.{name}, replica {number}",
                f"its GPUs ({', '.join(gpu.name for gpu in group)}) lie on NUMA nodes "
                f"{' and '.join(map(str, nodes))}: its memory is left to the kernel",
                "",
            )  # fmt: skip


def _ports(name: str, server: ServerPolicy, replicas: int, taken: Mapping[int, str]) -> Optional[Finding]:
    """Why a server cannot have its ports, one for each replica from the first on."""
    last = server.port + replicas - 1
    both = next((port for port in range(server.port, last + 1) if port in taken), None)
    if both is not None:
        why = f"{both} is a port of {taken[both]}, too ({replicas} from {server.port} on are asked for)"
    elif last > _LAST_PORT:
        why = f"{replicas} ports from {server.port} on end at {last}"
    else:
        return None
    return Finding(
        "dl_runtime.ports",
        "error",
        f"policy.dl_runtime.servers.{name}.port",
        why,
        "give each server ports of its own",
    )
