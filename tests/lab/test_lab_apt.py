"""The writer's packages with the real apt and dpkg: exact, held, refused in time, brought to an end, put back."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from railwright.node.state import Outcome, apply, revert
from tests.lab import chroots, packages
from tests.lab.chroots import Chroot
from tests.lab.shell import ask, call
from tests.rotation import in_turns, share

SOURCE = "/etc/apt/sources.list.d/railwright-lab.sources"
KEY = "/etc/apt/keyrings/railwright-lab.gpg"
OLD, NEW = "580.126.20-1", "580.173.02-1"
DRIVER = (
    "nvidia-open",
    "nvidia-kernel-open-dkms",
    "nvidia-utils",
    "nvidia-persistenced",
    "nvidia-fabricmanager",
)
REPOSITORY = Path(__file__).resolve().parents[2]
Entry = dict[str, Any]

# Each stands for something that a real archive does to an installation.
ODD = (
    packages.Package("rw-slow", "1", "takes a while", scripts={"postinst": "#!/bin/sh\nsleep 1\n"}),
    packages.Package("rw-slow", "2", "takes a while", scripts={"postinst": "#!/bin/sh\nsleep 1\n"}),
    # Killed by the first installation, as a power cut would; goes through when it is configured again.
    packages.Package("rw-killed", "1", "kills dpkg once", scripts={
        "postinst": "#!/bin/sh\n[ -e /tmp/killed ] && exit 0\n: > /tmp/killed\nkill -9 $PPID\nsleep 5\n"}),
    packages.Package("rw-broken", "1", "its script fails", scripts={"postinst": "#!/bin/sh\necho no >&2\nexit 7\n"}),
    packages.Package("rw-large", "1", "fills a disk", files={"opt/large/blob": "0123456789abcdef" * 65536}),
    packages.Package("rw-eats", "1", "takes another one away", {"Conflicts": "rw-guest"}),
    packages.Package("rw-guest", "1", "what somebody else installed"),
    packages.Package("rw-guest", "2", "what somebody else installed"),
    packages.Package("rw-drags", "1", "moves another one", {"Depends": "rw-guest (= 2)"}),
    packages.Package("rw-friend", "1", "recommended only"),
    packages.Package("rw-asks", "1", "recommends", {"Recommends": "rw-friend"}),
)  # fmt: skip


@pytest.fixture(scope="module")
def odd(ready: None, tmp_path_factory: pytest.TempPathFactory) -> packages.Archive:
    folder = Path(tmp_path_factory.mktemp("odd")) / "made"
    return packages.make(folder, [*packages.standins(), *ODD])


@pytest.fixture
def root(odd: packages.Archive, tmp_path: Path) -> Iterator[Chroot]:
    """A node with the archive as an offline folder, and its index read."""
    with chroots.entered(tmp_path / "root") as chroot:
        shutil.copytree(odd.folder, chroot.root / "srv/archive")
        give_key(chroot, odd.keyring)
        chroot.must("apt-mark showhold")  # apt is there and answers
        done = do(chroot, {"package_sources": [*source("file:/srv/archive"), index()]})
        assert done.failures == (), done.failures
        yield chroot


def give_key(chroot: Chroot, keyring: Path) -> None:
    place = chroot.root / KEY[1:]
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(keyring, place)
    place.chmod(0o644)


def source(uri: str) -> list[Entry]:
    text = f"Types: deb\nURIs: {uri}\nSuites: lab\nComponents: main\nSigned-By: {KEY}\n"
    return [{"kind": "file", "path": SOURCE, "content": text}]


def index(**more: Any) -> Entry:
    return {"kind": "package_index", "system": "dpkg", "sources": [SOURCE], "inputs": [KEY], **more}


def wanted(versions: Mapping[str, str | None], **more: Any) -> dict[str, list[Entry]]:
    entry = {
        "kind": "packages",
        "name": "part",
        "system": "dpkg",
        "versions": dict(versions),
        "sources": [SOURCE],
    }
    return {"part": [{**entry, "wait": 2, **more}]}


def do(chroot: Chroot, slices: Mapping[str, Sequence[Entry]], **more: Any) -> Outcome:
    return apply(slices, root=str(chroot.root), tools=chroot.tools, **more)


def undo(chroot: Chroot, **more: Any) -> Outcome:
    return revert(["part"], root=str(chroot.root), tools=chroot.tools, **more)


def why(outcome: Outcome) -> str:
    return " | ".join(f"{failure.why} ({failure.remedy})" for failure in outcome.failures)


def driver(version: str) -> dict[str, str | None]:
    return dict.fromkeys(DRIVER, version)


def test_a_set_stands_at_its_versions_held_and_a_real_upgrade_does_not_move_it(root: Chroot) -> None:
    before = root.versions()
    checked = do(root, wanted(driver(OLD)), check=True)
    assert (checked.changed, root.versions()) == (True, before)
    assert why(do(root, wanted(driver(OLD)))) == ""
    assert root.versions("nvidia-*") == dict.fromkeys(DRIVER, f"{OLD} held")
    again = do(root, wanted(driver(OLD)))
    assert (again.changed, why(again)) == (False, "")
    root.must("apt-get -y -q dist-upgrade")
    assert root.versions("nvidia-*") == dict.fromkeys(DRIVER, f"{OLD} held")
    assert why(undo(root)) == ""
    assert root.versions() == before


def test_an_upgrade_goes_back_and_a_revert_ends_where_it_began(root: Chroot) -> None:
    root.must(f"apt-get -y -q install {' '.join(f'{name}={OLD}' for name in DRIVER)}")
    begun = root.versions("nvidia-*")
    assert why(do(root, wanted(driver(NEW)))) == ""
    assert root.versions("nvidia-*") == dict.fromkeys(DRIVER, f"{NEW} held")
    assert why(do(root, wanted(driver(OLD)))) == ""
    assert root.versions("nvidia-*") == dict.fromkeys(DRIVER, f"{OLD} held")
    assert why(do(root, wanted(driver(NEW)))) == ""
    assert why(undo(root)) == ""
    assert root.versions("nvidia-*") == begun


@in_turns
def test_what_comes_because_others_need_it_is_told_before_and_goes_with_them(root: Chroot) -> None:
    before = root.versions()
    (item,) = do(root, wanted({"doca-ofed": "3.2.3-1"}), check=True).slices["part"]
    assert "mlnx-tools 25.10-0.2510 comes" in item.note
    assert why(do(root, wanted({"doca-ofed": "3.2.3-1"}))) == ""
    assert root.versions("mlnx*") == {"mlnx-tools": "25.10-0.2510"}
    assert not do(root, wanted({"doca-ofed": "3.2.3-1"})).changed
    assert why(undo(root)) == ""
    assert root.versions() == before


def test_another_branch_takes_the_place_of_the_old_one_in_one_transaction(root: Chroot) -> None:
    root.must("apt-get -y -q install nvidia-fabricmanager-570")
    assert set(root.versions("nvidia-fabric*")) == {"nvidia-fabricmanager-570", "nvidia-fabricmanager-580"}
    refused = do(root, wanted({"nvidia-fabricmanager": OLD}))
    assert "nvidia-fabricmanager-580 580.126.20-0ubuntu0.24.04.1 goes" in why(refused)
    old = {"nvidia-fabricmanager-570": None, "nvidia-fabricmanager-580": None}
    assert why(do(root, wanted({"nvidia-fabricmanager": OLD, **old}))) == ""
    assert root.versions("nvidia-fabric*") == {"nvidia-fabricmanager": f"{OLD} held"}
    assert why(undo(root)) == ""
    assert set(root.versions("nvidia-fabric*")) == {"nvidia-fabricmanager-570", "nvidia-fabricmanager-580"}


def test_a_version_with_a_star_is_refused_before_anything_is_asked(root: Chroot) -> None:
    from railwright.node.state import InputError

    with pytest.raises(InputError, match="to the last digit"):
        do(root, wanted({"nvidia-fabricmanager": "580.126.20*"}))


@pytest.mark.parametrize(
    ("versions", "says"),
    [
        ({"nvidia-open": "580.1.1-1"}, "have no version '580.1.1-1' for 'nvidia-open'"),
        ({"nvidia-opne": NEW}, "have no package nvidia-opne"),
        ({"nvidia-open": OLD}, "nvidia-open wants nvidia-kernel-open-dkms (= 580.126.20-1)"),
        ({"rw-eats": "1"}, "rw-guest 1 goes"),
        ({"rw-drags": "1"}, "rw-guest 1 -> 2"),
    ],
)
def test_what_cannot_be_or_would_move_others_is_refused_and_named(
    root: Chroot, versions: dict[str, str | None], says: str
) -> None:
    root.must("apt-get -y -q install rw-guest=1")
    before = root.versions()
    outcome = do(root, wanted(versions))
    assert says in why(outcome)
    assert root.versions() == before


@in_turns
def test_what_may_change_does_and_goes_back(root: Chroot) -> None:
    root.must("apt-get -y -q install rw-guest=1")
    before = root.versions()
    assert why(do(root, wanted({"rw-drags": "1"}, may_change=["rw-guest"]))) == ""
    assert root.versions("rw-*") == {"rw-drags": "1 held", "rw-guest": "2"}
    assert why(undo(root)) == ""
    assert root.versions() == before


def test_a_hold_that_somebody_else_set_is_told_as_the_cause(root: Chroot) -> None:
    root.must("apt-get -y -q install rw-guest=1 && apt-mark hold rw-guest")
    outcome = do(root, wanted({"rw-drags": "1"}))
    assert "rw-guest" in why(outcome)
    assert root.versions("rw-*") == {"rw-guest": "1 held"}


@in_turns
def test_what_is_only_recommended_comes_when_the_policy_says_so(root: Chroot) -> None:
    assert why(do(root, wanted({"rw-asks": "1"}))) == ""
    assert set(root.versions("rw-*")) == {"rw-asks"}
    undo(root)
    assert why(do(root, wanted({"rw-asks": "1"}, recommends=True))) == ""
    assert set(root.versions("rw-*")) == {"rw-asks", "rw-friend"}


# -- locks --


@contextmanager
def held_lock(path: Path, seconds: float) -> Iterator[int]:
    """A process that holds dpkg's lock for so long."""
    program = (
        "import fcntl,sys,time\nf=open(sys.argv[1],'w')\nfcntl.lockf(f,fcntl.LOCK_EX)\nprint('held',flush=True)\n"
        f"time.sleep({seconds})\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield holder.pid
    finally:
        holder.kill()
        holder.communicate()


@in_turns
def test_a_lock_that_is_let_go_in_time_is_waited_for(root: Chroot) -> None:
    with held_lock(root.root / "var/lib/dpkg/lock-frontend", 1.5):
        assert why(do(root, wanted({"nvlsm": "2025.10.11-1"}, wait=20))) == ""
    assert root.versions("nvlsm") == {"nvlsm": "2025.10.11-1 held"}


def test_a_lock_that_is_held_for_ever_is_told_with_its_holder_and_nothing_is_changed(root: Chroot) -> None:
    before = root.versions()
    with held_lock(root.root / "var/lib/dpkg/lock-frontend", 600) as number:
        said = why(do(root, wanted({"nvlsm": "2025.10.11-1"}, wait=1)))
    # A chroot has no /proc, so there the name of the process is not known; its number is.
    assert f"/var/lib/dpkg/lock-frontend is held by a process (process {number})" in said
    assert "was not let go in 1 s" in said
    assert root.versions() == before


# -- interrupted, broken, full --


@in_turns
def test_a_dpkg_that_was_killed_is_brought_to_its_end_by_the_next_run(root: Chroot) -> None:
    assert why(do(root, wanted({"rw-killed": "1"}))) != ""
    assert root.versions("rw-*")["rw-killed"].endswith(("half-configured", "unpacked"))
    (item,) = do(root, wanted({"rw-killed": "1"}), check=True).slices["part"]
    assert "an earlier transaction was interrupted: rw-killed" in item.note
    assert why(do(root, wanted({"rw-killed": "1"}))) == ""
    assert root.versions("rw-*") == {"rw-killed": "1 held"}


@in_turns
def test_a_dpkg_that_was_killed_amid_ours_can_be_put_back_instead(root: Chroot) -> None:
    before = root.versions()
    do(root, wanted({"rw-killed": "1"}))
    assert why(undo(root)) == ""
    assert root.versions() == before


# What kills at every second system call of `dpkg --unpack` left (strace --inject); the last of them at three calls.
TORN = ("reinstreq half-installed", "ok half-installed", "reinstreq unpacked")


@pytest.mark.parametrize("left", TORN)
@pytest.mark.parametrize("way", ["on", "back"])
def test_a_package_that_was_torn_while_it_was_unpacked_is_made_whole_or_taken_away(
    root: Chroot, left: str, way: str
) -> None:
    before = root.versions()
    assert why(do(root, wanted({"rw-friend": "1"}, hold=False))) == ""
    record = root.read("/var/lib/dpkg/status")
    root.write(
        "/var/lib/dpkg/status",
        record.replace(
            "Package: rw-friend\nStatus: install ok installed",
            f"Package: rw-friend\nStatus: install {left}",
        ),
    )
    assert root.versions("rw-*") == {"rw-friend": f"1 {left.split()[1]}"}
    if way == "on":
        assert why(do(root, wanted({"rw-friend": "1"}))) == ""
        assert root.versions("rw-*") == {"rw-friend": "1 held"}
    assert why(undo(root)) == ""
    assert root.versions() == before


@in_turns
def test_a_script_that_fails_is_named_and_can_be_put_back(root: Chroot) -> None:
    before = root.versions()
    said = why(do(root, wanted({"rw-broken": "1"})))
    assert "the installation of rw-broken failed" in said
    assert why(undo(root)) == ""
    assert root.versions() == before


@in_turns
def test_a_full_disk_is_named_and_the_next_run_goes_through(root: Chroot) -> None:
    place = root.root / "opt/large"
    place.mkdir()
    call(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)])
    try:
        assert "the disk is full" in why(do(root, wanted({"rw-large": "1"})))
    finally:
        call(["umount", str(place)])
    assert why(do(root, wanted({"rw-large": "1"}))) == ""
    assert root.versions("rw-*") == {"rw-large": "1 held"}


