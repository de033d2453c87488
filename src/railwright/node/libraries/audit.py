"""Copies of NCCL, the CUDA runtime and libibverbs, and which of them each runtime and process of a machine loads.

A wheel of PyTorch brings its own NCCL, so that the one which was built for the fleet may lie there unused; a bare
dlopen in the same process gets another one. What counts is what is loaded: the files are asked, not the packages.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Optional

from ..discover.tree import Tree
from ..model import Finding, InputError
from .loader import Loader

LIBRARIES = ("libnccl", "libcudart", "libibverbs")
# Where runtimes lie. Homes are their owners' own: asked for by name only.
PLACES = ("opt", "usr/local", "usr/lib", "usr/lib64", "lib64", "srv")
_NAME = re.compile(r"(libnccl|libcudart|libibverbs)\.so\.\d[\d.]*")
_VERSION = re.compile(r"lib[a-z]+\.so\.(\d+(?:\.\d+)+)")
# The text that NCCL_DEBUG=VERSION prints is a constant of the build (NCCL src/init.cc, VERSION_STRING).
_NCCL = re.compile(rb"NCCL version (\d+\.\d+\.\d+)")
# What loads NCCL in the runtimes of the field, below site-packages or alone.
_CONSUMERS = (
    (re.compile(r".*/torch/_C\.[^/]*\.so"), "PyTorch"),
    (re.compile(r".*/cupy_backends/cuda/libs/nccl\.[^/]*\.so"), "CuPy"),
    (re.compile(r".*/jax_plugins/xla_cuda\d*/xla_cuda_plugin\.so"), "JAX"),
    (re.compile(r".*/(?:all_reduce|all_gather|reduce_scatter|sendrecv|alltoall)_perf"), "nccl-tests"),
)
_WHEEL = re.compile(r"(nvidia_nccl_cu\d+|nvidia_cuda_runtime(?:_cu\d+)?)-([^-/]+)\.dist-info")
_PROFILES = ("etc/environment", "etc/profile", "etc/ld.so.preload")
_LD_PATH = re.compile(r"^\s*(?:export\s+)?(LD_LIBRARY_PATH|LD_PRELOAD)\s*=\s*(\S*)", re.MULTILINE)
_MAPS_BYTES = 32 * 1024 * 1024
_MOST_FOLDERS = 200_000
_DEEPEST = 14
_CHUNK = 1 << 20
_MOST_BYTES = 2 << 30


@dataclass(frozen=True)
class Copy:
    """One file. version: as the file says (NCCL), else by its name or its wheel; None: none tells."""

    library: str
    path: str
    version: Optional[str]

    def __str__(self) -> str:
        return f"{self.library} {self.version or 'of unknown version'} from /{self.path}"


@dataclass(frozen=True)
class Runtime:
    """What one consumer loads: library to the copy, and the rule of the dynamic linker that found it."""

    name: str
    path: str
    loads: tuple[tuple[Copy, str], ...]
    missing: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        return f"{self.name} at /{self.path}"


@dataclass(frozen=True)
class Process:
    """A running process that holds one of the libraries. deleted: the file was replaced since it was started."""

    pid: int
    command: str
    copies: tuple[Copy, ...]
    deleted: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        return f"process {self.pid} ({self.command})"


@dataclass(frozen=True)
class Audit:
    """bare: what a dlopen by name gets, in a process that has loaded none yet."""

    copies: tuple[Copy, ...] = ()
    bare: tuple[Copy, ...] = ()
    runtimes: tuple[Runtime, ...] = ()
    processes: tuple[Process, ...] = ()
    findings: tuple[Finding, ...] = ()


def audit(tree: Tree, *, expect: Sequence[tuple[str, str]] = (), places: Iterable[str] = PLACES) -> Audit:
    """The audit of a machine.

    expect: (library, version) that is meant: a version is met by any that begins with it ("2.28" by 2.28.3). places:
    folders below the root to look through. Reads files only, and runs nothing of what it finds.
    """
    eye = _Eye(tree)
    files = tuple(_files(tree, places))
    copies = tuple(
        dict.fromkeys(
            copy for copy in (eye.copy(path) for path in files if _is_library(path)) if copy is not None
        )
    )
    runtimes = tuple(
        eye.runtime(words, path)
        for path in files
        for shape, words in _CONSUMERS
        if shape.fullmatch(f"/{path}")
    )
    bare = tuple(eye.bare(copies))
    processes = tuple(eye.processes())
    found = (
        *_other_versions(runtimes, processes, expect),
        *_two_answers(runtimes, bare),
        *_two_wheels(files),
        *_missing(runtimes),
        *_replaced(processes),
        *_profiles(tree),
    )
    return Audit(copies, bare, runtimes, processes, found)


class _Eye:
    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._loader = Loader(tree)
        self._copies: dict[str, Optional[Copy]] = {}

    def copy(self, path: str) -> Optional[Copy]:
        """The library at a path, by its real file; None where there is none."""
        try:
            real = self._tree.resolve(path)
        except InputError:
            # A link of a recorded tree that leads out of it.
            return None
        if real is None:
            return None
        if real not in self._copies:
            library = posixpath.basename(real).partition(".")[0]
            known = library in LIBRARIES and self._loader.object(real) is not None
            self._copies[real] = Copy(library, real, self._version(library, real)) if known else None
        return self._copies[real]

    def _version(self, library: str, path: str) -> Optional[str]:
        if library == "libnccl":
            said = self._said(path)
            if said is not None:
                return said
        name = posixpath.basename(path)
        if library == "libibverbs":
            # rdma-core numbers it 1.<symbol version>.<rdma-core's own>.0 (its CMakeLists.txt).
            parts = name.split(".so.")[-1].split(".")
            return parts[2] if len(parts) == 4 else None
        match = _VERSION.fullmatch(name)
        return match[1] if match else self._of_wheel(path)

    def _said(self, path: str) -> Optional[str]:
        file = self._tree.opened(path)
        if file is None:
            return None
        with file:
            before, size = b"", 0
            while size < _MOST_BYTES:
                chunk = file.read(_CHUNK)
                if not chunk:
                    return None
                match = _NCCL.search(before + chunk)
                if match:
                    return match[1].decode()
                before, size = chunk[-64:], size + len(chunk)
        return None

    def _of_wheel(self, path: str) -> Optional[str]:
        """site-packages/nvidia/cuda_runtime/lib/libcudart.so.12: the version is in the name of a neighbour."""
        packages, mark, _ = path.partition("/nvidia/")
        if not mark:
            return None
        found = [_WHEEL.fullmatch(name) for name in self._tree.names(packages)]
        versions = {match[2] for match in found if match and match[1].startswith("nvidia_cuda_runtime")}
        return versions.pop() if len(versions) == 1 else None

    def runtime(self, words: str, path: str) -> Runtime:
        """What the dynamic linker makes of a consumer."""
        loads, missing = [], []
        for one in self._loader.load(path):
            if not _NAME.fullmatch(one.name):
                continue
            copy = None if one.path is None else self.copy(one.path)
            if copy is None:
                missing.append(one.name)
            else:
                loads.append((copy, one.because))
        return Runtime(words, path, tuple(loads), tuple(missing))

    def bare(self, copies: Sequence[Copy]) -> Iterator[Copy]:
        """What a dlopen of each library's name gets, for the names that the copies go by."""
        for name, kind in dict.fromkeys(
            (found.soname, found.kind)
            for found in (self._loader.object(copy.path) for copy in copies)
            if found is not None and found.soname is not None
        ):
            place = self._loader.by_name(name, kind)
            copy = None if place is None else self.copy(place[0])
            if copy is not None:
                yield copy

    def processes(self) -> Iterator[Process]:
        """Processes of the machine that hold one of the libraries, by number."""
        for pid in sorted(int(name) for name in self._tree.names("proc") if name.isdigit()):
            maps = self._tree.data(f"proc/{pid}/maps", _MAPS_BYTES)
            if not maps or b".so" not in maps:
                continue
            paths: dict[str, None] = {}
            deleted: dict[str, None] = {}
            for line in maps.decode("utf-8", "backslashreplace").splitlines():
                fields = line.split(None, 5)
                if len(fields) == 6 and _NAME.fullmatch(posixpath.basename(fields[5].partition(" ")[0])):
                    gone = fields[5].endswith(" (deleted)")
                    (deleted if gone else paths)[fields[5].partition(" (deleted)")[0]] = None
            held = tuple(filter(None, (self.copy(path.lstrip("/")) for path in paths)))
            if held or deleted:
                command = (self._tree.text(f"proc/{pid}/comm") or "").strip()
                yield Process(pid, command, held, tuple(deleted))


