"""The entries of the Boot Loader Specification as they lie on a node and as they should, and what grubby is told."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Optional

from ..packages import cmdline
from . import files
from .item import Node
from .outcome import Refused

# The latter is how an origin names what grubenv had for the former. No entry's file is called so: its name has letters,
# digits and "+-_." only (Boot Loader Specification, type #1).
_VARIABLE = f"${cmdline.KERNEL_OPTIONS}"
_SHARED = f"{_VARIABLE}.conf"


@dataclass
class Detail:
    """How kernel words of an item stand on a node.

    loader: None for none that we know. running: the kernel's own command line. keys: what ours set, now or until this
    run. dropped: those that the item does not set any more. stands: the words of ours in each entry. options: of
    entries, as they were before the first write, by the names of their files; the record's own. taken: those of options
    in which words for keys that were not ours until now stand otherwise by now. before: the words of ours that kernels
    had before, of whatever entry. back: all goes back. torn: a run was killed, or failed, between grubby's first write
    and the last of ours.
    """

    loader: Optional[str]
    running: Optional[str]
    keys: Collection[str] = ()
    dropped: Collection[str] = ()
    stands: Mapping[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    taken: Mapping[str, str] = field(default_factory=dict)
    before: Sequence[str] = ()
    back: bool = False
    torn: bool = False


def grubby_options(node: Node, keys: Collection[str], after: Sequence[str]) -> list[str]:
    """What grubby is told: which words go, and which come; nothing where its files have them. May raise Refused."""
    lines = cmdline.bls_written(_bls_names(node), lambda path: read_text(node, path))
    kept = [
        cmdline.grub_default(read_text(node, cmdline.GRUB_DEFAULT) or ""),
        read_text(node, cmdline.KERNEL_CMDLINE) or "",
    ]
    gone = [word for line in (*lines, *kept) for word in cmdline.spellings(line, keys, after)]
    written = [cmdline.written(line) for line in lines]
    names = {
        cmdline.name_of(word) for word in after if any(cmdline.quoted(word) not in line for line in written)
    }
    if any(cmdline.in_order(_of_keys(line, keys)) != cmdline.in_order(after) for line in lines):
        names |= {cmdline.name_of(word) for word in cmdline.in_order(after)}
    stays = _staying(node, kept, lines, names, keys)
    come = [*stays, *(cmdline.quoted(word) for word in after if cmdline.name_of(word) in names)]
    return [
        f"--{option}={' '.join(dict.fromkeys(words))}"
        for option, words in (("remove-args", gone), ("args", come))
        if words
    ]


def _staying(
    node: Node, kept: Sequence[str], lines: Sequence[str], names: Collection[str], keys: Collection[str]
) -> list[str]:
    """Others' words of these names for kernels that come later: what they would have got, and what every entry has.

    Entries that exist must not get the former; where they take their words from grubenv they would: raises Refused.
    """
    later = [word for line in kept for word in cmdline.others_of_names(line, names, keys)]
    if any(_VARIABLE in cmdline.written(options) for options in written_options(node).values()):
        shared = environment(node).get(cmdline.KERNEL_OPTIONS, "")
        stay = cmdline.others_of_names(shared, names, keys)
        alone = [word for word in later if word not in stay]
        if alone:
            raise Refused(
                f"{alone[0]} is only there for kernels that come later ({cmdline.GRUB_DEFAULT}, "
                f"{cmdline.KERNEL_CMDLINE}); grubby would give it to all, or take it away",
                f"take it out there, or put it into kernelopts of {cmdline.GRUB_ENV} too",
            )
        return stay
    others = [word for line in lines for word in cmdline.others_of_names(line, names, keys)]
    return [*later, *(word for word in others if all(word in cmdline.written(line) for line in lines))]


def environment(node: Node) -> dict[str, str]:
    """What grubenv has for the $variables of entries."""
    return cmdline.grubenv(read_text(node, cmdline.GRUB_ENV) or "")


def set_options(node: Node, entries: Mapping[str, str]) -> None:
    """Gives entries these options, as far as they have others."""
    for name, options in entries.items():
        path = f"{cmdline.BLS_FOLDER}/{name}"
        found = files.read(node.root, path)
        if found is None:
            continue
        text = cmdline.bls_replaced(found.data.decode("utf-8", "surrogateescape"), options)
        data = text.encode("utf-8", "surrogateescape")
        if data != found.data:
            files.replace(node.root, path, files.Content(data, found.mode, found.uid, found.gid), found)


def written_options(node: Node) -> dict[str, str]:
    """The options of every entry as they are written, by the name of its file."""
    texts = {name: read_text(node, f"{cmdline.BLS_FOLDER}/{name}") for name in _bls_names(node)}
    return {name: cmdline.options_of(text) for name, text in texts.items() if text and name.endswith(".conf")}


def origin(node: Node) -> dict[str, str]:
    """What `written_options` gives, and what grubenv has for those that take their words from it."""
    entries = written_options(node)
    if any(_VARIABLE in cmdline.written(options) for options in entries.values()):
        return {**entries, _SHARED: environment(node).get(cmdline.KERNEL_OPTIONS, "")}
    return entries


def taken(node: Node, options: Mapping[str, str], keys: Collection[str]) -> dict[str, str]:
    """Those of an origin's lines that have other words for these keys by now, with these."""
    now = {name: _of_keys(line, keys) for name, line in origin(node).items() if name in options}
    return {
        name: cmdline.bls_edited(options[name], keys, words)
        for name, words in now.items()
        if words != _of_keys(options[name], keys)
    }


