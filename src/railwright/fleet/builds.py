"""Builds for a fleet: for which GPUs, from what, and how packages go from the build node to every other one."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from railwright import whole
from railwright.node.builder import Archive, Built, store
from railwright.node.builder.archive import NAME
from railwright.node.model import Facts, InputError, from_json, to_json
from railwright.node.model.values import SHA256, like
from railwright.plan import cuda
from railwright.plan.stack import cuda as table
from railwright.plan.stack.pairs import version
from railwright.report.visible import visible

Json = dict[str, Any]
# What a site pastes into its policy, and what later runs bring to new nodes.
NOTE = "built.json"
_MOST_FILES = 64


@dataclass(frozen=True)
class Wanted:
    """gencode: for nvcc. made: capabilities that code is made for. notes: what there is to know."""

    gencode: str
    made: tuple[str, ...]
    notes: tuple[str, ...] = ()


def for_fleet(toolkit: str, facts: Mapping[str, Facts | None]) -> Wanted:
    """For whom code is made: all GPUs of all nodes. None: a node that was not read. Raises InputError."""
    left = [name for name, node in facts.items() if node is None]
    if left or not facts:
        raise InputError(
            "the fleet", f"not read: {', '.join(sorted(left)) or 'any node'}, so nobody knows its GPUs",
            "read every node, or state the fleet's compute capabilities: nccl_build_architectures",
        )  # fmt: skip
    seen: dict[str, list[str]] = {}
    for name, node in sorted(facts.items()):
        known, unknown = cuda.capabilities(node) if node is not None else ({}, ())
        if unknown:
            raise InputError(
                f"{name}.{unknown[0]}", "is a chip that is not in the table of compute capabilities",
                "state the fleet's: nccl_build_architectures",
            )  # fmt: skip
        for capability in set(known.values()):
            seen.setdefault(capability, []).append(name)
    if not seen:
        raise InputError("the fleet", "has no GPU", "state for which one: nccl_build_architectures")
    return for_capabilities(toolkit, seen)


def for_capabilities(toolkit: str, seen: Mapping[str, Iterable[str]]) -> Wanted:
    """The same for capabilities that are known, each with who has it. Raises InputError."""
    for capability in seen:
        if capability not in table.ARCHITECTURES:
            known = ", ".join(table.ARCHITECTURES)
            raise InputError("nccl_build_architectures", f"found {capability!r}", f"expected some of {known}")
    words, made, without = table.gencode(toolkit, seen)
    if without:
        raise InputError(
            "nccl_build_toolkit",
            f"CUDA {toolkit} makes no code for compute capability {', '.join(without)}, which "
            f"{', '.join(sorted(name for each in without for name in seen[each]))} has",
            "take a toolkit that knows all GPUs of the fleet; see `nvcc --list-gpu-code`",
        )  # fmt: skip
    notes = [
        f"compute capability {each} ({', '.join(names)}) runs code of {table.code_for(toolkit, each)}: CUDA {toolkit} "
        "does not know its own"
        for each, names in sorted(seen.items(), key=lambda row: version(row[0]))
        if table.code_for(toolkit, each) != each
    ]
    if any(table.knows(toolkit, each) is None for each in seen):
        notes.append(f"CUDA {toolkit} is newer than the last one whose architectures were read: nvcc decides")
    return Wanted(words, made, tuple(notes))


def requests(options: Mapping[str, Any], wanted: Wanted) -> list[Json]:
    """What node_build is asked for. options: of the role, without their prefix."""
    codes = ".".join(f"sm{each.replace('.', '')}" for each in wanted.made)
    common = {
        "toolkit": options["toolkit"],
        "cuda": options["cuda"],
        "gencode": wanted.gencode,
        "architectures": list(wanted.made),
        # Other GPUs give other packages, so they must not bear the same version.
        "revision": options["revision"] or f"1.{codes}",
    }
    found = [{**common, "product": "nccl", "source": dict(options["source"]), "make": dict(options["make"])}]
    if options["tests_source"]:
        tests = {
            "product": "nccl-tests",
            "source": dict(options["tests_source"]),
            "mpi": options["mpi"] or None,
        }
        found.append({**common, **tests})
    return found


def admitted(answer: Any) -> Built:
    """What a build node answered. Raises InputError for what cannot be an archive of ours."""
    built = from_json(Built, answer, "built")
    # It names a folder on the controller.
    like(built.archive.sha256, SHA256, "built.archive.sha256", "64 hexadecimal digits")
    for name in built.archive.files:
        if not NAME.fullmatch(name):
            raise InputError(f"built.archive.files.{name!r}", "is no name of a file of an archive")
    if len(built.archive.files) > _MOST_FILES or store.MANIFEST not in built.archive.files:
        raise InputError("built.archive.files", "is no archive of ours", "expected packages and a manifest")
    return built


def receive(folder: Path, archive: Archive, fetch: Callable[[str, Path], None]) -> bool:
    """The archive in FOLDER/SHA256 on the controller, whole or not at all; whether it had to be fetched.

    fetch: brings one file of the build node. Raises InputError for what is not as the manifest says.
    """
    place = folder / archive.sha256
    manifest, _ = store.read(place)
    if manifest is not None and store.manifest_digest(place) == archive.sha256:
        return False
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetched-") as scratch:
        files = {}
        for number, name in enumerate(sorted(archive.files)):
            files[name] = Path(scratch) / str(number)
            fetch(f"{archive.folder}/{name}", files[name])
        store.adopt(place, files, archive.sha256)
    return True


def note(folder: Path, built: Built, wanted: Wanted) -> Json:
    """Keeps FOLDER/built.json, which names the archive and holds the words for a policy; gives these words."""
    policy = {
        "nccl_library": {
            "packages": dict(built.archive.packages),
            "built": {"sha256": built.archive.sha256, "architectures": list(wanted.made)},
        }
    }
    said = {"archive": to_json(built.archive), "node_policy": policy}
    folder.mkdir(parents=True, exist_ok=True)
    whole.replace({folder / NOTE: (json.dumps(said, indent=2) + "\n").encode()})
    return policy


def noted(folder: Path) -> tuple[Archive, Path]:
    """The archive that was built last, and where it lies on the controller. Raises InputError."""
    path = folder / NOTE
    try:
        said = json.loads(path.read_text("utf-8"))
        archive = from_json(Archive, said["archive"], f"{path}.archive")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(str(path), "tells of no build", "run playbooks/build_nccl.yml") from error
    if not SHA256.fullmatch(archive.sha256):
        raise InputError(f"{path}.archive.sha256", "is no SHA-256", "run playbooks/build_nccl.yml again")
    place = folder / archive.sha256
    manifest, why = store.read(place)
    if manifest is None or store.manifest_digest(place) != archive.sha256:
        raise InputError(
            str(place), why or "is not there", "run playbooks/build_nccl.yml: it fetches it again"
        )
    return archive, place


def page(built: Built, policy: Json, notes: Iterable[str]) -> str:
    """What a person is told."""
    lines = []
    for product, seconds in built.seconds.items():
        verb = "built" if product in built.made else "taken from the cache, nothing was built"
        lines.append(f"{product}: {verb} ({seconds:.1f} s)")
    lines += [f"note: {each}" for each in (*notes, *built.notes)]
    lines += [f"{name} {each}" for name, each in sorted(built.archive.packages.items())]
    lines.append("To install them, state in node_policy:")
    lines += json.dumps(policy, indent=2).splitlines()
    return "\n".join(map(visible, lines))


def clear(folder: Path) -> None:
    """Takes away what a broken run has left of fetching."""
    for path in folder.glob(".fetched-*"):
        shutil.rmtree(path, ignore_errors=True)