def _files(tree: Tree, places: Iterable[str]) -> Iterator[str]:
    """Regular files below the places, each folder once however links lead to it, in order; bounded."""
    seen: set[str] = set()
    for place in places:
        waiting = [(real, 0) for real in [_folder(tree, place)] if real is not None]
        while waiting and len(seen) < _MOST_FOLDERS:
            folder, depth = waiting.pop()
            if folder in seen:
                continue
            seen.add(folder)
            below = []
            for entry in tree.entries(folder):
                path = f"{folder}/{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    below.append((path, depth + 1))
                elif entry.name.endswith(("_perf", ".so")) or ".so." in entry.name:
                    yield path
                if entry.name.endswith(".dist-info"):
                    yield path
            if depth < _DEEPEST:
                waiting += reversed(below)


def _folder(tree: Tree, path: str) -> Optional[str]:
    """The real folder; None where there is none, or a link leads out of a recorded tree."""
    try:
        return tree.resolve(path) if tree.is_folder(path) else None
    except InputError:
        return None


def _is_library(path: str) -> bool:
    return _NAME.fullmatch(posixpath.basename(path)) is not None


def _meets(version: Optional[str], wanted: str) -> bool:
    return version is not None and (version == wanted or version.startswith(f"{wanted}."))


def _other_versions(
    runtimes: Sequence[Runtime], processes: Sequence[Process], expect: Sequence[tuple[str, str]]
) -> Iterator[Finding]:
    for library, wanted in expect:
        for runtime in runtimes:
            for copy, because in runtime.loads:
                if copy.library == library and not _meets(copy.version, wanted):
                    yield Finding(
                        "libraries.other_version",
                        "error",
                        runtime.where,
                        f"loads {copy} ({because}), and {wanted} is meant",
                        "install the runtime that is built with what is meant, or take the one that it brings",
                    )
        for process in processes:
            for copy in process.copies:
                if copy.library == library and not _meets(copy.version, wanted):
                    yield Finding(
                        "libraries.other_version_runs",
                        "warning",
                        process.where,
                        f"has loaded {copy}, and {wanted} is meant",
                        "start it again with the runtime that is meant",
                    )


