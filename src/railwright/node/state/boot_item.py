"""Arguments of the kernel's command line: in the boot loader's configuration now, in force after the next boot.

Debian and Ubuntu: a drop-in of our own below /etc/default/grub.d, which appends to what others say (the main file is
never edited), and update-grub. RHEL: the entries of the Boot Loader Specification, through grubby. Whether the running
system has them is read from /proc/cmdline at every run and never assumed: as long as it has not, a reboot is owed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from ..model import InputError
from ..model.values import ARGUMENT
from ..packages import cmdline
from . import boot_entries, files
from .command import Said
from .fields import Fields, expected, mapping, sequence
from .item import STAGE_WRITE, Claim, Done, Goal, Item, Kept, Node, Reading, Value, World
from .made_item import item_name
from .outcome import Foreign, Refused
from .program import first_program, last_words, tools_of

_ARGUMENTS, _MENU = "arguments", "menu"
_CURRENT, _OLDER = "current", "older"
_CMDLINE = "/proc/cmdline"
_ENTRY = re.compile(r"[^/\0]+\.conf")
_NOTHING = ""


@dataclass
class _Detail:
    """loader: None for none that we know. running: the kernel's own command line. keys: what ours set, now or before.
    options: of entries, as they were before the first write, by the names of their files. back: they go back to that.
    torn: a run was killed, or failed, between grubby's first write and the last of ours.
    """

    loader: Optional[str]
    running: Optional[str]
    keys: Collection[str] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    back: bool = False
    torn: bool = False


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
        running = boot_entries.read_text(node, _CMDLINE)
        if loader is None:
            return Reading({}, detail=_Detail(loader, running))
        return (self._read_bls if loader == cmdline.BLS else self._read_grub)(node, kept, running)

    def _read_grub(self, node: Node, kept: Kept, running: Optional[str]) -> Reading:
        text = boot_entries.read_text(node, self.drop_in)
        if text is not None and not cmdline.is_ours(text):
            raise Foreign(f"{self.drop_in} was written by somebody else", "look at it and remove it")
        stands = _NOTHING if text is None else cmdline.read_drop_in(text)
        menu = cmdline.grub_lines(boot_entries.read_text(node, cmdline.GRUB_MENU) or "")
        cells: dict[str, Value] = {_ARGUMENTS: stands}
        known = kept.cells.get(_MENU)
        lacking = [line for line in menu if not cmdline.holds(line, self.arguments)]
        stale = (known is not None and known.pending) or bool(lacking) or not menu
        cells[_MENU] = _OLDER if stale else _CURRENT
        return Reading(cells, self._note(running), _Detail(cmdline.GRUB, running))

    def _read_bls(self, node: Node, kept: Kept, running: Optional[str]) -> Reading:
        keys = {cmdline.key_of(word) for word in self.arguments}
        for known in kept.cells.values():
            for value in (known.prior, *known.written):
                keys |= {cmdline.key_of(word) for word in str(value).split()}
        entries = [cmdline.words_of_keys(line, keys) for line in boot_entries.command_lines(node)]
        if not entries:
            return Reading({}, detail=_Detail(None, running))
        # Where they differ, the one that is to be changed is told.
        other = [words for words in entries if not cmdline.same_words(words.split(), self.arguments)]
        options = (kept.origin or {}) if kept.cells else boot_entries.written_options(node)
        torn = _ARGUMENTS in kept.cells and kept.cells[_ARGUMENTS].pending
        detail = _Detail(cmdline.BLS, running, keys, options, torn=torn)
        return Reading({_ARGUMENTS: (other or entries)[0]}, self._note(running), detail)

    def _note(self, running: Optional[str]) -> str:
        if running is None or cmdline.holds(running, self.arguments):
            return ""
        return f"the running kernel was started without {', '.join(cmdline.lacking(running, self.arguments))}"

    def wanted(self, reading: Reading) -> Mapping[str, Value]:
        wanted = {_ARGUMENTS: " ".join(self.arguments)}
        if reading.detail.loader != cmdline.BLS:
            wanted[_MENU] = _CURRENT
        return wanted

    def same(self, now: Value, value: Value) -> bool:
        return cmdline.same_words(str(now).split(), str(value).split())

    def goal(self, reading: Reading, kept: Kept) -> Goal:
        goal = super().goal(reading, _without_menu(kept))
        if reading.detail.torn:
            return Goal({**self.wanted(reading), **goal.cells}, goal.notes, goal.dropped)
        if _ARGUMENTS in goal.cells and _MENU in reading.cells:
            return Goal({**goal.cells, _MENU: _CURRENT}, goal.notes, goal.dropped)
        return goal

    def release(self, reading: Reading, kept: Kept, world: World) -> Goal:
        goal = super().release(reading, _without_menu(kept), world)
        reading.detail.back = True
        if reading.detail.torn and not goal.notes:
            return Goal({_ARGUMENTS: kept.cells[_ARGUMENTS].prior})
        owed = kept.cells.get(_MENU)
        if _MENU in reading.cells and (_ARGUMENTS in goal.cells or (owed is not None and owed.pending)):
            return Goal({**goal.cells, _MENU: _CURRENT}, goal.notes)
        return goal

    def stages(self, goal: Mapping[str, Value], releasing: bool) -> Mapping[int, Mapping[str, Value]]:
        return {STAGE_WRITE: goal}

    def boot_owed(self, node: Node, reading: Reading) -> Optional[bool]:
        detail: _Detail = reading.detail
        if detail.loader is None or detail.running is None:
            return None
        return not cmdline.holds(detail.running, self.arguments)

    def foresee(self, node: Node, reading: Reading, goal: Mapping[str, Value]) -> None:
        tools_of(node)
        if reading.detail.loader == cmdline.BLS:
            _program(node, cmdline.GRUBBY)
            words = str(goal[_ARGUMENTS]).split()
            _must_be_evaluated(node, words)
            boot_entries.grubby_options(node, reading.detail.keys, words)
            return
        _program(node, *cmdline.MENU_MAKERS)
        files.must_be_writable(node.root, self.drop_in, False)

    def write(self, node: Node, reading: Reading, goal: Mapping[str, Value], world: World) -> Done:
        if reading.detail.loader == cmdline.BLS:
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
        wanted = cmdline.read_drop_in(boot_entries.read_text(node, self.drop_in) or "").split()
        menu = cmdline.grub_lines(boot_entries.read_text(node, cmdline.GRUB_MENU) or "")
        without = [line for line in menu if not cmdline.holds(line, wanted)]
        if wanted and (without or not menu):
            lacking = cmdline.lacking(without[0], wanted) if without else wanted
            raise Refused(
                f"{maker} ran, and GRUB's menu has an entry without {', '.join(lacking)}",
                "something that is read later overrides GRUB_CMDLINE_LINUX_DEFAULT: see /etc/default/grub.d",
                changed=True,
            )

    def _write_bls(self, node: Node, reading: Reading, words: str) -> None:
        """grubby knows names only: one word of pci= takes every other away (grubby(8), --args). So it is told others'
        words of these names too, for its own files, and each entry then gets the line that it should have."""
        detail: _Detail = reading.detail
        variables = boot_entries.environment(node)
        before = {
            name: _whole(now, name, detail, variables)
            for name, now in boot_entries.written_options(node).items()
        }
        told = boot_entries.grubby_options(node, detail.keys, words.split())
        said = tools_of(node)([cmdline.GRUBBY, "--update-kernel=ALL", *told]) if told else Said(0)
        if said.code != 0:
            boot_entries.set_options(node, before)
            raise Refused(
                f"grubby ended with {said.code}: {last_words(said)}", "run it by hand", changed=True
            )
        wanted = {name: _wanted_of(name, detail, words) for name in before}
        variables = boot_entries.environment(node)
        lines = {
            name: _edited(now, name, detail, wanted[name])
            for name, now in before.items()
            # What stands in grubenv is grubby's alone.
            if not cmdline.share_a_name(cmdline.of_variables(now, variables), detail.keys)
        }
        boot_entries.set_options(node, lines)
        for name, its in wanted.items():
            for line in cmdline.bls_lines([name], lambda path: boot_entries.read_text(node, path)):
                if lacking := cmdline.lacking(line, its):
                    why = f"grubby ran, and an entry lacks {', '.join(lacking)}"
                    raise Refused(why, f"see {cmdline.BLS_FOLDER}/{name}", changed=True)

    def origin(self, reading: Reading) -> Value:
        return dict(reading.detail.options) or None

    def check_origin(self, value: Value, where: str) -> None:
        if value is None:
            return
        for name, options in mapping(value, where).items():
            if _ENTRY.fullmatch(name) is None or not isinstance(options, str) or "\n" in options:
                raise InputError(
                    where, f"found {name[:80]!r}", "expected options of entries by their file's name"
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
        if cell == _ARGUMENTS and any(ARGUMENT.fullmatch(word) is None for word in value.split()):
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
        if ARGUMENT.fullmatch(word) is None:
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


def _wanted_of(name: str, detail: _Detail, words: str) -> list[str]:
    """The words of ours that an entry should have: on the way back its own, as far as it was there then."""
    if detail.back and name in detail.options:
        return _ours(detail.options[name], detail)
    return words.split()


def _ours(options: str, detail: _Detail) -> list[str]:
    return [word for word in cmdline.meant(options) if cmdline.key_of(word) in detail.keys]


def _whole(now: str, name: str, detail: _Detail, variables: Mapping[str, str]) -> str:
    """The options of an entry with others' words of our names that grubby took away before a run was killed."""
    before = detail.options.get(name)
    if not detail.torn or before is None:
        return now
    has = [cmdline.key_of(word) for word in cmdline.meant(now)]
    lost = {
        cmdline.key_of(word): word
        for written in _others(before, detail)
        if cmdline.share_a_name([written], detail.keys)
        for word in cmdline.meant(written)
        if cmdline.key_of(word) not in has
    }
    whole = cmdline.bls_edited(now, lost, list(lost.values()))
    # Where nobody changed anything else, they come where they stood.
    if _meant(whole, detail, variables) == _meant(before, detail, variables):
        return cmdline.bls_edited(before, detail.keys, _ours(now, detail))
    return whole


def _meant(options: str, detail: _Detail, variables: Mapping[str, str]) -> list[str]:
    return sorted(cmdline.meant(" ".join(_others(cmdline.expanded(options, variables), detail))))


def _others(options: str, detail: _Detail) -> list[str]:
    return cmdline.others(options, detail.keys)


def _edited(now: str, name: str, detail: _Detail, wanted: Sequence[str]) -> str:
    """The options of an entry with these words of ours; on the way back as they were, unless others changed them."""
    before = detail.options.get(name)
    if detail.back and before is not None and _others(before, detail) == _others(now, detail):
        return before
    return cmdline.bls_edited(now, detail.keys, wanted)
