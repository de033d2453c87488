"""What NCCL is told: the variables, and the bytes of /etc/nccl.conf."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from ..node.model import Finding, Host, InputError, Nic, Policy, Setting
from . import gid
from .effects import of_kind
from .lossless import traffic_class

# src/transport/net_ib/common.h MAX_IB_DEVS.
MAX_HCAS = 32
# src/misc/param.cc setEnvFile: char envValue[1024].
_MAX_VALUE = 1023
# NCCL_IB_HCA takes <hca>:<port>:<rail> since 2.30.7 (src/transport/net_ib/init.cc, commit 7ec092af).
_RAILS_SINCE = (2, 30, 7)
# GPU-initiated networking has a traffic class of its own (NCCL 2.30 src/transport/net_ib/gin.cc).
_GIN_SINCE = (2, 30)
_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
_WHOLE = re.compile(r"\s*-?\d+\s*")
_LEVEL_WORDS = "LOC, NVL, PIX, PXB, P2C, PXN, PHB, SYS"


@dataclass(frozen=True)
class RailPort:
    """One port of a rail card, with its rail."""

    nic: Nic
    rail: int


def check(policy: Policy) -> None:
    """Raises InputError for NCCL settings that cannot be written or would be misread."""
    version_of(policy)
    gid.check(policy)
    told = [(f"policy.nccl.env.{name}", name, value) for name, value in policy.nccl.env.items()]
    for name, value in policy.effects.items():
        if name.startswith("NCCL_") and value is not False:
            told.append((f"policy.effects.{name}", name, value))
    for where, name, value in told:
        if not _NAME.fullmatch(name):
            raise InputError(where, f"{name!r} is no variable name", "expected a form like NCCL_IB_TIMEOUT")
        if "\n" in value or "\r" in value or "\0" in value or len(value) > _MAX_VALUE:
            raise InputError(
                where, "not one line of at most 1023 characters", "NCCL reads /etc/nccl.conf line by line"
            )
        if name.endswith("_LEVEL") and _WHOLE.fullmatch(value):
            raise InputError(
                where,
                f"{value.strip()} is a number, and its meaning differs between NCCL versions",
                f"write the word: one of {_LEVEL_WORDS}",
            )
    for field in ("traffic_class", "gid_index"):
        number = getattr(policy.nccl, field)
        if number is not None and not 0 <= number <= 255:
            raise InputError(f"policy.nccl.{field}", f"found {number}", "expected 0 to 255")


def version_of(policy: Policy) -> Optional[tuple[int, ...]]:
    """The NCCL that will run, as numbers. Raises InputError."""
    text = policy.nccl.version
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,4}){1,2}", text):
        raise InputError("policy.nccl.version", f"found {text!r}", "expected a form like 2.30.7")
    return tuple(int(part) for part in text.split("."))


def reads_current_links(policy: Policy) -> bool:
    """Whether the NCCL that will run takes the current link of a GPU for its capability."""
    version = version_of(policy)
    return version is not None and version >= _RAILS_SINCE


def variables(
    policy: Policy,
    ports: Sequence[RailPort],
    fronts: Sequence[str],
    settings: tuple[Setting, ...],
    more: Mapping[str, str],
) -> tuple[dict[str, str], list[Finding]]:
    """NCCL's variables in the order of the file, and what keeps NCCL from being told all of it.

    ports: in rail order. fronts: interfaces with an address that hold the default route. more: what other parts of the
    planner have to say. The policy's own variables have the last word.
    """
    result: dict[str, str] = {}
    version = version_of(policy)
    named = [port for port in ports if port.nic.rdma is not None]
    entries = "=" + ",".join(_entries(named, version))
    if named and len(named) == len(ports) and len(entries) <= _MAX_VALUE:
        result["NCCL_IB_HCA"] = entries
    interface = policy.nccl.socket_ifname or (fronts[0] if len(fronts) == 1 else None)
    if interface:
        result["NCCL_SOCKET_IFNAME"] = interface if interface[0] in "=^" else f"={interface}"
    marked = traffic_class(policy)
    if marked is not None and (policy.nccl.traffic_class is not None or _over_ethernet(ports)):
        result["NCCL_IB_TC"] = str(marked)
        if version is None or version >= _GIN_SINCE:
            # What a GPU sends by itself obeys no class of the driver's.
            result["NCCL_GIN_IB_TC"] = str(marked)
    chosen, findings = gid.choose(policy, version, [port.nic for port in ports])
    result.update(chosen)
    if policy.network.fabric == "rail-only":
        # Rails that do not meet in the network: a ring that changes rails would hang (NCCL's default: where it pays).
        result["NCCL_CROSS_NIC"] = "0"
    result.update(of_kind(settings, "nccl"))
    result.update(more)
    result.update(policy.nccl.env)
    written = {name: value for name, value in result.items() if value != ""}
    return written, [*findings, *_untold(ports, written, len(entries))]


def _over_ethernet(ports: Sequence[RailPort]) -> bool:
    """InfiniBand has no code points."""
    return any(port.nic.link_layer == "Ethernet" for port in ports)


def _entries(ports: Sequence[RailPort], version: Optional[tuple[int, ...]]) -> list[str]:
    rails = (
        version is not None and version >= _RAILS_SINCE and all(port.nic.port is not None for port in ports)
    )
    entries = []
    for port in ports[:MAX_HCAS]:
        entry = port.nic.rdma or ""
        if port.nic.port is not None:
            entry += f":{port.nic.port}"
        entries.append(f"{entry}:{port.rail}" if rails else entry)
    return entries


def _untold(ports: Sequence[RailPort], values: Mapping[str, str], length: int) -> list[Finding]:
    """Rails that do not reach the list. length: of the list's text."""
    found = []
    nameless = [port.nic.name for port in ports if port.nic.rdma is None]
    if nameless and "NCCL_IB_HCA" not in values:
        found.append(
            Finding(
                "nccl.names",
                "info",
                ", ".join(nameless),
                "the witness does not tell the RDMA devices' names, so NCCL_IB_HCA cannot be written",
                "give the whole output of `nvidia-smi topo -m` with its NIC legend, or the node's facts",
            )
        )
    elif length > _MAX_VALUE and "NCCL_IB_HCA" not in values:
        found.append(
            Finding(
                "nccl.hcas",
                "error",
                "NCCL_IB_HCA",
                f"the list of rails has {length} characters, and NCCL reads {_MAX_VALUE} of a line of its file",
                "give the RDMA devices shorter names, or roles to the NICs that are no rails in policy.nics",
            )
        )
    if len(ports) > MAX_HCAS:
        found.append(
            Finding(
                "nccl.hcas",
                "error",
                ", ".join(port.nic.name for port in ports[MAX_HCAS:]),
                f"{len(ports)} rail ports, and NCCL takes {MAX_HCAS}: the last ones are left out",
                "give roles to the NICs that are no rails in policy.nics",
            )
        )
    return found