def _two_answers(runtimes: Sequence[Runtime], bare: Sequence[Copy]) -> Iterator[Finding]:
    for runtime in runtimes:
        for copy, _ in runtime.loads:
            for other in bare:
                if (
                    other.library == copy.library
                    and other.path != copy.path
                    and other.version != copy.version
                ):
                    yield Finding(
                        "libraries.two_answers",
                        "warning",
                        runtime.where,
                        f"loads {copy}, and whoever opens it by name alone gets {other}",
                        "keep one version on the machine, or import the runtime before what else opens the library",
                    )


def _two_wheels(files: Sequence[str]) -> Iterator[Finding]:
    wheels: dict[tuple[str, str], set[str]] = {}
    for path in files:
        match = _WHEEL.fullmatch(posixpath.basename(path))
        if match:
            kind = re.sub(r"_cu\d+$", "", match[1])
            wheels.setdefault((posixpath.dirname(path), kind), set()).add(f"{match[1]} {match[2]}")
    for (folder, _), names in wheels.items():
        if len(names) > 1:
            yield Finding(
                "libraries.two_wheels",
                "error",
                f"/{folder}",
                f"{' and '.join(sorted(names))} write the same file, and the one installed last won",
                "remove both and install the one that the runtime asks for",
            )


def _missing(runtimes: Sequence[Runtime]) -> Iterator[Finding]:
    for runtime in runtimes:
        for name in runtime.missing:
            yield Finding(
                "libraries.missing",
                "error",
                runtime.where,
                f"needs {name}, and the dynamic linker finds none",
                "install the package that holds it, or name its folder in /etc/ld.so.conf.d and run ldconfig",
            )


def _replaced(processes: Sequence[Process]) -> Iterator[Finding]:
    for process in processes:
        for path in process.deleted:
            yield Finding(
                "libraries.replaced",
                "warning",
                process.where,
                f"holds {path} as it was before it was replaced",
                "start it again",
            )


def _profiles(tree: Tree) -> Iterator[Finding]:
    names = (*_PROFILES, *(f"etc/profile.d/{name}" for name in tree.names("etc/profile.d")))
    for name in names:
        text = tree.text(name) if tree.exists(name) and not tree.is_folder(name) else None
        if not text:
            continue
        told = [match[1] for match in _LD_PATH.finditer(text)]
        if told or name.endswith("ld.so.preload"):
            yield Finding(
                "libraries.global_path",
                "warning",
                f"/{name}",
                f"sets {' and '.join(dict.fromkeys(told)) or 'libraries to preload'} for everybody,"
                " and that goes before what a runtime brings with it",
                "name the folder in /etc/ld.so.conf.d, or set it where the program that needs it is started",
            )
