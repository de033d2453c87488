"""Texts as a torn disk, a careless hand and a wrong encoding leave them: the same ones in every run."""

from __future__ import annotations

import random

COUNT = 32
_NOISE = (b"\xff\xfe", b"\x00", b'"', b"[", b"]", b"{", b"=", b"\\", b"\n\n", b"'''", b"#", b"\xef\xbb\xbf")


def damaged(text: str, count: int = COUNT) -> list[bytes]:
    """So many, each another one: cut, doubled, with bytes of noise, lines lost or exchanged."""
    data = text.encode()
    return [_one(data, random.Random(number)) for number in range(count)]  # noqa: S311


def _one(data: bytes, rng: random.Random) -> bytes:
    how = rng.randrange(5)
    place = rng.randrange(len(data))
    lines = data.splitlines(keepends=True)
    if how == 0:
        return data[:place]
    if how == 1:
        return data[:place] + rng.choice(_NOISE) * rng.randrange(1, 4) + data[place:]
    if how == 2:
        rng.shuffle(lines)
        return b"".join(lines)
    if how == 3:
        lines.pop(rng.randrange(len(lines)))
        return b"".join(lines)
    return data[:place] + data[place + rng.randrange(1, 9) :] + data[place:]
