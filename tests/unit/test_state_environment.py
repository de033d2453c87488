"""Environments of wheels, built by a real venv and a real pip from a folder of wheels of our own."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from railwright.node.model import InputError
from railwright.node.model.wheel_lock import read_lock
from railwright.node.state import Outcome, Said, apply, revert
from railwright.node.state.program import last_words
from railwright.node.words import without_users
from tests.rotation import share
from tests.unit.state_support import fingerprint, item
from tests.unit.wheel_support import MINOR, Bench, bench, child, lock, pin, wheel


@dataclass(frozen=True)
class Stage:
    """One node, and copies of it from before and after it was built: what a build takes is paid for once.

    calls: programs of the first build, which had a umask of 077 and a TMPDIR of its own, tmp. steps: calls of the
    second.
    """

    bench: Bench
    copies: Path
    tmp: Path
    calls: tuple[str, ...]
    steps: tuple[str, ...]

    def restore(self, name: str) -> Bench:
        shutil.rmtree(self.bench.node)
        _copy(self.copies / name, self.bench.node)
        self.bench.tools.calls.clear()
        return self.bench


def _copy(tree: Path, place: Path) -> None:
    """pip's own many files are linked: no test writes into one of them."""

    def one(source: str, target: str) -> object:
        return (os.link if "/site-packages/pip/" in source else shutil.copy2)(source, target)

    shutil.copytree(tree, place, symlinks=True, copy_function=one)


@functools.cache
def _staged(folder: Path) -> Stage:
    made, copies, tmp = bench(folder), folder / "copies", folder / "tmp"
    tmp.mkdir()
    _copy(made.node, copies / "fresh")
    before = os.umask(0o077)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TMPDIR", str(tmp))
            built(made)
    finally:
        os.umask(before)
    calls = tuple(made.tools.calls)
    _copy(made.node, copies / "first")
    second = child(made, made.entry("alpha2", "beta", "pip"), 0)
    assert second.returncode == 0, second.stderr
    _copy(made.node, copies / "both")
    return Stage(made, copies, tmp, calls, tuple(second.stderr.split()))


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """The same one for all files of tests that ask for it."""
    return _staged(tmp_path_factory.getbasetemp() / "environment")


@pytest.fixture
def at(stage: Stage) -> Bench:
    """Nothing was built yet."""
    return stage.restore("fresh")


@pytest.fixture
def first(stage: Stage) -> Bench:
    return stage.restore("first")


@pytest.fixture
def both(stage: Stage) -> Bench:
    """A second version was built after the first."""
    return stage.restore("both")


def run(at: Bench, entry: dict[str, Any], **more: Any) -> Outcome:
    return apply({"dl_runtime": [entry]}, root=str(at.node), tools=at.tools, **more)


def back(at: Bench) -> Outcome:
    return revert(["dl_runtime"], root=str(at.node), tools=at.tools)


def built(at: Bench, *names: str, **more: Any) -> Outcome:
    outcome = run(at, at.entry(*names, **more))
    assert outcome.failures == ()
    return outcome


def refused(at: Bench, *names: str, **more: Any) -> str:
    outcome = run(at, at.entry(*names, **more))
    (failure,) = outcome.failures
    return f"{failure.why} | {failure.remedy}"


def versions(at: Bench) -> list[str]:
    """What the folder shows, with a dot before it or not."""
    return sorted(os.listdir(at.place)) if at.place.exists() else []


def test_an_environment_is_built_and_its_programs_run_from_the_link(first: Bench) -> None:
    assert first.says() == "1.0"
    version = os.readlink(first.place / "current")
    assert version.endswith(f"-py{MINOR}")
    assert versions(first) == sorted(["current", version])
    # pip's own eye: exactly what the lock has.
    pip: list[str | Path] = [
        first.place / "current/bin/python",
        "-I",
        "-m",
        "pip",
        "--disable-pip-version-check",
    ]
    listed = subprocess.run(
        [*pip, "list", "--format=freeze"], capture_output=True, text=True, check=True
    ).stdout.split()
    assert sorted(line.split("==")[0] for line in listed) == ["alpha", "beta", "pip"]


