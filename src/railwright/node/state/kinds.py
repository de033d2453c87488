"""The kinds of item, and slices as input. A new kind is one class and one line here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..model import InputError
from .alternative_item import AlternativeItem
from .boot_item import BootArgumentsItem
from .congestion_item import CongestionItem
from .container_daemon_item import ContainerDaemonItem
from .dcb_item import DcbItem
from .dkms_item import DkmsModuleItem
from .environment_item import PythonEnvironmentItem
from .fields import Fields, expected, mapping, sequence
from .file_item import FileItem, read_blobs
from .image_item import ContainerImageItem
from .index_item import PackageIndexItem
from .initramfs_item import InitramfsItem
from .irq_item import IrqAffinityItem
from .item import Claim, Item, Kept, Node
from .json_item import JsonKeysItem
from .kernel_items import SysctlItem, SysfsItem
from .linker_item import LinkerCacheItem
from .marking_item import RdmaMarkingItem
from .network_item import NetworkItem
from .nvconfig_item import NvconfigItem
from .outcome import StateError
from .packages_item import PackagesItem
from .pause_item import PauseItem
from .pci_item import PciRegisterItem
from .place import RECORD
from .queues_item import ChannelsItem, CoalesceItem, QueueCpusItem, RingsItem
from .sysfs_each_item import SysfsEachItem
from .unit_item import UnitItem

KINDS: tuple[type[Item], ...] = (
    FileItem,
    JsonKeysItem,
    SysctlItem,
    SysfsItem,
    SysfsEachItem,
    NvconfigItem,
    ChannelsItem,
    RingsItem,
    CoalesceItem,
    PauseItem,
    DcbItem,
    CongestionItem,
    RdmaMarkingItem,
    PciRegisterItem,
    IrqAffinityItem,
    QueueCpusItem,
    PackageIndexItem,
    PackagesItem,
    DkmsModuleItem,
    InitramfsItem,
    AlternativeItem,
    LinkerCacheItem,
    BootArgumentsItem,
    PythonEnvironmentItem,
    NetworkItem,
    UnitItem,
    ContainerImageItem,
    ContainerDaemonItem,
)
_BY_NAME = {kind.kind: kind for kind in KINDS}
_SLICE = re.compile(r"[A-Za-z0-9_.-]+", re.ASCII)


def read_slices(slices: Any, blobs: Any) -> dict[str, list[Item]]:
    """Slices as input: name to items. Everything is looked at before anything is done. Raises InputError."""
    data = read_blobs(mapping({} if blobs is None else blobs, "blobs"), "blobs")
    found = {}
    for name, entries in mapping(slices, "slices").items():
        slice_name(name, "slices")
        where = f"slices.{name}"
        found[name] = [
            _item(entry, f"{where}[{n}]", data) for n, entry in enumerate(sequence(entries, where))
        ]
    _refuse_twins(found)
    return found


def slice_name(name: Any, where: str) -> str:
    """`name`, when it can be the name of a slice. Raises InputError."""
    if not isinstance(name, str):
        raise expected(where, "text", name)
    if _SLICE.fullmatch(name) is None:
        raise InputError(where, f"{name!r} is no name of a slice", "expected letters, digits, _, . and -")
    return name


def recorded_item(name: str, item_id: str, kept: Kept) -> Item:
    """The item that the record tells of, with all its values looked at. Raises StateError when this version cannot
    read it."""
    where = f"{RECORD}.slices.{name}.{item_id}"
    try:
        item = _item(kept.entry, where, {})
        if item.id != item_id:
            raise InputError(where, f"its entry is that of {item.id}", "put the record's last good copy back")
        _check_kept(item, kept, where, f"{RECORD}.origins.{item_id}")
    except InputError as error:
        raise StateError(error.where, error.why, error.remedy or "use the Railwright that wrote it") from None
    return item


def _check_kept(item: Item, kept: Kept, where: str, origin: str) -> None:
    for cell, known in kept.cells.items():
        item.check_prior(cell, known.prior, f"{where}.cells.{cell}.prior")
        for n, value in enumerate(known.written):
            item.check_cell(cell, value, f"{where}.cells.{cell}.written[{n}]")
    if kept.cells:
        item.check_origin(kept.origin, origin)


@dataclass(frozen=True)
class Owned:
    """An item with what it owns on the node; owner: how its owner is called in an error."""

    owner: str
    item: Item
    claims: tuple[Claim, ...]

    @classmethod
    def of(cls, owner: str, item: Item, node: Node) -> Owned:
        return cls(owner, item, tuple(item.claims(node)))


def refuse_overlaps(owned: Iterable[Owned]) -> None:
    """Raises InputError when two items own the same thing on the node."""
    claims = sorted(((claim, one) for one in owned for claim in one.claims), key=lambda found: found[0])
    # A claim that begins others stands right before one of them.
    for (claim, first), (other, second) in zip(claims, claims[1:]):
        if other[: len(claim)] == claim:
            raise overlap(first, second, other, "leave it to one of the two")


def refuse_overlap(one: Owned, other: Owned, remedy: str) -> None:
    """Raises InputError, in the place of `other`, when the two own the same thing."""
    for a in one.claims:
        for b in other.claims:
            if a[: len(b)] == b or b[: len(a)] == a:
                raise overlap(one, other, max(a, b, key=len), remedy)


def overlap(first: Owned, second: Owned, claim: Claim, remedy: str) -> InputError:
    """The error for a thing that two items own."""
    return InputError(
        second.item.where,
        f"{second.owner} and {first.owner} both own {' '.join(claim)} (see {first.item.where})",
        remedy,
    )


def _item(data: Any, where: str, blobs: Mapping[str, bytes]) -> Item:
    fields = Fields(data, where)
    name = fields.text("kind")
    kind = _BY_NAME.get(name)
    if kind is None:
        raise InputError(f"{where}.kind", f"unknown kind {name!r}", f"known kinds: {', '.join(_BY_NAME)}")
    item = kind(fields, dict(data), blobs)
    fields.close()
    return item


def _refuse_twins(slices: Mapping[str, Iterable[Item]]) -> None:
    """Two entries of one slice for the same thing: the later one names the earlier one."""
    for items in slices.values():
        seen: dict[str, str] = {}
        for item in items:
            if item.id in seen:
                raise InputError(
                    item.where, f"{item.id} is named by {seen[item.id]} already", "make them one entry"
                )
            seen[item.id] = item.where
