"""The long sweeps in turns: many commits make a whole one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import rotation


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 100])
def test_the_parts_of_a_sweep_are_the_sweep(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    points = list(range(size))
    parts = []
    for part in range(rotation.PARTS):
        monkeypatch.setattr(rotation, "turn", lambda part=part: (part, "a test"))
        parts.append(rotation.share(points))
    assert {point for part in parts for point in part} == set(points)
    assert all(size == 0 or part for part in parts)  # no run is without any
    if size >= rotation.PARTS:
        assert sum(map(len, parts)) == size
    monkeypatch.setattr(rotation, "turn", lambda: (None, "a test"))
    assert rotation.share(points) == points


def test_the_part_follows_from_the_commit_and_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    rotation.turn.cache_clear()
    monkeypatch.delenv("RAILWRIGHT_LONG", raising=False)
    part, why = rotation.turn()
    assert part in range(rotation.PARTS)
    assert rotation.told() == f"long sweeps: part {(part or 0) + 1} of 8, by {why}; all: make test-long"
    rotation.turn.cache_clear()
    monkeypatch.setenv("RAILWRIGHT_LONG", "1")
    assert rotation.told() == "long sweeps: all of them, by RAILWRIGHT_LONG=1"
    rotation.turn.cache_clear()


@pytest.mark.parametrize("count", [0, 1, 3, 4, 9, 128])
def test_the_second_row_runs_all_but_unit_tests_and_those_once_in_four_runs(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    unit = Path("tests/unit")
    units = {unit / f"test_{number}.py" for number in range(count)}
    others = {Path("tests/ansible/test_a.py"), Path("tests/browser/test_b.py")}
    taken = []
    for part in range(rotation.PARTS):
        monkeypatch.setattr(rotation, "turn", lambda part=part: (part, "a test"))
        files = rotation.second_row(units | others, unit)
        assert others <= files
        taken += [*(files - others)]
    assert sorted(taken) == sorted([*units, *units])
    monkeypatch.setattr(rotation, "turn", lambda: (None, "a test"))
    assert rotation.second_row(units | others, unit) == units | others
