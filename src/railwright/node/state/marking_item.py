"""How what leaves over one RDMA device is marked, for programs that do not say: RDMA-CM's type of service, the version
of RoCE, and the class of all queue pairs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Optional

from ..model import InputError
from ..qos import congestion
from .fields import Fields, expected
from .item import Claim, Done, Item, Kept, Node, Reading, Value, World
from .kernel_items import inside, must_take_writes, read_value, write_value
from .outcome import Refused
from .port import device_of, rdma_of

MODES = ("IB/RoCE v1", "RoCE v2")
_CMA = {"tos": "default_roce_tos", "mode": "default_roce_mode"}
# Where nobody has made the device's folder, nobody has set anything since it came (torvalds/linux
# drivers/infiniband/core/cma.c, cma_add_one: type of service 0, RoCE v2 where the port can).
_UNTOUCHED = {"tos": 0, "mode": "RoCE v2"}
_NUMBER = re.compile(r"[0-9]{1,3}", re.ASCII)


class RdmaMarkingItem(Item):
    """`{"kind": "rdma_marking", "device": "0000:18:00.0", "tos": 106, "mode": "RoCE v2", "traffic_class": 106}`; each
    may be left out.

    tos, mode: what connections of RDMA-CM carry, in configfs; the folder of the device is made where it is missing and
    stays, and goes again with what is put back. traffic_class: of all queue pairs, a file of DOCA-OFED's driver alone
    (queue pairs that a GPU drives by itself do not obey it).
    """

    kind = "rdma_marking"
    turn = 13

    def __init__(self, fields: Fields, entry: Mapping[str, Any], blobs: Mapping[str, bytes]) -> None:
        super().__init__(fields, entry, blobs)
        self.device = device_of(fields)
        self.values: dict[str, Any] = {}
        for name in ("tos", "mode", "traffic_class"):
            value = fields.maybe(name)
            if value is not None:
                self.check_cell(name, value, f"{fields.where}.{name}")
                self.values[name] = value
        if not self.values:
            raise InputError(fields.where, "names nothing to be set", "tos, mode or traffic_class")

    @property
    def id(self) -> str:
        return f"rdma_marking:{self.device}"

    def claims(self, node: Node) -> Iterable[Claim]:
        return [("rdma_marking", self.device)]

    def read(self, node: Node, kept: Kept, world: World) -> Reading:
        rdma = rdma_of(node, self.device)
        if rdma is None:
            return Reading({}, detail=None)
        cells: dict[str, Value] = {}
        named = {*self.values, *kept.cells}
        made = os.path.isdir(node.at(congestion.cma_folder(rdma)))
        if named & _CMA.keys() and not os.path.isdir(node.at(congestion.CONFIGFS)):
            raise Refused(
                f"{congestion.CONFIGFS} is not there",
                "modprobe rdma_cm; mount -t configfs configfs /sys/kernel/config",
            )
        for name, file in _CMA.items():
            if name in named:
                text = read_value(node.at(congestion.cma_file(rdma, file))) if made else None
                cells[name] = _told(name, text, rdma) if made else _UNTOUCHED[name]
        if "traffic_class" in named:
            text = read_value(node.at(congestion.traffic_class_file(rdma)))
            if text is not None:
                cells["traffic_class"] = _told("traffic_class", text, rdma)
        note = _NO_FILE if "traffic_class" in named and "traffic_class" not in cells else ""
        return Reading(cells, note, _Detail(rdma, _FOUND if made else _MADE, kept.origin == _MADE))

    def origin(self, reading: Reading) -> Value:
        return reading.detail.folder

    def check_origin(self, value: Value, where: str) -> None:
        if value not in (_FOUND, _MADE):
            raise InputError(where, f"found {str(value)[:40]!r}", f"expected {_FOUND} or {_MADE}")

    def wanted(self, reading: Reading) -> Mapping[str, Value]:
        if reading.detail is None:
            raise Refused(f"{self.device} has no RDMA device", "load its driver: modprobe mlx5_ib")
        return {name: value for name, value in self.values.items() if name in reading.cells}

    def check_cell(self, cell: str, value: Value, where: str) -> None:
        if cell == "mode":
            if value not in MODES:
                raise InputError(where, f"found {str(value)[:40]!r}", f"one of {', '.join(MODES)}")
            return
        if cell not in ("tos", "traffic_class"):
            raise InputError(where, f"unknown cell {cell!r}", "tos, mode or traffic_class")
        if isinstance(value, bool) or not isinstance(value, int):
            raise expected(where, "a whole number", value)
        if not 0 <= value <= 255:
            raise InputError(where, f"found {value}", "expected 0 to 255")

    def check_prior(self, cell: str, value: Value, where: str) -> None:
        if cell != "traffic_class" or value != congestion.NO_CLASS:
            self.check_cell(cell, value, where)

    def foresee(self, node: Node, reading: Reading, goal: Mapping[str, Value]) -> None:
        if "traffic_class" in goal:
            must_take_writes(node.at(congestion.traffic_class_file(reading.detail.rdma)))
        if goal.keys() & _CMA.keys():
            folder = node.at(congestion.cma_folder(reading.detail.rdma))
            must_take_writes(folder if os.path.isdir(folder) else node.at(congestion.CONFIGFS))

    def write(self, node: Node, reading: Reading, goal: Mapping[str, Value], world: World) -> Done:
        rdma, changed = reading.detail.rdma, False
        if goal.keys() & _CMA.keys():
            _make(node, rdma)
        for name, value in goal.items():
            path = _path(node, rdma, name)
            try:
                write_value(path, str(value))
            except OSError as error:
                raise Refused(
                    f"{rdma}: {name} cannot be set to {value}: {error.strerror}",
                    "see the kernel's log: dmesg",
                    changed,
                ) from error
            changed = True
            now = _told(name, read_value(path), rdma)
            if now != value:
                raise Refused(
                    f"{rdma}: {name} was set to {value} and reads back as {now}",
                    "give a value that the kernel takes",
                    changed,
                )
        if (
            reading.detail.ours
            and reading.cells.keys() & _CMA.keys()
            and all(
                goal.get(name, reading.cells.get(name, value)) == value for name, value in _UNTOUCHED.items()
            )
        ):
            os.rmdir(node.at(congestion.cma_folder(rdma)))
        return Done()

    def name(self, cell: str) -> str:
        return f"{self.device} {cell}"


# Whether the device's folder was there before the first write.
_FOUND, _MADE = "folder found", "folder made"


@dataclass(frozen=True)
class _Detail:
    """folder: as it stands. ours: it was made by an earlier run."""

    rdma: str
    folder: str
    ours: bool


_NO_FILE = "the driver has no class for all queue pairs: programs have to say theirs"


def _make(node: Node, rdma: str) -> None:
    folder = node.at(congestion.cma_folder(rdma))
    try:
        os.mkdir(folder)
    except FileExistsError:
        return
    except OSError as error:
        raise Refused(
            f"{folder} cannot be made: {error.strerror}", "see whether rdma_cm knows the device: rdma link"
        ) from error


def _path(node: Node, rdma: str, name: str) -> str:
    place = congestion.cma_file(rdma, _CMA[name]) if name in _CMA else congestion.traffic_class_file(rdma)
    return inside(node, place, ("/sys",))


def _told(name: str, text: Optional[str], rdma: str) -> Value:
    """The value that a file shows. Raises Refused."""
    if name == "mode" and text in MODES:
        return text
    if name == "traffic_class":
        value = congestion.class_of(text or "")
    else:
        value = int(text) if name == "tos" and _NUMBER.fullmatch(text or "") and text else None
    if value is None or value > 255:
        raise Refused(f"{rdma}: {name} reads {str(text)[:40]!r}", "see the driver's version")
    return value
