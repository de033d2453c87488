"""A build from its request to a folder of packages: nothing that the cache holds is made again."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from ..model import to_json
from ..state.outcome import Refused
from . import packing, recipes, store, tools
from . import source as sources
from .model import Archive, Built, Place, Request
from .worker import Worker, held


@dataclass(frozen=True)
class _Made:
    """One product in the cache. fresh: made by this run."""

    folder: Path
    manifest: dict[str, Any]
    fresh: bool
    note: str = ""

    @property
    def files(self) -> dict[str, Path]:
        return {name: self.folder / name for name in self.manifest["files"]}


def build(requests: tuple[Request, ...], place: Place) -> Built:
    """All products, each from the cache or made anew, and the folder that nodes install them from.

    Raises Refused for what is missing or failed; nothing is half-published then.
    """
    kind = tools.system()
    Path(place.cache).mkdir(parents=True, exist_ok=True, mode=0o755)
    made: dict[str, _Made] = {}
    seconds: dict[str, float] = {}
    for request in requests:
        begun = time.monotonic()
        made[request.product] = _product(request, place, kind, made.get("nccl"))
        seconds[request.product] = round(time.monotonic() - begun, 1)
    archive = _archive(list(made.values()), place, kind, requests[0])
    notes = tuple(one.note for one in made.values() if one.note)
    return Built(archive, tuple(name for name, one in made.items() if one.fresh), seconds, notes)


def inputs(request: Request, kind: str, nccl: Optional[str]) -> dict[str, Any]:
    """All that decides about the packages: the cache knows a build by the digest of it. nccl: that of NCCL's
    manifest, for what is made against it."""
    asked = {key: value for key, value in to_json(request).items() if key not in ("source", "cuda", "mpi")}
    return {
        **asked,
        "recipe": recipes.RECIPE,
        "packages": kind,
        "source": sources.identity(request.source),
        "tools": tools.versions(request, kind),
        "nccl": nccl,
    }


def _product(request: Request, place: Place, kind: str, nccl: Optional[_Made]) -> _Made:
    against = None if nccl is None else store.manifest_digest(nccl.folder)
    known = inputs(request, kind, against)
    key = store.text_digest(known)
    folder = Path(place.cache) / f"{request.product}-{key}"
    with held(Path(place.cache) / f"{request.product}-{key}.lock") as lock:
        manifest, torn = store.read(folder)
        if manifest is not None:
            return _Made(folder, manifest, False)
        worker = Worker(place, Path(place.scratch) / f"{request.product}-{key[:16]}", lock)
        worker.begin(place.space)
        files = _packages(request, worker, kind, nccl)
        recipes.must_be_plain(files.values())
        said = {
            "inputs": known,
            "packages": packing.versions(files.values(), kind),
            "code": _code(request, files, worker, kind),
        }
        store.publish(folder, files, said)
        # What is in the cache is whole; what it was made in is of no use any more.
        shutil.rmtree(worker.folder, ignore_errors=True)
    manifest, why = store.read(folder)
    if manifest is None:
        raise Refused(f"what was just kept is not whole: {why}", "see the disk of the build node")
    return _Made(folder, manifest, True, f"{torn}: it was built again" if torn else "")


def _packages(request: Request, worker: Worker, kind: str, nccl: Optional[_Made]) -> dict[str, Path]:
    source = sources.fetch(request.source, worker)
    if request.product == "nccl":
        return recipes.make_nccl(request, source, worker, kind)
    assert nccl is not None  # noqa: S101 -- read_requests has seen to the order
    return recipes.make_tests(request, source, worker, kind, nccl.files)


def _code(
    request: Request, files: Mapping[str, Path], worker: Worker, kind: str
) -> Optional[dict[str, list[str]]]:
    """What the packages really have code for; None where nobody can tell. Raises Refused where a GPU has none."""
    found = packing.code_of(packing.unpacked(dict(files), worker, kind), request.cuda)
    if found is None:
        return None
    for name, codes in found.items():
        missing = [each for each in request.architectures if each not in codes]
        if missing:
            raise Refused(
                f"{name} has code for {', '.join(codes)}, and none for {', '.join(missing)}",
                "see that its makefiles take NVCC_GENCODE",
            )
    if not found:
        raise Refused(
            "no library of the packages has code for a GPU", "see that its makefiles take NVCC_GENCODE"
        )
    return {name: list(codes) for name, codes in found.items()}


def _archive(made: list[_Made], place: Place, kind: str, first: Request) -> Archive:
    """The folder that nodes install from: all packages, their index and a manifest."""
    members = [store.manifest_digest(one.folder) for one in made]
    cache = Path(place.cache)
    folder = cache / f"archive-{store.text_digest([kind, first.architectures, members])}"
    with held(cache / f"{folder.name}.lock") as lock:
        manifest, _ = store.read(folder)
        if manifest is None:
            files = {name: path for one in made for name, path in one.files.items()}
            worker = Worker(place, Path(place.scratch) / folder.name[:24], lock)
            worker.begin(0)
            listed = packing.index(files, worker.folder / "index", worker, kind)
            said = {
                "packages": {
                    name: version for one in made for name, version in one.manifest["packages"].items()
                },
                "system": kind,
                "architectures": list(first.architectures),
                "toolkit": first.toolkit,
                "products": [
                    {key: one.manifest[key] for key in ("inputs", "packages", "code")} for one in made
                ],
            }
            store.publish(folder, {**files, **listed}, said)
            shutil.rmtree(worker.folder, ignore_errors=True)
            with suppress(FileNotFoundError):
                worker.log.unlink()
            manifest, why = store.read(folder)
            if manifest is None:
                raise Refused(f"what was just kept is not whole: {why}", "see the disk of the build node")
    return Archive(
        store.manifest_digest(folder),
        str(folder),
        store.files_of(folder, manifest),
        manifest["packages"],
        tuple(manifest["architectures"]),
        manifest["system"],
    )
