"""Arguments of the kernel's command line: in the boot loader's configuration, and owed until they are in force."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from railwright.node.state import InputError, Said, apply, revert
from tests.unit.state_support import fingerprint, items, make_node, plant

DROP_IN = "/etc/default/grub.d/zz-railwright-kernel.cfg"
MAIN = 'GRUB_DEFAULT=0\nGRUB_CMDLINE_LINUX_DEFAULT="quiet"\nGRUB_CMDLINE_LINUX="console=tty0"\n'
WORDS = ["iommu=pt", "numa_balancing=disable", "pci=realloc=off"]
ID = "boot_arguments:kernel"


@dataclass
class Grub:
    """update-grub: a shell reads the files as grub-mkconfig does. fails: how it ends; kills: it is stopped before it
    writes; deaf: it writes a menu without what the files say."""

    node: Path
    fails: str = ""
    kills: bool = False
    deaf: bool = False
    calls: list[str] = field(default_factory=list)

    def __call__(self, argv: Sequence[str]) -> Said:
        self.calls.append(" ".join(argv))
        if self.kills:
            raise KeyboardInterrupt
        if self.fails:
            return Said(1, err=self.fails)
        (self.node / "boot/grub/grub.cfg").write_text(self.menu())
        return Said(0)

    def menu(self) -> str:
        files = [self.node / "etc/default/grub", *sorted((self.node / "etc/default/grub.d").glob("*.cfg"))]
        script = "".join(f". {shlex.quote(str(path))}\n" for path in files if path.exists() and not self.deaf)
        script += 'printf "%s %s" "$GRUB_CMDLINE_LINUX" "$GRUB_CMDLINE_LINUX_DEFAULT"'
        words = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
        return (
            f"menuentry 'Debian' {{\n\tlinux /boot/vmlinuz-6.1 root=/dev/sda1 ro {words}\n}}\n"
            "menuentry 'Debian (recovery mode)' {\n\tlinux /boot/vmlinuz-6.1 root=/dev/sda1 ro single\n}\n"
        )


def grub_node(folder: Path, running: str = "root=/dev/sda1 ro quiet") -> tuple[Path, Grub]:
    node = make_node(folder)
    plant(node, "/etc/default/grub", MAIN)
    plant(node, "/usr/sbin/update-grub", "", 0o755)
    plant(node, "/proc/cmdline", running + "\n")
    grub = Grub(node)
    plant(node, "/boot/grub/grub.cfg", grub.menu())
    return node, grub


def entries(*words: str, name: str = "kernel") -> dict[str, list[dict[str, Any]]]:
    one = {"kind": "boot_arguments", "name": name, "arguments": list(words or WORDS), "reboot": True}
    return {name: [one]}


def boot(node: Path) -> None:
    """The node starts with the first entry of its menu; /run is empty then."""
    menu = (node / "boot/grub/grub.cfg").read_text()
    words = re.search(r"linux \S+ (.*)", menu)
    assert words is not None
    (node / "proc/cmdline").write_text(as_grub_takes_it(words[1]) + "\n")
    for left in (node / "run").iterdir():
        left.unlink()


def as_grub_takes_it(script: str) -> str:
    """Quotes and ends of a command as a POSIX shell has them, which GRUB's script follows there."""
    lexer = shlex.shlex(script, posix=True, punctuation_chars=";&|<>")
    lexer.whitespace_split, lexer.commenters = True, ""
    return " ".join(takewhile(lambda word: word != ";", lexer))


def first_words(node: Path) -> str:
    return (node / "boot/grub/grub.cfg").read_text().splitlines()[1]


def test_a_drop_in_of_our_own_puts_them_into_every_entry_but_recovery_and_the_main_file_stays(
    tmp_path: Path,
) -> None:
    node, grub = grub_node(tmp_path / "node")
    outcome = apply(entries(), root=str(node), tools=grub)
    assert outcome.failures == ()
    assert first_words(node).endswith("console=tty0 quiet iommu=pt numa_balancing=disable pci=realloc=off")
    assert "iommu" not in (node / "boot/grub/grub.cfg").read_text().splitlines()[4]
    assert (node / "etc/default/grub").read_text() == MAIN
    assert grub.calls == ["update-grub"]


def test_a_reboot_is_owed_until_the_running_kernel_has_them_and_not_a_moment_longer(tmp_path: Path) -> None:
    node, grub = grub_node(tmp_path / "node")
    assert apply(entries(), root=str(node), tools=grub).reboot_needed == (ID,)
    again = apply(entries(), root=str(node), tools=grub)
    assert (again.changed, again.reboot_needed) == (False, (ID,))
    boot(node)
    after = apply(entries(), root=str(node), tools=grub)
    assert (after.changed, after.reboot_needed) == (False, ())


