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
# What grubby writes besides the entries, for kernels that come later.
GRUB_DEFAULT, KERNEL_CMDLINE = "/etc/default/grub", "/etc/kernel/cmdline"
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
_DEFAULT = re.compile(r"^GRUB_CMDLINE_LINUX=(.*)$", re.MULTILINE)
_OPTIONS = re.compile(r"^options\s+(.*)$", re.MULTILINE)
# What GRUB's script takes as it stands in a word (grub-core/script/yylex.l); ";" ends a command there.
_PLAIN = re.compile(r"[A-Za-z0-9_.,:/@%+=-]*", re.ASCII)
_ENDS = ";&|<>{}\n"
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
    """The words of a command line as the kernel has it (lib/cmdline.c, next_arg).

    Blanks between double quotes are kept; the quotes themselves, around a word or a value, are not.
    """
    lexer = shlex.shlex(line, posix=False, punctuation_chars=False)
    lexer.whitespace_split = True
    lexer.commenters = ""
    lexer.quotes = '"'
    try:
        return [word.replace('"', "") for word in lexer]
    except ValueError:
        return line.split()


def quoted(word: str) -> str:
    """A word as GRUB's script has to have it, so that the kernel gets the whole of it.

    Single quotes, since these also stand in what a shell reads between double quotes: our drop-in, and the
    GRUB_CMDLINE_LINUX that grubby writes with nothing escaped.
    """
    return word if _PLAIN.fullmatch(word) else f"'{word}'"


def grub_words(script: str) -> list[str]:
    """The words that GRUB's script hands to a command (GRUB manual, "Quoting"); $variables stay as they stand.

    What follows an end of the command, such as a bare ";", is none of them.
    """
    found: list[str] = []
    word: Optional[str] = None
    quote, place = "", 0
    while place < len(script):
        char = script[place]
        following = script[place + 1 : place + 2]
        if char == quote:
            quote = ""
        elif char == "\\" and quote != "'" and (not quote or following in ('"', "\\", "$")):
            word, place = (word or "") + following, place + 1
        elif quote:
            word = (word or "") + char
        elif char in ("'", '"'):
            word, quote = word or "", char
        elif _is_end(script, place) or (char == "#" and word is None):
            break
        elif char.isspace():
            found += [] if word is None else [word]
            word = None
        else:
            word = (word or "") + char
        place += 1
    return found if word is None else [*found, word]


def _is_end(script: str, place: int) -> bool:
    """Whether a command ends here: the braces of a ${name} end none."""
    if script[place] == "{" and script[place - 1 : place] == "$":
        return False
    if script[place] == "}" and script.rfind("${", 0, place) > script.rfind("}", 0, place):
        return False
    return script[place] in _ENDS


def as_booted(script: str) -> str:
    """The command line that the kernel gets of these words of GRUB's script (grub-core/lib/cmdline.c)."""
    return " ".join(f'"{word}"' if " " in word or "\t" in word else word for word in grub_words(script))


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
    # Of two that are wanted for one key, as an entry may have had before, the last counts here too.
    return [word for key, word in {key_of(word): word for word in wanted}.items() if last.get(key) != word]


def words_of_keys(line: str, keys: Collection[str]) -> str:
    """The words of a command line that set one of these, in their order."""
    return " ".join(word for word in words(line) if key_of(word) in keys)


def grub_lines(menu: str) -> list[str]:
    """The command line that every entry of GRUB's menu gives the kernel, without those for recovery."""
    own = _OWN.search(menu)
    lines = [as_booted(match[2]) for match in _LINUX.finditer(menu if own is None else own[1])]
    return [line for line in lines if not any(word in _RECOVERY for word in words(line))]


def drop_in(name: str) -> str:
    """The path of our drop-in for this slice. It is to be read last: others set the variable anew, by any name."""
    return f"{DROP_INS}/zz-railwright-{name.replace('_', '-')}.cfg"


def is_ours(text: str) -> bool:
    """Whether we wrote this drop-in."""
    return text.startswith(_HEADER)


def drop_in_text(arguments: str) -> str:
    """Appended last, where GRUB puts what is not for recovery: of two words for one key the kernel takes the last."""
    before = "${GRUB_CMDLINE_LINUX_DEFAULT:+$GRUB_CMDLINE_LINUX_DEFAULT }"
    written = " ".join(quoted(word) for word in arguments.split())
    return f'{_HEADER}GRUB_CMDLINE_LINUX_DEFAULT="{before}{written}"\n'


