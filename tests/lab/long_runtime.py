"""The runtime for deep learning on a real systemd host without a way out: the real torch, by hash, from a folder.

Not among the lab's tests, for its size: `make lab-runtime` runs it. It takes the CPU build of torch from wherever this
machine's pip finds one (RAILWRIGHT_TORCH names another), or from the folder RAILWRIGHT_WHEELHOUSE.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from railwright.node.model.wheel_lock import read_lock
from railwright.node.state import apply
from tests.ansible.playing import Run, play
from tests.lab import on_guest
from tests.lab.lab import Lab, Node, Wanted, up
from tests.lab.racks import MACHINES
from tests.lab.setup import unready
from tests.unit import wheel_support
from tests.unit.test_state_environment_crash import serving
from tests.unit.wheel_support import lock

HOUSE, ENV = "/srv/wheels", "/opt/railwright/train"
TORCH = os.environ.get("RAILWRIGHT_TORCH", "torch==2.13.0+cpu")
KILLS, STEP_SECONDS = 10, 1.3


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheels for the node's Python 3.11."""
    given = os.environ.get("RAILWRIGHT_WHEELHOUSE")
    if given:
        return Path(given)
    folder = Path(tmp_path_factory.mktemp("wheels"))
    fits = ["--only-binary", ":all:", "--python-version", "3.11", "--implementation", "cp"]
    fits += [word for tag in ("2_28", "2_17") for word in ("--platform", f"manylinux_{tag}_x86_64")]
    said = subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", *fits, "--dest", folder, TORCH, "pip"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if said.returncode:
        pytest.skip(f"this machine's pip finds no {TORCH}")
    return folder


@dataclass
class Bench:
    lab: Lab
    output: Path
    lock: str

    @property
    def node(self) -> Node:
        return self.lab.nodes[0]

    @property
    def entry(self) -> dict[str, Any]:
        return {
            "kind": "python_environment", "name": "train", "lock": self.lock, "wheelhouse": HOUSE,
            "python": "/usr/bin/python3.11",
        }  # fmt: skip

    def converge(self, entry: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        return on_guest.converge(self.node, {"dl_runtime": [entry or self.entry]}, timeout=900, **more)

    def play(self, playbook: str, *arguments: str, **variables: Any) -> Run:
        group = {key: self.entry[key] for key in ("lock", "wheelhouse", "python")}
        policy = {"dl_runtime": {"environments": {"train": group}}}
        return play(
            playbook, self.lab.inventory, self.output, *arguments, variables={"node_policy": policy, **variables},
            within=self.lab.controller, limit=900,
        )  # fmt: skip


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, wheels: Path) -> Iterator[Bench]:
    if why := unready():
        pytest.skip(why)
    lab = up(f"r{os.getpid()}", (Wanted("n1", "bookworm", MACHINES[0]),))
    try:
        made = Bench(
            lab, Path(tmp_path_factory.mktemp("runtime")) / "out", lock(*sorted(wheels.glob("*.whl")))
        )
        made.node.must(f"mkdir -p {HOUSE}")
        with subprocess.Popen(["tar", "-C", str(wheels), "-cf", "-", "."], stdout=subprocess.PIPE) as packed:
            subprocess.run(
                [*made.node.entry(), "--", f"tar -C {HOUSE} -xf -"], stdin=packed.stdout, check=True
            )
        assert packed.returncode == 0
        yield made
    finally:
        lab.down()


# One story: the tests stand in its order.


def test_the_node_has_no_way_out_and_an_index_says_so(bench: Bench) -> None:
    entry = {key: value for key, value in bench.entry.items() if key != "wheelhouse"}
    entry["lock"] = "".join(line + "\n" for line in bench.lock.splitlines() if not line.startswith("pip=="))
    done = bench.converge({**entry, "indexes": ["https://mirror.example/simple"]})
    (failure,) = done["failures"]
    print(failure)
    # Debian keeps ensurepip in a package of its own, which this node lacks.
    assert "python3-venv" in failure["remedy"] or "cannot be reached" in failure["why"]
    assert bench.node.ssh(f"test -e {ENV}/current").returncode == 1


def test_a_missing_and_a_tampered_wheel_are_named(bench: Bench) -> None:
    (name,) = bench.node.must(f"cd {HOUSE}; ls sympy-*").split()
    bench.node.must(f"mv {HOUSE}/{name} /srv/")
    (failure,) = bench.converge()["failures"]
    print(failure)
    assert f"{HOUSE} has no wheel of sympy==" in failure["why"]
    bench.node.must(f"cp /srv/{name} {HOUSE}/; printf x >> {HOUSE}/{name}")
    (failure,) = bench.converge()["failures"]
    print(failure)
    assert f"{name} has sha256" in failure["why"]
    assert "which the lock has not" in failure["why"]
    bench.node.must(f"mv /srv/{name} {HOUSE}/")
    assert bench.node.ssh(f"ls -A {ENV}").stdout == ""