def test_a_boot_that_took_another_entry_is_seen_and_never_assumed(tmp_path: Path) -> None:
    node, grub = grub_node(tmp_path / "node")
    apply(entries(), root=str(node), tools=grub)
    boot(node)
    (node / "proc/cmdline").write_text("root=/dev/sda1 ro single\n")
    after = apply(entries(), root=str(node), tools=grub)
    assert (after.changed, after.reboot_needed) == (False, (ID,))
    assert "was started without iommu=pt, numa_balancing=disable" in items(after, "kernel")[ID]["note"]


def test_a_reboot_that_is_owed_is_told_by_a_check_too_and_a_check_changes_nothing(tmp_path: Path) -> None:
    node, grub = grub_node(tmp_path / "node")
    before = fingerprint(node)
    outcome = apply(entries(), root=str(node), tools=grub, check=True)
    assert (outcome.changed, outcome.reboot_needed, grub.calls) == (True, (ID,), [])
    assert fingerprint(node) == before


def test_a_word_of_ours_comes_after_a_word_of_theirs_for_the_same_key(tmp_path: Path) -> None:
    node, grub = grub_node(tmp_path / "node")
    plant(node, "/etc/default/grub.d/50-cloud.cfg", 'GRUB_CMDLINE_LINUX_DEFAULT="iommu=off quiet"\n')
    assert apply(entries(), root=str(node), tools=grub).failures == ()
    assert first_words(node).split().index("iommu=off") < first_words(node).split().index("iommu=pt")


@pytest.mark.parametrize("name", ["99-site.cfg", "site.cfg", "vendor.cfg"])
def test_ours_is_read_after_what_others_set_anew_by_any_usual_name(tmp_path: Path, name: str) -> None:
    node, grub = grub_node(tmp_path / "node")
    plant(node, f"/etc/default/grub.d/{name}", 'GRUB_CMDLINE_LINUX_DEFAULT="quiet splash"\n')
    assert apply(entries(), root=str(node), tools=grub).failures == ()
    assert "splash iommu=pt" in first_words(node)


def test_a_drop_in_that_overrides_ours_is_told(tmp_path: Path) -> None:
    node, grub = grub_node(tmp_path / "node")
    plant(node, "/etc/default/grub.d/zzz-site.cfg", 'GRUB_CMDLINE_LINUX_DEFAULT="quiet"\n')
    (failure,) = apply(entries(), root=str(node), tools=grub).failures
    assert "has an entry without iommu=pt" in failure.why
    assert "/etc/default/grub.d" in failure.remedy


def test_a_tool_that_ends_well_and_changes_nothing_is_no_success(tmp_path: Path) -> None:
    node, grub = grub_node(tmp_path / "node")
    grub.deaf = True
    outcome = apply(entries(), root=str(node), tools=grub)
    assert "has an entry without iommu=pt" in outcome.failures[0].why


def test_a_menu_that_somebody_made_anew_without_them_is_made_again(tmp_path: Path) -> None:
    node, grub = grub_node(tmp_path / "node")
    apply(entries(), root=str(node), tools=grub)
    menu = node / "boot/grub/grub.cfg"
    menu.write_text(menu.read_text().replace("iommu=pt", ""))
    outcome = apply(entries(), root=str(node), tools=grub)
    assert (outcome.failures, items(outcome, "kernel")[ID]["action"]) == ((), "menu")
    assert "iommu=pt" in first_words(node)


@pytest.mark.parametrize("fault", ["kills", "fails"])
def test_a_run_that_ended_before_the_menu_was_made_is_made_good_by_the_next(
    tmp_path: Path, fault: str
) -> None:
    node, grub = grub_node(tmp_path / "node")
    if fault == "kills":
        grub.kills = True
        with pytest.raises(KeyboardInterrupt):
            apply(entries(), root=str(node), tools=grub)
    else:
        grub.fails = "/usr/sbin/grub-probe: error: failed to get canonical path"
        assert "grub-probe" in apply(entries(), root=str(node), tools=grub).failures[0].why
    grub.kills, grub.fails = False, ""
    assert apply(entries(), root=str(node), tools=grub).failures == ()
    assert "iommu=pt" in first_words(node)


@pytest.mark.parametrize("fault", ["", "kills"])
def test_a_revert_ends_with_the_menu_that_was_there_before_and_owes_a_boot(
    tmp_path: Path, fault: str
) -> None:
    node, grub = grub_node(tmp_path / "node")
    menu = (node / "boot/grub/grub.cfg").read_text()
    apply(entries(), root=str(node), tools=grub)
    boot(node)
    if fault:
        grub.kills = True
        with pytest.raises(KeyboardInterrupt):
            revert(root=str(node), tools=grub)
        grub.kills = False
    outcome = revert(root=str(node), tools=grub)
    assert (outcome.failures, outcome.reboot_needed) == ((), (ID,))
    assert (node / "boot/grub/grub.cfg").read_text() == menu
    assert not (node / DROP_IN[1:]).exists()


