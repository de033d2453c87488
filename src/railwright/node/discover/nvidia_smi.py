"""What nvidia-smi adds to the GPUs that sysfs shows, where the driver is loaded. Both views are kept and compared."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Optional

from ..model import Claim, Conflict, Fabric, Gpu, InputError, NvLink, Tool, normalise_address
from .tools import tool_named

# nvidia-smi underlines the header even in a pipe.
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_GPU_NAME = re.compile(r"GPU\d{1,4}", re.ASCII)
_CAPABILITY = re.compile(r"\d{1,2}\.\d", re.ASCII)
# A state or status: words, and nothing that a terminal or a file would take for more.
_STATE = re.compile(r"[A-Za-z][A-Za-z0-9 _/-]{0,60}", re.ASCII)
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_CLIQUE = re.compile(r"[0-9]{1,10}")
_NO_ANSWER = ("Unknown Error", "GPU requires reset", "GPU is lost")
_NVLINKS = re.compile(r"NV(\d{1,3})", re.ASCII)


@dataclass(frozen=True)
class _Row:
    address: str
    uuid: str
    model: str
    capability: str


def with_nvidia_smi(
    gpus: tuple[Gpu, ...], tools: tuple[Tool, ...]
) -> tuple[tuple[Gpu, ...], tuple[Conflict, ...]]:
    """GPUs with compute capability, NVLinks and NVLink fabric, and UUID and model where /proc does not tell.

    Raises InputError.
    """
    query = tool_named(tools, "nvidia-smi-query")
    topo = tool_named(tools, "nvidia-smi-topo")
    rows = _rows(query.output) if query is not None else ()
    told = {row.address: row for row in rows}
    # The matrix names GPUs by their place in the driver's list: that is ours only if the lists are the same.
    same = [row.address for row in rows] == [gpu.address for gpu in gpus]
    links = _nvlinks(topo.output) if topo is not None and same else {}
    asked = tool_named(tools, "nvidia-smi-fabric")
    fabrics = _fabrics(asked.output) if asked is not None else {}
    known = []
    conflicts = []
    for gpu in gpus:
        row = told.get(gpu.address or "")
        if row is not None:
            if gpu.uuid is not None and row.uuid != gpu.uuid:
                claims = (Claim("sysfs", gpu.uuid), Claim("nvidia-smi", row.uuid))
                conflicts.append(Conflict(f"gpus[{gpu.name}].uuid", claims))
            gpu = replace(
                gpu, uuid=gpu.uuid or row.uuid, model=gpu.model or row.model, sm=_capability(row.capability)
            )
        known.append(replace(gpu, nvlinks=links.get(gpu.name), fabric=fabrics.get(gpu.address or "")))
    return tuple(known), tuple(conflicts)


def fabric_of(state: str, status: str, clique: str, cluster: str, where: str) -> Optional[Fabric]:
    """The NVLink fabric of a GPU in nvidia-smi's words; None when they do not tell. Raises InputError at `where`.

    "N/A" is what nvidia-smi says of a GPU without a fabric; "[N/A]" and the like are answers that it could not give.
    """
    if state == "N/A":
        return Fabric("")
    if state == "" or state.startswith("[") or state in _NO_ANSWER:
        return None
    if not _STATE.fullmatch(state):
        raise InputError(where, f"found {state[:40]!r}", "expected a fabric state like Completed")
    number = int(clique) if _CLIQUE.fullmatch(clique) else None
    uuid = cluster.lower() if _UUID.fullmatch(cluster.lower()) else None
    return Fabric(
        state=state,
        status=status if status != "N/A" and _STATE.fullmatch(status) else None,
        cluster="" if uuid is not None and not uuid.strip("0-") else uuid,
        clique=number,
    )


def _fabrics(text: str) -> dict[str, Optional[Fabric]]:
    """Lines like "00000000:18:00.0, Completed, Success, 0, 00000000-0000-0000-0000-000000000000", by address."""
    found = {}
    for number, line in enumerate(text.splitlines(), start=1):
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == 5:
            where = f"nvidia-smi:{number}"
            state, status, clique, cluster = parts[1:]
            found[normalise_address(parts[0], where)] = fabric_of(state, status, clique, cluster, where)
    return found


def listed_addresses(query: Tool) -> tuple[str, ...]:
    """PCI addresses of the GPUs that nvidia-smi lists, in its order. Raises InputError."""
    return tuple(row.address for row in _rows(query.output))


def _rows(text: str) -> tuple[_Row, ...]:
    """Lines like "00000000:18:00.0, GPU-..., NVIDIA H100 80GB HBM3, 9.0"; the driver's warnings may stand between."""
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == 4:
            found.append(_Row(normalise_address(parts[0], f"nvidia-smi:{number}"), *parts[1:]))
    return tuple(found)


def _capability(text: str) -> Optional[int]:
    return int(text.replace(".", "")) if _CAPABILITY.fullmatch(text) else None


def _nvlinks(text: str) -> dict[str, tuple[NvLink, ...]]:
    """NVLinks of each GPU to each other one, by name. Rows that are cut are left out."""
    lines = [_ESCAPE.sub("", line).split() for line in text.splitlines()]
    header = next((words for words in lines if words[:1] == ["GPU0"] and "X" not in words), [])
    columns = [word for word in header if _GPU_NAME.fullmatch(word)]
    found: dict[str, tuple[NvLink, ...]] = {}
    for words in lines:
        if words and words[0] in columns and words != header and len(words) > len(columns):
            levels = zip(columns, words[1:])
            matches = [(name, _NVLINKS.fullmatch(level)) for name, level in levels]
            found[words[0]] = tuple(NvLink(name, int(match[1])) for name, match in matches if match)
    return found