def test_a_build_that_is_killed_at_ten_moments_never_shows_and_comes_to_its_end(bench: Bench) -> None:
    asked = json.dumps({"verb": "apply", "slices": {"dl_runtime": [bench.entry]}, "check": False, "more": {}})
    on_guest.revert(bench.node)
    program = on_guest._CALL
    seen = []
    for number in range(KILLS):
        bench.node.must("cat > /run/asked", stdin=asked)
        bench.node.must("cat > /run/call.py", stdin=program)
        # The whole group: the writer, pip and what pip has started.
        started = "setsid python3 /run/call.py < /run/asked > /run/said 2>&1 & echo $!"
        pid = bench.node.must(started).strip()
        time.sleep(STEP_SECONDS * (number + 1))
        bench.node.ssh(f"kill -{signal.SIGKILL} -- -{pid}")
        shown = bench.node.ssh(f"test -e {ENV}/current").returncode == 0
        left = bench.node.ssh(f"ls -A {ENV}").stdout.split()
        seen.append((round(STEP_SECONDS * (number + 1), 1), left, shown))
        if shown:
            bench.node.must(f"{ENV}/current/bin/python -c 'import torch'", timeout=120)
    print(*seen, sep="\n")
    began = time.monotonic()
    done = bench.converge()
    assert done["failures"] == []
    (told,) = done["slices"]["dl_runtime"]["items"]
    print(f"the run after the last kill: {time.monotonic() - began:.1f} s, {told['action']}")
    version = f"{read_lock(bench.lock, 'lock').digest[:12]}-py3.11"
    assert bench.node.must(f"ls -A {ENV}").split() == sorted([version, "current"])


def test_a_second_run_changes_nothing_and_takes_no_longer_than_a_look(bench: Bench) -> None:
    began = time.monotonic()
    assert not bench.converge()["changed"]
    files = bench.node.must(f"find {ENV}/current/ -type f | wc -l").strip()
    print(f"a look at {files} files: {time.monotonic() - began:.1f} s with the way there")


def test_torch_runs_and_two_ranks_train_over_gloo(bench: Bench) -> None:
    said = bench.node.ssh(f"{self_test(bench)} --ddp", timeout=300)
    print(said.stdout)
    # The recorded machine has eight GPUs on its bus.
    assert said.returncode == 1
    assert "torch 2.13.0+cpu is a CPU build, and 8 GPUs are on the bus" in said.stdout
    assert "DDP over gloo, two ranks: gradient of all: 1.5" in said.stdout
    said = bench.node.ssh(
        "unshare -m sh -c 'mount -t tmpfs none /sys && exec " + f"{self_test(bench)} --ddp" + "'",
        timeout=300,
    )
    print(said.stdout, said.stderr)
    assert said.returncode == 4
    assert said.stdout.splitlines()[-1] == "verdict: no GPU"


def self_test(bench: Bench) -> str:
    """The program, also before the role has put it into its place."""
    text = Path(__file__).resolve().parents[2] / "src/railwright/node/selftest.py"
    bench.node.must("cat > /run/self_test.py", stdin=text.read_text("utf-8"))
    return f"{ENV}/current/bin/python -I /run/self_test.py"


def test_a_file_that_was_changed_is_named_and_mended(bench: Bench) -> None:
    path = f"{ENV}/current/lib/python3.11/site-packages/torch/version.py"
    bench.node.must(f"echo '__version__ = \"0\"' >> {path}")
    told = bench.converge(check=True)["slices"]["dl_runtime"]["items"][0]
    print(told["action"], told["note"])
    assert "torch/version.py has another content" in told["note"]
    assert bench.converge()["failures"] == []
    assert not bench.converge()["changed"]


def test_the_play_finds_it_in_place_and_the_report_has_what_the_self_test_found(bench: Bench) -> None:
    done = bench.play("install.yml", install_self_test=True, self_test_also=["ddp"])
    assert done.code == 0, done.output
    again = bench.play("install.yml")
    assert (again.code, again.changed) == (0, {"n1": 0}), again.output
    judged = bench.play("verify.yml")
    told = "".join(judged.failures("n1"))
    print(told)
    assert judged.code != 0
    assert "dl_runtime.self_test" in told
    assert "is a CPU build" in told


def test_a_revert_takes_all_of_it_away(bench: Bench) -> None:
    done = bench.play("revert.yml", revert_slices=["dl_runtime"])
    assert done.code == 0, done.output
    assert bench.node.ssh("ls -A /opt").stdout == ""
    assert "No such file" in bench.node.ssh("ls -A /usr/local/lib/railwright").stderr


def test_what_a_real_pip_says_of_a_real_index_is_told_as_a_cause(tmp_path: Path) -> None:
    """On this machine, over loopback."""
    at = wheel_support.bench(tmp_path)
    (tmp_path / "empty").mkdir()

    def why(address: str) -> str:
        entry = at.entry("alpha", "beta", indexes=[address])
        (failure,) = apply({"dl_runtime": [entry]}, root=str(at.node), tools=at.tools).failures
        assert not at.place.exists()
        return failure.why

    with serving(tmp_path / "empty") as address:
        assert f"{address} has no wheel of alpha==1.0 for this Python" in why(address)
    assert f"{address} cannot be reached: Connection refused" in why(address)
    with serving(at.house, "me:hunter2") as address:
        assert f"{address} lets nobody in: 401" in why(address)
    good = lock(at.wheels["alpha"], at.wheels["beta"])
    wheel_support.wheel(at.house, "beta", "1.5", text="import os")
    with serving(at.house) as address:
        entry = at.entry("alpha", "beta", indexes=[address], lock=good)
        (failure,) = apply({"dl_runtime": [entry]}, root=str(at.node), tools=at.tools).failures
    assert f"what {address} has as beta==1.5 is another file than was locked" in failure.why
