"""One container image by its digest, pulled before a job asks for it; and taken away where it came by us."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..model import InputError
from ..model.runtime_policy import IMAGE_TOOLS, image_reference
from .command import Said
from .environment_build import without_secrets
from .fields import Fields, expected
from .item import Claim, Done, Goal, Item, Kept, Node, Reading, Value, World
from .outcome import Refused
from .program import last_words, tools_of

_PRESENT = "present"
# containerd keeps Kubernetes' images in a namespace of their own (containerd documentation, "cri").
_CTR = ("ctr", "--namespace", "k8s.io", "images")
# Where podman keeps images, and what may say otherwise (containers-storage.conf(5)).
_STORAGE = "/var/lib/containers/storage"
_STORAGE_CONF = ("/etc/containers/storage.conf", "/usr/share/containers/storage.conf")
_PATH = re.compile(r'^[^#\n]*?"(/[^"\n]+)"', re.MULTILINE)
# By tool: what tells whether it is there, pulls it, and takes it away.
_VERBS: Mapping[str, tuple[Sequence[str], Sequence[str], Sequence[str]]] = {
    "podman": (("podman", "image", "exists"), ("podman", "pull", "--quiet"), ("podman", "rmi")),
    "docker": (
        ("docker", "image", "inspect", "--format", "{{.Id}}"),
        ("docker", "pull", "--quiet"),
        ("docker", "rmi"),
    ),
    "ctr": ((*_CTR, "ls", "--quiet"), (*_CTR, "pull"), (*_CTR, "rm")),
}


class ContainerImageItem(Item):
    """`{"kind": "container_image", "image": "registry.example/pytorch@sha256:...", "tool": "podman"}`.

    One cell: None, or "present". A tag beside the digest is for people: the digest alone decides.
    """

    kind = "container_image"
    turn = 45

    def __init__(self, fields: Fields, entry: Mapping[str, Any], blobs: Mapping[str, bytes]) -> None:
        super().__init__(fields, entry, blobs)
        given = image_reference(fields.text("image"), f"{fields.where}.image")
        self.image = _without_tag(given)
        self.tool = fields.one_of("tool", IMAGE_TOOLS)

    @property
    def id(self) -> str:
        return f"container_image:{self.tool}:{self.image}"

    def claims(self, node: Node) -> Iterable[Claim]:
        return [("container_image", self.tool, self.image)]

    def read(self, node: Node, kept: Kept, world: World) -> Reading:
        # A tool that this run brings is not there yet: what it has is told when it is.
        # podman makes its storage when it is asked for the first time, and a check makes nothing.
        said = Said(1) if self.tool == "podman" and not _has_storage(node) else self._asked(node)
        note = f"{self.tool} does not answer: {without_secrets(said.word)}" if self._failed(said) else ""
        return Reading({"": _PRESENT if self._has(said) else None}, note)

    def _asked(self, node: Node) -> Said:
        ask = _VERBS[self.tool][0]
        return tools_of(node)([*ask, f"name=={self.image}"] if self.tool == "ctr" else [*ask, self.image])

    def _has(self, said: Said) -> bool:
        return said.ok and (self.tool != "ctr" or self.image in said.out.split())

    def _failed(self, said: Said) -> bool:
        """Whether the tool is there and could not tell (podman-image-exists(1); docker has one status for both)."""
        if said.ok or said.code is None:
            return False
        if self.tool == "podman":
            return said.code != 1
        return self.tool == "ctr" or "no such image" not in f"{said.out}{said.err}".lower()

    def release(self, reading: Reading, kept: Kept, world: World) -> Goal:
        if reading.note:
            raise Refused(reading.note, "start it, then put back again")
        return super().release(reading, kept, world)

    def wanted(self, reading: Reading) -> Mapping[str, Value]:
        return {"": _PRESENT}

    def write(self, node: Node, reading: Reading, goal: Mapping[str, Value], world: World) -> Done:
        _, pull, remove = _VERBS[self.tool]
        verb = pull if goal[""] == _PRESENT else remove
        said = tools_of(node)([*verb, self.image])
        if said.code is None:
            raise Refused(
                f"the node has no {self.tool}", "install it (slice container_runtime), or name another tool"
            )
        if not said.ok:
            words = without_secrets(last_words(said, 3))
            remedy = (
                f"pull it by hand as root ({' '.join(pull)}); a registry that asks who you are is logged into there"
                if verb is pull
                else "end the containers that use it, then put back again"
            )
            raise Refused(f"{self.tool}: {words}", remedy)
        if self._has(self._asked(node)) != (goal[""] == _PRESENT):
            raise Refused(
                f"{self.tool} ended well, and {self.image} is {'not ' if verb is pull else 'still '}there",
                "see what it says by hand",
                changed=True,
            )
        return Done()

    def check_cell(self, cell: str, value: Value, where: str) -> None:
        if cell != "":
            raise InputError(where, f"unknown cell {cell!r}")
        if value not in (None, _PRESENT):
            raise expected(where, f"null or {_PRESENT!r}", value)

    def action(self, reading: Reading, goal: Mapping[str, Value]) -> str:
        return "pull" if goal[""] == _PRESENT else "remove"


def _has_storage(node: Node) -> bool:
    """Whether podman has kept anything on this node yet; true where that cannot be told."""
    places = {_STORAGE}
    for path in _STORAGE_CONF:
        try:
            with open(node.at(path), encoding="utf-8", errors="backslashreplace") as file:
                places.update(_PATH.findall(file.read(1024 * 1024)))
        except FileNotFoundError:
            continue
        except OSError:
            return True
    return any(os.path.exists(node.at(place)) for place in places)


def _without_tag(image: str) -> str:
    """docker and podman refuse a tag beside a digest in some versions, and none of them looks at it."""
    name, _, digest = image.partition("@")
    folder, slash, last = name.rpartition("/")
    return f"{folder}{slash}{last.split(':')[0]}@{digest}"
