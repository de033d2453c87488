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
from ..model.values import ARGUMENT
from ..packages import cmdline
from . import boot_entries, files
from .command import Said
from .fields import Fields, expected, mapping, sequence
from .item import STAGE_WRITE, Claim, Done, Goal, Item, Kept, KeptCell, Node, Reading, Value, World
from .made_item import item_name
from .outcome import Foreign, Refused
from .program import first_program, last_words, tools_of
from .reboots import Reboots

_ARGUMENTS, _MENU = "arguments", "menu"
_CURRENT, _OLDER = "current", "older"
_CMDLINE = "/proc/cmdline"
_ENTRY = re.compile(r"[^/\0]+\.conf")
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
        running = boot_entries.read_text(node, _CMDLINE)
        if loader is None:
            return Reading({}, detail=boot_entries.Detail(loader, running))
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
        return Reading(cells, self._note(running), boot_entries.Detail(cmdline.GRUB, running))

    def _read_bls(self, node: Node, kept: Kept, running: Optional[str]) -> Reading:
        known = kept.cells.get(_ARGUMENTS)
        asked = boot_entries.keys_of(self.arguments)
        # Not those of the prior value: a word that went back is its owner's again.
        written = boot_entries.keys_of(_words_of(known.written) if known is not None else ())
        keys = asked | written
        stands = {
            name: cmdline.words_of_keys(line, keys) for name, line in boot_entries.lines_by_name(node).items()
        }
        if not stands:
            return Reading({}, detail=boot_entries.Detail(None, running))
        # Where they differ, the one that is to be changed is told.
        other = [words for words in stands.values() if not cmdline.same_words(words.split(), self.arguments)]
        options = (kept.origin or {}) if kept.cells else boot_entries.origin(node)
        prior = [] if known is None else str(known.prior).split()
        before = [word for word in boot_entries.before_of(prior, options) if cmdline.key_of(word) in keys]
        torn = known is not None and known.pending
        # After a kill a word may be missing that grubby took away for its name.
        taken = {} if torn else boot_entries.taken(node, options, asked - written)
        detail = boot_entries.Detail(
            cmdline.BLS, running, keys, keys - asked, stands, options, taken, before, torn=torn
        )
        return Reading({_ARGUMENTS: [*other, *stands.values()][0]}, self._note(running), detail)

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
        detail: boot_entries.Detail = reading.detail
        detail.back = True
        known = kept.cells.get(_ARGUMENTS)
        if detail.loader == cmdline.BLS and known is not None:
            return self._release_bls(detail, KeptCell(" ".join(detail.before), known.written))
        goal = super().release(reading, _without_menu(kept), world)
        owed = kept.cells.get(_MENU)
        if _MENU in reading.cells and (_ARGUMENTS in goal.cells or (owed is not None and owed.pending)):
            return Goal({**goal.cells, _MENU: _CURRENT}, goal.notes)
        return goal

    def _release_bls(self, detail: boot_entries.Detail, known: KeptCell) -> Goal:
        """An entry that somebody changed decides. One that has none of the words, as of a later kernel, does not."""
        moved = [
            words
            for name, words in detail.stands.items()
            if not cmdline.same_words(words.split(), boot_entries.own_of(name, detail))
        ]
        changed = [words for words in moved if words and not self._is_explained(words, known, detail)]
        if not changed and (detail.torn or any(moved)):
            return Goal({_ARGUMENTS: known.prior})
        if not moved:
            return Goal({})
        return self._back(Reading({_ARGUMENTS: (changed or moved)[0]}), {_ARGUMENTS: known})

    def _is_explained(self, words: str, known: KeptCell, detail: boot_entries.Detail) -> bool:
        """Whether these words of an entry are what we left, or what was there before; after a kill, some of both."""
        if not detail.torn:
            return any(self.same(words, value) for value in (known.prior, *known.written))
        theirs = [word for line in detail.options.values() for word in cmdline.meant(line)]
        return {*_words_of(known.written), *theirs, *detail.before}.issuperset(words.split())

    def stages(self, goal: Mapping[str, Value], releasing: bool) -> Mapping[int, Mapping[str, Value]]:
        return {STAGE_WRITE: goal}

    def boot_owed(self, node: Node, reading: Reading) -> Optional[bool]:
        """True where the running kernel lacks a word, or still has one that was taken out since it started."""
        detail = reading.detail
        if not isinstance(detail, boot_entries.Detail) or detail.loader is None or detail.running is None:
            return None
        if not cmdline.holds(detail.running, self.arguments):
            return True
        at_boot = str(Reboots(node).in_force.get(self.id, {}).get(_ARGUMENTS, _NOTHING))
        dropped = boot_entries.keys_of(at_boot.split()) - boot_entries.keys_of(self.arguments)
        runs = cmdline.words_of_keys(detail.running, dropped).split()
        return any(
            not cmdline.same_words(cmdline.words_of_keys(line, dropped).split(), runs)
            for line in _boot_lines(node, detail)
        )

    def foresee(self, node: Node, reading: Reading, goal: Mapping[str, Value]) -> None:
        tools_of(node)
        if reading.detail.loader == cmdline.BLS:
            _program(node, cmdline.GRUBBY)
            words = boot_entries.of_all(reading.detail, str(goal[_ARGUMENTS]))
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
        detail: boot_entries.Detail = reading.detail
        variables = boot_entries.environment(node)
        before = {
            name: boot_entries.whole(now, name, detail, variables)
            for name, now in boot_entries.written_options(node).items()
        }
        told = boot_entries.grubby_options(node, detail.keys, boot_entries.of_all(detail, words))
        said = tools_of(node)([cmdline.GRUBBY, "--update-kernel=ALL", *told]) if told else Said(0)
        if said.code != 0:
            boot_entries.set_options(node, before)
            raise Refused(
                f"grubby ended with {said.code}: {last_words(said)}", "run it by hand", changed=True
            )
        wanted = {name: boot_entries.wanted_of(name, detail, words) for name in before}
        variables = boot_entries.environment(node)
        lines = {
            name: boot_entries.edited(now, name, detail, wanted[name])
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
        detail: boot_entries.Detail = reading.detail
        detail.options.update(detail.taken)
        return detail.options or None

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


def _words_of(written: Iterable[Value]) -> list[str]:
    return [word for value in written for word in str(value).split()]


def _boot_lines(node: Node, detail: boot_entries.Detail) -> list[str]:
    if detail.loader == cmdline.BLS:
        return boot_entries.command_lines(node)
    return cmdline.grub_lines(boot_entries.read_text(node, cmdline.GRUB_MENU) or "")