# -- archives that lie, and ways that change what comes over them --


class _Sends(SimpleHTTPRequestHandler):
    """Serves a folder, and sends on from below /moved."""

    def do_GET(self) -> None:
        if self.path.startswith("/moved/"):
            self.send_response(301)
            self.send_header("Location", "/archive/" + self.path[len("/moved/") :])
            self.end_headers()
        elif self.path.startswith("/elsewhere/"):
            self.send_response(301)
            self.send_header("Location", "file:///etc/passwd")
            self.end_headers()
        else:
            super().do_GET()

    def log_message(self, *words: object) -> None:
        """Says nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Sends, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def refreshed(root: Chroot, uri: str) -> str:
    return why(do(root, {"package_sources": [*source(uri), index()]}))


def copied(odd: packages.Archive, place: Path) -> Path:
    return Path(shutil.copytree(odd.folder, place / "archive"))


def test_an_index_that_was_changed_on_the_way_is_refused(
    root: Chroot, odd: packages.Archive, tmp_path: Path
) -> None:
    signed = copied(odd, tmp_path) / "dists/lab/InRelease"
    signed.write_bytes(signed.read_bytes().replace(b"Origin: Railwright lab", b"Origin: somebody else!"))
    with served(tmp_path) as address:
        said = refreshed(root, f"{address}/archive")
    assert "the archive's index does not fit its signature" in said
    assert "do not turn the check off" in said


def test_an_archive_that_is_signed_by_nobody_we_know_is_refused(
    root: Chroot, odd: packages.Archive, tmp_path: Path
) -> None:
    release = copied(odd, tmp_path) / "dists/lab"
    for name in ("InRelease", "Release.gpg"):
        (release / name).unlink()
    packages.sign(release, tmp_path / "gnupg", tmp_path / "other.gpg")
    with served(tmp_path) as address:
        said = refreshed(root, f"{address}/archive")
    assert "by a key that is not given" in said


@in_turns
def test_a_key_that_has_expired_is_told_as_such(root: Chroot, odd: packages.Archive, tmp_path: Path) -> None:
    release = copied(odd, tmp_path) / "dists/lab"
    for name in ("InRelease", "Release.gpg"):
        (release / name).unlink()
    signed_by_a_short_lived_key(release, tmp_path / "gnupg", tmp_path / "short.gpg")
    give_key(root, tmp_path / "short.gpg")
    with served(tmp_path) as address:
        said = refreshed(root, f"{address}/archive")
    assert "signing key" in said
    assert "has expired" in said


def signed_by_a_short_lived_key(release: Path, home: Path, keyring: Path) -> None:
    """One second after it was made the key is no good any more."""
    home.mkdir(mode=0o700)
    environment = {**os.environ, "GNUPGHOME": str(home)}
    gpg = ["gpg", "--batch", "--quiet", "--pinentry-mode", "loopback", "--passphrase", ""]
    try:
        call(
            [*gpg, "--quick-generate-key", "short@example.invalid", "ed25519", "sign", "seconds=2"],
            env=environment,
        )
        page = str(release / "Release")
        call([*gpg, "--clearsign", "--output", str(release / "InRelease"), page], env=environment)
        call([*gpg, "--output", str(keyring), "--export"], env=environment)
    finally:
        ask(["gpgconf", "--kill", "all"], env=environment)
    time.sleep(3)


def test_an_archive_without_a_signature_is_refused(
    root: Chroot, odd: packages.Archive, tmp_path: Path
) -> None:
    release = copied(odd, tmp_path) / "dists/lab"
    for name in ("InRelease", "Release.gpg"):
        (release / name).unlink()
    with served(tmp_path) as address:
        said = refreshed(root, f"{address}/archive")
    assert "is not signed" in said


@in_turns
def test_an_archive_that_moved_over_http_is_followed_and_its_signature_still_decides(
    root: Chroot, odd: packages.Archive, tmp_path: Path
) -> None:
    copied(odd, tmp_path)
    with served(tmp_path) as address:
        assert refreshed(root, f"{address}/moved") == ""
        assert why(do(root, wanted({"nvlsm": "2025.10.11-1"}))) == ""
        said = refreshed(root, f"{address}/elsewhere")
        assert said != "", "apt followed http to a file"


@in_turns
def test_an_archive_that_is_not_there_is_named(root: Chroot, tmp_path: Path) -> None:
    with served(tmp_path) as address:
        assert "there is no archive at" in refreshed(root, f"{address}/nothing")
    assert why(do(root, {"package_sources": [*source("file:/srv/archive"), index()]})) == ""


@in_turns
def test_a_network_that_fails_amid_the_fetching_changes_nothing(
    root: Chroot, odd: packages.Archive, tmp_path: Path
) -> None:
    place = copied(odd, tmp_path)
    before = root.versions()
    with served(tmp_path) as address:
        assert refreshed(root, f"{address}/archive") == ""
        next(place.glob("pool/nvidia-utils_580.173*")).unlink()
        said = why(do(root, wanted(driver(NEW))))
        assert "a file cannot be fetched" in said
    assert root.versions() == before


def test_an_index_is_read_again_only_when_a_source_is_newer(root: Chroot) -> None:
    slices = {"package_sources": [*source("file:/srv/archive"), index()]}
    assert not do(root, slices).changed
    os.utime(root.root / KEY[1:])
    assert do(root, slices).changed
    assert not do(root, slices).changed


# -- a power cut at any time --

KILL_POINTS = 10
PROGRAM = f"""
import json, subprocess, sys
sys.path[:0] = [{str(REPOSITORY / "src")!r}, {str(REPOSITORY)!r}]
from pathlib import Path
from railwright.node.state import apply
from tests.lab.chroots import Chroot
root, slices = sys.argv[1], json.loads(sys.argv[2])
print("begun", flush=True)
outcome = apply(slices, root=root, tools=Chroot(Path(root)).tools)
sys.exit(len(outcome.failures))
"""


def killed_after(root: Chroot, slices: Mapping[str, Sequence[Entry]], seconds: float) -> int:
    """A run in processes of its own, all of which are killed after so long."""
    import json

    run = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(root.root), json.dumps(slices)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert run.stdout is not None
    assert run.stdout.readline() == "begun\n"
    try:
        run.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, signal.SIGKILL)
        run.communicate()
    return run.returncode


@pytest.mark.parametrize(
    ("way", "point"), share([(way, point) for point in range(KILL_POINTS) for way in ("on", "back")])
)
def test_a_run_that_is_killed_anywhere_goes_on_or_goes_back(root: Chroot, way: str, point: int) -> None:
    if point % 2:  # an upgrade, else a first installation
        root.must(f"apt-get -y -q install {' '.join(f'{name}={OLD}' for name in DRIVER)}")
    before = root.versions()
    slices = wanted({**driver(NEW), "rw-slow": "1"})
    took = 3.5  # a good run's, measured: about 3 s on a quiet machine, of which the script sleeps one
    ended = killed_after(root, slices, took * (point + 1) / (KILL_POINTS + 1))
    assert ended in (0, -signal.SIGKILL)
    if way == "on":
        assert why(do(root, slices)) == ""
        assert root.versions("nvidia-*") == dict.fromkeys(DRIVER, f"{NEW} held")
        assert root.versions("rw-*") == {"rw-slow": "1 held"}
        assert not do(root, slices).changed
    assert why(undo(root)) == ""
    assert root.versions() == before


def test_the_lock_is_asked_for_without_taking_it(root: Chroot) -> None:
    from railwright.node.packages import locks

    path = root.root / "var/lib/dpkg/lock-frontend"
    assert locks.holder(str(path)) is None
    with open(path, "w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Of one's own process the kernel tells nothing.
        assert locks.holder(str(path)) is None
    with held_lock(path, 60) as number:
        assert locks.holder(str(path)) == number
