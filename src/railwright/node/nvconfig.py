"""A NIC's lasting firmware settings (NVCONFIG): what mstconfig and mlxconfig print of them, and what values mean.

Text: `mstconfig -d ADDRESS -e q` of mstflint 4.x; mlxconfig of MFT prints the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Optional

from .model import InputError

# mstflint's own first; where NVIDIA's MFT is installed instead, its twin.
TOOLS = ("mstconfig", "mlxconfig")
# Shown only once ADVANCED_PCI_SETTINGS is in force (mstflint mlxconfig_dbs/mlxconfig_host.db).
ADVANCED = "ADVANCED_PCI_SETTINGS"
HIDDEN = frozenset({"MAX_ACC_OUT_READ", "PCI_WR_ORDERING"})
# Settings that some of NVIDIA's cards have and others lack: one with a single link layer has no LINK_TYPE, one with a
# single port no _P2. Families are by how their names begin.
_KNOWN_WORDS = """
    ADVANCED_PCI_SETTINGS ATS_ENABLED CLAMP_TGT_RATE CNP_ DCBX_ DCE_TCP_ INITIAL_ALPHA INTERNAL_CPU_OFFLOAD_ENGINE
    KEEP_ETH_LINK_UP KEEP_IB_LINK_UP LINK_TYPE LLDP_NB_ MAX_ACC_OUT_READ MIN_TIME_BETWEEN_CNPS MULTIPATH_DSCP NUM_OF_
    NUM_PF_MSIX PCI_WR_ORDERING PF_NUM_PF_MSIX RATE_ RDMA_SELECTIVE_REPEAT_EN ROCE_ RPG_ SRIOV_EN
    TX_SCHEDULER_LOCALITY_MODE USER_PROGRAMMABLE_CC ZERO_TOUCH_TUNING_ENABLE
"""
_KNOWN = tuple(_KNOWN_WORDS.split())
NAME = re.compile(r"[A-Z][A-Z0-9_]{1,63}", re.ASCII)
VALUE = re.compile(r"[A-Za-z0-9_]{1,64}", re.ASCII)

_HEADING = re.compile(r"Configurations:\s+(\S.*)", re.ASCII)
_COLUMNS = ("default", "current", "next boot")
# "*" marks what differs from the default, RO what cannot be set.
_ROW = re.compile(r"(?:(?:\*|RO)\s+)*([A-Z][A-Z0-9_]{1,63}(?:\[[0-9.]+\])?)\s+(\S.*)", re.ASCII)
_END = ("The '*'", "The 'RO'", "Device #")
_WORD = re.compile(r"([^()\s]*)\(([0-9]+)\)", re.ASCII)
# One card has some 250 settings.
_MOST = 4096


@dataclass(frozen=True)
class Setting:
    """One setting as the tool shows it ("True(1)", "48"): the factory's, in force, and after the next reset."""

    default: str
    current: str
    next: str


def parse(text: str, where: str) -> dict[str, Setting]:
    """Settings by name, of one device. Raises InputError with the line."""
    found: dict[str, Setting] = {}
    started = False
    for number, line in enumerate(text.splitlines(), start=1):
        row = line.strip()
        heading = _HEADING.fullmatch(row)
        if heading is not None:
            if started:
                raise InputError(f"{where}:{number}", "a second device", "ask for one device")
            started = True
            _must_have_columns(heading[1], f"{where}:{number}")
        elif started and row:
            if row.startswith(_END):
                break
            name, setting = _setting(row, f"{where}:{number}")
            if name in found:
                raise InputError(f"{where}:{number}", f"{name} stands twice", "expected each setting once")
            found[name] = setting
            if len(found) > _MOST:
                raise InputError(
                    f"{where}:{number}", f"more than {_MOST} settings", "expected those of a card"
                )
    if not found:
        raise InputError(
            where,
            "no settings",
            "expected the table that `mstconfig -d ADDRESS -e q` prints below Configurations",
        )
    return found


def same(told: str, wanted: str) -> bool:
    """Whether the tool's value ("DISABLED(0)") is what was asked for ("0", "disabled" or "DISABLED(0)")."""
    return not _meanings(told).isdisjoint(_meanings(wanted))


def is_known(name: str) -> bool:
    """Whether other cards have this setting: one that none has is misspelt."""
    return name.startswith(_KNOWN)


def plain(told: str) -> str:
    """The form in which the tool takes a value that it shows: the number where there is one."""
    match = _WORD.fullmatch(told)
    return told if match is None else match[2]


def states(
    settings: Mapping[str, Setting], wanted: Mapping[str, str]
) -> Iterator[tuple[str, str, Optional[Setting]]]:
    """For each wanted setting its name, its state and what the card has.

    State: "ok" (in force), "pending" (set, in force after a reset or reboot), "other", "hidden" (shown once
    ADVANCED_PCI_SETTINGS is in force) or "absent" (the card has none of that name).
    """
    advanced = settings.get(ADVANCED)
    opened = advanced is None or same(advanced.current, "1")
    for name, value in wanted.items():
        setting = settings.get(name)
        if setting is None:
            yield name, "hidden" if name in HIDDEN and not opened else "absent", None
        elif not same(setting.next, value):
            yield name, "other", setting
        else:
            yield name, "ok" if same(setting.current, value) else "pending", setting


def _meanings(value: str) -> set[str]:
    match = _WORD.fullmatch(value)
    words = {value} if match is None else {match[1], match[2]}
    # True(1) is how the tool shows a switch; it takes both.
    return {{"true": "1", "false": "0"}.get(word.lower(), word.lower()) for word in words if word}


def _must_have_columns(text: str, where: str) -> None:
    columns = tuple(column.strip().lower() for column in re.split(r"\s{2,}", text.strip()))
    if columns != _COLUMNS:
        raise InputError(
            where, f"found the columns {text[:80]!r}", "expected Default, Current and Next Boot: ask with -e"
        )


def _setting(row: str, where: str) -> tuple[str, Setting]:
    match = _ROW.fullmatch(row)
    values = [] if match is None else match[2].split()
    if match is None or len(values) != len(_COLUMNS):
        raise InputError(where, f"found {row[:80]!r}", "expected a setting with three values")
    return match[1], Setting(*values)