def replaced(host: Host, values: Mapping[str, str], policy: Policy) -> list[Finding]:
    """What the file that somebody else wrote tells NCCL and the plan's does not, or tells it otherwise."""
    if not host.nccl_conf or policy.manage.get("nccl_conf") is False or not values:
        return []
    lost = [f"{name}={value}" for name, value in host.nccl_conf.items() if name not in values]
    changed = [
        f"{name} from {value} to {values[name]}"
        for name, value in host.nccl_conf.items()
        if name in values and values[name] != value
    ]
    said = [f"drops {', '.join(lost)}"] if lost else []
    said += [f"changes {', '.join(changed)}"] if changed else []
    if not said:
        return []
    return [
        Finding(
            "nccl.replaced",
            "warning",
            "/etc/nccl.conf",
            f"somebody else wrote this file, and the plan {' and '.join(said)}",
            "put what shall stay into policy.nccl.env; to keep the file as it is, set policy.manage.nccl_conf to false",
        )
    ]


def conf_bytes(values: Mapping[str, str], policy_digest: str) -> str:
    """The text of /etc/nccl.conf. NCCL skips lines that begin with #; a line is NAME=VALUE, the value as it stands."""
    lines = [
        "# Written by Railwright; changes made here are lost. What is wanted stands in the node's policy,",
        f"# digest {policy_digest[:16]}. NCCL_IB_HCA is exact, in rail order: its value begins with an equals sign.",
    ]
    lines += [f"{name}={value}" for name, value in values.items()]
    return "\n".join(lines) + "\n"
