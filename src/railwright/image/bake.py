"""The bake: its stages in order, each from the one before it."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from railwright.fleet import zipapp
from railwright.node.model import BootPolicy, InputError, Policy

from . import disk, initramfs, install, manifest, rootfs, seal, tarball
from .inside import Room
from .landing import landing, lay
from .recipe import Recipe, digest, of_policy
from .stages import Bench, Say, Stage, bench

SEALED, ROOT = "sealed.tar", "root.tar.gz"
MANIFEST, SUMS = "manifest.json", "SHA256SUMS"
_SOURCES = Path(__file__).parent


@dataclass(frozen=True)
class Baked:
    """A finished image. folder: its files; key: of all inputs; stages: which were made now; warnings: for a person."""

    folder: Path
    key: str
    made: tuple[str, ...]
    warnings: tuple[str, ...]


def bake(recipe: Recipe, policy: Policy, work: Path, say: Say, *, debsbom: str | None = None) -> Baked:
    """Makes the image in `work`, or what of it is not there yet. Raises InputError."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        raise InputError("the bake", "makes a root file system", "run it as root on Linux")
    policy = with_program(policy)
    with bench(work.resolve(), say) as here:
        return _Bake(recipe, policy, here, debsbom).run()


def with_program(policy: Policy) -> Policy:
    """The policy with the digest of the program that this checkout builds, where it names none."""
    asked = policy.boot if policy.boot is not None else BootPolicy()
    if asked.sha256 and asked.sha256 != zipapp.digest():
        raise InputError(
            "policy.boot.sha256", f"names another program than this checkout builds ({zipapp.digest()})",
            "leave it out, or bake with the checkout that built it",
        )  # fmt: skip
    return replace(policy, boot=replace(asked, sha256=zipapp.digest()))


def shape_unsaid(policy: Policy) -> list[str]:
    """What such an image could not refuse, or would not hold back."""
    shape = [
        f"policy.expect.{name} is not stated: a chassis with fewer {name} would be tuned as if it were whole"
        for name in ("gpus", "rails")
        if getattr(policy.expect, name) is None
    ]
    if policy.boot is None or not policy.boot.gate:
        shape.append(
            "policy.boot.gate names no unit: work would start on a machine that is not as planned, if later"
        )
    return shape


