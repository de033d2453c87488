"""Images that a vendor has set up: their stack is adopted as it is, or the run stops before it is half replaced."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Image:
    """path: the file that only this image has. owns: what it manages and how that is updated. known: source, date."""

    name: str
    path: str
    owns: str
    known: str


IMAGES: tuple[Image, ...] = (
    Image(
        "DGX OS",
        "etc/dgx-release",
        "driver, fabric manager, DCGM, container toolkit and tuning come from its own archive, with pins of their own",
        "DGX OS 7 user guide; deepops roles/nvidia-dgx (2026-08); KAMONOHASHI#213",
    ),
    Image(
        "Azure HPC image",
        "opt/azurehpc/component_versions.txt",
        "driver, fabric manager, DOCA, NCCL and MPI are those of the image, held",
        "azhpc-images (2026-08)",
    ),
    Image(
        "OCI HPC image",
        "etc/oci-hpc-images-release",
        "driver, DOCA and tuning are those of the image",
        "oci-hpc-images (2026-08); the file is the one that its builds leave, judgement",
    ),
    Image(
        "NVIDIA Base Command image",
        "cm/local/apps",
        "the cluster manager writes driver and configuration from its software image at every provisioning",
        "Base Command Manager administrator manual 10 (2025)",
    ),
)
