"""Groups of things that belong together, from pairs that do."""

from __future__ import annotations

from collections.abc import Iterable


def joined(count: int, pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Each of `count` numbers in one group, with all that pairs lead to; groups and members lowest first."""
    owner = list(range(count))

    def find(index: int) -> int:
        while owner[index] != index:
            index = owner[index]
        return index

    for one, other in pairs:
        first, second = find(one), find(other)
        owner[max(first, second)] = min(first, second)
    members: dict[int, list[int]] = {}
    for index in range(count):
        members.setdefault(find(index), []).append(index)
    return list(members.values())
