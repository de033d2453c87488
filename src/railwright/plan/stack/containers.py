"""What is known of container runtimes and of NVIDIA's container toolkit, with source and date.

Sources: NVIDIA Container Toolkit documentation 1.20.1, "Support for Container Device Interface" and "Troubleshooting",
and its release notes (2026-08); NVIDIA/nvidia-docker#1730; docker/cli docs/reference/commandline/dockerd.md (2024-04);
containerd services/server/config/config.go (1.7) and cmd/containerd/server/config/config.go (2.0); notes of podman.
"""

from __future__ import annotations

import re

# They are of one version; the base holds nvidia-ctk, and the tools hold the command that enroot's hook calls.
TOOLKIT: tuple[str, ...] = (
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
    "libnvidia-container-tools",
    "libnvidia-container1",
)
# Versions that must not be installed, with why (Google's hold list of GPU images, 2026-08).
BAD_TOOLKITS: dict[str, str] = {
    "1.17.7-1": "containers do not start with it (Google's list of known bad packages, 2026-08)"
}
# From here on the toolkit brings nvidia-cdi-refresh.service and .path, and writes /var/run/cdi/nvidia.yaml itself.
FIRST_WITH_REFRESH = (1, 18)
REFRESH_PATH, REFRESH_SERVICE = "nvidia-cdi-refresh.path", "nvidia-cdi-refresh.service"
# That service runs where its ExecCondition finds the GPU module in modules.dep, and else ends without a word: 1.18.0
# knows nvidia.ko with any ending, 1.18.1 nvidia.ko and nvidia-current.ko without one, 1.18.2 to 1.20.0 both with any
# (NVIDIA/nvidia-container-toolkit, deployments/systemd by tag, and #1395, #1517; 2026-11). None knows the module of
# Debian's open driver, nvidia-current-open.ko.
REFRESHES: tuple[tuple[tuple[int, ...], re.Pattern[str]], ...] = (
    ((1, 18, 2), re.compile(r"(?:nvidia|nvidia-current)\.ko(?:\..*)?")),
    ((1, 18, 1), re.compile(r"(?:nvidia|nvidia-current)\.ko")),
    ((1, 18, 0), re.compile(r"nvidia\.ko(?:\..*)?")),
)
CDI_FILE = "/var/run/cdi/nvidia.yaml"
CDI_KIND = "nvidia.com/gpu"
# `nvidia-ctk cdi generate` since 1.12.
FIRST_WITH_GENERATE = (1, 12)
# The first version of each runtime whose containers may ask for a CDI device: Docker 25 (docs: experimental, behind
# features.cdi), podman 4.1, containerd 1.7.
FIRST_WITH_CDI: dict[str, tuple[int, int]] = {"docker": (25, 0), "podman": (4, 1), "containerd": (1, 7)}
# Packages that hold a runtime, by archive; of Docker's two never both.
RUNTIMES: dict[str, tuple[str, ...]] = {
    "docker": ("docker.io", "docker-ce", "moby-engine"),
    "podman": ("podman",),
    "containerd": ("containerd", "containerd.io"),
}
# Packages whose own scripts start or stop what containers hang on.
DAEMONS: tuple[str, ...] = ("docker.io", "docker-ce", "moby-engine", "containerd", "containerd.io", "cri-o")
# From containerd 2 on a drop-in is merged key by key; before, its section takes the place of the whole section.
FIRST_WITH_MERGED_SECTIONS = 3
SECTIONS: dict[int, str] = {2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
# The CDI kinds that others write: NVIDIA's device plugin for Kubernetes and the GPU operator.
OTHERS_KINDS: tuple[str, ...] = ("k8s.device-plugin.nvidia.com/gpu", "management.nvidia.com/gpu")


def refreshes(toolkit: tuple[int, ...], module: str) -> bool:
    """Whether this toolkit's own service writes a CDI file where the GPU module's file has this name."""
    form = next((form for first, form in REFRESHES if toolkit >= first), None)
    return form is not None and form.fullmatch(module) is not None