def read_drop_in(text: str) -> str:
    """The arguments of our drop-in as GRUB's script has them in the end, "" where it holds none."""
    match = _DROP_IN.search(text)
    return "" if match is None else " ".join(grub_words(match[1]))


def options_of(entry: str) -> str:
    """The options of an entry as they are written, "" for none."""
    match = _OPTIONS.search(entry)
    return "" if match is None else match[1]


def bls_options(entry: str, environment: Mapping[str, str]) -> str:
    """The kernel's words of an entry, with $kernelopts and the like put in."""
    given = options_of(entry).split()
    return " ".join(environment.get(word[1:], "") if word.startswith("$") else word for word in given)


def bls_written(names: Sequence[str], read: Callable[[str], Optional[str]]) -> list[str]:
    """The options of every entry as they are written, with what grubenv adds to them.

    names: what lies in BLS_FOLDER. read: the text of a file, None where there is none.
    """
    more = grubenv(read(GRUB_ENV) or "")
    texts = [read(f"{BLS_FOLDER}/{name}") for name in names if name.endswith(".conf")]
    return [bls_options(text, more) for text in texts if text]


def bls_lines(names: Sequence[str], read: Callable[[str], Optional[str]]) -> list[str]:
    """The command line that every entry gives the kernel; names, read: as of `bls_written`.

    RHEL's GRUB makes a script of an entry (blscfg.c: "linux " and the options); who else reads entries takes the
    options as they stand.
    """
    written = bls_written(names, read)
    return written if read(GRUB_ENV) is None else [as_booted(line) for line in written]


def bls_edited(options: str, keys: Collection[str], wanted: Sequence[str]) -> str:
    """The options of an entry, as they are written, with `wanted` for these keys and every other word as it stands.

    A word comes where the one that it replaces stood, so that what goes back gives the line that was there.
    """
    left, found = list(wanted), []
    for written in options.split():
        key = _written_key(written)
        if key in keys:
            found += [quoted(word) for word in left if key_of(word) == key]
            left = [word for word in left if key_of(word) != key]
        else:
            found.append(written)
    found += [quoted(word) for word in left]
    meant = [word for written in found for word in grub_words(written)[:1] if _written_key(written) in keys]
    if same_words(meant, wanted):
        return " ".join(found)
    others = [written for written in options.split() if _written_key(written) not in keys]
    return " ".join([*others, *(quoted(word) for word in wanted)])


def same_words(left: Sequence[str], right: Sequence[str]) -> bool:
    """Whether these set the same: hugepages= belongs to the hugepagesz= before it, the last console= is the first."""
    return sorted(left) == sorted(right) and _in_order(left) == _in_order(right)


def _in_order(given: Sequence[str]) -> list[str]:
    return [word for word in given if name_of(word).replace("-", "_") in _REPEATED and name_of(word) != "pci"]


def bls_replaced(entry: str, options: str) -> str:
    """The text of an entry with these options in place of its own."""
    return _OPTIONS.sub(lambda match: f"options {options}", entry, count=1)


def spellings(options: str, keys: Collection[str], wanted: Sequence[str]) -> list[str]:
    """How words that set one of these keys, and are not wanted, are written: bare, in quotes, or with a tail that a ";"
    cuts off."""
    return [
        written
        for written in options.split()
        if _written_key(written) in keys and grub_words(written)[0] not in wanted
    ]


def others_of_names(options: str, names: Collection[str], keys: Collection[str]) -> list[str]:
    """The words, as they are written, whose name before the "=" is one of these and that set none of the keys."""
    return [
        written
        for written in options.split()
        if name_of(written.lstrip("'\"")) in names and _written_key(written) not in keys
    ]


def name_of(word: str) -> str:
    """What stands before the "=", which is all that grubby compares."""
    return word.partition("=")[0]


def _written_key(written: str) -> Optional[str]:
    meant = grub_words(written)
    return key_of(meant[0]) if meant else None


def grub_default(text: str) -> str:
    """GRUB_CMDLINE_LINUX of /etc/default/grub: what grubby gives kernels that come later."""
    found = ""
    for match in _DEFAULT.finditer(text):
        try:
            found = " ".join(shlex.split(match[1], comments=True))
        except ValueError:
            continue
    return found


def grubenv(text: str) -> dict[str, str]:
    """GRUB's environment block."""
    return {match[1]: match[2] for match in _ENV.finditer(text) if not match[0].startswith("#")}


def kernel_of(entry: str) -> Optional[str]:
    """The release of the kernel that an entry of GRUB's menu loads first."""
    match = _LINUX.search(entry)
    return None if match is None else match[1].rpartition("/")[2].partition("-")[2] or None
