"""`railwright image`: bake an image, and ask a tree or a disk what it must not hold."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from railwright import image
from railwright.image.seal import leftovers, must_not_hold, private_keys
from railwright.node.model import InputError, Policy

from .files import dump_json, policy_of, read_policy, read_yaml


def add_verbs(verbs: Any) -> None:
    """Register `image bake` and `image audit`."""
    parser = verbs.add_parser(
        "image",
        help="bake a bare-metal image that tunes itself at its first boot, and audit one",
        description="A bare-metal image: root file system, stack, program and policy, sealed, as disk and tarball.",
    )
    parts = parser.add_subparsers(required=True, metavar="PART")
    verb = parts.add_parser(
        "bake",
        help="make an image, or what of it is not there yet",
        description="Make the image of RECIPE below WORK. Stages that are there are kept; a run that was killed goes "
        "on from the last whole one.",
        epilog="Exit status: 0 baked, 2 bad input or usage, or a stage failed.",
    )
    verb.add_argument("recipe", type=Path, metavar="RECIPE", help="YAML or JSON")
    verb.add_argument("--work", type=Path, required=True, metavar="FOLDER", help="stages and images")
    verb.add_argument("--policy", type=Path, metavar="FILE", help="instead of the recipe's")
    verb.add_argument(
        "--debsbom", metavar="PROGRAM", help="the tool for bills of materials (default: on the PATH)"
    )
    verb.add_argument("--json", action="store_true", help="print JSON")
    verb.set_defaults(run=run_bake)

    verb = parts.add_parser(
        "audit",
        help="what of one machine a root file system still holds",
        description="List what of one machine is in TREE, and search a disk for texts that nobody may find.",
        epilog="Exit status: 0 nothing, 1 something was found, 2 bad input or usage.",
    )
    verb.add_argument("place", type=Path, metavar="TREE|DISK")
    verb.add_argument("--forbid", action="append", default=[], metavar="TEXT", help="must be nowhere in it")
    verb.set_defaults(run=run_audit)


def run_bake(arguments: argparse.Namespace, out: Console) -> int:
    """Bake. 0 baked."""
    recipe, policy = read_recipe(arguments.recipe, arguments.policy)
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        if not arguments.json:
            out.print(line, soft_wrap=True)

    baked = image.bake(recipe, policy, arguments.work, say, debsbom=arguments.debsbom)
    if arguments.json:
        page = {"folder": str(baked.folder), "key": baked.key, "made": list(baked.made)}
        out.file.write(dump_json({**page, "warnings": list(baked.warnings), "lines": lines}))
        return 0
    for warning in baked.warnings:
        out.print(f"warning: {warning}", soft_wrap=True)
    for file in sorted(baked.folder.iterdir()):
        out.print(f"{file}  {file.stat().st_size / 2**20:.1f} MiB", soft_wrap=True)
    return 0


def run_audit(arguments: argparse.Namespace, out: Console) -> int:
    """Search. 0 nothing found, 1 something."""
    place: Path = arguments.place
    if place.is_file():
        if not arguments.forbid:
            raise InputError(
                str(place),
                "is a disk, and no text is named that must not be in it",
                "name some by --forbid; a root file system is audited without",
            )
        try:
            must_not_hold(place, tuple(arguments.forbid))
        except InputError as error:
            out.print(str(error), soft_wrap=True)
            return 1
        out.print(
            f"{place}: none of {len(arguments.forbid)} texts is in it, free blocks included", soft_wrap=True
        )
        return 0
    if not place.is_dir():
        raise InputError(
            str(place), "is neither a folder nor a file", "name a root file system or a disk image"
        )
    found = leftovers(place) + [(path, "a private key") for path in private_keys(place)]
    found += [(path, "a forbidden text") for path in image.seal.holders(place, tuple(arguments.forbid))]
    for path, why in sorted(found):
        out.print(f"{path}: {why}", soft_wrap=True)
    if not found:
        out.print("nothing of one machine is in it")
    return 1 if found else 0


def read_recipe(path: Path, policy_file: Path | None) -> tuple[image.Recipe, Policy]:
    """The recipe of a YAML or JSON file and the policy that it, or `policy_file`, names. Raises InputError.

    Paths in it are taken from its own folder.
    """
    data = read_yaml(path)
    if not isinstance(data, dict):
        raise InputError(str(path), "is no recipe", "expected keys like name, epoch and debian")
    for key in ("tree", "files", "policy"):
        if isinstance(data.get(key), str):
            if "\0" in data[key] or not data[key]:
                raise InputError(f"{path}.{key}", f"found {data[key][:80]!r}", "expected the path of a file")
            data[key] = str((path.parent / data[key]).resolve())
    recipe = image.Recipe.read(data, str(path))
    if policy_file is not None:
        return recipe, read_policy(policy_file)
    if isinstance(recipe.policy, str):
        return recipe, read_policy(Path(recipe.policy))
    if isinstance(recipe.policy, dict):
        where = f"{path}: policy"
        return recipe, policy_of(recipe.policy, where)
    why = "missing" if recipe.policy is None else f"found a {type(recipe.policy).__name__}"
    raise InputError(f"{path}: policy", why, "give the policy, or a file with it: the first boot plans by it")
