"""The script `collect.sh`: one file of plain text that a person can read before running it.

It is a shell script that looks for a Python, and to that Python the same file is a program: the shell's part is a
string there. After it stand the sources, word for word, and a few lines that let Python import them from the file.
"""

from __future__ import annotations

import functools
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
# In the order of interest to a reader: what leaves the machine, then what is read.
_PARTS = (
    "collect",
    "node/discover",
    "node/model",
    "node/packages",
    "node/qos",
    "node/config_space.py",
    "node/nvconfig.py",
    "node/__init__.py",
    "__init__.py",
)
# What asks drivers through a socket, which a collector that sends nothing does not have.
_SOCKETS = "node/discover/queues.py"
_QUOTES = "'" * 3

_HEAD = """\
#!/bin/sh
# Railwright's collector. It reads this machine, replaces whatever names it by pseudonyms, tells what is left, and
# writes that into one new file. It changes nothing and sends nothing.
#
#   sh collect.sh --dry-run                            see what would be in the file
#   sh collect.sh --output FILE.tar.gz                 write it (as root it sees more)
#   sh collect.sh --help
#
# It needs a Python 3.9 or later and nothing else. Start reading at railwright/collect/command.py.
''':'
for python in python3 python3.14 python3.13 python3.12 python3.11 python3.10 python3.9 /usr/libexec/platform-python; do
    if "$python" -I -S -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then
        exec "$python" -I -S -B "$0" "$@"
    fi
done
echo 'collect.sh: no Python 3.9 or later was found on PATH' >&2
exit 2
'''

import importlib.abc
import importlib.util
import sys

SOURCES = {}
"""
_TAIL = """

class Sources(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    # Imports the sources above, so that they are the same files, line by line, that Railwright itself runs.

    def find_spec(self, name, path=None, target=None):
        found = any(place in SOURCES for place in self.places(name))
        return importlib.util.spec_from_loader(name, self) if found else None

    def is_package(self, name):
        return self.places(name)[1] in SOURCES

    def get_source(self, name):
        return next(SOURCES[place] for place in self.places(name) if place in SOURCES)

    def places(self, name):
        stem = name.replace(".", "/")
        return stem + ".py", stem + "/__init__.py"


sys.meta_path.insert(0, Sources())

from railwright.collect.__main__ import main

sys.exit(main())
"""


@functools.cache
def build() -> str:
    """The script's text."""
    return _HEAD + "".join(map(_section, _sources())) + _TAIL


def _section(path: Path) -> str:
    source = path.read_text(encoding="utf-8")
    if _QUOTES in source or "\r" in source or not source.endswith("\n"):
        raise ValueError(f"{path} cannot stand in a raw string: it holds {_QUOTES}, or a carriage return")
    return f'\nSOURCES["{path.relative_to(PACKAGE.parent).as_posix()}"] = r{_QUOTES}{source}{_QUOTES}\n'


def _sources() -> list[Path]:
    paths: list[Path] = []
    for part in _PARTS:
        path = PACKAGE / part
        paths += [path] if path.is_file() else sorted(path.rglob("*.py"))
    return [path for path in paths if path not in (Path(__file__).resolve(), PACKAGE / _SOCKETS)]
