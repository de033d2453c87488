"""A word that a policy drops: what stood there before comes back, and the reboot is owed until the boot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from railwright.node.state import InputError, apply, revert
from tests.unit.state_support import items, plant
from tests.unit.test_state_boot import DROP_IN, ID, SEVERAL, boot, entries, first_words, grub_node
from tests.unit.test_state_boot_entries import Grubby, bls_node, contents, default_words, options, with_grub
from tests.unit.test_state_boot_others import Killed, kernelopts, kernelopts_node, killed_after

NUMA = "numa_balancing=disable"
BOTH = entries("iommu=pt", NUMA)
ONE = entries(NUMA)
SOFT = ("root=1 iommu=soft ro", "root=1  quiet iommu=soft ro -- single")
GIVEN_BACK = [
    f"options root=1 iommu=soft ro {NUMA}",
    f"options root=1  quiet iommu=soft ro {NUMA} -- single",
]


def bls_boot(node: Path) -> None:
    """The node starts with its first entry; /run is empty then."""
    (node / "proc/cmdline").write_text(options(node)[0].partition(" ")[2] + "\n")
    for left in (node / "run").iterdir():
        left.unlink()


def soft_node(folder: Path) -> tuple[Path, Grubby]:
    node, grubby = bls_node(folder, *SOFT)
    plant(node, "/etc/default/grub", 'GRUB_CMDLINE_LINUX="iommu=soft quiet"\n')
    return node, grubby


def later_kernel(node: Path) -> Path:
    """A kernel that was installed now has the words that grubby left in /etc/default/grub."""
    line = " ".join(["root=1", *default_words(node)])
    return plant(node, "/boot/loader/entries/m-6.0.conf", f"title x\nversion 6.0\noptions {line}\n")


def an_admin_sets_foo(node: Path) -> None:
    for path in (*(node / "boot/loader/entries").iterdir(), node / "etc/default/grub"):
        assert "iommu=soft" in path.read_text()
        path.write_text(path.read_text().replace("iommu=soft", "iommu=foo"))


def admins_node(folder: Path) -> tuple[Path, Grubby]:
    """A node whose iommu we have set and dropped, and an admin has set since."""
    node, grubby = soft_node(folder)
    apply(BOTH, root=str(node), tools=grubby)
    apply(ONE, root=str(node), tools=grubby)
    an_admin_sets_foo(node)
    return node, grubby


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("origin", [True, False])
def test_a_dropped_word_gives_the_nodes_own_word_back_at_once(
    tmp_path: Path, first: bool, origin: bool
) -> None:
    node, grubby = soft_node(tmp_path / "node")
    grubby.first = first
    before = contents(node)
    apply(BOTH, root=str(node), tools=grubby)
    bls_boot(node)
    if not origin:
        record = node / "var/lib/railwright/state.json"
        plain = record.read_text()
        start, end = plain.index('"origins": {') + len('"origins": {'), plain.index('"slices"')
        record.write_text(f"{plain[:start]}}},\n {plain[end:]}")
    outcome = apply(ONE, root=str(node), tools=grubby)
    assert (outcome.failures, outcome.changed, outcome.reboot_needed) == ((), True, (ID,))
    assert options(node) == GIVEN_BACK
    assert set(default_words(node)) == {"iommu=soft", "quiet", NUMA}
    calls = len(grubby.calls)
    assert not apply(ONE, root=str(node), tools=grubby).changed
    assert len(grubby.calls) == calls
    assert revert(root=str(node), tools=grubby).failures == ()
    assert contents(node) == before
    assert set(default_words(node)) == {"iommu=soft", "quiet"}


def test_every_entry_gets_its_own_word_back_and_a_later_one_what_all_had(tmp_path: Path) -> None:
    lines = (
        "root=1 iommu=off intel_iommu=off ro",
        "root=1 intel_iommu=off iommu=soft",
        "root=1 intel_iommu=off",
    )
    node, grubby = bls_node(tmp_path / "node", *lines)
    before = contents(node)
    plant(node, "/etc/default/grub", 'GRUB_CMDLINE_LINUX="intel_iommu=off"\n')
    apply(entries("iommu=pt", "intel_iommu=on", NUMA), root=str(node), tools=grubby)
    late = later_kernel(node)
    assert apply(ONE, root=str(node), tools=grubby).failures == ()
    assert options(node)[:3] == [f"options {line} {NUMA}" for line in lines]
    assert "intel_iommu=off" in late.read_text().split()
    assert "intel_iommu=on" not in late.read_text().split()
    assert "intel_iommu=off" in default_words(node)
    late.unlink()
    assert revert(root=str(node), tools=grubby).failures == ()
    assert contents(node) == before


def test_a_dropped_word_is_not_ours_any_more_and_an_admins_own_stays(tmp_path: Path) -> None:
    node, grubby = admins_node(tmp_path / "node")
    after = options(node)
    assert all("iommu=foo" in line for line in after)
    assert not apply(ONE, root=str(node), tools=grubby).changed
    apply(entries(NUMA, "nosmt"), root=str(node), tools=grubby)
    assert all("iommu=foo" in line and "nosmt" in line for line in options(node))
    assert revert(root=str(node), tools=grubby).failures == ()
    assert [sorted(line.split()) for line in options(node)] == [
        sorted(line.replace(NUMA, "").split()) for line in after
    ]
    assert set(default_words(node)) == {"iommu=foo", "quiet"}


def test_another_slice_may_take_a_dropped_word_and_each_goes_its_own_way_back(tmp_path: Path) -> None:
    node, grubby = soft_node(tmp_path / "node")
    before = contents(node)
    apply(BOTH, root=str(node), tools=grubby)
    moved = {**ONE, **entries("iommu=off", name="pcie")}
    with pytest.raises(InputError, match="revert slice kernel first"):
        apply(moved, root=str(node), tools=grubby)
    apply(ONE, root=str(node), tools=grubby)
    assert apply(moved, root=str(node), tools=grubby).failures == ()
    assert all("iommu=off" in line for line in options(node))
    assert not apply(moved, root=str(node), tools=grubby).changed
    assert revert(["pcie"], root=str(node), tools=grubby).failures == ()
    assert options(node) == GIVEN_BACK
    apply(moved, root=str(node), tools=grubby)
    assert revert(["kernel"], root=str(node), tools=grubby).failures == ()
    assert options(node) == [f"options {line.replace('soft', 'off')}" for line in SOFT]
    assert revert(root=str(node), tools=grubby).failures == ()
    assert contents(node) == before


def test_a_word_that_is_taken_again_goes_back_to_what_an_admin_set_between(tmp_path: Path) -> None:
    node, grubby = admins_node(tmp_path / "node")
    foo = [sorted(line.split()) for line in options(node)]
    with pytest.raises(Killed):
        apply(BOTH, root=str(node), tools=killed_after(grubby, "*-0.conf"))
    apply(BOTH, root=str(node), tools=grubby)
    assert all("iommu=pt" in line and "iommu=foo" not in line for line in options(node))
    apply(ONE, root=str(node), tools=grubby)
    assert [sorted(line.split()) for line in options(node)] == foo
    apply(BOTH, root=str(node), tools=grubby)
    assert revert(root=str(node), tools=grubby).failures == ()
    assert [sorted([*line.split(), NUMA]) for line in options(node)] == foo
    assert set(default_words(node)) == {"iommu=foo", "quiet"}


def test_a_word_that_another_slice_had_is_not_taken_for_the_nodes_own(tmp_path: Path) -> None:
    node, grubby = soft_node(tmp_path / "node")
    before = contents(node)
    apply({**BOTH, **entries("nosmt", name="pcie")}, root=str(node), tools=grubby)
    apply({**ONE, **entries("nosmt", name="pcie")}, root=str(node), tools=grubby)
    apply({**ONE, **entries("nosmt", "iommu=off", name="pcie")}, root=str(node), tools=grubby)
    assert all("iommu=off" in line for line in options(node))
    assert revert(["pcie"], root=str(node), tools=grubby).failures == ()
    assert options(node) == GIVEN_BACK
    assert set(default_words(node)) == {"iommu=soft", "quiet", NUMA}
    assert revert(root=str(node), tools=grubby).failures == ()
    assert contents(node) == before


def test_a_word_that_came_in_a_later_tune_gives_later_kernels_the_nodes_word_again(tmp_path: Path) -> None:
    node, grubby = soft_node(tmp_path / "node")
    before = contents(node)
    apply(ONE, root=str(node), tools=grubby)
    apply(BOTH, root=str(node), tools=grubby)
    late = later_kernel(node)
    assert {"iommu=pt", NUMA} <= set(late.read_text().split())
    assert revert(root=str(node), tools=grubby).failures == ()
    assert set(late.read_text().splitlines()[2].split()) == {"options", "root=1", "quiet", "iommu=soft"}
    assert set(default_words(node)) == {"iommu=soft", "quiet"}
    late.unlink()
    assert contents(node) == before


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("drop", [False, True])
def test_where_grubenv_has_the_words_a_dropped_one_comes_back_there(
    tmp_path: Path, later: bool, drop: bool
) -> None:
    node, grubby = kernelopts_node(tmp_path / "node", "pci=nocrs quiet")
    before = contents(node)
    if later:
        apply(ONE, root=str(node), tools=grubby)
    apply(BOTH, root=str(node), tools=grubby)
    assert kernelopts(node) == {"root=1", "ro", "pci=nocrs", "iommu=pt", NUMA}
    if drop:
        assert apply(ONE, root=str(node), tools=grubby).failures == ()
        assert kernelopts(node) == {"root=1", "ro", "pci=nocrs", "iommu=off", NUMA}
        assert options(node)[2] == f"options root=1 pci=noaer ro {NUMA}"
        assert not apply(ONE, root=str(node), tools=grubby).changed
    assert revert(root=str(node), tools=grubby).failures == ()
    assert kernelopts(node) == {"root=1", "ro", "pci=nocrs", "iommu=off"}
    assert contents(node) == before


@pytest.mark.parametrize("entry", ["*", "*-0.conf", "*-1.conf", "none"])
@pytest.mark.parametrize("then", [ONE, BOTH, None])
def test_a_drop_that_is_killed_is_ended_by_the_next_run_whatever_it_is(
    tmp_path: Path, entry: str, then: dict[str, list[dict[str, object]]] | None
) -> None:
    node, grubby = soft_node(tmp_path / "node")
    before = contents(node)
    apply(BOTH, root=str(node), tools=grubby)
    tuned = options(node)
    with pytest.raises(Killed):
        apply(ONE, root=str(node), tools=killed_after(grubby, entry))
    if then is not None:
        assert apply(then, root=str(node), tools=grubby).failures == ()
        assert options(node) == (GIVEN_BACK if then is ONE else tuned)
        assert not apply(then, root=str(node), tools=grubby).changed
    assert revert(root=str(node), tools=grubby).failures == ()
    assert contents(node) == before


@pytest.mark.parametrize("entry", ["*", "*-1.conf"])
def test_after_a_killed_drop_what_somebody_changed_is_left_by_a_revert_and_said(
    tmp_path: Path, entry: str
) -> None:
    node, grubby = soft_node(tmp_path / "node")
    apply(BOTH, root=str(node), tools=grubby)
    with pytest.raises(Killed):
        apply(ONE, root=str(node), tools=killed_after(grubby, entry))
    path = node / "boot/loader/entries/m-5.14.0-0.conf"
    path.write_text(f"title x\nversion 5.14.0-0\noptions root=1 iommu=foo {NUMA}\n")
    outcome = revert(root=str(node), tools=grubby)
    assert "changed since by someone else: left" in items(outcome, "kernel")[ID]["note"]
    assert options(node)[0] == f"options root=1 iommu=foo {NUMA}"


def test_a_run_with_a_word_in_quotes_that_was_killed_is_put_back_whole(tmp_path: Path) -> None:
    node, grubby = soft_node(tmp_path / "node")
    with_grub(node)
    before = contents(node)
    apply(ONE, root=str(node), tools=grubby)
    with pytest.raises(Killed):
        apply(entries(NUMA, SEVERAL), root=str(node), tools=killed_after(grubby, "*-1.conf"))
    outcome = revert(root=str(node), tools=grubby)
    assert (outcome.failures, items(outcome, "kernel")[ID]["note"]) == ((), "")
    assert contents(node) == before


def test_a_drop_in_that_somebody_else_wrote_since_is_left_by_a_revert_and_said(tmp_path: Path) -> None:
    node, grub = grub_node(tmp_path / "node")
    apply(BOTH, root=str(node), tools=grub)
    (node / DROP_IN[1:]).write_text("GRUB_TIMEOUT=1\n")
    outcome = revert(root=str(node), tools=grub)
    assert (outcome.failures, outcome.reboot_needed) == ((), (ID,))
    assert "was written by somebody else" in items(outcome, "kernel")[ID]["note"]
    assert (node / DROP_IN[1:]).read_text() == "GRUB_TIMEOUT=1\n"


def test_a_grubby_that_fails_at_a_drop_leaves_the_entries_and_the_next_run_does_it(tmp_path: Path) -> None:
    node, grubby = soft_node(tmp_path / "node")
    apply(BOTH, root=str(node), tools=grubby)
    tuned = contents(node)
    grubby.fails = "error: no space"
    assert apply(ONE, root=str(node), tools=grubby).failures
    assert contents(node) == tuned
    grubby.fails = ""
    assert apply(ONE, root=str(node), tools=grubby).failures == ()
    assert options(node) == GIVEN_BACK


def test_consoles_that_were_put_in_another_order_stand_as_before_when_they_are_dropped(
    tmp_path: Path,
) -> None:
    line = "root=1 console=ttyS0 console=tty0 ro"
    node, grubby = bls_node(tmp_path / "node", line)
    before = contents(node)
    apply(entries("console=tty0", "console=ttyS0", NUMA), root=str(node), tools=grubby)
    assert apply(ONE, root=str(node), tools=grubby).failures == ()
    assert options(node) == [f"options {line} {NUMA}"]
    assert revert(root=str(node), tools=grubby).failures == ()
    assert contents(node) == before


def test_a_dropped_word_that_needs_quotes_comes_back_in_them(tmp_path: Path) -> None:
    node, grubby = bls_node(tmp_path / "node", "root=1 iommu='soft;2' ro")
    with_grub(node)
    before = contents(node)
    apply(BOTH, root=str(node), tools=grubby)
    assert apply(ONE, root=str(node), tools=grubby).failures == ()
    assert options(node) == [f"options root=1 iommu='soft;2' ro {NUMA}"]
    assert revert(root=str(node), tools=grubby).failures == ()
    assert contents(node) == before


def test_an_entry_without_our_words_beside_those_with_them_keeps_no_revert_back(tmp_path: Path) -> None:
    node, grubby = bls_node(tmp_path / "node", "root=1 ro", "root=1 ro")
    before = contents(node)
    apply(ONE, root=str(node), tools=grubby)
    late = plant(node, "/boot/loader/entries/m-6.0.conf", "title x\nversion 6.0\noptions root=1\n")
    assert revert(root=str(node), tools=grubby).failures == ()
    assert late.read_text().splitlines()[2] == "options root=1"
    late.unlink()
    assert contents(node) == before


def test_a_drop_in_loses_a_dropped_word_and_the_nodes_own_was_never_gone(tmp_path: Path) -> None:
    node, grub = grub_node(tmp_path / "node")
    main = 'GRUB_CMDLINE_LINUX_DEFAULT="quiet iommu=soft"\nGRUB_CMDLINE_LINUX=""\n'
    plant(node, "/etc/default/grub", main)
    (node / "boot/grub/grub.cfg").write_text(grub.menu())
    menu = (node / "boot/grub/grub.cfg").read_bytes()
    apply(BOTH, root=str(node), tools=grub)
    assert first_words(node).endswith(f"quiet iommu=soft iommu=pt {NUMA}")
    assert apply(ONE, root=str(node), tools=grub).failures == ()
    assert first_words(node).endswith(f"quiet iommu=soft {NUMA}")
    (node / "etc/default/grub").write_text(main.replace("soft", "foo"))
    apply(ONE, root=str(node), tools=grub)
    revert(root=str(node), tools=grub)
    assert first_words(node).endswith("quiet iommu=foo")
    (node / "etc/default/grub").write_text(main)
    (node / "boot/grub/grub.cfg").write_text(grub.menu())
    assert (node / "boot/grub/grub.cfg").read_bytes() == menu


@pytest.mark.parametrize("loader", ["grub", "bls"])
@pytest.mark.parametrize("check", [False, True])
def test_the_reboot_for_a_dropped_word_is_owed_until_the_boot(
    tmp_path: Path, loader: str, check: bool
) -> None:
    node, tools = grub_node(tmp_path / "node") if loader == "grub" else soft_node(tmp_path / "node")
    start = boot if loader == "grub" else bls_boot
    apply(BOTH, root=str(node), tools=tools)
    start(node)
    assert apply(BOTH, root=str(node), tools=tools).reboot_needed == ()
    assert apply(ONE, root=str(node), tools=tools).reboot_needed == (ID,)
    for _ in range(3):
        again = apply(ONE, root=str(node), tools=tools, check=check)
        assert (again.changed, again.reboot_needed) == (False, (ID,))
    start(node)
    after = apply(ONE, root=str(node), tools=tools)
    assert (after.changed, after.reboot_needed) == (False, ())


@pytest.mark.parametrize("loader", ["grub", "bls"])
def test_a_word_that_was_dropped_and_taken_again_before_the_boot_owes_none(
    tmp_path: Path, loader: str
) -> None:
    node, tools = grub_node(tmp_path / "node") if loader == "grub" else soft_node(tmp_path / "node")
    apply(BOTH, root=str(node), tools=tools)
    (boot if loader == "grub" else bls_boot)(node)
    apply(ONE, root=str(node), tools=tools)
    again = apply(BOTH, root=str(node), tools=tools)
    # A menu without the word stood there between: the run that makes it anew cannot tell that it is the boot's.
    assert again.reboot_needed == (() if loader == "bls" else (ID,))
    assert apply(BOTH, root=str(node), tools=tools).reboot_needed == ()


def test_a_word_that_was_taken_and_dropped_before_any_boot_owes_none_by_the_next_call(tmp_path: Path) -> None:
    node, grubby = soft_node(tmp_path / "node")
    apply(ONE, root=str(node), tools=grubby)
    bls_boot(node)
    apply(BOTH, root=str(node), tools=grubby)
    apply(ONE, root=str(node), tools=grubby)
    assert apply(ONE, root=str(node), tools=grubby).reboot_needed == ()


def test_words_that_the_running_kernel_had_by_another_hand_owe_none_by_the_next_call(tmp_path: Path) -> None:
    node, grubby = bls_node(tmp_path / "node", "root=1 ro")
    plant(node, "/proc/cmdline", f"root=1 ro {NUMA}\n")
    assert apply(ONE, root=str(node), tools=grubby).changed
    assert apply(ONE, root=str(node), tools=grubby).reboot_needed == ()


def test_a_run_that_is_refused_gives_nothing_back_and_forgets_nothing(tmp_path: Path) -> None:
    node, grubby = soft_node(tmp_path / "node")
    before = contents(node)
    apply(BOTH, root=str(node), tools=grubby)
    (node / "usr/sbin/grubby").chmod(0o644)
    calls: list[Sequence[str]] = list(grubby.calls)
    assert apply(ONE, root=str(node), tools=grubby).failures
    assert grubby.calls == calls
    (node / "usr/sbin/grubby").chmod(0o755)
    assert revert(root=str(node), tools=grubby).failures == ()
    assert contents(node) == before


def test_an_entry_that_had_our_word_itself_keeps_no_other_from_going_back(tmp_path: Path) -> None:
    node, grubby = bls_node(tmp_path / "node", f"root=1 {NUMA}", "root=1 numa_balancing=enable", "root=1")
    before = contents(node)
    apply(entries(NUMA, "nosmt"), root=str(node), tools=grubby)
    apply(ONE, root=str(node), tools=grubby)
    assert options(node) == [f"options root=1 {NUMA}"] * 3
    assert revert(root=str(node), tools=grubby).failures == ()
    assert contents(node) == before


def test_an_entry_that_somebody_gave_the_word_of_another_before_stops_no_revert(tmp_path: Path) -> None:
    node, grubby = bls_node(tmp_path / "node", "root=1 iommu=off", "root=1 iommu=soft")
    before = contents(node)
    apply(BOTH, root=str(node), tools=grubby)
    path = node / "boot/loader/entries/m-5.14.0-1.conf"
    path.write_text("title x\nversion 5.14.0-1\noptions root=1 iommu=off\n")
    outcome = revert(root=str(node), tools=grubby)
    assert (outcome.failures, items(outcome, "kernel")[ID]["note"]) == ((), "")
    assert contents(node) == before
