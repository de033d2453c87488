"""The entries of the Boot Loader Specification as they lie on a node, and what grubby is told about them."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Optional

from ..packages import cmdline
from . import files
from .item import Node
from .outcome import Refused


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
    if any(_order_of(line, keys) != cmdline.in_order(after) for line in lines):
        names |= {cmdline.name_of(word) for word in cmdline.in_order(after)}
    stays = _staying(node, kept, lines, names, keys)
    come = [*stays, *(cmdline.quoted(word) for word in after if cmdline.name_of(word) in names)]
    return [
        f"--{option}={' '.join(dict.fromkeys(words))}"
        for option, words in (("remove-args", gone), ("args", come))
        if words
    ]


def _order_of(line: str, keys: Collection[str]) -> list[str]:
    return cmdline.in_order([word for word in cmdline.meant(line) if cmdline.key_of(word) in keys])


def _staying(
    node: Node, kept: Sequence[str], lines: Sequence[str], names: Collection[str], keys: Collection[str]
) -> list[str]:
    """Others' words of these names for kernels that come later: what they would have got, and what every entry has.

    Entries that exist must not get the former; where they take their words from grubenv they would: raises Refused.
    """
    later = [word for line in kept for word in cmdline.others_of_names(line, names, keys)]
    variable = f"${cmdline.KERNEL_OPTIONS}"
    if any(variable in cmdline.written(options) for options in written_options(node).values()):
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


def command_lines(node: Node) -> list[str]:
    """The command line that every entry gives the kernel, with what grubenv adds to it."""
    return cmdline.bls_lines(_bls_names(node), lambda path: read_text(node, path))


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
