"""What a build is asked for, and what it answers. Plain data; JSON on both sides."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Optional

from ..model import InputError, from_json
from ..model.values import SHA256, TOOLKIT, USER, like, one_of

PRODUCTS = ("nccl", "nccl-tests")
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}", re.ASCII)
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{0,40}", re.ASCII)
_REVISION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.~]{0,80}", re.ASCII)
# What is told of a build names its source, so an address must hold no secret.
_SECRET = re.compile(r"https?://[^/]*@|://[^/]*:[^/@]*@|\?", re.ASCII)
# What the project decides itself: a second word on it would make the cache's key lie.
OWN = (
    "BUILDDIR",
    "CUDA_HOME",
    "CUDA_LIB",
    "MPI",
    "MPI_HOME",
    "NCCL_HOME",
    "NVCC",
    "NVCC_GENCODE",
    "PKG_REVISION",
)


@dataclass(frozen=True)
class Source:
    """Where the source is, one of three. folder: on the build node. tarball: a path there, or an address; with its
    sha256. git: an address that git takes; with the whole commit."""

    folder: Optional[str] = None
    tarball: Optional[str] = None
    sha256: Optional[str] = None
    git: Optional[str] = None
    commit: Optional[str] = None


@dataclass(frozen=True)
class Request:
    """One product. toolkit: the version that nvcc must be ("13.0"), in the folder cuda. gencode, architectures: for
    whom code is made, as the planner says. revision: of the packages. make: further variables. mpi: the folder with
    MPI's include and lib, for nccl-tests."""

    product: str
    source: Source
    toolkit: str
    gencode: str
    architectures: tuple[str, ...]
    cuda: str = "/usr/local/cuda"
    revision: str = "1"
    make: dict[str, str] = field(default_factory=dict)
    mpi: Optional[str] = None


@dataclass(frozen=True)
class Place:
    """Where and as whom. user: who builds, where this runs as root. jobs: at once; 0 is one for each CPU. space: MiB
    that must be free in scratch."""

    scratch: str
    cache: str
    user: str = "nobody"
    jobs: int = 0
    space: int = 8192


@dataclass(frozen=True)
class Archive:
    """A folder with packages and their index, whole. sha256: of its manifest, which has the digest of each file.

    files: digest by name, the manifest's among them. packages: version by name.
    """

    sha256: str
    folder: str
    files: dict[str, str]
    packages: dict[str, str]
    architectures: tuple[str, ...]
    system: str


@dataclass(frozen=True)
class Built:
    """made: products that were built by this call; the others came from the cache. notes: what there is to know."""

    archive: Archive
    made: tuple[str, ...]
    seconds: dict[str, float]
    notes: tuple[str, ...] = ()


def read_requests(data: Any, where: str) -> tuple[Request, ...]:
    """Requests from JSON, NCCL first. Raises InputError with the place."""
    if not isinstance(data, list) or not data:
        raise InputError(where, "names nothing to build", "expected a list of products")
    found = []
    for number, entry in enumerate(data):
        place = f"{where}[{number}]"
        request = from_json(Request, entry, place)
        _sound(request, place)
        found.append(request)
    if [request.product for request in found] not in (["nccl"], ["nccl", "nccl-tests"]):
        raise InputError(
            where, "is no list that can be built", "expected nccl, and nccl-tests behind it or not"
        )
    return tuple(found)


def read_place(data: Any, where: str) -> Place:
    """Raises InputError with the place."""
    place = from_json(Place, data, where)
    for name in ("scratch", "cache"):
        value = getattr(place, name)
        if not value.startswith("/") or ".." in value.split("/") or value.rstrip("/") == "":
            raise InputError(f"{where}.{name}", f"found {value!r}", "expected an absolute path of a folder")
    like(place.user, USER, f"{where}.user", "the name of a user")
    if not 0 <= place.jobs <= 1024 or not 0 <= place.space <= 10**7:
        raise InputError(where, "jobs or space is out of range", "expected 0 to 1024 jobs, and MiB")
    return place


def _sound(request: Request, where: str) -> None:
    one_of(request.product, PRODUCTS, f"{where}.product")
    like(request.toolkit, TOOLKIT, f"{where}.toolkit", "a toolkit like 13.0, in quotes")
    like(request.revision, _REVISION, f"{where}.revision", "letters, digits and dots")
    for name, value in request.make.items():
        if not _VARIABLE.fullmatch(name) or name in OWN:
            raise InputError(
                f"{where}.make", f"{name!r} cannot be set", "expected variables of its makefiles"
            )
        if "\n" in value or "\0" in value:
            raise InputError(f"{where}.make.{name}", "is more than one line", "expected one line")
    for name in ("cuda", "mpi"):
        value = getattr(request, name)
        if value is not None and not value.startswith("/"):
            raise InputError(f"{where}.{name}", f"found {value!r}", "expected an absolute path")
    if request.product == "nccl-tests" and request.mpi is None:
        raise InputError(f"{where}.mpi", "missing", "name the folder with MPI's include and lib")
    if not request.architectures or not request.gencode:
        raise InputError(f"{where}.architectures", "names none", "see which GPUs the fleet has")
    _source(request.source, f"{where}.source")


def _source(source: Source, where: str) -> None:
    given = [name for name in ("folder", "tarball", "git") if getattr(source, name) is not None]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        raise InputError(where, f"found {found}", "expected one of folder, tarball and git")
    for name in ("tarball", "git"):
        address = getattr(source, name)
        if address is not None and "://" in address and _SECRET.search(address):
            raise InputError(
                f"{where}.{name}",
                "has a user, a password or a query in it, which every reader of the run would see",
                "leave it out: take a mirror without one, or lay the source on the build node",
            )
    if source.folder is not None and not source.folder.startswith("/"):
        raise InputError(f"{where}.folder", f"found {source.folder!r}", "expected an absolute path")
    if source.tarball is not None:
        like(source.sha256 or "", SHA256, f"{where}.sha256", "the tarball's SHA-256, 64 hexadecimal digits")
    if source.git is not None:
        like(source.commit or "", _COMMIT, f"{where}.commit", "a whole commit, 40 hexadecimal digits")
        if source.git.startswith("-"):
            raise InputError(f"{where}.git", f"found {source.git!r}", "expected an address")
