"""What takes long is made once, all or none of it, and again when an input changes; and who may use the lab."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.lab import __main__ as command
from tests.lab import backports, cache, debian, hardware, rootfs, setup
from tests.lab.errors import LabError
from tests.lab.vm import assemble, disk, emulator, saved
from tests.lab.vm.layout import LAYOUTS


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tests.lab.cache.HOME", tmp_path / "cache")


def test_it_is_made_once(tmp_path: Path) -> None:
    made = []

    def make(folder: Path) -> None:
        folder.mkdir()
        made.append(folder)

    first = cache.kept("thing", "a", make)
    assert cache.kept("thing", "a", make) == first
    assert len(made) == 1
    assert cache.kept("thing", "b", make) != first


def _takes(place: Path, why: str = "") -> Path:
    if why:
        raise LabError(str(place), why, "try again")
    place.mkdir(parents=True)
    return place


def test_setup_makes_what_is_absent_and_says_what_was_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = [tmp_path / name for name in "abc"]
    _takes(places[1])
    setup.build([setup.Kept(place.name, place, partial(_takes, place)) for place in places])
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"b: {places[1]}, is there"
    assert [line.partition(" built in ")[0] for line in said[1:]] == [f"a: {places[0]},", f"c: {places[2]},"]
    assert all(place.is_dir() for place in places)


def test_setup_says_why_something_could_not_be_made(tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    with pytest.raises(LabError, match=f"{bad}: disk full; try again"):
        setup.build([setup.Kept("bad", bad, partial(_takes, bad, "disk full"))])


def test_what_fails_half_way_leaves_nothing_that_is_taken_for_whole(tmp_path: Path) -> None:
    def make(folder: Path) -> None:
        folder.mkdir()
        (folder / "half").touch()
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        cache.kept("thing", "a", make)
    assert not cache.place("thing", "a").exists()
    assert [path.name for path in cache.HOME.iterdir()] == ["thing-a.lock"]


def test_a_key_changes_with_any_input_and_with_where_they_are_cut() -> None:
    keys = {cache.key(b"ab", b"c"), cache.key(b"a", b"bc"), cache.key(b"ab", b"d"), cache.key(b"ab")}
    assert len(keys) == 4


def test_another_suite_another_archive_or_another_recipe_is_another_root(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(debian, "mirror", lambda: "one")
    names = {rootfs.name("bookworm"), rootfs.name("trixie")}
    monkeypatch.setattr(debian, "mirror", lambda: "other")
    assert len(names | {rootfs.name("bookworm")}) == 3


def test_another_layout_or_another_emulator_is_another_saved_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian, "mirror", lambda: "one")
    monkeypatch.setattr(emulator, "version", lambda: "10.0.2")
    names = {saved.name(shape) for shape in LAYOUTS.values()}
    assert len(names) == len(LAYOUTS)
    monkeypatch.setattr(emulator, "version", lambda: "10.0.3")
    assert not names & {saved.name(shape) for shape in LAYOUTS.values()}


def test_another_guest_module_is_another_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(debian, "mirror", lambda: "one")
    monkeypatch.setattr(assemble, "MODULES", tmp_path)
    shape = next(iter(LAYOUTS.values()))
    (tmp_path / "one.c").write_text("int one;")
    before = disk.name(shape)
    (tmp_path / "one.c").write_text("int two;")
    assert disk.name(shape) != before


def test_another_description_is_another_machine(tmp_path: Path) -> None:
    plain = hardware.machine("2s_8xh100_10xcx7")
    assert hardware.machine("2s_8xh100_10xcx7") == plain
    patched = hardware.machine("2s_8xh100_10xcx7", {"kernel": {"hostname": "other"}})
    assert patched != plain
    assert (patched / "tree/proc/sys/kernel/hostname").read_text() == "other\n"


def test_a_folder_is_taken_away_without_what_is_mounted_in_it(ready: None, tmp_path: Path) -> None:
    """A half-made root may have this machine's /dev/shm in it."""
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/file").touch()
    (tmp_path / "half/shm").mkdir(parents=True)
    (tmp_path / "half/own").touch()
    code = f"from tests.lab.cache import remove; from pathlib import Path; remove(Path({str(tmp_path / 'half')!r}))"
    script = (
        f"mount -t tmpfs t {tmp_path / 'precious'} && touch {tmp_path / 'precious/file'} && "
        f"mount --bind {tmp_path / 'precious'} {tmp_path / 'half/shm'} && "
        f'{{ {sys.executable} -c "{code}"; ls {tmp_path / "precious"} {tmp_path / "half"}; }}'
    )
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        cwd=hardware.TESTS.parent,
    )
    assert "file" in done.stdout
    assert "own" not in done.stdout


def test_without_root_one_sentence_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert setup.unready() == "the lab needs root"
    for words in (["setup"], ["up", "a", "n1=bookworm"], ["down", "--all"]):
        assert command.main(words) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert "needs root" in said


def test_a_machine_without_the_tools_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda program, path: None if program == "mmdebstrap" else program)
    assert setup.unready() == "the lab lacks mmdebstrap: run `make lab-setup`"


def test_a_suite_that_the_lab_has_not_is_refused(capsys: pytest.CaptureFixture[str], ready: None) -> None:
    assert command.main(["up", "x", "n1=sid"]) == 2
    assert "'sid' is none of the lab's; expected bookworm or trixie" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("os_release", "suite"),
    [("ID=debian\nVERSION_CODENAME=bookworm\n", "bookworm-backports"), ("VERSION_CODENAME=trixie\n", None)],
)
def test_the_emulator_comes_from_backports_only_where_the_suites_own_is_too_old(
    os_release: str, suite: str | None
) -> None:
    assert backports.target(os_release) == suite


def test_an_emulator_that_is_too_old_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    emulator.version.cache_clear()
    monkeypatch.setattr("shutil.which", lambda program: program)
    monkeypatch.setattr(emulator, "call", lambda argv: "QEMU emulator version 7.2.19 (Debian)\n")
    with pytest.raises(LabError, match=r"version 10 or newer is needed: run `make lab-setup`"):
        emulator.version()
