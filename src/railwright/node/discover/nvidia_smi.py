"""What nvidia-smi adds to the GPUs that sysfs shows, where the driver is loaded. Both views are kept and compared."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Optional

from ..model import Claim, Conflict, Gpu, NvLink, Tool, normalise_address
from .tools import tool_named

# nvidia-smi underlines the header even in a pipe.
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_GPU_NAME = re.compile(r"^GPU\d+$")
_NVLINKS = re.compile(r"^NV(\d+)$")


@dataclass(frozen=True)
class _Row:
    address: str
    uuid: str
    model: str
    capability: str


def with_nvidia_smi(
    gpus: tuple[Gpu, ...], tools: tuple[Tool, ...]
) -> tuple[tuple[Gpu, ...], tuple[Conflict, ...]]:
    """GPUs with compute capability and NVLinks, and UUID and model where /proc does not tell. Raises InputError."""
    query = tool_named(tools, "nvidia-smi-query")
    topo = tool_named(tools, "nvidia-smi-topo")
    rows = _rows(query.output) if query is not None else ()
    told = {row.address: row for row in rows}
    # The matrix names GPUs by their place in the driver's list: that is ours only if the lists are the same.
    same = [row.address for row in rows] == [gpu.address for gpu in gpus]
    links = _nvlinks(topo.output) if topo is not None and same else {}
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
        known.append(replace(gpu, nvlinks=links.get(gpu.name)))
    return tuple(known), tuple(conflicts)


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
    digits = text.replace(".", "")
    return int(digits) if digits.isdigit() else None


def _nvlinks(text: str) -> dict[str, tuple[NvLink, ...]]:
    """NVLinks of each GPU to each other one, by name. Rows that are cut are left out."""
    lines = [_ESCAPE.sub("", line).split() for line in text.splitlines()]
    header = next((words for words in lines if words[:1] == ["GPU0"] and "X" not in words), [])
    columns = [word for word in header if _GPU_NAME.match(word)]
    found: dict[str, tuple[NvLink, ...]] = {}
    for words in lines:
        if words and words[0] in columns and words != header and len(words) > len(columns):
            levels = zip(columns, words[1:])
            matches = [(name, _NVLINKS.match(level)) for name, level in levels]
            found[words[0]] = tuple(NvLink(name, int(match[1])) for name, match in matches if match)
    return found
