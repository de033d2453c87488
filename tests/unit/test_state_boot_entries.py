"""Arguments of the kernel's command line in entries of the Boot Loader Specification, which grubby edits by name."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from railwright.node.state import Said, StateError, apply, revert
from tests.unit.state_support import make_node, plant
from tests.unit.test_state_boot import ID, SEVERAL, WORDS, entries


@dataclass
class Grubby:
    """grubby --update-kernel=ALL, on entries with their words in them and on /etc/default/grub.

    It compares names. Fedora's and RHEL 9's takes every word of a name away, then adds what it was given; the first
    one of the Boot Loader Specification (rhboot/grubby fdb5c76, update_args) takes the first word's place. RHEL 8's
    leaves entries with $kernelopts and edits that variable in grubenv. expands: it puts the values of other variables
    into the entry, as its expand_var does. fails: how it ends, after its work.
    """

    node: Path
    first: bool = False
    expands: bool = False
    fails: str = ""
    calls: list[list[str]] = field(default_factory=list)

    def __call__(self, argv: Sequence[str]) -> Said:
        self.calls.append(list(argv))
        for path in (self.node / "boot/loader/entries").glob("*.conf"):
            if "$kernelopts" not in path.read_text():
                path.write_text(
                    re.sub(
                        r"(?m)^options (.*)$", lambda m: f"options {self.edit(m[1], argv)}", path.read_text()
                    )
                )
        environment = self.node / "boot/grub2/grubenv"
        if environment.exists():
            environment.write_text(
                re.sub(
                    r"(?m)^kernelopts=(.*)$",
                    lambda m: f"kernelopts={self.edit(m[1], argv)}",
                    environment.read_text(),
                )
            )
        default = self.node / "etc/default/grub"
        if default.exists():
            edited = re.sub(
                r'(?m)^(GRUB_CMDLINE_LINUX)="(.*)"$',
                lambda m: f'{m[1]}="{self.edit(m[2], argv)}"',
                default.read_text(),
            )
            default.write_text(edited)
        return Said(1, err=self.fails) if self.fails else Said(0)

    def edit(self, line: str, argv: Sequence[str]) -> str:
        words = line.split()
        if self.expands:
            text = (self.node / "boot/grub2/grubenv").read_text()
            values = dict(one.split("=", 1) for one in text.splitlines() if "=" in one)
            words = " ".join(values.get(one[1:]) or one if one[0] == "$" else one for one in words).split()
        given = {option.partition("=")[0]: option.partition("=")[2].split() for option in argv[2:]}
        for word in given.get("--remove-args", []):
            words = [one for one in words if one != word and ("=" in word or named(one) != word)]
        come = given.get("--args", [])
        if self.first:
            for word in come:
                words = in_first_place(words, word)
            return " ".join(words)
        names = {named(word) for word in come}
        return " ".join([*(one for one in words if named(one) not in names), *come])


def named(word: str) -> str:
    return word.partition("=")[0]


def in_first_place(words: list[str], word: str) -> list[str]:
    start = word[: word.rindex("=") + 1] if "=" in word else word
    places = [place for place, one in enumerate(words) if one.startswith(start)]
    return [*words[: places[0]], word, *words[places[0] + 1 :]] if places else [*words, word]


def bls_node(folder: Path, *lines: str) -> tuple[Path, Grubby]:
    node = make_node(folder)
    plant(node, "/usr/sbin/grubby", "", 0o755)
    plant(node, "/proc/cmdline", lines[0] + "\n")
    for number, line in enumerate(lines):
        plant(
            node,
            f"/boot/loader/entries/m-5.14.0-{number}.conf",
            f"title x\nversion 5.14.0-{number}\noptions {line}\n",
        )
    return node, Grubby(node)


def options(node: Path) -> list[str]:
    paths = sorted((node / "boot/loader/entries").glob("*.conf"))
    return [path.read_text().splitlines()[2] for path in paths]


def test_grubby_sets_them_in_every_entry_and_takes_the_old_word_out(tmp_path: Path) -> None:
    node, grubby = bls_node(tmp_path / "node", "root=1 ro iommu=off", "root=1 ro iommu=off")
    outcome = apply(entries(), root=str(node), tools=grubby)
    assert (outcome.failures, outcome.reboot_needed) == ((), (ID,))
    assert options(node) == [f"options root=1 ro {' '.join(WORDS)}"] * 2
    assert grubby.calls == [
        ["grubby", "--update-kernel=ALL", "--remove-args=iommu=off", f"--args={' '.join(WORDS)}"]
    ]
    assert not apply(entries(), root=str(node), tools=grubby).changed


def test_an_entry_of_a_later_kernel_without_them_is_set_too(tmp_path: Path) -> None:
    node, grubby = bls_node(tmp_path / "node", f"root=1 {' '.join(WORDS)}", "root=1")
    apply(entries(), root=str(node), tools=grubby)
    assert all(line.count("iommu=pt") >= 1 for line in options(node))


def test_a_revert_gives_every_entry_its_own_word_again(tmp_path: Path) -> None:
    node, grubby = bls_node(tmp_path / "node", "root=1 ro iommu=off", "root=1 ro iommu=off")
    apply(entries(), root=str(node), tools=grubby)
    assert revert(root=str(node), tools=grubby).failures == ()
    assert options(node) == ["options root=1 ro iommu=off"] * 2


def contents(node: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((node / "boot/loader/entries").iterdir())}


def test_the_stand_in_drops_words_of_one_name_as_grubby_does(tmp_path: Path) -> None:
    """The man page: "If an argument already exists the new value replaces the old values"."""
    node, grubby = bls_node(tmp_path / "node", "root=1 pci=nocrs pci=noaer ro")
    grubby(["grubby", "--update-kernel=ALL", "--args=pci=realloc=off"])
    assert options(node) == ["options root=1 ro pci=realloc=off"]


@pytest.mark.parametrize("first", [False, True])
def test_others_words_of_the_same_name_stay_in_every_entry_and_a_revert_gives_the_same_bytes(
    tmp_path: Path, first: bool
) -> None:
    lines = (
        "root=1 pci=nocrs iommu=off ro console=tty0 console=ttyS0,115200",
        "root=1 pci=noaer pci=nocrs iommu=off ro quiet",
        "root=1 iommu=off ro",
    )
    node, grubby = bls_node(tmp_path / "node", *lines)
    grubby.first = first
    plant(node, "/etc/default/grub", 'GRUB_TIMEOUT=5\nGRUB_CMDLINE_LINUX="pci=nocrs quiet"\n')
    before = contents(node)
    outcome = apply(entries(), root=str(node), tools=grubby)
    assert (outcome.failures, outcome.reboot_needed) == ((), (ID,))
    assert options(node) == [
        "options root=1 pci=nocrs iommu=pt ro console=tty0 console=ttyS0,115200 numa_balancing=disable pci=realloc=off",
        "options root=1 pci=noaer pci=nocrs iommu=pt ro quiet numa_balancing=disable pci=realloc=off",
        "options root=1 iommu=pt ro numa_balancing=disable pci=realloc=off",
    ]
    # A kernel that comes later gets both.
    assert {"pci=nocrs", "quiet", *WORDS} == set(default_words(node))
    assert len(grubby.calls) == 1
    assert not apply(entries(), root=str(node), tools=grubby).changed
    assert revert(root=str(node), tools=grubby).failures == ()
    assert contents(node) == before
    assert {"pci=nocrs", "quiet"} <= set(default_words(node))
    assert "pci=realloc=off" not in default_words(node)


def test_words_that_stood_in_another_order_stay_where_they_were_and_are_no_change(tmp_path: Path) -> None:
    node, grubby = bls_node(tmp_path / "node", "numa_balancing=enable root=1 iommu=off iommu=soft ro")
    before = contents(node)
    assert apply(entries(), root=str(node), tools=grubby).failures == ()
    assert options(node) == ["options numa_balancing=disable root=1 iommu=pt ro pci=realloc=off"]
    assert not apply(entries(), root=str(node), tools=grubby).changed
    assert revert(root=str(node), tools=grubby).failures == ()
    assert contents(node) == before


@pytest.mark.parametrize("first", [False, True])
def test_huge_pages_stay_behind_their_size_and_others_behind_theirs(tmp_path: Path, first: bool) -> None:
    node, grubby = bls_node(tmp_path / "node", "root=1 hugepagesz=16G hugepages=1 ro")
    grubby.first = first
    apply(
        entries("hugepagesz=1G", "hugepages=2", "hugepagesz=2M", "hugepages=10"), root=str(node), tools=grubby
    )
    again = entries("hugepagesz=1G", "hugepages=10", "hugepagesz=2M", "hugepages=2", "iommu=pt")
    assert apply(again, root=str(node), tools=grubby).changed
    theirs = "options root=1 hugepagesz=16G hugepages=1 ro"
    assert options(node) == [f"{theirs} hugepagesz=1G hugepages=10 hugepagesz=2M hugepages=2 iommu=pt"]
    assert not apply(again, root=str(node), tools=grubby).changed
    assert revert(root=str(node), tools=grubby).failures == ()
    assert options(node) == [theirs]


def test_entries_that_had_words_of_their_own_for_one_key_get_each_its_own_again(tmp_path: Path) -> None:
    lines = ("root=1  iommu=off ro", "root=1 iommu=soft ro pci=nocrs", "root=1 ro")
    node, grubby = bls_node(tmp_path / "node", *lines)
    before = contents(node)
    assert apply(entries("numa_balancing=disable"), root=str(node), tools=grubby).failures == ()
    assert apply(entries(), root=str(node), tools=grubby).failures == ()
    assert all("iommu=pt" in line.split() for line in options(node))
    late = "title x\nversion 6.0\noptions root=1 numa_balancing=disable iommu=pt pci=realloc=off\n"
    plant(node, "/boot/loader/entries/m-6.0.conf", late)
    changed = node / "boot/loader/entries/m-5.14.0-1.conf"
    changed.write_text(changed.read_text().replace(" ro ", " rw quiet "))
    assert revert(root=str(node), tools=grubby).failures == ()
    after = contents(node)
    assert {name: after[name] for name in before if name != changed.name} == {
        name: line for name, line in before.items() if name != changed.name
    }
    assert options(node)[1] == "options root=1 iommu=soft rw quiet pci=nocrs"
    assert not {"iommu=pt", "numa_balancing=disable", "pci=realloc=off"} & set(options(node)[3].split())


def test_a_run_that_is_killed_when_grubby_has_ended_lost_nothing_that_every_entry_has(tmp_path: Path) -> None:
    node, grubby = bls_node(tmp_path / "node", "root=1 pci=nocrs iommu=off ro", "root=1 pci=nocrs ro")

    def killed(argv: Sequence[str]) -> Said:
        grubby(argv)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        apply(entries(), root=str(node), tools=killed)
    assert apply(entries(), root=str(node), tools=grubby).failures == ()
    assert all({"pci=nocrs", *WORDS} <= set(line.split()) for line in options(node))
    assert revert(root=str(node), tools=grubby).failures == ()
    assert [sorted(line.split()) for line in options(node)] == [
        sorted(["options", "root=1", "pci=nocrs", "iommu=off", "ro"]),
        sorted(["options", "root=1", "pci=nocrs", "ro"]),
    ]


def test_a_record_without_the_lines_of_the_entries_goes_back_by_its_words(tmp_path: Path) -> None:
    node, grubby = bls_node(tmp_path / "node", "root=1 iommu=off ro pci=nocrs", "root=1 iommu=off ro")
    before = contents(node)
    apply(entries(), root=str(node), tools=grubby)
    record = node / "var/lib/railwright/state.json"
    kept = json.loads(record.read_text())
    assert kept["origins"].pop(ID).keys() == before.keys()
    record.write_text(json.dumps(kept))
    assert revert(root=str(node), tools=grubby).failures == ()
    assert contents(node) == before


@pytest.mark.parametrize("origin", [5, {"../x.conf": "a"}, {"m.conf": "a\nb"}, {"m.conf": 1}])
def test_a_record_with_lines_that_are_none_is_refused(tmp_path: Path, origin: Any) -> None:
    node, grubby = bls_node(tmp_path / "node", "root=1 ro")
    apply(entries(), root=str(node), tools=grubby)
    record = node / "var/lib/railwright/state.json"
    kept = json.loads(record.read_text())
    kept["origins"][ID] = origin
    record.write_text(json.dumps(kept))
    with pytest.raises(StateError, match="origins"):
        revert(root=str(node), tools=grubby)


def default_words(node: Path) -> list[str]:
    match = re.search(r'GRUB_CMDLINE_LINUX="(.*)"', (node / "etc/default/grub").read_text())
    assert match is not None
    return match[1].split()


def test_two_slices_with_words_of_one_name_leave_each_others_in_the_entries(tmp_path: Path) -> None:
    node, grubby = bls_node(tmp_path / "node", "root=1 ro", "root=1 ro")
    plant(node, "/etc/default/grub", 'GRUB_CMDLINE_LINUX=""\n')
    both = {**entries("pci=realloc=off"), **entries("pci=config_acs=101@0000:01:00.0", name="pcie")}
    assert apply(both, root=str(node), tools=grubby).failures == ()
    together = "pci=realloc=off pci=config_acs=101@0000:01:00.0"
    assert options(node) == [f"options root=1 ro {together}"] * 2
    assert default_words(node) == together.split()
    assert not apply(both, root=str(node), tools=grubby).changed
    assert revert(["kernel"], root=str(node), tools=grubby).failures == ()
    assert options(node) == ["options root=1 ro pci=config_acs=101@0000:01:00.0"] * 2
    assert default_words(node) == ["pci=config_acs=101@0000:01:00.0"]


def test_a_word_that_a_policy_drops_goes_from_every_entry_that_has_it(tmp_path: Path) -> None:
    node, grubby = bls_node(tmp_path / "node", "root=1 ro pci=nocrs", "root=1 ro pci=nocrs")
    apply(entries("pci=realloc=off", "iommu=pt"), root=str(node), tools=grubby)
    plant(node, "/boot/loader/entries/m-6.0.conf", "title x\nversion 6.0\noptions root=1 pci=noats\n")
    assert apply(entries("iommu=pt"), root=str(node), tools=grubby).failures == ()
    assert options(node) == [
        "options root=1 ro pci=nocrs iommu=pt",
        "options root=1 ro pci=nocrs iommu=pt",
        "options root=1 pci=noats iommu=pt",
    ]


def test_a_grubby_that_fails_after_half_its_work_leaves_the_entries_as_they_were(tmp_path: Path) -> None:
    node, grubby = bls_node(tmp_path / "node", "root=1 pci=nocrs ro", "root=1 ro")
    before = contents(node)
    grubby.fails = "grub2-editenv: error: no space left on device."
    (failure,) = apply(entries(), root=str(node), tools=grubby).failures
    assert "grubby ended with 1: grub2-editenv" in failure.why
    assert contents(node) == before
    grubby.fails = ""
    assert apply(entries(), root=str(node), tools=grubby).failures == ()
    assert "pci=nocrs" in options(node)[0].split()
    assert "pci=nocrs" not in options(node)[1].split()


def with_grub(node: Path, environment: str = "# GRUB Environment Block\n") -> None:
    plant(node, "/boot/grub2/grubenv", environment)


def test_grubby_gets_a_word_with_a_semicolon_in_quotes_that_its_own_file_can_hold(tmp_path: Path) -> None:
    """grubby writes GRUB_CMDLINE_LINUX="..." and escapes nothing: double quotes would end that shell's word."""
    node, grubby = bls_node(tmp_path / "node", "root=1 ro", "root=1 ro")
    with_grub(node)
    outcome = apply(entries(SEVERAL), root=str(node), tools=grubby)
    assert (outcome.failures, outcome.reboot_needed) == ((), (ID,))
    assert options(node) == [f"options root=1 ro '{SEVERAL}'"] * 2
    plant(node, "/proc/cmdline", f"root=1 ro {SEVERAL}\n")
    again = apply(entries(SEVERAL), root=str(node), tools=grubby)
    assert (again.changed, again.reboot_needed) == (False, ())
    assert revert(root=str(node), tools=grubby).failures == ()
    assert options(node) == ["options root=1 ro"] * 2


@pytest.mark.parametrize(
    "stands", ["pci=config_acs=A@1;B@2", '"pci=config_acs=A@1;B@2"', "'pci=config_acs=A@1;B@2'"]
)
def test_an_entrys_old_word_goes_however_it_is_written(tmp_path: Path, stands: str) -> None:
    node, grubby = bls_node(tmp_path / "node", f"root=1 {stands}", f"root=1 {stands}")
    with_grub(node)
    assert apply(entries(SEVERAL), root=str(node), tools=grubby).failures == ()
    assert options(node) == [f"options root=1 '{SEVERAL}'"] * 2


def test_a_word_with_a_semicolon_is_not_written_where_it_is_not_known_that_grub_reads_it(
    tmp_path: Path,
) -> None:
    node, grubby = bls_node(tmp_path / "node", "root=1 ro", "root=1 ro")
    (failure,) = apply(entries(SEVERAL), root=str(node), tools=grubby).failures
    assert "needs quotes in an entry that GRUB reads" in failure.why
    assert "/boot/grub2/grubenv is absent" in failure.why
    assert (options(node), grubby.calls) == (["options root=1 ro"] * 2, [])
