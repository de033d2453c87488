"""What the tests of `collect` share: bundles of trees, and how their plans may differ from those of the machine."""

from __future__ import annotations

import io
import ipaddress
import re
import tarfile
from pathlib import Path

from railwright import captures
from railwright.collect.bundle import pack
from railwright.collect.command import collect
from railwright.node.model import Facts

KEY = bytes(range(32))


def write_bundle(tree: Path, path: Path, key: bytes = KEY) -> Facts:
    """Collect the machine below `tree` into `path`; the facts that the bundle holds."""
    path.write_bytes(pack(collect(tree, key)))
    return captures.read([path])


def unpacked(path: Path) -> bytes:
    """All that is in a bundle: its bytes, unpacked, with the members' names and headers."""
    with tarfile.open(path) as archive:
        files = b"".join(archive.extractfile(member).read() for member in archive)  # type: ignore[union-attr]
        names = "\n".join(
            f"{m.name} {m.uname} {m.gname} {m.linkname} {m.pax_headers}" for m in archive.getmembers()
        )
    return path.read_bytes() + files + names.encode()


def with_pseudonyms(plan: str, live: Facts, replayed: Facts) -> str:
    """The JSON of the live plan with the pseudonyms that the bundle has in the same places: all that may differ."""
    pairs = {live.witnesses[0].source: replayed.witnesses[0].source}
    for gpu, other in zip(live.gpus, replayed.gpus, strict=True):
        pairs[gpu.uuid or ""] = other.uuid or ""
    for nic, same in zip(live.nics, replayed.nics, strict=True):
        pairs[nic.sys_image_guid or ""] = same.sys_image_guid or ""
        pairs |= dict(zip(nic.addresses, same.addresses, strict=True))
    for before, after in pairs.items():
        if before:
            plan = plan.replace(
                f'"where": "{before}"' if before.startswith("/") else before,
                f'"where": "{after}"' if before.startswith("/") else after,
            )
    return plan


def tar(*members: tarfile.TarInfo | tuple[str, bytes]) -> bytes:
    """A tar of these members: headers alone, or files."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                archive.addfile(info, io.BytesIO(member[1]))
    return packed.getvalue()


def forms(secret: str) -> set[str]:
    """A secret as it could be written: with and without separators, bytes forwards and backwards, hexadecimal."""
    found = {secret}
    digits = re.sub("[:.-]", "", secret)
    if re.fullmatch("[0-9a-f]{12,32}", digits, re.IGNORECASE) and len(digits) % 2 == 0:
        pairs = re.findall("..", digits)
        for order in (pairs, pairs[::-1]):
            found |= {"".join(order), ":".join(order), "-".join(order)}
        swapped = [pair for at in range(0, len(pairs) - 1, 2) for pair in (pairs[at + 1], pairs[at])]
        found.add("".join(swapped))
    try:
        packed = ipaddress.ip_address(secret).packed
    except ValueError:
        return found
    found |= {ipaddress.ip_address(secret).exploded, packed.hex(), packed[::-1].hex()}
    found.add(":".join(re.findall("....", packed.hex())))
    return found