def common(origin: Mapping[str, str]) -> list[str]:
    """The words of an origin that every kernel had: grubenv's where it has them, else those of all entries."""
    lines = [origin[_SHARED]] if _SHARED in origin else list(origin.values())
    meant = [cmdline.meant(line) for line in lines]
    return [word for word in meant[0] if all(word in line for line in meant)] if meant else []


def command_lines(node: Node) -> list[str]:
    """The command line that every entry gives the kernel, with what grubenv adds to it."""
    return list(lines_by_name(node).values())


def lines_by_name(node: Node) -> dict[str, str]:
    """Those of `command_lines`, by the names of the entries' files."""
    found = {name: cmdline.bls_lines([name], lambda path: read_text(node, path)) for name in _bls_names(node)}
    return {name: lines[0] for name, lines in found.items() if lines}


def _bls_names(node: Node) -> list[str]:
    try:
        return sorted(os.listdir(node.at(cmdline.BLS_FOLDER)))
    except (FileNotFoundError, NotADirectoryError):
        return []


def read_text(node: Node, path: str) -> Optional[str]:
    """The text of a file of the node, None where there is none."""
    try:
        with open(node.at(path), encoding="utf-8", errors="backslashreplace") as file:
            return file.read(4 * 1024 * 1024)
    except (FileNotFoundError, NotADirectoryError):
        return None


def keys_of(words: Iterable[str]) -> set[str]:
    return {cmdline.key_of(word) for word in words}


def before_of(prior: Sequence[str], options: Mapping[str, str]) -> list[str]:
    """The words that kernels had before ours: what was in all lines, and of what differed what the record has first."""
    shared = common(options)
    return [*shared, *(word for word in prior if cmdline.key_of(word) not in keys_of(shared))]


def of_all(detail: Detail, words: str) -> list[str]:
    """The words of ours for an entry that was not there before the first write, and for kernels that come later."""
    return words.split() if detail.back else [*_given_back(detail.before, detail), *words.split()]


def _given_back(before: Iterable[str], detail: Detail) -> list[str]:
    return [word for word in before if cmdline.key_of(word) in detail.dropped]


def wanted_of(name: str, detail: Detail, words: str) -> list[str]:
    """The words of ours that an entry should have: on the way back its own, as far as it was there then; else its own
    of what was dropped."""
    if name not in detail.options:
        return of_all(detail, words)
    its = _ours(detail.options[name], detail)
    return its if detail.back else [*_given_back(its, detail), *words.split()]


def own_of(name: str, detail: Detail) -> list[str]:
    """The words of ours that an entry had before the first write, with grubenv's; of a later one, what all had."""
    its = detail.options.get(name)
    return list(detail.before) if its is None or _VARIABLE in cmdline.written(its) else _ours(its, detail)


def _ours(options: str, detail: Detail) -> list[str]:
    return _of_keys(options, detail.keys)


def _of_keys(options: str, keys: Collection[str]) -> list[str]:
    return [word for word in cmdline.meant(options) if cmdline.key_of(word) in keys]


def whole(now: str, name: str, detail: Detail, variables: Mapping[str, str]) -> str:
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


def _meant(options: str, detail: Detail, variables: Mapping[str, str]) -> set[str]:
    # A set: an old grubby, given two words of one name, may leave one of them twice.
    return set(cmdline.meant(" ".join(_others(cmdline.expanded(options, variables), detail))))


def _others(options: str, detail: Detail) -> list[str]:
    return cmdline.others(options, detail.keys)


def edited(now: str, name: str, detail: Detail, wanted: Sequence[str]) -> str:
    """The options of an entry with these words of ours; what goes back stands as it was, unless others changed them."""
    before = detail.options.get(name)
    replaced = detail.back or detail.torn or detail.dropped
    if replaced and before is not None and _others(before, detail) == _others(now, detail):
        ours = [] if detail.back else [w for w in wanted if cmdline.key_of(w) not in detail.dropped]
        return cmdline.bls_edited(before, keys_of(ours), ours) if ours else before
    return cmdline.bls_edited(now, detail.keys, wanted)
