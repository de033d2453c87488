"""Policy of an image: what its chassis may have that no bake can see."""

from __future__ import annotations

from dataclasses import dataclass

from .codec import InputError
from .values import one_of

NVSWITCH = "nvswitch"
MAY_HAVE = (NVSWITCH,)


@dataclass(frozen=True)
class ImagePolicy:
    """An image for more than one kind of chassis.

    may_have: "nvswitch": the fabric manager of the driver's version is a part of the set on every node, and starts only
    where switches are; those of NVLink 5 are among them where `fabric_manager.nvlsm` names a version. Without
    "nvswitch" it is installed where switches are seen, and a bake sees none.
    """

    may_have: tuple[str, ...] = ()


def must_be_known(image: ImagePolicy, where: str) -> None:
    """Raises InputError for a part that no image can have so, and for a group that says nothing."""
    if not image.may_have:
        raise InputError(f"{where}.may_have", "names nothing", f"name one of {', '.join(MAY_HAVE)}")
    for number, name in enumerate(image.may_have):
        one_of(name, MAY_HAVE, f"{where}.may_have[{number}]")
