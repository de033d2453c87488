"""What containers must see of the node: they do not share its /etc, and CUDA numbers GPUs anew inside them.

Podman, Docker, containerd and CRI-O take a CDI file (Container Device Interface, SPEC.md 0.3.0 and later: cdiVersion,
kind, devices with containerEdits); a container has to ask for the device. Enroot (doc/configuration.md) applies what
lies in mounts.d and environ.d to every container.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from .entries import HEADER

CDI_KIND = "railwright/node"
# The oldest version that knows env and mounts; readers refuse versions newer than they are.
_CDI_VERSION = "0.3.0"
_CDI_FOLDER = "/etc/cdi"
_ENROOT_FOLDER = "/etc/enroot"
# Node Feature Discovery's local source reads it from the host (customization guide, "Feature files", 2026-08).
LABELS = "/etc/kubernetes/node-feature-discovery/features.d/railwright"


def cdi(device: str, variables: Sequence[str] = (), mounted: Sequence[str] = ()) -> tuple[str, str]:
    """Path and text of the CDI file of one device. variables: "NAME=value". mounted: files, read-only at their path."""
    edits: dict[str, object] = {}
    if variables:
        edits["env"] = list(variables)
    if mounted:
        options = ["ro", "nosuid", "nodev", "bind"]
        edits["mounts"] = [{"hostPath": path, "containerPath": path, "options": options} for path in mounted]
    text = {
        "cdiVersion": _CDI_VERSION,
        "kind": CDI_KIND,
        "devices": [{"name": device, "containerEdits": edits}],
    }
    return f"{_CDI_FOLDER}/railwright-{device}.json", json.dumps(text, indent=2) + "\n"


def enroot_mounts(device: str, mounted: Sequence[str]) -> tuple[str, str]:
    """Path and text of enroot's mounts. A file that is gone must not keep a container from starting (nofail)."""
    lines = [
        f"{path} {path} none x-create=file,bind,ro,nosuid,nodev,noexec,nofail,silent" for path in mounted
    ]
    return f"{_ENROOT_FOLDER}/mounts.d/60-railwright-{device}.fstab", "\n".join(lines) + "\n"


def enroot_variables(device: str, variables: Sequence[str]) -> tuple[str, str]:
    """Path and text of enroot's environment."""
    return f"{_ENROOT_FOLDER}/environ.d/60-railwright-{device}.env", "\n".join(variables) + "\n"


def enroot_settings(name: str, settings: Mapping[str, str]) -> tuple[str, str]:
    """Path and text of settings over those of enroot.conf, which stays its package's (since enroot 3.4)."""
    lines = "".join(f"{key} {value}\n" for key, value in sorted(settings.items()))
    return f"{_ENROOT_FOLDER}/enroot.conf.d/60-railwright-{name}.conf", HEADER + lines


def labels(planned: Mapping[str, str], more: Mapping[str, str]) -> str:
    """The text of a feature file: name=value, which becomes a label feature.node.kubernetes.io/name."""
    lines = "".join(f"{key}={value}\n" for key, value in sorted({**planned, **more}.items()))
    return HEADER + lines
