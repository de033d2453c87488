"""Which GPUs take part: those whose place is known, and no small card that only drives a screen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Optional

from ..node.model import Facts, Finding, Gpu
from .tree import Tree

# PCI class: VGA controller. Compute GPUs of a server are 3D controllers (0x0302).
_VGA, _COMPUTE = "0x0300", "0x0302"


def display_gpus(facts: Facts, tree: Tree) -> frozenset[str]:
    """Names of GPUs that only drive a screen: VGA controllers of another model beside compute GPUs."""
    classes = {gpu.name: _class(gpu, tree) for gpu in facts.gpus}
    compute = [gpu for gpu in facts.gpus if classes[gpu.name] == _COMPUTE]
    if not compute:
        return frozenset()
    usual = Counter(_model(gpu, tree) for gpu in compute).most_common(1)[0][0]
    return frozenset(
        gpu.name for gpu in facts.gpus if classes[gpu.name] == _VGA and _model(gpu, tree) != usual
    )


def _class(gpu: Gpu, tree: Tree) -> Optional[str]:
    device = tree.device(gpu.address) if gpu.address is not None else None
    return None if device is None or device.class_code is None else device.class_code[:6]


def _model(gpu: Gpu, tree: Tree) -> tuple[Optional[str], Optional[str]]:
    device = tree.device(gpu.address) if gpu.address is not None else None
    return (None, gpu.model) if device is None else (device.vendor, device.device)


def findings_of(display: frozenset[str], gpus: Sequence[Gpu]) -> list[Finding]:
    """What to know about GPUs that only drive a screen: they still take a CUDA index."""
    return [
        Finding(
            "gpus.display",
            "info",
            gpu.name,
            f"{gpu.name}{f' ({gpu.model})' if gpu.model else ''} drives a screen and computes nothing here, yet it "
            f"takes CUDA index {gpu.index}",
            "name the compute GPUs by UUID in CUDA_VISIBLE_DEVICES, or take the card out",
        )
        for gpu in gpus
        if gpu.name in display
    ]
