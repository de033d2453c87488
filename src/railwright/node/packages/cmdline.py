"""The kernel's command line: as it runs, and as GRUB's menu and Boot Loader Specification entries have it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Callable, Optional

GRUB, BLS = "grub", "bls"
GRUB_MENU = "/boot/grub/grub.cfg"
GRUB_ENV = "/boot/grub2/grubenv"
# systemd's Boot Loader Specification, as Fedora's GRUB reads it.
BLS_FOLDER = "/boot/loader/entries"
# Debian's and Ubuntu's grub-mkconfig reads /etc/default/grub.d/*.cfg after the main file, in the order of their names.
DROP_INS = "/etc/default/grub.d"
GRUBBY, UPDATE_GRUB = "grubby", "update-grub"
MENU_MAKERS = (UPDATE_GRUB, "grub-mkconfig")
# The way out that dracut lays beside the kernels of RHEL (51-dracut-rescue.install): a copy that has no modules of its
# own on the disk, and that nothing builds anew.
RESCUE = "0-rescue-"
_HEADER = "# Written by Railwright; changes made here are lost.\n"
# grub.d/10_linux: what is in the menu as a way out has neither DEFAULT's words nor needs ours.
_RECOVERY = ("single", "recovery", "init=/bin/sh")
_LINUX = re.compile(r"^\s*linux(?:16|efi)?\s+(\S*vmlinu\S+)\s*(.*)$", re.MULTILINE)
# What grub-mkconfig takes from its scripts stands between such lines; other systems' entries are not ours.
_OWN = re.compile(r"^### BEGIN \S*/10_linux ###$(.*?)^### END \S*/10_linux ###$", re.MULTILINE | re.DOTALL)
_DROP_IN = re.compile(
    r'^GRUB_CMDLINE_LINUX_DEFAULT="\$\{GRUB_CMDLINE_LINUX_DEFAULT:\+[^}]*\}([^"]*)"$', re.MULTILINE
)
_OPTIONS = re.compile(r"^options\s+(.*)$", re.MULTILINE)
_ENV = re.compile(r"^([A-Za-z_][A-Za-z0-9_]*)=(.*)$", re.MULTILINE)
# What may stand several times, with another word each time: Documentation/admin-guide/kernel-parameters.txt.
_REPEATED = (
    "pci",
    "console",
    "earlycon",
    "hugepages",
    "hugepagesz",
    "module_blacklist",
    "modprobe.blacklist",
)


def loader_of(exists: Callable[[str], bool]) -> Optional[str]:
    """Which boot loader's configuration there is: "bls", "grub", or None for none that we know."""
    if exists(BLS_FOLDER) and exists("/usr/sbin/grubby"):
        return BLS
    return GRUB if exists(GRUB_MENU) else None


def words(line: str) -> list[str]:
    """The words of a command line; a value in double quotes keeps its blanks (lib/cmdline.c, next_arg)."""
    lexer = shlex.shlex(line, posix=False, punctuation_chars=False)
    lexer.whitespace_split = True
    lexer.commenters = ""
    lexer.quotes = '"'
    try:
        return list(lexer)
    except ValueError:
        return line.split()


def key_of(word: str) -> str:
    """What the word sets. Each word of pci= and of a huge page's size is a thing of its own."""
    name, _, value = word.partition("=")
    name = name.replace("-", "_")
    if name in _REPEATED:
        return f"{name}={value.partition('=')[0]}" if name == "pci" else word
    return name


def holds(line: str, wanted: Sequence[str]) -> bool:
    """Whether the command line has all of these in force."""
    return not lacking(line, wanted)


def lacking(line: str, wanted: Sequence[str]) -> list[str]:
    """Those of `wanted` that the command line does not have, or that a later word of it overrides."""
    last: dict[str, str] = {}
    # "--" ends what is the kernel's: the rest is init's.
    for word in words(line.partition(" -- ")[0]):
        last[key_of(word)] = word
    return [word for word in wanted if last.get(key_of(word)) != word]


def words_of_keys(line: str, keys: Collection[str]) -> str:
    """The words of a command line that set one of these, in their order."""
    return " ".join(word for word in words(line) if key_of(word) in keys)


def grub_lines(menu: str) -> list[str]:
    """The kernel's words of every entry of GRUB's menu, without those for recovery."""
    found = []
    own = _OWN.search(menu)
    for match in _LINUX.finditer(menu if own is None else own[1]):
        told = words(match[2])
        if not any(word in _RECOVERY for word in told):
            found.append(match[2])
    return found


def drop_in(name: str) -> str:
    """The path of our drop-in for this slice. It is to be read last: others set the variable anew, by any name."""
    return f"{DROP_INS}/zz-railwright-{name.replace('_', '-')}.cfg"


def is_ours(text: str) -> bool:
    """Whether we wrote this drop-in."""
    return text.startswith(_HEADER)


def drop_in_text(arguments: str) -> str:
    """Appended last, where GRUB puts what is not for recovery: of two words for one key the kernel takes the last."""
    before = "${GRUB_CMDLINE_LINUX_DEFAULT:+$GRUB_CMDLINE_LINUX_DEFAULT }"
    return f'{_HEADER}GRUB_CMDLINE_LINUX_DEFAULT="{before}{arguments}"\n'


def read_drop_in(text: str) -> str:
    """The arguments of our drop-in, "" where it holds none."""
    match = _DROP_IN.search(text)
    return "" if match is None else match[1].strip()


def bls_options(entry: str, environment: Mapping[str, str]) -> str:
    """The kernel's words of an entry, with $kernelopts and the like put in."""
    match = _OPTIONS.search(entry)
    line = match[1] if match is not None else ""
    return " ".join(environment.get(word[1:], "") if word.startswith("$") else word for word in line.split())


def bls_lines(names: Sequence[str], read: Callable[[str], Optional[str]]) -> list[str]:
    """The kernel's words of every entry, with what grubenv adds to them.

    names: what lies in BLS_FOLDER. read: the text of a file, None where there is none.
    """
    more = grubenv(read(GRUB_ENV) or "")
    texts = [read(f"{BLS_FOLDER}/{name}") for name in names if name.endswith(".conf")]
    return [bls_options(text, more) for text in texts if text]


def grubenv(text: str) -> dict[str, str]:
    """GRUB's environment block."""
    return {match[1]: match[2] for match in _ENV.finditer(text) if not match[0].startswith("#")}


def kernel_of(entry: str) -> Optional[str]:
    """The release of the kernel that an entry of GRUB's menu loads first."""
    match = _LINUX.search(entry)
    return None if match is None else match[1].rpartition("/")[2].partition("-")[2] or None
