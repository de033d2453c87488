"""The command `railwright`.

Exit codes of all verbs: 0 good, 1 findings or drift, 2 bad input or usage, 3 refused. `plan` exits 0 whenever it
planned, findings or not.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Sequence

from rich.console import Console

from railwright import __version__
from railwright.node.model import InputError
from railwright.report.visible import visible

from . import audit, collect, fabric, fleet, image, inventory, machine, page, place, planning, site

GOOD, FINDINGS, BAD_INPUT, REFUSED = 0, 1, 2, 3


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code."""
    _open_streams()
    arguments = _parser().parse_args(argv)
    # A pipe has no width; tables of PCI addresses need more than the 80 columns that are taken then.
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 110
    out = _Console(highlight=False, markup=False, emoji=False, width=width)
    try:
        code: int = arguments.run(arguments, out)
        sys.stdout.flush()
    except InputError as error:
        Console(stderr=True, highlight=False, markup=False).print(
            visible(f"railwright: {error}"), soft_wrap=True
        )
        return BAD_INPUT
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader went away (`| head`): point stdout at nothing, or the interpreter complains at exit.
        _drop_stdout()
        return GOOD
    except OSError as error:
        if error.filename is not None or error.errno not in (
            errno.ENOSPC,
            errno.EDQUOT,
            errno.EFBIG,
            errno.EIO,
        ):
            raise
        # Neither good nor a finding: the reader got a part of it.
        _drop_stdout()
        print(f"railwright: standard output: cannot be written: {error.strerror}", file=sys.stderr)
        return BAD_INPUT
    return code


class _Console(Console):
    """One that leaves a reader who went away to `main`; Rich ends the program with the status of a finding."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def _open_streams() -> None:
    """A caller that closed standard output or error (`>&-`) gets nothing there, and no traceback."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 # open until the end


def _drop_stdout() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="railwright",
        description="Bring bare NVIDIA GPU machines to tuned training nodes: discover, plan, tune, verify, report.",
        epilog="Exit codes: 0 good, 1 findings or drift, 2 bad input or usage, 3 refused.",
    )
    parser.add_argument("--version", action="version", version=f"railwright {__version__}")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for room in (planning, machine, audit, collect, page, site, fabric, fleet, place, inventory, image):
        room.add_verbs(verbs)
    return parser
