"""A kernel module that DKMS has built, built again where what it is linked against is newer."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

from ..discover.module_age import Ask, behind, installed, releases, tree_of
from .fields import Fields
from .item import Claim, Done, Goal, Item, Kept, Node, Reading, Value, World
from .made_item import item_name, one_word
from .outcome import Refused
from .program import last_words, tools_of

_CELL, _CURRENT, _OLDER = "modules", "current", "older"
# dkms before 3.0.7 (Ubuntu 22.04 has 2.8.7) says this, whatever --force says, and ends with 0.
_STANDING = "already built for kernel"


class DkmsModuleItem(Item):
    """`{"kind": "dkms_module", "name": "nvidia"}`: its modules go with the RDMA stack's that lie beside the kernel's.

    name: as every archive but Debian's has it; what DKMS calls nvidia-current-open is nvidia here.
    The cell is "current" or "older", of all kernels together; it is not recorded: building again takes nothing away.
    """

    kind = "dkms_module"
    turn = 3
    unrecorded = (_CELL,)

    def __init__(self, fields: Fields, entry: Mapping[str, Any], blobs: Mapping[str, bytes]) -> None:
        super().__init__(fields, entry, blobs)
        self.module = item_name(fields, "nvidia")

    @property
    def id(self) -> str:
        return f"dkms_module:{self.module}"

    def claims(self, node: Node) -> Iterable[Claim]:
        return [("dkms_module", self.module)]

    def read(self, node: Node, kept: Kept, world: World) -> Reading:
        tree = tree_of(node.root)
        ask = _ask(node)
        old = [release for release in releases(tree) if behind(tree, release, ask)]
        told = {release: installed(tree, self.module, release) for release in old}
        mine = tuple(release for release, one in told.items() if one is not None)
        others = [release for release, one in told.items() if one is None]
        note = (
            f"kernel {', '.join(others)}: its GPU modules were built against another RDMA stack, and not by DKMS"
            if others
            else ""
        )
        return Reading({_CELL: _OLDER if mine else _CURRENT}, note, mine)

    def wanted(self, reading: Reading) -> Mapping[str, Value]:
        return {_CELL: _CURRENT}

    def goal(self, reading: Reading, kept: Kept) -> Goal:
        goal = super().goal(reading, Kept(kept.entry))
        if not goal.cells:
            return goal
        return Goal(goal.cells, (*goal.notes, f"for kernel {', '.join(reading.detail)}"), goal.dropped)

    def release(self, reading: Reading, kept: Kept, world: World) -> Goal:
        return Goal({})

    def foresee(self, node: Node, reading: Reading, goal: Mapping[str, Value]) -> None:
        tools_of(node)

    def write(self, node: Node, reading: Reading, goal: Mapping[str, Value], world: World) -> Done:
        run = tools_of(node)
        tree = tree_of(node.root)
        for release in reading.detail:
            one = installed(tree, self.module, release)
            if one is None:
                continue
            known, version, architecture = one
            which = ["-m", known, "-v", version, "-k", release, "-a", architecture]
            for verb in ("build", "install"):
                said = run(["dkms", verb, *which, "--force"])
                if said.code != 0:
                    log = f"/var/lib/dkms/{known}/{version}/build/make.log"
                    raise Refused(
                        f"dkms {verb} of {known} {version} for kernel {release} ended with {said.code}: "
                        f"{last_words(said, 4)}",
                        f"see {log}; until it is built GPUDirect RDMA by nvidia_peermem does not work there",
                        changed=verb == "install",
                    )
                if _STANDING in f"{said.out}{said.err}":
                    words = " ".join(map(shlex.quote, which))
                    raise Refused(
                        f"this dkms leaves what it has built once as it is: {known} {version} for kernel "
                        f"{release} was built against another RDMA stack",
                        f"on a drained node: `dkms unbuild {words}`, then `dkms install {words}`; "
                        "in between the kernel has no GPU modules",
                    )
            if behind(tree, release, _ask(node)):
                raise Refused(
                    f"dkms built {known} {version} for kernel {release}, and it still does not go with the RDMA stack",
                    "see whether /usr/src/ofa_kernel* has this stack's headers and Module.symvers, and look at the "
                    "clock of the node",
                    changed=True,
                )
        return Done()

    def check_cell(self, cell: str, value: Value, where: str) -> None:
        one_word(cell, value, where, {_CELL: (_CURRENT, _OLDER)})

    def action(self, reading: Reading, goal: Mapping[str, Value]) -> str:
        return "rebuild"


def _ask(node: Node) -> Optional[Ask]:
    run = node.tools
    if run is None:
        return None

    def ask(argv: Sequence[str]) -> Optional[str]:
        said = run(argv)
        return said.out if said.ok else None

    return ask
