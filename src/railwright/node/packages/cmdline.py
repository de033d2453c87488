"""The kernel's command line: as it runs, and as GRUB's menu and Boot Loader Specification entries have it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
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
# The variable of grubenv that RHEL 8's entries take their words from: there grubby writes it, and not the entries.
KERNEL_OPTIONS = "kernelopts"
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
_OPTIONS = re.compile(r"^options[ \t]+(.*)$", re.MULTILINE)
# A word as it is written, with the blanks before it; those between quotes are its own.
_PIECE = re.compile(r"""(\s*)((?:"(?:[^"\\]|\\.)*"|'[^']*'|\\.|\S)+)""", re.DOTALL)
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
    """The kernel's words of a command line that set one of these, in their order."""
    return " ".join(word for word in words(line.partition(" -- ")[0]) if key_of(word) in keys)


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
    """The options of an entry, with $kernelopts and the like put in."""
    return expanded(options_of(entry), environment)


def expanded(options: str, environment: Mapping[str, str]) -> str:
    """Options with what grubenv has for their $variables."""
    given = [word for pieces in _pieces(options) for _, word in pieces]
    return " ".join(environment.get(word[1:], "") if word.startswith("$") else word for word in given)


def of_variables(options: str, environment: Mapping[str, str]) -> list[str]:
    """The words that $variables of these options stand for."""
    return [
        word
        for variable in written(options)
        if variable.startswith("$")
        for word in written(environment.get(variable[1:], ""))
    ]


def written(options: str) -> list[str]:
    """The kernel's words of options as they are written; what follows "--" is init's."""
    return [word for _, word in _pieces(options)[0]]


def meant(options: str) -> list[str]:
    """The kernel's words of options as GRUB's script takes them."""
    return [word for one in written(options) for word in grub_words(one)[:1]]


def _pieces(options: str) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Words as they are written, each with the blanks before it: the kernel's, and those from "--" on."""
    found = _PIECE.findall(options)
    end = next((place for place, (_, word) in enumerate(found) if word == "--"), len(found))
    return found[:end], found[end:]


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

    A word comes where the one that it replaces stood, so that what goes back gives the line that was there; without
    one it comes last, before the "--" that ends what is the kernel's.
    """
    kernels, inits = _pieces(options)
    left = list(wanted)
    found: list[tuple[str, str]] = []
    for blanks, word in kernels:
        key = _written_key(word)
        if key in keys:
            come = [quoted(one) for one in left if key_of(one) == key]
            found += zip([blanks, *(" " for _ in come[1:])], come)
            left = [one for one in left if key_of(one) != key]
        else:
            found.append((blanks, word))
    found += [(" ", quoted(one)) for one in left]
    if not same_words([one for one in meant(_joined(found)) if key_of(one) in keys], wanted):
        found = [(blanks, word) for blanks, word in kernels if _written_key(word) not in keys]
        found += [(" ", quoted(one)) for one in wanted]
    return f"{_joined(found)} {_joined(inits)}".strip()


def _joined(pieces: Sequence[tuple[str, str]]) -> str:
    return "".join(blanks + word for blanks, word in pieces).strip()


def same_words(left: Sequence[str], right: Sequence[str]) -> bool:
    """Whether these set the same: hugepages= belongs to the hugepagesz= before it, the last console= is the first."""
    return sorted(left) == sorted(right) and in_order(left) == in_order(right)


def in_order(given: Sequence[str]) -> list[str]:
    """Those words whose order matters."""
    return [word for word in given if name_of(word).replace("-", "_") in _REPEATED and name_of(word) != "pci"]


def bls_replaced(entry: str, options: str) -> str:
    """The text of an entry with these options in place of its own."""
    return _OPTIONS.sub(lambda match: f"options {options}", entry, count=1)


def spellings(options: str, keys: Collection[str], wanted: Sequence[str]) -> list[str]:
    """How words that set one of these keys, and are not wanted, are written: bare, in quotes, or with a tail that a ";"
    cuts off."""
    return [
        word for word in written(options) if _written_key(word) in keys and grub_words(word)[0] not in wanted
    ]


def others(options: str, keys: Collection[str]) -> list[str]:
    """The kernel's words, as they are written, that set none of these."""
    return [word for word in written(options) if _written_key(word) not in keys]


def others_of_names(options: str, names: Collection[str], keys: Collection[str]) -> list[str]:
    """The words, as they are written, whose name before the "=" is one of these and that set none of the keys."""
    return [word for word in others(options, keys) if name_of(word.lstrip("'\"")) in names]


def name_of(word: str) -> str:
    """What stands before the "=", which is all that grubby compares."""
    return word.partition("=")[0]


def share_a_name(left: Sequence[str], right: Collection[str]) -> bool:
    """Whether a word of the left and one of the right, or the key of one, have one name."""
    return not _names(left).isdisjoint(_names(right))


def _names(given: Iterable[str]) -> set[str]:
    return {name_of(word.lstrip("'\"")).replace("-", "_") for word in given}


def _written_key(word: str) -> Optional[str]:
    taken = grub_words(word)
    return key_of(taken[0]) if taken else None


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
