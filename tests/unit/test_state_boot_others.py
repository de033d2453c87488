"""Words of others in entries of the Boot Loader Specification: beside $variables, after a kill, in quotes, init's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from railwright.node.state import Said, apply, revert
from railwright.node.state.command import Tools
from tests.unit.state_support import plant
from tests.unit.test_state_boot import ID, entries
from tests.unit.test_state_boot_entries import Grubby, bls_node, contents, default_words, options, with_grub

TUNED = (
    "root=1 pci=nocrs iommu=off ro $tuned_params",
    "root=1 ro $tuned_params",
    "root=1 pci=noaer ro $tuned_params",
)
OURS = entries("iommu=pt", "pci=realloc=off")


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize(
    ("value", "expands"), [("", False), ("skew_tick=1 nohz=on", False), ("skew_tick=1", True)]
)
def test_entries_that_end_with_tuneds_variable_keep_it_and_others_words(
    tmp_path: Path, first: bool, value: str, expands: bool
) -> None:
    node, grubby = bls_node(tmp_path / "node", *TUNED)
    grubby.first, grubby.expands = first, expands
    with_grub(node, f"# GRUB Environment Block\ntuned_params={value}\n")
    before = contents(node)
    assert apply(OURS, root=str(node), tools=grubby).failures == ()
    assert options(node) == [
        "options root=1 pci=nocrs iommu=pt ro $tuned_params pci=realloc=off",
        "options root=1 ro $tuned_params iommu=pt pci=realloc=off",
        "options root=1 pci=noaer ro $tuned_params iommu=pt pci=realloc=off",
    ]
    assert not apply(OURS, root=str(node), tools=grubby).changed
    assert revert(root=str(node), tools=grubby).failures == ()
    assert contents(node) == before


@pytest.mark.parametrize("line", ["root=1 ro", "root=1 ro $tuned_params"])
def test_a_word_for_later_kernels_alone_does_not_come_into_the_entries(tmp_path: Path, line: str) -> None:
    node, grubby = bls_node(tmp_path / "node", line)
    with_grub(node, "tuned_params=\n")
    plant(node, "/etc/default/grub", 'GRUB_CMDLINE_LINUX="pci=nomsi quiet"\n')
    assert apply(entries("pci=realloc=off"), root=str(node), tools=grubby).failures == ()
    assert options(node) == [f"options {line} pci=realloc=off"]
    assert set(default_words(node)) == {"pci=nomsi", "quiet", "pci=realloc=off"}


def kernelopts_node(folder: Path, default: str) -> tuple[Path, Grubby]:
    node, grubby = bls_node(
        folder, "$kernelopts $tuned_params", "$kernelopts $tuned_params", "root=1 pci=noaer ro"
    )
    with_grub(node, "kernelopts=root=1 ro pci=nocrs iommu=off\ntuned_params=\n")
    plant(node, "/etc/default/grub", f'GRUB_CMDLINE_LINUX="{default}"\n')
    return node, grubby


def kernelopts(node: Path) -> set[str]:
    (line,) = (node / "boot/grub2/grubenv").read_text().splitlines()[:1]
    return set(line.partition("=")[2].split())


def test_where_entries_take_their_words_from_grubenv_others_stay_there(tmp_path: Path) -> None:
    node, grubby = kernelopts_node(tmp_path / "node", "pci=nocrs quiet")
    before = contents(node)
    assert apply(OURS, root=str(node), tools=grubby).failures == ()
    assert options(node) == [
        *["options $kernelopts $tuned_params"] * 2,
        "options root=1 pci=noaer ro iommu=pt pci=realloc=off",
    ]
    assert kernelopts(node) == {"root=1", "ro", "pci=nocrs", "iommu=pt", "pci=realloc=off"}
    assert not apply(OURS, root=str(node), tools=grubby).changed
    assert revert(root=str(node), tools=grubby).failures == ()
    assert contents(node) == before
    assert kernelopts(node) == {"root=1", "ro", "pci=nocrs", "iommu=off"}


def test_a_word_for_later_kernels_alone_is_not_told_to_a_grubby_that_would_give_it_to_all(
    tmp_path: Path,
) -> None:
    node, grubby = kernelopts_node(tmp_path / "node", "pci=nomsi quiet")
    before = contents(node)
    for only in (True, False):
        (failure,) = apply(OURS, root=str(node), tools=grubby, check=only).failures
        assert "pci=nomsi is only there for kernels that come later" in failure.why
    assert (contents(node), grubby.calls) == (before, [])


class Killed(BaseException):
    """The run ends here."""


def killed_after(grubby: Grubby, entry: str = "*") -> Tools:
    """grubby, and then no more; entry: the only one that it came to."""

    def run(argv: Sequence[str]) -> Said:
        before = {path: path.read_bytes() for path in (grubby.node / "boot/loader/entries").iterdir()}
        grubby(argv)
        for path, data in before.items():
            if not path.match(entry):
                path.write_bytes(data)
        raise Killed

    return run


LINES = ("root=1  pci=nocrs ro", "root=1 ro", "root=1 pci=noaer pci=nocrs iommu=off ro $tuned_params")
DONE = [
    "options root=1  pci=nocrs ro iommu=pt pci=realloc=off",
    "options root=1 ro iommu=pt pci=realloc=off",
    "options root=1 pci=noaer pci=nocrs iommu=pt ro $tuned_params pci=realloc=off",
]


@pytest.mark.parametrize("entry", ["*", "*-0.conf", "*-2.conf"])
@pytest.mark.parametrize(("first", "expands"), [(False, False), (True, False), (False, True)])
def test_what_grubby_took_from_others_before_a_kill_comes_back(
    tmp_path: Path, entry: str, first: bool, expands: bool
) -> None:
    for verb in ("apply", "revert"):
        node, grubby = bls_node(tmp_path / verb, *LINES)
        grubby.first, grubby.expands = first, expands
        with_grub(node, "tuned_params=skew_tick=1\n")
        before = contents(node)
        with pytest.raises(Killed):
            apply(OURS, root=str(node), tools=killed_after(grubby, entry))
        if verb == "apply":
            assert apply(OURS, root=str(node), tools=grubby, check=True).changed
            assert apply(OURS, root=str(node), tools=grubby).failures == ()
            assert options(node) == DONE
            assert not apply(OURS, root=str(node), tools=grubby).changed
        assert revert(root=str(node), tools=grubby).failures == ()
        assert contents(node) == before


@pytest.mark.parametrize("entry", ["*", "*-2.conf"])
def test_a_revert_that_is_killed_after_grubby_is_ended_by_the_next_run(tmp_path: Path, entry: str) -> None:
    for verb in ("apply", "revert"):
        node, grubby = bls_node(tmp_path / verb, *LINES)
        with_grub(node, "tuned_params=\n")
        before = contents(node)
        apply(OURS, root=str(node), tools=grubby)
        with pytest.raises(Killed):
            revert(root=str(node), tools=killed_after(grubby, entry))
        if verb == "apply":
            assert apply(OURS, root=str(node), tools=grubby).failures == ()
            # Ours may come last where the word that they replaced went.
            assert [sorted(line.split()) for line in options(node)] == [sorted(line.split()) for line in DONE]
        assert revert(root=str(node), tools=grubby).failures == ()
        assert contents(node) == before


def test_after_a_kill_what_others_changed_meanwhile_stays_and_lost_words_come_behind(tmp_path: Path) -> None:
    node, grubby = bls_node(tmp_path / "node", "root=1 pci=nocrs ro", "root=1 ro")
    with pytest.raises(Killed):
        apply(entries("pci=realloc=off"), root=str(node), tools=killed_after(grubby))
    entry = node / "boot/loader/entries/m-5.14.0-0.conf"
    entry.write_text(entry.read_text().replace(" ro ", " rw quiet "))
    assert apply(entries("pci=realloc=off"), root=str(node), tools=grubby).failures == ()
    assert options(node) == [
        "options root=1 rw quiet pci=realloc=off pci=nocrs",
        "options root=1 ro pci=realloc=off",
    ]
    assert revert(root=str(node), tools=grubby).failures == ()
    assert options(node) == ["options root=1 rw quiet pci=nocrs", "options root=1 ro"]


def test_after_a_kill_a_grubby_that_fails_takes_nothing_either(tmp_path: Path) -> None:
    node, grubby = bls_node(tmp_path / "node", *LINES)
    before = contents(node)
    with pytest.raises(Killed):
        apply(OURS, root=str(node), tools=killed_after(grubby, "*-0.conf"))
    grubby.fails = "error: no space"
    assert apply(OURS, root=str(node), tools=grubby).failures
    grubby.fails = ""
    assert revert(root=str(node), tools=grubby).failures == ()
    assert contents(node) == before


def test_after_a_kill_a_run_that_is_refused_forgets_nothing(tmp_path: Path) -> None:
    node, grubby = bls_node(tmp_path / "node", *LINES)
    with_grub(node, "tuned_params=\n")
    before = contents(node)
    with pytest.raises(Killed):
        apply(OURS, root=str(node), tools=killed_after(grubby, "*-2.conf"))
    # Refused before anything is written: this word needs a GRUB, and there is none to be seen.
    (node / "boot/grub2/grubenv").unlink()
    assert apply(entries("pci=config_acs=A@1;B@2"), root=str(node), tools=grubby).failures
    with_grub(node, "tuned_params=\n")
    assert revert(root=str(node), tools=grubby).failures == ()
    assert contents(node) == before


def test_words_in_another_order_alone_are_told_to_grubby_anew(tmp_path: Path) -> None:
    node, grubby = bls_node(tmp_path / "node", "root=1 console=ttyS0 console=tty0")
    plant(node, "/etc/default/grub", 'GRUB_CMDLINE_LINUX="console=ttyS0 console=tty0"\n')
    assert apply(entries("console=tty0", "console=ttyS0"), root=str(node), tools=grubby).failures == ()
    assert grubby.calls == [["grubby", "--update-kernel=ALL", "--args=console=tty0 console=ttyS0"]]
    assert options(node) == ["options root=1 console=tty0 console=ttyS0"]
    assert default_words(node) == ["console=tty0", "console=ttyS0"]


def test_grubby_is_not_called_with_nothing_to_do(tmp_path: Path) -> None:
    node, grubby = bls_node(tmp_path / "node", "root=1 pci=nocrs ro", "root=1 ro")
    with pytest.raises(Killed):
        apply(entries("pci=realloc=off"), root=str(node), tools=killed_after(grubby))
    grubby.calls.clear()
    assert apply(entries("pci=realloc=off"), root=str(node), tools=grubby).changed
    assert grubby.calls == []


def test_blanks_in_quotes_and_words_of_init_stay(tmp_path: Path) -> None:
    line = 'root=1 dyndbg="file a.c  +p iommu=off " ro -- single iommu=soft'
    node, grubby = bls_node(tmp_path / "node", line)
    with_grub(node)
    before = contents(node)
    outcome = apply(entries("iommu=pt"), root=str(node), tools=grubby)
    assert (outcome.failures, outcome.reboot_needed) == ((), (ID,))
    assert options(node) == [
        'options root=1 dyndbg="file a.c  +p iommu=off " ro iommu=pt -- single iommu=soft'
    ]
    assert not apply(entries("iommu=pt"), root=str(node), tools=grubby).changed
    assert revert(root=str(node), tools=grubby).failures == ()
    assert contents(node) == before
