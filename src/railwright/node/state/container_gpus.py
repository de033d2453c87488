"""What a reload of systemd would take from containers that run (NVIDIA/nvidia-container-toolkit#48)."""

from __future__ import annotations

from ..discover.containers import gpu_files
from ..discover.module_age import tree_of
from ..discover.tree import processes
from ..model.container_facts import counted, spoken
from .item import Node
from .outcome import Refused


def must_stay(node: Node) -> None:
    """Raises Refused where containers run whose GPUs a reload would take away; a plan saw the node earlier."""
    tree = tree_of(node.root)
    running = counted(processes(tree).values())
    unlinked = gpu_files(tree)[1] if running else ()
    if unlinked:
        raise Refused(
            f"{spoken(running)}, and nothing below /dev/char leads to {', '.join(unlinked[:4])}: systemd was not told "
            "to read its units again, for containers whose cgroups it keeps would lose their GPUs",
            "run `nvidia-ctk system create-dev-char-symlinks --create-all` on the node, or wait until no container "
            "runs; then run again",
        )
