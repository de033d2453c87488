"""Rail numbers: the user's first, then by the lowest GPU that a card serves, so that equal chassis get equal rails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Optional

from .cards import Card


def number_rails(
    cards: Sequence[Card], serves: Mapping[int, Sequence[int]], given: Mapping[str, int]
) -> dict[int, Optional[int]]:
    """Rail number of each card by its index in `cards`; None for a card that serves no GPU and has no number.

    serves: GPU indices that each card serves. given: numbers from the policy, by port name.
    """
    numbers: dict[int, Optional[int]] = {}
    for index, card in enumerate(cards):
        numbers[index] = next((given[port.name] for port in card.ports if port.name in given), None)
    free = iter(
        sorted(
            set(range(len(cards) + len(given) + 1))
            - {value for value in numbers.values() if value is not None}
        )
    )
    waiting = [index for index in numbers if numbers[index] is None and serves.get(index)]
    for index in sorted(waiting, key=lambda index: (min(serves[index]), cards[index].key)):
        numbers[index] = next(free)
    return numbers
