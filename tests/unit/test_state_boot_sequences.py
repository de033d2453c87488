"""Sequences of tunes, kills, boots and a revert: what the words should be is told by rules of the test's own."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from railwright.node.state import apply, revert
from tests.unit.state_support import plant
from tests.unit.test_state_boot import ID, entries
from tests.unit.test_state_boot_entries import Grubby, bls_node, contents, default_words, options
from tests.unit.test_state_boot_others import Killed, killed_after

THEIRS = (
    ("iommu=soft", "iommu=off", ""),
    ("numa_balancing=enable", "numa_balancing=disable", ""),
    ("pci=nocrs", ""),
    ("pci=realloc=on", ""),
    ("nosmt", ""),
    ("console=ttyS0  console=tty0", ""),
)
OURS = (
    ("iommu=pt", "iommu=off", ""),
    ("numa_balancing=disable", ""),
    ("pci=realloc=off", "pci=noats", ""),
    ("nosmt=force", ""),
)


def sets(word: str) -> str:
    """Of pci= each word is a thing of its own."""
    parts = word.split("=")
    return "=".join(parts[:2]) if parts[0] == "pci" else parts[0]


def tuned(line: str, policy: list[str]) -> list[str]:
    taken = {sets(word) for word in policy}
    return sorted([*(word for word in line.split() if sets(word) not in taken), *policy])


def a_line(rng: random.Random) -> str:
    words = [word for word in (rng.choice(some) for some in THEIRS) if word]
    rng.shuffle(words)
    return "  ".join(["root=1", *words, "ro"])


def a_policy(rng: random.Random) -> list[str]:
    words = [word for word in (rng.choice(some) for some in OURS) if word] or ["iommu=pt"]
    rng.shuffle(words)
    return words


def killed(node: Path, grubby: Grubby, rng: random.Random, policy: list[str] | None) -> None:
    tools = killed_after(grubby, rng.choice(["*", "*-0.conf", "*-1.conf", "none"]))
    try:
        if policy is None:
            revert(root=str(node), tools=tools)
        else:
            apply(entries(*policy), root=str(node), tools=tools)
    except Killed:
        pass


@pytest.mark.parametrize("seed", range(30))
def test_whatever_was_killed_each_entry_has_the_policys_words_and_its_own_and_goes_back_to_the_byte(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)  # noqa: S311 - a sample, no secret
    lines = [a_line(rng) for _ in range(rng.randint(1, 3))]
    node, grubby = bls_node(tmp_path / "node", *lines)
    grubby.first = rng.random() < 0.5
    before = contents(node)
    for _ in range(rng.randint(2, 5)):
        if rng.random() < 0.4:
            killed(node, grubby, rng, rng.choice([a_policy(rng), None]))
        policy = a_policy(rng)
        assert apply(entries(*policy), root=str(node), tools=grubby).failures == ()
        assert [sorted(line.split()[1:]) for line in options(node)] == [tuned(line, policy) for line in lines]
        assert not apply(entries(*policy), root=str(node), tools=grubby).changed
    if rng.random() < 0.5:
        killed(node, grubby, rng, rng.choice([a_policy(rng), None]))
    assert revert(root=str(node), tools=grubby).failures == ()
    assert contents(node) == before


@pytest.mark.parametrize("seed", range(30))
def test_kernels_that_come_later_get_the_same_and_a_reboot_is_owed_exactly_until_all_is_in_force(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)  # noqa: S311 - a sample, no secret
    line = a_line(rng)
    node, grubby = bls_node(tmp_path / "node", *[line] * rng.randint(1, 2))
    plant(node, "/etc/default/grub", f'GRUB_CMDLINE_LINUX="{line}"\n')
    for _ in range(rng.randint(2, 6)):
        policy = a_policy(rng)
        apply(entries(*policy), root=str(node), tools=grubby)
        assert sorted(default_words(node)) == tuned(line, policy)
        runs = (node / "proc/cmdline").read_text()
        owed = () if sorted(runs.split()) == tuned(line, policy) else (ID,)
        assert apply(entries(*policy), root=str(node), tools=grubby).reboot_needed == owed
        if rng.random() < 0.5:
            (node / "proc/cmdline").write_text(options(node)[0].partition(" ")[2] + "\n")
            for left in (node / "run").iterdir():
                left.unlink()
            assert apply(entries(*policy), root=str(node), tools=grubby).reboot_needed == ()
    assert revert(root=str(node), tools=grubby).failures == ()
    assert sorted(default_words(node)) == sorted(line.split())


def test_a_word_that_a_killed_run_lost_and_the_next_one_takes_is_still_the_nodes(tmp_path: Path) -> None:
    node, grubby = bls_node(tmp_path / "node", "root=1 pci=realloc=on ro", "root=1 ro")
    before = contents(node)
    with pytest.raises(Killed):
        apply(entries("pci=noats"), root=str(node), tools=killed_after(grubby))
    assert "pci=realloc=on" not in options(node)[0]
    assert apply(entries("pci=noats", "pci=realloc=off"), root=str(node), tools=grubby).failures == ()
    assert apply(entries("pci=noats"), root=str(node), tools=grubby).failures == ()
    assert options(node)[0] == "options root=1 pci=realloc=on ro pci=noats"
    assert revert(root=str(node), tools=grubby).failures == ()
    assert contents(node) == before


def test_a_word_that_an_old_grubby_left_twice_before_a_kill_stands_once_again(tmp_path: Path) -> None:
    node, grubby = bls_node(tmp_path / "node", "root=1 pci=noaer  pci=nocrs ro")
    grubby.first = True
    before = contents(node)
    with pytest.raises(Killed):
        apply(entries("pci=realloc=off"), root=str(node), tools=killed_after(grubby))
    assert options(node)[0].split().count("pci=nocrs") == 2
    assert revert(root=str(node), tools=grubby).failures == ()
    assert contents(node) == before