def test_other_words_take_the_place_of_ours(tmp_path: Path) -> None:
    node, grub = grub_node(tmp_path / "node")
    apply(entries(), root=str(node), tools=grub)
    apply(entries("iommu=off"), root=str(node), tools=grub)
    assert first_words(node).endswith("quiet iommu=off")


def test_two_slices_have_words_of_their_own(tmp_path: Path) -> None:
    node, grub = grub_node(tmp_path / "node")
    both = {**entries(), **entries("pci=config_acs=101@0000:01:00.0", name="pcie")}
    assert apply(both, root=str(node), tools=grub).failures == ()
    assert first_words(node).endswith("pci=realloc=off pci=config_acs=101@0000:01:00.0")
    revert(["kernel"], root=str(node), tools=grub)
    assert first_words(node).endswith("quiet pci=config_acs=101@0000:01:00.0")


def test_two_slices_that_set_the_same_key_are_refused(tmp_path: Path) -> None:
    node, grub = grub_node(tmp_path / "node")
    with pytest.raises(InputError, match="both own boot_argument iommu"):
        apply({**entries(), **entries("iommu=off", name="pcie")}, root=str(node), tools=grub)


SEVERAL = "pci=config_acs=xx000x0@0000:20:01.0;xx000x0@0000:22:00.0"


@pytest.mark.parametrize("word", [SEVERAL, "pci=disable_acs_redir=0000:20:01.0;0000:22:00.0"])
def test_a_word_with_a_semicolon_gets_whole_through_grubs_script_to_the_kernel(
    tmp_path: Path, word: str
) -> None:
    node, grub = grub_node(tmp_path / "node")
    menu = (node / "boot/grub/grub.cfg").read_bytes()
    assert apply(entries("iommu=pt", word), root=str(node), tools=grub).failures == ()
    assert first_words(node).endswith(f"console=tty0 quiet iommu=pt '{word}'")
    boot(node)
    assert (node / "proc/cmdline").read_text().split()[-1] == word
    again = apply(entries("iommu=pt", word), root=str(node), tools=grub)
    assert (again.changed, again.reboot_needed, again.failures) == (False, (), ())
    assert revert(root=str(node), tools=grub).failures == ()
    assert (node / "boot/grub/grub.cfg").read_bytes() == menu


def test_a_drop_in_that_an_earlier_version_wrote_without_quotes_is_written_anew(tmp_path: Path) -> None:
    node, grub = grub_node(tmp_path / "node")
    apply(entries(SEVERAL), root=str(node), tools=grub)
    path = node / DROP_IN[1:]
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"'", b""))
    (node / "boot/grub/grub.cfg").write_text(grub.menu())
    boot(node)
    assert "0000:22:00.0" not in (node / "proc/cmdline").read_text()
    outcome = apply(entries(SEVERAL), root=str(node), tools=grub)
    assert (outcome.failures, outcome.reboot_needed) == ((), (ID,))
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "names nothing"),
        (["iommu=pt quiet"], "is no argument"),
        (['x="$(reboot)"'], "is no argument"),
        (["x=`id`"], "is no argument"),
        (["iommu=pt", "iommu=off"], "set the same"),
        ([5], "expected text"),
    ],
)
def test_what_is_no_argument_is_refused(tmp_path: Path, words: list[Any], why: str) -> None:
    node, grub = grub_node(tmp_path / "node")
    with pytest.raises(InputError, match=why):
        apply({"kernel": [{"kind": "boot_arguments", "arguments": words}]}, root=str(node), tools=grub)


def test_a_drop_in_that_is_somebody_elses_is_left_alone(tmp_path: Path) -> None:
    node, grub = grub_node(tmp_path / "node")
    plant(node, DROP_IN, "GRUB_TIMEOUT=1\n")
    (failure,) = apply(entries(), root=str(node), tools=grub).failures
    assert "was written by somebody else" in failure.why
    assert (node / DROP_IN[1:]).read_text() == "GRUB_TIMEOUT=1\n"


def test_a_node_without_a_boot_loader_is_told_and_owes_nothing(tmp_path: Path) -> None:
    node = make_node(tmp_path / "node")
    plant(node, "/proc/cmdline", "quiet\n")
    outcome = apply(entries(), root=str(node), tools=lambda argv: Said(0))
    assert "no boot loader that we know" in outcome.failures[0].why
    assert outcome.reboot_needed == ()