def test_a_job_that_was_started_through_the_link_stays_with_its_version(first: Bench) -> None:
    """What it imports after the link was moved comes from where it began; so do the programs that it starts."""
    link = first.place / "current"
    version = first.place / os.readlink(link)
    program = (
        f"import os, sys; os.unlink({str(link)!r}); os.symlink('elsewhere', {str(link)!r}); import alpha\n"
        "print(alpha.__file__, sys.prefix, sys.executable, len(sys.path) - len({*sys.path}))"
    )
    said = subprocess.run(
        [link / "bin/python", "-I", "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    site_of = version / f"lib/python{MINOR}/site-packages"
    assert said == [str(site_of / "alpha/__init__.py"), str(version), str(version / "bin/python"), "0"]


def test_a_second_run_changes_nothing_and_asks_the_interpreter_alone(first: Bench) -> None:
    before = fingerprint(first.node)
    again = built(first)
    assert not again.changed
    assert fingerprint(first.node) == before
    (only,) = first.tools.calls
    assert only.startswith("/usr/bin/python3 -I -c")


def test_a_check_says_what_would_be_built_and_writes_nothing(at: Bench) -> None:
    before = fingerprint(at.node)
    told = run(at, at.entry(), check=True)
    assert item(told)["action"] == "build+switch"
    note = item(told)["note"]
    assert "alpha==1.0, beta==1.5" in note
    assert f"of Python {MINOR} from the wheelhouse /srv/wheels" in note
    assert fingerprint(at.node) == before


def test_a_revert_leaves_the_node_as_it_was(stage: Stage) -> None:
    before = fingerprint(stage.restore("fresh").node)
    both = stage.restore("both")
    assert back(both).failures == ()
    after = fingerprint(both.node)
    assert after.keys() == before.keys()
    assert {path: state[:4] for path, state in after.items()} == {
        path: state[:4] for path, state in before.items()
    }


def test_a_new_lock_is_built_beside_and_the_old_one_stays_for_the_way_back(both: Bench) -> None:
    assert both.says() == "2.0"
    assert len(versions(both)) == 3
    again = built(both)
    assert item(again)["action"] == "switch"
    assert both.says() == "1.0"
    assert len(both.tools.calls) == 1  # nothing was built


def test_older_versions_go_when_the_entry_says_so(both: Bench) -> None:
    assert not built(both, "alpha2", "beta", "pip", keep=1).changed
    done = built(both, "alpha2", "beta", "pip", keep=0)
    assert item(done)["action"] == "remove"
    assert len(versions(both)) == 2
    assert both.says() == "2.0"


def test_an_older_version_that_a_process_runs_from_stays(both: Bench) -> None:
    old = next(
        name for name in versions(both) if name not in ("current", os.readlink(both.place / "current"))
    )
    # As the kernel tells it of a process: the path that it was started by.
    page = both.node / "proc/4711/cmdline"
    page.parent.mkdir(parents=True)
    page.write_bytes(f"/opt/railwright/train/{old}/bin/python\0serve.py\0".encode())
    done = built(both, "alpha2", "beta", "pip", keep=0)
    assert f"{old} stays: process 4711 runs from it" in item(done)["note"]
    assert not done.changed
    assert old in versions(both)
    (failure,) = back(both).failures
    assert failure.why == f"process 4711 runs from /opt/railwright/train/{old}"
    shutil.rmtree(page.parent)
    assert built(both, "alpha2", "beta", "pip", keep=0).changed
    assert old not in versions(both)


def test_a_link_that_was_there_before_comes_back(stage: Stage) -> None:
    first = stage.restore("first")
    shutil.rmtree(first.node / "var/lib/railwright")
    os.unlink(first.place / "current")
    (first.place / "current").symlink_to("by-hand")
    assert item(built(first))["action"] == "switch"
    assert first.says() == "1.0"
    assert back(first).failures == ()
    assert os.readlink(first.place / "current") == "by-hand"


def test_a_folder_in_the_place_of_the_link_is_refused(at: Bench) -> None:
    (at.place / "current").mkdir(parents=True)
    assert "is no link" in refused(at)


# ----- drift ---------------------------------------------------------------------------------------------------------


def site(at: Bench) -> Path:
    return at.place / f"current/lib/python{MINOR}/site-packages"


@pytest.mark.parametrize(
    "what", ["changed", "changed in place", "removed", "added", "mode", "program", "link"]
)
def test_a_file_that_is_not_as_it_was_built_is_named(first: Bench, what: str) -> None:
    module = site(first) / "alpha/data.txt"
    named = f"lib/python{MINOR}/site-packages/alpha/data.txt"
    if what == "changed":
        module.write_text("other\n")
    elif what == "changed in place":  # same size, same time
        times = os.stat(module)
        module.write_text("ALPHA\n" * 50)
        os.utime(module, ns=(times.st_atime_ns, times.st_mtime_ns))
    elif what == "removed":
        module.unlink()
    elif what == "added":
        module, named = site(first) / "sitecustomize.py", f"lib/python{MINOR}/site-packages/sitecustomize.py"
        module.write_text("import os\n")
    elif what == "mode":
        module.chmod(0o666)
    elif what == "program":
        module, named = first.place / "current/bin/alpha-says", "bin/alpha-says"
        module.write_text("#!/bin/sh\n")
    else:
        module.unlink()
        module.symlink_to("/etc/hostname")
    found = run(first, first.entry(), check=True)
    assert item(found)["action"] == "mend"
    assert f"is damaged: {named}" in item(found)["note"]


def test_a_damaged_environment_that_a_process_runs_from_is_left_to_it(first: Bench) -> None:
    version = os.readlink(first.place / "current")
    (site(first) / "alpha/data.txt").unlink()
    page = first.node / "proc/4711/maps"
    page.parent.mkdir(parents=True)
    page.write_bytes(f"7f00-7f01 r-xp 0 08:01 1 /opt/railwright/train/{version}/lib/x.so\n".encode())
    assert "process 4711 runs from it" in refused(first)
    assert version in versions(first)


def test_a_damaged_environment_is_built_anew_and_takes_its_place_whole(first: Bench) -> None:
    (site(first) / "alpha/data.txt").unlink()
    (site(first) / "intruder.pth").write_text("import os\n")
    assert item(built(first))["action"] == "mend"
    assert first.says() == "1.0"
    assert not (site(first) / "intruder.pth").exists()
    assert not built(first).changed
    assert len(versions(first)) == 2


def test_what_python_compiles_later_and_a_copy_with_new_times_are_no_drift(first: Bench) -> None:
    (site(first) / "alpha/__pycache__/more.cpython-39.pyc").write_bytes(b"x")
    os.utime(site(first) / "alpha/data.txt")
    assert not built(first).changed


def test_the_digests_are_those_of_the_wheels(first: Bench) -> None:
    """The oracle is the archive: every file of it lies there byte for byte."""
    for name in ("alpha", "beta"):
        with zipfile.ZipFile(first.wheels[name]) as archive:
            for member in archive.namelist():
                if not member.endswith("RECORD"):
                    assert (site(first) / member).read_bytes() == archive.read(member)


def test_no_file_names_the_folder_in_which_it_was_made(first: Bench) -> None:
    told = subprocess.run(
        ["grep", "-rIl", "railwright/train/\\.", str(first.place)],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    assert told == ""
    assert (first.place / "current/bin/alpha-says").read_text().splitlines()[0] == (
        f"#!{first.place}/{os.readlink(first.place / 'current')}/bin/python"
    )


def test_everybody_may_read_it_and_nothing_is_put_into_tmp_under_a_umask_of_077(
    stage: Stage,
) -> None:
    at = stage.restore("first")
    modes = {
        oct(path.lstat().st_mode & 0o777)
        for path in [at.place, *at.place.rglob("*")]
        if not path.is_symlink()
    }
    assert modes == {"0o755", "0o644"}
    assert list(stage.tmp.iterdir()) == []
    (call,) = (call for call in stage.calls if " install " in call)
    assert "TMPDIR=/opt/railwright/train/." in call
    # The pip that is run is a copy that nobody else writes.
    assert "/.fetched/pip-" in call


# ----- what is refused -----------------------------------------------------------------------------------------------


def test_a_missing_wheel_is_named_with_what_is_there_instead(at: Bench) -> None:
    entry = at.entry()
    at.wheels["beta"].unlink()
    wheel(at.house, "beta", "1.4")
    (failure,) = run(at, entry).failures
    why = failure.why
    assert "/srv/wheels has no wheel of beta==1.5 (of it: 1.4)" in why
    assert versions(at) == []
    assert not run(at, entry, check=True).changed


def test_a_wheel_that_was_tampered_with_is_refused_by_its_hash(at: Bench) -> None:
    entry = at.entry()
    wheel(at.house, "beta", "1.5", text="import os")
    (failure,) = run(at, entry).failures
    assert "is another file than was locked: beta==1.5: beta-1.5-py3-none-any.whl has sha256" in failure.why
    assert versions(at) == []


@pytest.mark.parametrize("what", share(["another file", "lacks one"]))
def test_pip_itself_refuses_what_our_own_look_leaves_to_it(at: Bench, what: str) -> None:
    """A pin with a marker whose hash is another one; and a lock that lacks what a wheel needs."""
    if what == "another file":
        marked = pin(at.wheels["beta"]).replace("beta==1.5", "beta==1.5 ; python_version >= '3'")
        text = lock(at.wheels["alpha"], at.wheels["pip"]) + f"{marked[:-64]}{'0' * 64}\n"
        why = refused(at, lock=text)
        assert "is another file than was locked" in why
        assert "beta==1.5" in why
    else:
        why = refused(at, "gamma", "pip")
        assert "delta" in why
        assert "lock" in why
    assert versions(at) == []


def test_a_python_that_is_not_there_is_named(at: Bench) -> None:
    def nothing(argv: Any) -> Any:
        return Said(None)

    (failure,) = apply({"dl_runtime": [at.entry()]}, root=str(at.node), tools=nothing).failures
    assert failure.why == "the node has no /usr/bin/python3"


def test_a_disk_that_is_too_small_is_asked_before_anything_is_written(
    at: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.statvfs

    def small(path: Any) -> Any:
        found = real(path)
        return os.statvfs_result(
            (found.f_bsize, found.f_frsize, 1000, 1000, 1000, 10**6, 10**6, 10**6, 0, 255)
        )

    monkeypatch.setattr("railwright.node.state.environment_build.os.statvfs", small)
    before = fingerprint(at.node)
    assert "free" in refused(at)
    assert fingerprint(at.node) == before


def test_a_file_system_that_runs_nothing_is_refused(at: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs

    def noexec(path: Any) -> Any:
        found = list(real(path))
        found[8] = os.ST_NOEXEC
        return os.statvfs_result(found)

    monkeypatch.setattr("railwright.node.state.environment_build.os.statvfs", noexec)
    assert "mounted noexec" in refused(at)


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("torch>=2 --hash=sha256:" + "0" * 64, "torch is not pinned"),
        ("torch==2.13.0", "torch==2.13.0 has no hash"),
        ("torch==2.13.0 --hash=md5:00", "no sha256"),
        ("--index-url https://u:hunter2@x/simple\n", "--index-url is an option"),
        ("torch @ https://u:hunter2@x/torch.whl", "torch is not pinned"),
        ("https://u:hunter2@x/torch.whl", "is not pinned"),
        ("-r other.txt", "-r is an option"),
        ("", "names nothing"),
        ("a==1 ; python_version > '3' --index-url http://x --hash=sha256:" + "0" * 64, "in its marker"),
        ("a==1 --hash=sha256:" + "0" * 64 + "\nA==2 --hash=sha256:" + "1" * 64, "a is pinned twice"),
    ],
)
def test_a_lock_that_leaves_something_open_is_refused_without_its_secrets(
    at: Bench, lines: str, why: str
) -> None:
    with pytest.raises(InputError) as error:
        run(at, at.entry(lock=lines))
    assert why in str(error.value)
    assert "hunter2" not in str(error.value)


def test_a_lock_reads_as_pip_compile_writes_it() -> None:
    text = (
        "# autogenerated\n"
        "Beta_Two==1.0 ; python_version < '3.10' \\\n"
        f"    --hash=sha256:{'b' * 64} \\\n"
        f"    --hash=sha256:{'a' * 64}  # via x\n"
        "    # via\n    #   alpha\n"
        f"alpha[gpu]==2.0+cpu --hash=sha256:{'c' * 64}\n"
    )
    read = read_lock(text, "lock")
    assert [one.words for one in read.pins] == ["alpha==2.0+cpu", "beta-two==1.0"]
    assert read.pins[1].marker == "python_version < '3.10'"
    assert read.pins[1].hashes == ("a" * 64, "b" * 64)
    # The same pins are the same environment, however they are written.
    assert read_lock(read.text, "lock").digest == read.digest


def test_what_any_program_said_is_told_without_users_and_passwords() -> None:
    said = Said(
        1, "fetching", "Curl error (6): https://me:hunter2@mirror.example/9/repodata/repomd.xml: is it there?"
    )
    assert last_words(said).endswith("https://***@mirror.example/9/repodata/repomd.xml: is it there?")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("http://bob:p@ss@host/x", "http://***@host/x"),
        ("http://bob:p/s@host/x", "http://***@host/x"),
        ("http://bob:it's@host/x", "http://***@host/x"),
        ("TOR+HTTPS://bob@host/x", "TOR+HTTPS://***@host/x"),
        ("of ftp://b:s@h/a and http://token@g/b.", "of ftp://***@h/a and http://***@g/b."),
        ("http://proxy/https://bob:s@h/", "http://proxy/https://***@h/"),
        # No user: a digest, a file's name, a mail's address.
        ("docker://registry.example/name@sha256:ab", "docker://registry.example/name@sha256:ab"),
        ("https://host/pool/a@b.deb", "https://host/pool/a@b.deb"),
        ("http://host/ by me@host", "http://host/ by me@host"),
    ],
)
def test_a_user_ends_at_the_last_at_sign_before_the_host(text: str, told: str) -> None:
    assert without_users(text) == told


@pytest.mark.parametrize(
    "address", ["https://u:hunter2@x/simple", "https://x/simple?token=hunter2", "ftp://x"]
)
def test_an_index_with_a_secret_in_its_address_is_refused_without_showing_it(at: Bench, address: str) -> None:
    with pytest.raises(InputError) as error:
        run(at, at.entry(indexes=[address]))
    assert "hunter2" not in str(error.value)
