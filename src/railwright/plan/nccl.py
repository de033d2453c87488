"""What NCCL is told: the variables, and the bytes of /etc/nccl.conf."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from ..node.model import Finding, InputError, Nic, Policy

# src/transport/net_ib/common.h MAX_IB_DEVS.
MAX_HCAS = 32
# src/misc/param.cc setEnvFile: char envValue[1024].
_MAX_VALUE = 1023
# NCCL_IB_HCA takes <hca>:<port>:<rail> since 2.30.7 (src/transport/net_ib/init.cc, commit 7ec092af).
_RAILS_SINCE = (2, 30, 7)
_NAME = re.compile(r"^[A-Z][A-Z0-9_]*$")
_WHOLE = re.compile(r"^\s*-?\d+\s*$")
_LEVEL_WORDS = "LOC, NVL, PIX, PXB, P2C, PXN, PHB, SYS"


@dataclass(frozen=True)
class RailPort:
    """One port of a rail card, with its rail."""

    nic: Nic
    rail: int


def check(policy: Policy) -> None:
    """Raises InputError for NCCL settings that cannot be written or would be misread."""
    _version(policy)
    for name, value in policy.nccl.env.items():
        where = f"policy.nccl.env.{name}"
        if not _NAME.match(name):
            raise InputError(where, f"{name!r} is no variable name", "expected a form like NCCL_IB_TIMEOUT")
        if "\n" in value or "\r" in value or "\0" in value or len(value) > _MAX_VALUE:
            raise InputError(
                where, "not one line of at most 1023 characters", "NCCL reads /etc/nccl.conf line by line"
            )
        if name.endswith("_LEVEL") and _WHOLE.match(value):
            raise InputError(
                where,
                f"{value.strip()} is a number, and its meaning differs between NCCL versions",
                f"write the word: one of {_LEVEL_WORDS}",
            )
    for field in ("traffic_class", "gid_index"):
        number = getattr(policy.nccl, field)
        if number is not None and not 0 <= number <= 255:
            raise InputError(f"policy.nccl.{field}", f"found {number}", "expected 0 to 255")


def _version(policy: Policy) -> Optional[tuple[int, ...]]:
    text = policy.nccl.version
    if text is None:
        return None
    if not re.match(r"^\d+(\.\d+){1,2}$", text):
        raise InputError("policy.nccl.version", f"found {text!r}", "expected a form like 2.30.7")
    return tuple(int(part) for part in text.split("."))


def reads_current_links(policy: Policy) -> bool:
    """Whether the NCCL that will run takes the current link of a GPU for its capability."""
    version = _version(policy)
    return version is not None and version >= _RAILS_SINCE


def variables(policy: Policy, ports: Sequence[RailPort], fronts: Sequence[str]) -> dict[str, str]:
    """NCCL's variables. ports: in rail order. fronts: interfaces with an address that hold the default route."""
    result: dict[str, str] = {}
    named = [port for port in ports if port.nic.rdma is not None]
    if named and len(named) == len(ports):
        result["NCCL_IB_HCA"] = "=" + ",".join(_entries(named, _version(policy)))
    interface = policy.nccl.socket_ifname or (fronts[0] if len(fronts) == 1 else None)
    if interface:
        result["NCCL_SOCKET_IFNAME"] = interface if interface[0] in "=^" else f"={interface}"
    if policy.nccl.traffic_class is not None:
        result["NCCL_IB_TC"] = str(policy.nccl.traffic_class)
    if policy.nccl.gid_index is not None:
        result["NCCL_IB_GID_INDEX"] = str(policy.nccl.gid_index)
    result.update(policy.nccl.env)
    return result


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


def findings_of(ports: Sequence[RailPort], values: Mapping[str, str]) -> list[Finding]:
    """What keeps NCCL from being told all of it."""
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


def conf_bytes(values: Mapping[str, str], policy_digest: str) -> str:
    """The text of /etc/nccl.conf. NCCL skips lines that begin with #; a line is NAME=VALUE, the value as it stands."""
    lines = [
        "# Written by Railwright; changes made here are lost. What is wanted stands in the node's policy,",
        f"# digest {policy_digest[:16]}. NCCL_IB_HCA is exact, in rail order: its value begins with an equals sign.",
    ]
    lines += [f"{name}={value}" for name, value in values.items()]
    return "\n".join(lines) + "\n"
