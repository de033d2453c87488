"""The command: read this machine, tell what would leave it, and write that to one new file."""

from __future__ import annotations

import argparse
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from .. import __version__
from ..node.discover import discover
from ..node.discover.nvidia_smi import with_nvidia_smi
from ..node.discover.tree import Tree
from ..node.model import Facts, InputError
from .bundle import CONTENTS, FACTS, FOLDER, members, pack, write_new
from .facts import redact_facts
from .names import names_of
from .pseudonyms import KEY_BYTES, Pseudonyms
from .text import TextRedactor
from .tools import ask, unanswered

_MOST_KEY_BYTES = 4096
_ABOUT = "what the kernel says of CPUs, PCI, GPUs, NICs, interrupts and settings"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of a run."""
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="the bundle to write, a new file (tar.gz)"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="read and redact, print what the bundle would hold, write nothing",
    )
    parser.add_argument(
        "--root",
        type=Path,
        default=Path("/"),
        metavar="DIR",
        help="a folder that holds another machine's sys and proc",
    )
    parser.add_argument(
        "--key-file",
        type=Path,
        metavar="FILE",
        help=f"{KEY_BYTES} secret bytes or more: pseudonyms are then the same in all bundles made with it",
    )


def run(chosen: argparse.Namespace, say: Callable[[str], object]) -> None:
    """One run; `say` prints a text. Raises InputError, and then nothing was written."""
    if chosen.output is None and not chosen.dry_run:
        raise InputError(
            "--output", "is missing", "name the bundle to write, or --dry-run to see what it would hold"
        )
    if chosen.output is not None and os.path.lexists(chosen.output):
        raise InputError(str(chosen.output), "is there already", "nothing is overwritten: name a new file")
    files = collect(chosen.root.resolve(), _key(chosen.key_file))
    say(files[CONTENTS].decode())
    if chosen.dry_run:
        say("Nothing was written (--dry-run).\n")
        return
    write_new(chosen.output, pack(files))
    say(f"Written: {chosen.output}\n")


def collect(root: Path, key: bytes) -> dict[str, bytes]:
    """The files of a bundle by name, CONTENTS.txt first. Raises InputError where this is no machine."""
    facts = discover(root, queues=False)
    if root == Path("/"):
        tools = ask(facts)
        gpus, conflicts = with_nvidia_smi(facts.gpus, tools)
        facts = replace(facts, gpus=gpus, conflicts=conflicts, tools=tools)
    pseudonyms = Pseudonyms(key)
    redacted = redact_facts(facts, TextRedactor(pseudonyms, names_of(Tree(root))), str(root))
    files = members(redacted)
    listed = "\n".join(_contents(files, redacted, pseudonyms)) + "\n"
    return {CONTENTS: listed.encode(), **files}


def _key(path: Path | None) -> bytes:
    if path is None:
        return secrets.token_bytes(KEY_BYTES)
    try:
        with open(path, "rb") as file:
            key = file.read(_MOST_KEY_BYTES + 1)
    except OSError as error:
        raise InputError(
            str(path), f"cannot be read: {error.strerror}", "make one: head -c 32 /dev/urandom"
        ) from None
    if not KEY_BYTES <= len(key) <= _MOST_KEY_BYTES:
        raise InputError(
            str(path),
            f"holds {len(key)} bytes"
            if len(key) <= _MOST_KEY_BYTES
            else f"holds more than {_MOST_KEY_BYTES} bytes",
            f"expected {KEY_BYTES} to {_MOST_KEY_BYTES} secret bytes: head -c {KEY_BYTES} /dev/urandom",
        )
    return key


def _contents(files: dict[str, bytes], facts: Facts, pseudonyms: Pseudonyms) -> Sequence[str]:
    counts = ((kind, count) for kind, count in pseudonyms.counts().items() if count)
    missing = [*_unread(facts), *unanswered(facts.tools)]
    return [
        f"A machine as railwright {__version__} sees it, with pseudonyms.",
        "",
        "Inside:",
        f"  {CONTENTS[len(FOLDER) :]:34} {'':15}  this list",
        *(
            f"  {name[len(FOLDER) :]:34} {len(data):>9} bytes  {_ABOUT if name == FACTS else 'what the tool said'}"
            for name, data in files.items()
        ),
        "",
        "Replaced by pseudonyms (different values of each kind):",
        *(f"  {count:>6}  {kind}" for kind, count in counts),
        "  The same value has the same pseudonym everywhere in this bundle. The key is not in it.",
        "",
        "Kept as it is:",
        "  product and part names, versions, PCI addresses, device names (but for a MAC address or GUID in one);",
        "  of IP addresses: what begins alike, private or global, and loopback, link-local and multicast prefixes;",
        "  of the kernel command line: the names of parameters, and values that tell how the kernel works;",
        "  numbers in sysctls.",
        "",
        "Never read: DMI serial numbers and UUIDs, files of users, logs, other processes' command lines.",
        "",
        "Not known here:" if missing else "Everything that was asked for was readable.",
        *(f"  {line}" for line in missing),
        "",
        "Please read the files before you send them; `tar xzf` unpacks them.",
    ]


def _unread(facts: Facts) -> Sequence[str]:
    """What the reader had no right to see, or nothing to see it by."""
    bare = sum(device.acs is None and device.port is None for device in facts.pci)
    unmarked = sum(nic.management is None for nic in facts.nics)
    told = (
        (bare, f"configuration space of {bare} of {len(facts.pci)} PCI functions (root may read it)"),
        (unmarked, f"vital product data of {unmarked} of {len(facts.nics)} network ports (root may read it)"),
        (facts.host.modules is None, "loaded modules: proc/modules is not readable"),
        (facts.host.cmdline is None, "the kernel command line: proc/cmdline is not readable"),
        (facts.host.driver is None, "what nvidia-smi says: the NVIDIA driver is not loaded"),
        (not facts.tools, "what tools say: they are asked on a live machine only"),
    )
    return [line for unread, line in told if unread]
