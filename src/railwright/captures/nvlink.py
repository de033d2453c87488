"""`nvidia-smi -L`, `nvlink -s`, `-e`, `-R` and `-p`, and `c2c -s`: GPUs by index with model and UUID, and their links.

Only -R and -p show where a link leads, by PCI address. Without them the facts name no target, and the number of links
that are up serves to check other witnesses.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from railwright.node.model import C2c, Facts, Gpu, InputError, NvLink, normalise_address, sort_key

from .fields import facts_of, lines_of, refuse_crowd, uuid, whole
from .source import Source

_GPU = re.compile(r"^GPU (\d{1,4}): (.{1,100}?) \(UUID: ([^()]{1,64})\)$", re.ASCII)
_LINK = re.compile(r"^Link (\d{1,3}): (.+)$", re.ASCII)
_SPEED = re.compile(r"^(\d{1,4}(?:\.\d{1,3})?) GB/s$", re.ASCII)
_ERRORS = re.compile(r"^(.{1,60}Error.{0,40}): (\d{1,20})$", re.ASCII)
_C2C = re.compile(r"^C2C Link (\d{1,3}): (\d{1,4}(?:\.\d{1,3})?) GB/s$", re.ASCII)
_ADDRESS = r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]"
# -R names the far link too, -p the function alone.
_FAR = re.compile(rf"^(?:Remote Device ({_ADDRESS}): Link \d{{1,3}}|({_ADDRESS}))$", re.ASCII)
# One instance of a GPU that is cut into several.
_MIG = re.compile(r"^MIG \S+ +Device +\d{1,2}: \(UUID: MIG-\S{1,80}\)$", re.ASCII)
_LEFT_OUT = re.compile(r"^\[?\.\.\.\]?$")


@dataclass
class _Found:
    gpu: Gpu
    up: dict[int, float] = field(default_factory=dict)
    inactive: set[int] = field(default_factory=set)
    errors: dict[str, int] = field(default_factory=dict)
    known: set[int] = field(default_factory=set)
    ends: dict[int, str] = field(default_factory=dict)
    c2c: dict[int, float] = field(default_factory=dict)

    def whole(self, cut: bool) -> Gpu:
        """The GPU with what is known of its links."""
        targets = Counter(self.ends.values())
        links = tuple(NvLink(target, targets[target]) for target in sorted(targets, key=sort_key))
        return replace(self.gpu, nvlinks=links if links and not cut else None, c2c=self._c2c(cut))

    def _c2c(self, cut: bool) -> C2c | None:
        speeds = set(self.c2c.values())
        if cut or len(speeds) != 1 or not speeds - {0.0}:
            return None
        return C2c(len(self.c2c), round(speeds.pop() * 1000))


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
        "nvlink",
        source,
        gpus=tuple(entry.whole(cut) for entry in found),
        complete=not cut,
        notes=tuple(notes),
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
        elif found and (link := _C2C.match(text)):
            _add_once(found[-1].c2c, whole(link[1], 0, 255, where), float(link[2]), found[-1].gpu.name, where)
        elif found and _MIG.match(text):
            found[-1].gpu = replace(found[-1].gpu, mig=True)
        elif found and (link := _LINK.match(text)):
            _add_link(found[-1], whole(link[1], 0, 255, where), link[2].strip(), where)
        elif found and _LEFT_OUT.match(text):
            cut = True
        elif text.startswith(("GPU ", "Link ", "C2C ", "MIG ")):
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
    speed, errors, far = _SPEED.match(said), _ERRORS.match(said), _FAR.match(said)
    if far is not None:
        _add_once(entry.ends, number, normalise_address(far[1] or far[2], where), entry.gpu.name, where)
        return
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
            where,
            f"found {said[:60]!r}",
            "expected a speed like 25 GB/s, <inactive>, an address or an error count",
        )


def _add_once(table: dict[int, Any], number: int, value: Any, name: str, where: str) -> None:
    if number in table:
        raise InputError(where, f"link {number} of {name} stands twice", "give one machine at a time")
    table[number] = value
