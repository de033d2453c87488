"""Write what this machine is, with pseudonyms for whatever names it, into one file.

It reads and asks; it changes nothing, sends nothing and writes nothing but that file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ..node.model import InputError
from .command import add_options, run


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 good, 2 bad input or usage."""
    parser = argparse.ArgumentParser(
        prog="collect.sh", description=__doc__, epilog="Exit status: 0 good, 2 bad usage."
    )
    add_options(parser)
    try:
        run(parser.parse_args(arguments), sys.stdout.write)
        sys.stdout.flush()
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