class _Bake:
    def __init__(self, recipe: Recipe, policy: Policy, here: Bench, debsbom: str | None) -> None:
        self.recipe, self.policy, self.here, self.debsbom = recipe, policy, here, debsbom
        # Without the forbidden texts: the key lies in the image, and a short text can be guessed from a digest.
        page = replace(recipe, debian=None, tree=None, files=None, policy=None, forbid=()).told()
        inputs = [rootfs.inputs(recipe), of_policy(policy), zipapp.digest(), page, _recipe_digest()]
        self.key = digest(inputs)
        self.ids = disk.Ids.of(self.key)
        self.made: list[str] = []

    def run(self) -> Baked:
        recipe, lock = self.recipe, self.here.lock
        base = self._stage(
            "rootfs", [rootfs.inputs(recipe), _digest_of("rootfs", "tarball", "inside")],
            lambda place: rootfs.make(recipe, place, lock),
        )  # fmt: skip
        installed = self._stage(
            "installed", [base.key, self.key],
            lambda place: install.make(recipe, self.policy, self.ids.root, base.place, place, lock),
        )  # fmt: skip
        sealed = self._stage(
            "sealed", [installed.key, recipe.forbid], lambda place: self._seal(installed.place, place)
        )
        bill = self._stage("manifest", sealed.key, lambda place: self._manifest(sealed.place, place))
        parts = [sealed, bill]
        if recipe.disk_gib is not None:
            parts.append(
                self._stage(
                    "disk", sealed.key,
                    lambda place: disk.make(recipe, self.ids, sealed.place / SEALED, place, lock),
                )
            )  # fmt: skip
        said = json.loads((installed.place / install.SAID).read_text("utf-8"))
        warnings = [*shape_unsaid(self.policy), *install.warned(said)]
        image = self._stage(
            "image", [part.key for part in parts], lambda place: self._collect(parts, warnings, place)
        )
        return Baked(image.place, self.key, tuple(self.made), tuple(warnings))

    def _stage(self, name: str, inputs: object, make: Any) -> Stage:
        stage = self.here.stage(name, inputs, make)
        self.made += [name] if stage.made else []
        return stage

    def _seal(self, installed: Path, place: Path) -> None:
        recipe, lock = self.recipe, self.here.lock
        tree = tarball.unpack(installed / install.TAR, place / "tree", lock)
        went = [tuple(row) for row in json.loads((installed / install.SEALED).read_text("utf-8"))]
        went += seal.seal(tree, recipe.sources)
        lay(tree, manifest.CARD, manifest.card(recipe, self.key))
        keys = seal.private_keys(tree)
        if keys:
            raise InputError(
                "the image",
                f"holds private keys: {', '.join(keys[:6])}",
                "take them out of the recipe's files or tree",
            )
        (place / "work").mkdir()
        inner = initramfs.held(Room(tree, place / "work", recipe.epoch, lock=lock), recipe.forbid)
        if inner:
            raise InputError(
                "the initramfs",
                f"holds {', '.join(inner[:6])}",
                "take it out of the recipe's files or tree, or leave out the package whose hook copies it",
            )
        held = seal.holders(tree, recipe.forbid)
        if held:
            raise InputError(
                "the image",
                f"a forbidden text is in {', '.join(held[:6])}",
                "take it out of the recipe's files",
            )
        left = seal.leftovers(tree)
        if left:
            raise InputError(
                "the image", f"is not sealed: {left[:6]}", "this is a fault of the bake: report it"
            )
        tarball.pack(tree, place / SEALED, recipe.epoch, lock)
        page = [{"path": path, "why": why} for path, why in went]
        (place / "sealed.json").write_text(json.dumps(page, indent=1) + "\n", "utf-8")
        for name in ("tree", "work"):
            shutil.rmtree(place / name)

    def _manifest(self, sealed: Path, place: Path) -> None:
        recipe, lock = self.recipe, self.here.lock
        tree = tarball.unpack(sealed / SEALED, place / "tree", lock)
        (place / "work").mkdir()
        room = Room(tree, place / "work", recipe.epoch, lock=lock)
        listed = manifest.packages(tree) or manifest.rpm_packages(room)
        files = manifest.write_files(tree, place / manifest.FILES)
        bills = manifest.sbom(recipe, tree, place, self.key, self.debsbom)
        for kernel in room.kernels:
            for name in (f"vmlinuz-{kernel}", f"initrd.img-{kernel}", f"initramfs-{kernel}.img"):
                file = landing(tree, f"boot/{name}")
                if file.is_file() and not file.is_symlink():
                    shutil.copyfile(file, place / name)
        page = {"packages": listed, "files": files, "sboms": bills, "kernels": room.kernels}
        (place / "content.json").write_text(json.dumps(page, indent=1) + "\n", "utf-8")
        for name in ("tree", "work"):
            shutil.rmtree(place / name)

    def _collect(self, parts: list[Stage], warnings: list[str], place: Path) -> None:
        """The files of the image, and what is said of them. They share their blocks with the stages that made them."""
        sealed, bill, *disks = parts
        _compress(sealed.place / SEALED, place / ROOT)
        for part in (bill, *disks):
            for file in sorted(part.place.iterdir()):
                if file.name != "content.json":
                    os.link(file, place / file.name)
        said = json.loads((bill.place / "content.json").read_text("utf-8"))
        page = {
            "schema": manifest.SCHEMA,
            "name": self.recipe.name,
            "key": self.key,
            "epoch": self.recipe.epoch,
            "recipe": self.recipe.told(),
            "program": zipapp.digest(),
            "policy": of_policy(self.policy),
            "warnings": warnings,
            "may_differ": list(manifest.DIFFERS),
            "kernels": said["kernels"],
            "artefacts": {path.name: manifest.checksum(path) for path in sorted(place.iterdir())},
            "sealed": json.loads((sealed.place / "sealed.json").read_text("utf-8")),
            "packages": said["packages"],
        }
        (place / MANIFEST).write_text(json.dumps(page, indent=1) + "\n", "utf-8")
        sums = {path.name: manifest.checksum(path)["sha256"] for path in sorted(place.iterdir())}
        (place / SUMS).write_text("".join(f"{sha256}  {name}\n" for name, sha256 in sums.items()), "utf-8")


def _compress(source: Path, target: Path) -> None:
    """A gzip file without a name and a time: what MAAS and curtin unpack."""
    with (
        source.open("rb") as plain,
        target.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", compresslevel=1, fileobj=raw, mtime=0) as packed,
    ):
        shutil.copyfileobj(plain, packed, 1 << 20)


def _recipe_digest() -> str:
    return _digest_of(*(path.stem for path in sorted(_SOURCES.glob("*.py"))))


def _digest_of(*names: str) -> str:
    """Of the parts of the bake that make a stage: another way to make it makes another."""
    return digest(*((_SOURCES / f"{name}.py").read_bytes() for name in names))
