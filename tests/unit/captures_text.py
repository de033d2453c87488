"""Facts as a few lines of text, so that a test can state by hand what a capture says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from railwright.captures import read
from railwright.node.model import Facts, Gpu, Link, Nic, PciDevice

UNKNOWN = "?"


def capture(folder: Path, text: str | bytes, name: str = "capture") -> Facts:
    """What the readers make of this text."""
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read([path])


def shown(facts: Facts) -> str:
    """One line a fact, blocks in this order: processor, NUMA nodes, host bridges, PCI, GPUs, NICs, paths, the rest."""
    lines = [_processor(facts)] if facts.cpus.arch or facts.cpus.vendor else []
    lines += [f"node {node.id} {node.cpus}" for node in facts.numa]
    lines += [f"root {root.name} {_known(root.numa)}" for root in facts.roots]
    lines += [_pci(device) for device in facts.pci]
    lines += [_gpu(gpu) for gpu in facts.gpus]
    lines += [_nic(nic) for nic in facts.nics]
    lines += [f"{path.a}-{path.b} {path.level}" for path in facts.paths]
    for conflict in facts.conflicts:
        said = " / ".join(f"{claim.witness}: {claim.value}" for claim in conflict.claims)
        lines.append(f"conflict {conflict.where}: {said}")
    lines += [f"note {note}" for note in facts.notes]
    lines += [] if facts.complete else ["incomplete"]
    return "\n".join(lines)


def captures_folder(variable: str) -> Path:
    """The folder that an environment variable names; the test is skipped where it is not set."""
    value = os.environ.get(variable)
    if not value:
        pytest.skip(f"{variable} is not set")
    return Path(value)


def _known(value: object) -> str:
    return UNKNOWN if value is None else str(value)


def _processor(facts: Facts) -> str:
    cpus = facts.cpus
    return f"cpu {_known(cpus.arch)} {_known(cpus.vendor)} {_known(cpus.family)}/{_known(cpus.model)}"


def _link(link: Link) -> str:
    if link.max_speed is None and link.max_width is None:
        return UNKNOWN
    speed = UNKNOWN if link.max_speed is None else f"{link.max_speed:g}"
    return f"{speed}x{_known(link.max_width)}"


def _pci(device: PciDevice) -> str:
    identity = f"{_known(device.vendor)}:{_known(device.device)}" if device.vendor else UNKNOWN
    place = f"{device.address} under {_known(device.parent)}"
    return f"pci {place} {_known(device.class_code)} {identity} {_link(device.link)}"


def _gpu(gpu: Gpu) -> str:
    links = (
        UNKNOWN if gpu.nvlinks is None else ",".join(f"{link.target}*{link.count}" for link in gpu.nvlinks)
    )
    words = [
        gpu.name,
        f"#{gpu.index}",
        *([gpu.address] if gpu.address else []),
        f"numa={_known(gpu.numa)}",
        f"cpus={_known(gpu.cpus)}",
        f"nvlinks={links or 'none'}",
    ]
    words += [
        f"{name}={value}"
        for name, value in (("sm", gpu.sm), ("model", gpu.model), ("gdr", gpu.gdr))
        if value is not None
    ]
    words += [f"c2c={gpu.c2c.count}x{gpu.c2c.mbytes}"] if gpu.c2c else []
    return " ".join(words + (["partial"] if gpu.partial else []))


def _nic(nic: Nic) -> str:
    words = [
        nic.name,
        *([nic.address] if nic.address else []),
        f"numa={_known(nic.numa)}",
        f"rate={_known(nic.rate)}",
    ]
    named = (
        ("rdma", nic.rdma),
        ("port", nic.port),
        ("netdev", nic.netdev),
        ("guid", nic.sys_image_guid),
        ("gdr", nic.gdr),
    )
    return " ".join(words + [f"{name}={value}" for name, value in named if value is not None])
