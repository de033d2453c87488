"""Arguments of the kernel's command line: in the boot loader's configuration now, in force after the next boot.

Debian and Ubuntu: a drop-in of our own below /etc/default/grub.d, which appends to what others say (the main file is
never edited), and update-grub. RHEL: the entries of the Boot Loader Specification, through grubby. Whether the running
system has them is read from /proc/cmdline at every run and never assumed: as long as it has not, a reboot is owed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

from ..model import InputError
from ..packages import cmdline
from . import files
from .fields import Fields, expected, sequence
from .item import STAGE_WRITE, Claim, Done, Goal, Item, Kept, Node, Reading, Value, World
from .made_item import item_name
from .outcome import Foreign, Refused
from .program import first_program, last_words, tools_of

_ARGUMENTS, _MENU = "arguments", "menu"
_CURRENT, _OLDER = "current", "older"
_CMDLINE = "/proc/cmdline"
# One word of the command line; what the drop-in's shell or single quotes would take apart is none.
_WORD = re.compile(r"[A-Za-z0-9_.-]+(?:=[A-Za-z0-9_.,:;/@%+=-]*)?", re.ASCII)
_NOTHING = ""


class BootArgumentsItem(Item):
    """`{"kind": "boot_arguments", "name": "kernel", "arguments": ["iommu=pt", "numa_balancing=disable"]}`.

    name: the slice that asks; each may ask for its own keys. Cells: "arguments", the words as one text, as they stand
    in the drop-in or in every entry ("" for none), and "menu" ("older" where GRUB's menu does not have them).
    """

    kind = "boot_arguments"
    turn = 3
    owed = (_MENU,)

    def __init__(self, fields: Fields, entry: Mapping[str, Any], blobs: Mapping[str, bytes]) -> None:
        super().__init__(fields, entry, blobs)
        self.set = item_name(fields, "kernel")
        self.arguments = _arguments(fields)

    @property
    def id(self) -> str:
        return f"boot_arguments:{self.set}"

    @property
    def drop_in(self) -> str:
        return cmdline.drop_in(self.set)

    def claims(self, node: Node) -> Iterable[Claim]:
        yield ("boot_arguments", self.set)
        yield ("file", self.drop_in)
        for word in self.arguments:
            yield ("boot_argument", cmdline.key_of(word))

    def paths(self) -> tuple[str, ...]:
        return (self.drop_in,)

    def read(self, node: Node, kept: Kept, world: World) -> Reading:
        loader = cmdline.loader_of(lambda path: os.path.exists(node.at(path)))
        running = _text(node, _CMDLINE)
        if loader is None:
            return Reading({}, detail=(loader, running))
        return (self._read_bls if loader == cmdline.BLS else self._read_grub)(node, kept, running)

    def _read_grub(self, node: Node, kept: Kept, running: Optional[str]) -> Reading:
        text = _text(node, self.drop_in)
        if text is not None and not cmdline.is_ours(text):
            raise Foreign(f"{self.drop_in} was written by somebody else", "look at it and remove it")
        stands = _NOTHING if text is None else cmdline.read_drop_in(text)
        menu = cmdline.grub_lines(_text(node, cmdline.GRUB_MENU) or "")
        cells: dict[str, Value] = {_ARGUMENTS: stands}
        known = kept.cells.get(_MENU)
        lacking = [line for line in menu if not cmdline.holds(line, self.arguments)]
        stale = (known is not None and known.pending) or bool(lacking) or not menu
        cells[_MENU] = _OLDER if stale else _CURRENT
        return Reading(cells, self._note(running), (cmdline.GRUB, running))

    def _read_bls(self, node: Node, kept: Kept, running: Optional[str]) -> Reading:
        keys = {cmdline.key_of(word) for word in self.arguments}
        for known in kept.cells.values():
            for value in (known.prior, *known.written):
                keys |= {cmdline.key_of(word) for word in str(value).split()}
        entries = [cmdline.words_of_keys(line, keys) for line in _bls_lines(node)]
        if not entries:
            return Reading({}, detail=(None, running))
        wanted = " ".join(self.arguments)
        # Where they differ, the one that is to be changed is told.
        other = [words for words in entries if words != wanted]
        return Reading({_ARGUMENTS: (other or entries)[0]}, self._note(running), (cmdline.BLS, running))

    def _note(self, running: Optional[str]) -> str:
        if running is None or cmdline.holds(running, self.arguments):
            return ""
        return f"the running kernel was started without {', '.join(cmdline.lacking(running, self.arguments))}"

    def wanted(self, reading: Reading) -> Mapping[str, Value]:
        wanted = {_ARGUMENTS: " ".join(self.arguments)}
        if reading.detail[0] != cmdline.BLS:
            wanted[_MENU] = _CURRENT
        return wanted

    def goal(self, reading: Reading, kept: Kept) -> Goal:
        goal = super().goal(reading, _without_menu(kept))
        if _ARGUMENTS in goal.cells and _MENU in reading.cells:
            return Goal({**goal.cells, _MENU: _CURRENT}, goal.notes, goal.dropped)
        return goal

    def release(self, reading: Reading, kept: Kept, world: World) -> Goal:
        goal = super().release(reading, _without_menu(kept), world)
        owed = kept.cells.get(_MENU)
        if _MENU in reading.cells and (_ARGUMENTS in goal.cells or (owed is not None and owed.pending)):
            return Goal({**goal.cells, _MENU: _CURRENT}, goal.notes)
        return goal

    def stages(self, goal: Mapping[str, Value], releasing: bool) -> Mapping[int, Mapping[str, Value]]:
        return {STAGE_WRITE: goal}

    def boot_owed(self, node: Node, reading: Reading) -> Optional[bool]:
        if not reading.detail or None in reading.detail:
            return None
        return not cmdline.holds(reading.detail[1], self.arguments)

    def foresee(self, node: Node, reading: Reading, goal: Mapping[str, Value]) -> None:
        tools_of(node)
        if reading.detail[0] == cmdline.BLS:
            _program(node, cmdline.GRUBBY)
            _must_be_evaluated(node, str(goal.get(_ARGUMENTS, _NOTHING)).split())
            return
        _program(node, *cmdline.MENU_MAKERS)
        files.must_be_writable(node.root, self.drop_in, False)

    def write(self, node: Node, reading: Reading, goal: Mapping[str, Value], world: World) -> Done:
        if reading.detail[0] == cmdline.BLS:
            self._write_bls(node, reading, str(goal[_ARGUMENTS]))
            return Done()
        if _ARGUMENTS in goal:
            self._write_drop_in(node, str(goal[_ARGUMENTS]))
        self._make_menu(node)
        return Done()

    def _write_drop_in(self, node: Node, words: str) -> None:
        found = files.read(node.root, self.drop_in)
        if words == _NOTHING:
            if found is not None:
                files.remove(node.root, self.drop_in, found)
            return
        files.make_parents(node.root, self.drop_in)
        content = files.Content(cmdline.drop_in_text(words).encode(), "0644", os.geteuid(), os.getegid())
        files.replace(node.root, self.drop_in, content, found)

    def _make_menu(self, node: Node) -> None:
        maker = _program(node, *cmdline.MENU_MAKERS)
        argv = [maker] if maker == cmdline.UPDATE_GRUB else [maker, "-o", cmdline.GRUB_MENU]
        said = tools_of(node)(argv)
        if said.code != 0:
            raise Refused(
                f"{maker} ended with {said.code}: {last_words(said)}",
                f"run {' '.join(argv)} by hand",
                changed=True,
            )
        wanted = cmdline.read_drop_in(_text(node, self.drop_in) or "").split()
        menu = cmdline.grub_lines(_text(node, cmdline.GRUB_MENU) or "")
        without = [line for line in menu if not cmdline.holds(line, wanted)]
        if wanted and (without or not menu):
            lacking = cmdline.lacking(without[0], wanted) if without else wanted
            raise Refused(
                f"{maker} ran, and GRUB's menu has an entry without {', '.join(lacking)}",
                "something that is read later overrides GRUB_CMDLINE_LINUX_DEFAULT: see /etc/default/grub.d",
                changed=True,
            )

    def _write_bls(self, node: Node, reading: Reading, words: str) -> None:
        before, after = str(reading.cells[_ARGUMENTS]).split(), words.split()
        argv = [cmdline.GRUBBY, "--update-kernel=ALL"]
        gone = _spellings(node, [word for word in before if word not in after])
        come = [cmdline.quoted(word) for word in after if word not in before]
        argv += [f"--remove-args={' '.join(gone)}"] if gone else []
        argv += [f"--args={' '.join(come)}"] if come else []
        said = tools_of(node)(argv)
        if said.code != 0:
            raise Refused(
                f"grubby ended with {said.code}: {last_words(said)}", "run it by hand", changed=True
            )
        without = [line for line in _bls_lines(node) if not cmdline.holds(line, after)]
        if without:
            raise Refused(
                f"grubby ran, and an entry lacks {', '.join(cmdline.lacking(without[0], after))}",
                "see /boot/loader/entries",
                changed=True,
            )

    def absent(self, cell: str) -> str:
        return "the node has no boot loader that we know (GRUB's menu, or entries of the Boot Loader Specification)"

    def check_cell(self, cell: str, value: Value, where: str) -> None:
        if cell not in (_ARGUMENTS, _MENU):
            raise InputError(where, f"unknown cell {cell!r}", f"known cells: {_ARGUMENTS}, {_MENU}")
        if not isinstance(value, str):
            raise expected(where, "text", value)
        if cell == _MENU and value not in (_CURRENT, _OLDER):
            raise InputError(where, f"found {value!r}", f"expected {_CURRENT} or {_OLDER}")
        if cell == _ARGUMENTS and any(_WORD.fullmatch(word) is None for word in value.split()):
            raise InputError(where, f"found {value[:80]!r}", "expected words of a kernel command line")

    def action(self, reading: Reading, goal: Mapping[str, Value]) -> str:
        return "write" if _ARGUMENTS in goal else "menu"


def _arguments(fields: Fields) -> tuple[str, ...]:
    where = f"{fields.where}.arguments"
    given = sequence(fields.take("arguments"), where)
    if not given:
        raise InputError(where, "names nothing", "name the arguments, or leave the entry out")
    keys: dict[str, str] = {}
    for n, word in enumerate(given):
        if not isinstance(word, str):
            raise expected(f"{where}[{n}]", "text", word)
        if _WORD.fullmatch(word) is None:
            raise InputError(
                f"{where}[{n}]", f"{word!r} is no argument", "expected key or key=value, without blanks"
            )
        key = cmdline.key_of(word)
        if key in keys:
            raise InputError(f"{where}[{n}]", f"{word} and {keys[key]} set the same", "leave one of them out")
        keys[key] = word
    return tuple(given)


def _without_menu(kept: Kept) -> Kept:
    return Kept(kept.entry, {cell: known for cell, known in kept.cells.items() if cell != _MENU})


def _program(node: Node, *names: str) -> str:
    found = first_program(node, names)
    if found is None:
        raise Refused(f"the node has none of {', '.join(names)}", "install the boot loader's tools")
    return found


def _must_be_evaluated(node: Node, words: Sequence[str]) -> None:
    """Refuses words that need quotes where it is not GRUB that reads the entries. May raise Refused."""
    special = [word for word in words if cmdline.quoted(word) != word]
    if special and not os.path.exists(node.at(cmdline.GRUB_ENV)):
        raise Refused(
            f"{special[0]} needs quotes in an entry that GRUB reads, and none in one that another boot loader reads; "
            f"which this is is not known: {cmdline.GRUB_ENV} is absent",
            "put the word on the command line by hand, as this boot loader takes it",
        )


def _spellings(node: Node, words: Sequence[str]) -> list[str]:
    """These words as the entries have them, each spelling once."""
    lines = cmdline.bls_written(_bls_names(node), lambda path: _text(node, path))
    return list(dict.fromkeys(each for line in lines for each in cmdline.spellings(line, words)))


def _bls_lines(node: Node) -> list[str]:
    """The command line that every entry gives the kernel, with what grubenv adds to it."""
    return cmdline.bls_lines(_bls_names(node), lambda path: _text(node, path))


def _bls_names(node: Node) -> list[str]:
    try:
        return sorted(os.listdir(node.at(cmdline.BLS_FOLDER)))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _text(node: Node, path: str) -> Optional[str]:
    try:
        with open(node.at(path), encoding="utf-8", errors="backslashreplace") as file:
            return file.read(4 * 1024 * 1024)
    except (FileNotFoundError, NotADirectoryError):
        return None
