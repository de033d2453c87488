"""The daemon of a container runtime, started again for its configuration, and never while a container runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..discover.module_age import tree_of
from ..discover.tree import processes
from ..model import InputError
from ..model.container_facts import counted, spoken
from .fields import Fields
from .item import Done, Kept, Node, Reading, Value, World
from .outcome import Refused
from .program import last_words
from .unit_item import UnitItem, runs_systemd

_DAEMONS = ("docker.service", "containerd.service", "crio.service")
_CONFIGURATION = "configuration"
# dockerd knows --validate since 23; one that does not says so in these words.
_UNKNOWN = "unknown flag"


class ContainerDaemonItem(UnitItem):
    """`{"kind": "container_daemon", "name": "docker.service", "restart_if_older_than": [path, ...]}`.

    Its cells are those of a unit. A daemon that is not there yet, or does not run, has nothing to be started again for.
    """

    kind = "container_daemon"

    def __init__(self, fields: Fields, entry: Mapping[str, Any], blobs: Mapping[str, bytes]) -> None:
        super().__init__(fields, entry, blobs)
        if self.unit not in _DAEMONS:
            raise InputError(f"{fields.where}.name", f"found {self.unit!r}", f"one of {', '.join(_DAEMONS)}")
        if self.enabled is not None or self.state is not None:
            raise InputError(fields.where, "enabled and state are a unit's", "leave them out")

    @property
    def id(self) -> str:
        return f"container_daemon:{self.unit}"

    def read(self, node: Node, kept: Kept, world: World) -> Reading:
        if not runs_systemd(node):
            return Reading(
                {}, f"no systemd runs here: {self.unit} reads its configuration when it starts", "image"
            )
        return super().read(node, kept, world)

    def wanted(self, reading: Reading) -> Mapping[str, Value]:
        if reading.detail in ("image", "not-found", "new", "masked"):
            return {}
        wanted = super().wanted(reading)
        return wanted if reading.cells.get("active") == "active" else {}

    def foresee(self, node: Node, reading: Reading, goal: Mapping[str, Value]) -> None:
        if _CONFIGURATION in goal:
            self._must_be_idle(node)

    def write(self, node: Node, reading: Reading, goal: Mapping[str, Value], world: World) -> Done:
        if _CONFIGURATION in goal:
            # A container may have been started since this was looked at.
            self._must_be_idle(node)
            self._must_be_sound(node)
        return super().write(node, reading, goal, world)

    def _must_be_idle(self, node: Node) -> None:
        running = counted(processes(tree_of(node.root)).values())
        if running:
            raise Refused(
                f"{spoken(running)}, so {self.unit} is not started again, and its configuration is not in force yet",
                "wait until no container runs, or drain the node; then run again",
            )

    def _must_be_sound(self, node: Node) -> None:
        """A daemon that does not start any more is worse than one with its old configuration. Raises Refused."""
        if self.unit != "docker.service" or node.tools is None:
            return
        said = node.tools(["dockerd", "--validate", "--config-file", "/etc/docker/daemon.json"])
        if said.code not in (None, 0) and _UNKNOWN not in f"{said.out}{said.err}":
            raise Refused(
                f"dockerd does not take /etc/docker/daemon.json, so it is not started again: {last_words(said, 3)}",
                "mend the file, then run again",
            )
