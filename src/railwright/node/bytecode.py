"""What Python makes of this package's source, kept on a node from one call to the next.

The package comes to a node as an archive (Ansible's, or the boot unit's zipapp), and Python keeps no bytecode of what
it imports from one: it compiled some 130 files in each call, which took two thirds of a call that changes nothing.
So the writer keeps the bytecode in /run, by the digest of its source, and whoever reads it there need not compile. A
boot empties /run; a whole revert takes the file away; a reader and check mode never write it. It is used when root (or
who runs this) owns it and nobody else may write to it, and it is whole; else the source is compiled as ever.

The file: a line that names the form, Python's magic number and level of optimisation, the SHA-256 of the rest; then, as
`marshal` writes it, `{SHA-256 of a source: its code, marshalled}`.
"""

from __future__ import annotations

import glob
import hashlib
import importlib.util
import marshal
import os
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any, Optional
from zipimport import ZipImportError, zipimporter

# One for each version of Python that a node has run this with.
_PLACES = "/run/railwright.code."
PLACE = f"{_PLACES}{sys.implementation.cache_tag}"
# Code of versions that no controller brings any more is thrown away when the file has grown to this many bytes.
_MOST = 8 << 20
_FORM = f"railwright.code/1 {importlib.util.MAGIC_NUMBER.hex()} {sys.flags.optimize} "


class _Code:
    """The code of sources, by their digest. fresh: something was compiled that the file does not have."""

    def __init__(self) -> None:
        self.kept = _read(PLACE)
        self.used: dict[bytes, bytes] = {}
        self.fresh = False

    def of(self, source: bytes, filename: str) -> CodeType:
        key = hashlib.sha256(source).digest()
        if key in self.kept:
            code: CodeType = marshal.loads(self.kept[key])  # noqa: S302 - root's own, see `_read`
            self.used[key] = self.kept[key]
            return code
        code = compile(source, filename, "exec", dont_inherit=True)
        self.used[key] = marshal.dumps(code)
        self.fresh = True
        return code

    def write(self) -> None:
        """Raises OSError."""
        together = {**self.kept, **self.used}
        if sum(map(len, together.values())) > _MOST:
            together = self.used
        body = marshal.dumps(together)
        new = f"{PLACE}.new"
        with suppress(FileNotFoundError):
            os.unlink(new)
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with open(handle, "wb") as file:
                file.write(_head(body) + body)
            os.rename(new, PLACE)
        except OSError:
            os.unlink(new)
            raise
        self.kept, self.fresh = together, False


class _Loader:
    """Loads a module of the archive with the code that is kept of its source."""

    def __init__(self, filename: str, source: bytes, code: _Code) -> None:
        self._filename = filename
        self._source = source
        self._code = code

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        code = self._code.of(self._source, self._filename)
        exec(code, module.__dict__)  # noqa: S102 - as every loader does

    def get_source(self, name: str) -> str:
        """For the lines of a traceback."""
        return self._source.decode("utf-8")


class _Finder:
    """Asked for the modules of this package alone, and before Python's own: zipimport compiles a source to find it."""

    def __init__(self, package: str, code: _Code) -> None:
        self.code = code
        self._package = f"{package}."
        self._archives: dict[str, zipimporter] = {}

    def find_spec(
        self, name: str, path: Optional[Sequence[str]], target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        if not name.startswith(self._package):
            return None
        for folder in path or ():
            base = f"{folder}{os.sep}{name.rpartition('.')[2]}"
            for filename, is_package in ((f"{base}.py", False), (f"{base}{os.sep}__init__.py", True)):
                try:
                    source = self._archive(folder).get_data(filename)
                except (ZipImportError, OSError):  # no archive, or no such file in it
                    continue
                loader: Any = _Loader(filename, source, self.code)
                spec = ModuleSpec(name, loader, origin=filename, is_package=is_package)
                spec.has_location = True
                if spec.submodule_search_locations is not None:
                    spec.submodule_search_locations.append(base)
                return spec
        return None

    def _archive(self, folder: str) -> zipimporter:
        """Raises ZipImportError."""
        if folder not in self._archives:
            self._archives[folder] = zipimporter(folder)
        return self._archives[folder]


def use(spec: Optional[ModuleSpec] = __spec__) -> None:
    """From here on the package's modules are loaded so, where this one (spec) came from an archive."""
    if spec is not None and isinstance(spec.loader, zipimporter) and _finder() is None:
        sys.meta_path.insert(0, _Finder(spec.name.rsplit(".", 2)[0], _Code()))


def keep() -> None:
    """Keeps what had to be compiled. A node that has no room for it only compiles again."""
    finder = _finder()
    if finder is not None and finder.code.fresh:
        with suppress(OSError):
            finder.code.write()


def forget() -> None:
    """Takes the files away, with what a killed writer left of one."""
    for place in glob.glob(f"{_PLACES}*"):
        with suppress(OSError):
            os.unlink(place)


def _finder() -> Optional[_Finder]:
    return next((finder for finder in sys.meta_path if isinstance(finder, _Finder)), None)


def _head(body: bytes) -> bytes:
    return f"{_FORM}{hashlib.sha256(body).hexdigest()}\n".encode("ascii")


def _read(path: str) -> dict[bytes, bytes]:
    """What is kept in that file: nothing if anybody else could have written it, or if it is torn."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return {}
    try:
        found = os.fstat(handle)
        ours = stat.S_ISREG(found.st_mode) and found.st_uid in {0, os.geteuid()} and not found.st_mode & 0o022
        data = os.read(handle, 2 * _MOST) if ours else b""
    except OSError:
        return {}
    finally:
        os.close(handle)
    length = len(_head(b""))
    head, body = data[:length], data[length:]
    if head != _head(body):
        return {}
    kept: dict[bytes, bytes] = marshal.loads(body)  # noqa: S302 - nobody else could write it
    return kept
