"""An environment whose build is killed: never shown, and brought to its end by the next run. Indexes over loopback.

A build takes seconds, so a run tries one or two of the ten points, and all with RAILWRIGHT_LONG=1.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from railwright.node.state import Said
from railwright.node.state.environment_build import Source, refusal
from tests.rotation import share
from tests.unit.state_support import fingerprint, item
from tests.unit.test_state_environment import Stage, at, back, run, stage, versions
from tests.unit.wheel_support import Bench, child

__all__ = ["at", "stage"]  # fixtures


@pytest.fixture
def start(at: Bench) -> Bench:
    """Nothing was built yet."""
    return at


def spread(count: int, most: int) -> list[int]:
    """Numbers from 1 to count, at most so many, first and last among them."""
    if count <= most:
        return list(range(1, count + 1))
    return sorted({1 + round(step * (count - 1) / (most - 1)) for step in range(most)})


def test_a_build_that_is_killed_anywhere_never_shows_and_the_next_run_ends_it(stage: Stage) -> None:
    """The old version is shown until the new one is whole: at ten points between the calls that change something."""
    both = stage.restore("both")
    new = os.readlink(both.place / "current")
    good = {path for path in fingerprint(both.place) if "__pycache__" not in path}
    old = os.readlink(stage.restore("first").place / "current")
    entry, steps = both.entry("alpha2", "beta", "pip"), stage.steps
    # What removes a temporary tree is one thing, however many files it has.
    points = [n for n, name in enumerate(steps, 1) if name not in ("unlink", "rmdir") or n % 97 == 0]
    tried = share([points[n - 1] for n in spread(len(points), 10)])
    for which in tried:
        at = stage.restore("first")
        killed = child(at, entry, which)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        place = f"killed before {steps[which - 1]} number {which}"
        shown = os.readlink(at.place / "current")
        assert shown in (old, new), place
        # Whatever is shown runs.
        assert at.says() == ("1.0" if shown == old else "2.0"), place
        ended = run(at, entry)
        assert ended.failures == (), place
        assert at.says() == "2.0", place
        assert {path for path in fingerprint(at.place) if "__pycache__" not in path} == good, place
        assert not run(at, entry).changed, place
    assert back(both).failures == ()
    assert versions(both) == []


def test_what_a_killed_first_build_left_goes_with_a_revert(start: Bench) -> None:
    """Killed behind pip, the last program of three: the record knows of it, and the node shows nothing."""
    before = set(fingerprint(start.node))
    assert child(start, start.entry(), -3, "tools").returncode == -signal.SIGKILL
    assert not (start.place / "current").exists()
    (left,) = versions(start)
    assert left.startswith(".")
    assert (start.place / left / "bin/alpha-says").exists()
    assert back(start).failures == ()
    assert {path for path in fingerprint(start.node) if not path.startswith("run/")} == {
        path for path in before if not path.startswith("run/")
    }


# ----- indexes -------------------------------------------------------------------------------------------------------


class Index(BaseHTTPRequestHandler):
    """A simple index (PEP 503) of a folder; with a name and a password where `secret` has one."""

    folder: Path
    secret = ""

    def do_GET(self) -> None:
        if self.secret:
            known = "Basic " + base64.b64encode(self.secret.encode()).decode()
            if self.headers.get("Authorization") != known:
                self._say(401, b"", ("WWW-Authenticate", 'Basic realm="x"'))
                return
        parts = self.path.strip("/").split("/")
        if parts[0] == "simple" and len(parts) == 2:
            names = [path.name for path in self.folder.iterdir() if path.name.split("-")[0] == parts[1]]
            body = "".join(f'<a href="/files/{name}">{name}</a>\n' for name in names).encode()
            self._say(200 if names else 404, body, ("Content-Type", "text/html"))
        elif parts[0] == "files" and (self.folder / parts[1]).is_file():
            self._say(
                200, (self.folder / parts[1]).read_bytes(), ("Content-Type", "application/octet-stream")
            )
        else:
            self._say(404, b"", ("Content-Type", "text/plain"))

    def _say(self, code: int, body: bytes, header: tuple[str, str]) -> None:
        self.send_response(code)
        self.send_header(*header)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        return


@contextmanager
def serving(folder: Path, secret: str = "") -> Iterator[str]:
    handler = type("Handler", (Index,), {"folder": folder, "secret": secret})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/simple"
        finally:
            server.shutdown()
            thread.join()


def from_index(at: Bench, address: str, **more: Any) -> dict[str, Any]:
    """Without pip in the lock: an index needs the one of ensurepip."""
    return at.entry("alpha", "beta", indexes=[address], **more)


def test_an_index_that_asks_who_you_are_is_read_by_the_nodes_netrc_and_no_secret_is_shown(
    start: Bench,
) -> None:
    netrc = start.node / "etc/railwright/netrc"
    netrc.parent.mkdir(parents=True)
    netrc.write_text("machine 127.0.0.1 login me password hunter2\n")
    netrc.chmod(0o644)
    with serving(start.house, "me:hunter2") as address:
        entry = from_index(start, address, netrc="/etc/railwright/netrc")
        (failure,) = run(start, entry).failures
        assert failure.why == "/etc/railwright/netrc can be read by others"
        netrc.chmod(0o600)
        done = run(start, entry)
    assert done.failures == ()
    assert start.says() == "1.0"
    told = json.dumps(done.to_json()) + (start.node / "var/lib/railwright/state.json").read_text()
    assert "hunter2" not in told
    assert "hunter2" not in "".join(start.tools.calls)
    # pip leaves plain http out without this word, but for loopback.
    (fetched,) = (call for call in start.tools.calls if " download " in call)
    assert f"--trusted-host {address.split('/')[2]}" in fetched
    # The lock is what counts: built from an index, it is the same version as from a folder.
    assert item(run(start, start.entry("alpha", "beta")))["action"] == "none"
    assert back(start).failures == ()


# What pip 23.0 and 23.2 really said, shortened.
_NONE = "ERROR: No matching distribution found for beta==1.5\n"
_SAID = {
    "ERROR: Could not find a version that satisfies the requirement beta==1.5 (from versions: none)\n"
    + _NONE: "https://x/simple has no wheel of beta==1.5 for this Python",
    "Could not fetch URL https://x/simple/beta/: 401 Client Error: Unauthorized for url: https://x/simple/beta/\n"
    + _NONE: "https://x/simple lets nobody in: 401 Client Error",
    "NewConnectionError('<x>: Failed to establish a new connection: [Errno -2] Name or service not known')\n"
    + _NONE: "https://x/simple cannot be reached: Name or service not known",
    "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. If you ...\n    beta==1.5 from "
    "https://x/files/beta-1.5-py3-none-any.whl (from -r r.txt (line 1)):\n        Expected sha256 00\n"
    "             Got        11\n": "what https://x/simple has as beta==1.5 is another file than was locked",
    "ERROR: In --require-hashes mode, all requirements must have their versions pinned with ==. These do not:\n"
    "    beta from https://x/beta-1.5-py3-none-any.whl (from alpha==1.0->-r r.txt (line 1))\n": (
        "the lock is not whole: it lacks beta"
    ),
    "ERROR: Cannot install beta==1.4 and beta==1.5 because these package versions have conflicting dependencies.\n"
    "\nThe conflict is caused by:\n    The user requested beta==1.5\n": (
        "contradicts itself: The user requested beta==1.5"
    ),
    "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n": "the disk is full",
    "ERROR: something new at https://me:hunter2@x/simple?sig=hunter2\n": "pip, with https://x/simple",
}


@pytest.mark.parametrize(("said", "why"), _SAID.items())
def test_what_pip_says_is_told_as_a_cause_without_secrets(said: str, why: str) -> None:
    told = refusal(Said(1, err=said), Source(None, ("https://x/simple",)))
    assert why in told.why
    assert told.remedy
    assert "hunter2" not in told.why
