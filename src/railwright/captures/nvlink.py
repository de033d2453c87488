"""`nvidia-smi -L`, `nvlink -s` and `nvlink -e`: GPUs by index with model and UUID, and their NVLinks.

A link's far end is not shown, so the facts name no link's target; the number of links that are up serves to check
other witnesses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from railwright.node.model import Facts, Gpu, InputError

from .fields import facts_of, lines_of, refuse_crowd, uuid, whole
from .source import Source

_GPU = re.compile(r"^GPU (\d{1,4}): (.{1,100}?) \(UUID: ([^()]{1,64})\)$", re.ASCII)
_LINK = re.compile(r"^Link (\d{1,3}): (.+)$", re.ASCII)
_SPEED = re.compile(r"^(\d{1,4}(?:\.\d{1,3})?) GB/s$", re.ASCII)
_ERRORS = re.compile(r"^(.{1,60}Error.{0,40}): (\d{1,20})$", re.ASCII)
_LEFT_OUT = re.compile(r"^\[?\.\.\.\]?$")


@dataclass
class _Found:
    gpu: Gpu
    up: dict[int, float] = field(default_factory=dict)
    inactive: set[int] = field(default_factory=set)
    errors: dict[str, int] = field(default_factory=dict)
    known: set[int] = field(default_factory=set)


def read_nvlink(source: Source) -> Facts:
    """GPUs by nvidia-smi's index, with notes on their links. Raises InputError with file and line."""
    found, cut = _read(source)
    notes = []
    for entry in found:
        if entry.up or entry.inactive:
            speeds = ", ".join(f"{speed:g} GB/s" for speed in sorted(set(entry.up.values())))
            off = f"; inactive: {', '.join(map(str, sorted(entry.inactive)))}" if entry.inactive else ""
            notes.append(
                f"{entry.gpu.name}: {len(entry.up)} NVLinks are up{f' at {speeds}' if speeds else ''}{off}"
            )
        for what, count in sorted(entry.errors.items()):
            if count:
                notes.append(f"{entry.gpu.name}: NVLink {what}: {count}")
    if cut:
        notes.append("lines of the NVLink output were left out: how many links there are is not known")
    return facts_of(
        "nvlink", source, gpus=tuple(entry.gpu for entry in found), complete=not cut, notes=tuple(notes)
    )


def nvlinks_up(source: Source) -> dict[str, int]:
    """GPU name to the number of its links that are up, where the output tells it. Raises InputError."""
    found, cut = _read(source)
    return {} if cut else {entry.gpu.name: len(entry.up) for entry in found if entry.up or entry.inactive}


def _read(source: Source) -> tuple[list[_Found], bool]:
    found: list[_Found] = []
    cut = False
    for line in lines_of(source):
        where, text = source.at(line.number), line.text.strip()
        if begin := _GPU.match(text):
            index = whole(begin[1], 0, 255, where)
            if any(entry.gpu.index == index for entry in found):
                raise InputError(where, f"GPU {index} stands twice", "give one machine at a time")
            found.append(_Found(Gpu(f"GPU{index}", index, model=begin[2], uuid=uuid(begin[3]))))
            refuse_crowd(len(found), "GPUs", where)
        elif found and (link := _LINK.match(text)):
            _add_link(found[-1], whole(link[1], 0, 255, where), link[2].strip(), where)
        elif found and _LEFT_OUT.match(text):
            cut = True
        elif text.startswith(("GPU ", "Link ")):
            raise InputError(
                where, f"found {text[:80]!r}", "expected GPU 0: ... (UUID: GPU-...) or Link 0: 25 GB/s"
            )
    if not found:
        raise InputError(source.name, "names no GPU", "give the whole output, with its lines GPU 0: ...")
    uuids = [entry.gpu.uuid for entry in found if entry.gpu.uuid is not None]
    if len(set(uuids)) < len(uuids):
        raise InputError(source.name, "two GPUs have one UUID", "give the output as nvidia-smi printed it")
    return sorted(found, key=lambda entry: entry.gpu.index), cut


def _add_link(entry: _Found, number: int, said: str, where: str) -> None:
    speed, errors = _SPEED.match(said), _ERRORS.match(said)
    if speed is not None or said == "<inactive>":
        if number in entry.known:
            raise InputError(
                where, f"link {number} of {entry.gpu.name} stands twice", "give one machine at a time"
            )
        entry.known.add(number)
        if speed is not None and float(speed[1]) > 0:
            entry.up[number] = float(speed[1])
        else:
            entry.inactive.add(number)
    elif errors is not None:
        entry.errors[errors[1]] = entry.errors.get(errors[1], 0) + int(errors[2])
    else:
        raise InputError(
            where, f"found {said[:60]!r}", "expected a speed like 25 GB/s, <inactive> or an error count"
        )
