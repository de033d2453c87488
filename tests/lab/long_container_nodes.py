"""Docker and podman from Debian's archive on lab nodes, through install.yml; twice, refused, and under a container.

Not among the lab's tests, for its length: `make lab-containers` runs it. The nodes have no network but the lab's; what
is installed lies on them as an offline folder. The toolkit's packages are stand-ins, for Debian has none.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.ansible.playing import Run, play
from tests.lab.container_archive import DAEMON, FOLDER, IMAGE, SOURCE, TOOLKIT, offline, versions_in
from tests.lab.lab import Lab, Node, Wanted, up
from tests.lab.racks import MACHINES
from tests.lab.setup import unready


@dataclass
class Bench:
    lab: Lab
    folders: dict[str, Path]
    output: Path

    @property
    def trixie(self) -> Node:
        return self.lab.nodes[0]

    @property
    def bookworm(self) -> Node:
        return self.lab.nodes[1]

    def policy(self, node: Node, **runtime: Any) -> dict[str, Any]:
        """Everything that the folder has, at its versions: the suite's own updates come with it."""
        offered = versions_in(self.folders[node.spec.suite])
        wanted = {name: version for name, version in offered.items() if "nvidia" not in name}
        asked = {"packages": wanted, "toolkit": TOOLKIT, **runtime}
        memlock = node.must("ulimit -Hl").strip()
        return {
            "software": {"sources": [SOURCE]},
            "container_runtime": asked,
            "limits": {"memlock": memlock, "nofile": min(1048576, int(node.must("ulimit -Hn")))},
        }

    def install(self, node: Node, policy: dict[str, Any], *arguments: str) -> Run:
        return play(
            "install.yml", self.lab.inventory, self.output, "-l", node.name, *arguments,
            variables={"node_policy": policy}, within=self.lab.controller, limit=600,
        )  # fmt: skip


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    if why := unready():
        pytest.skip(why)
    place = Path(tmp_path_factory.mktemp("bench"))
    folders = {suite: offline(suite, place / suite / "debs") for suite in ("trixie", "bookworm")}
    lab = up(f"c{os.getpid()}", [Wanted("c1", "trixie", MACHINES[1]), Wanted("c2", "bookworm", MACHINES[0])])
    try:
        for node in lab.nodes:
            archive = subprocess.run(
                ["tar", "-C", str(folders[node.spec.suite]), "-c", "."], capture_output=True, check=True
            ).stdout
            command = [*node.entry(), "--", f"mkdir -p {FOLDER} && tar -C {FOLDER} -x"]
            subprocess.run(command, input=archive, check=True)
        yield Bench(lab, folders, place / "out")
    finally:
        lab.down()


def installed(node: Node) -> dict[str, str]:
    shown = node.must("dpkg-query -W -f '${Package} ${Version} ${db:Status-Want}\\n'")
    return {row[0]: f"{row[1]} {row[2]}" for row in map(str.split, shown.splitlines()) if len(row) == 3}


def since(node: Node, unit: str) -> str:
    return node.must(f"systemctl show -p ActiveEnterTimestamp --value {unit}").strip()


# ----- the whole way -------------------------------------------------------------------------------------------------


def test_docker_and_podman_stand_pinned_and_held_and_a_second_run_changes_nothing(bench: Bench) -> None:
    node = bench.trixie
    policy = bench.policy(node, runtime="docker", daemon=DAEMON, restart=True)
    first = bench.install(node, policy)
    assert first.code == 0, first.output[-3000:]
    standing = installed(node)
    for name, version in {
        **policy["container_runtime"]["packages"],
        "nvidia-container-toolkit-base": TOOLKIT,
    }.items():
        assert standing[name] == f"{version} hold"
    print(node.must("dockerd --version; podman --version; containerd --version").strip())
    began = {unit: since(node, unit) for unit in ("docker.service", "containerd.service", "ssh.service")}
    files = node.must("find /etc /usr/lib/systemd -newer /srv/debs/Packages -type f | sort | xargs sha256sum")
    second = bench.install(node, policy)
    assert second.code == 0, second.output[-3000:]
    assert second.changed[node.name] == 0, second.output[-3000:]
    assert {unit: since(node, unit) for unit in began} == began
    assert (
        node.must("find /etc /usr/lib/systemd -newer /srv/debs/Packages -type f | sort | xargs sha256sum")
        == files
    )


def test_a_docker_without_cdi_is_refused_on_debian_12_and_nothing_of_it_is_written(bench: Bench) -> None:
    node = bench.bookworm
    before = installed(node)
    run = bench.install(node, bench.policy(node, runtime="docker"))
    assert "its containers cannot ask for a CDI device" in findings(bench, node)
    assert node.ssh("test -e /etc/docker/daemon.json").returncode != 0
    assert installed(node) == before, run.output[-2000:]


def findings(bench: Bench, node: Node) -> str:
    plan = json.loads((bench.output / node.name / "plan.json").read_text("utf-8"))
    return " | ".join(f"{one['code']}: {one['why']}" for one in plan["findings"])


def test_podman_of_debian_12_is_installed_with_the_toolkit(bench: Bench) -> None:
    node = bench.bookworm
    policy = bench.policy(node, runtime="podman")
    del policy["container_runtime"]["packages"]["docker.io"]
    run = bench.install(node, policy)
    assert run.code == 0, run.output[-3000:]
    assert "hold" in installed(node)["podman"]
    print(node.must("podman --version").strip())


# ----- a container that runs on a node -------------------------------------------------------------------------------


def test_docker_is_not_started_again_under_a_container_and_is_when_it_has_ended(bench: Bench) -> None:
    node = bench.trixie
    assert node.must("systemctl is-active docker").strip() == "active"
    node.must(IMAGE)
    node.must("docker import /tmp/image.tar tiny", timeout=120)
    said = node.ssh("docker run -d --network none tiny /bin/sleep 900", timeout=120)
    if said.returncode != 0:
        pytest.skip(f"no container starts on a lab node: {said.stderr.strip()[-300:]}")
    name, began = said.stdout.strip(), since(node, "docker.service")
    more = bench.policy(node, runtime="docker", daemon={**DAEMON, "/debug": True}, restart=True)
    run = bench.install(node, more)
    assert run.code != 0
    assert "1 container runs (containerd-shim)" in run.output
    assert since(node, "docker.service") == began
    node.must("systemctl daemon-reload")
    assert "HOME" in node.must(f"docker exec {name} /bin/env")
    node.must(f"docker rm -f {name}", timeout=120)
    assert bench.install(node, more).code == 0
    assert since(node, "docker.service") != began


# ----- limits --------------------------------------------------------------------------------------------------------


def test_limits_are_those_of_a_new_login_and_of_a_daemon_that_was_started_again(bench: Bench) -> None:
    node = bench.trixie
    wanted = int(node.must("ulimit -Hl").strip()) if node.must("ulimit -Hl").strip() != "unlimited" else None
    node.must("systemctl restart ssh containerd")
    limits_of = node.must("cat /proc/$(systemctl show -p MainPID --value containerd)/limits")
    found = re.search(r"Max locked memory\s+(\S+)\s+(\S+)", limits_of)
    assert found is not None
    print(f"containerd: locked memory {found[1]} {found[2]}")
    assert found[1] == found[2] == ("unlimited" if wanted is None else str(wanted * 1024))
    login = subprocess.run([*node.entry(), "--", "ulimit -Sl"], capture_output=True, text=True, check=True)
    assert login.stdout.strip() == ("unlimited" if wanted is None else str(wanted))


def test_more_than_the_node_may_raise_is_refused_and_the_next_login_gets_in(bench: Bench) -> None:
    node = bench.trixie
    policy = bench.policy(node)
    policy["limits"]["nofile"] = int(node.must("ulimit -Hn")) + 1
    bench.install(node, policy)
    assert "limits.capability" in findings(bench, node)
    fresh = subprocess.run([*node.entry(), "--", "ulimit -Hn"], capture_output=True, text=True, check=True)
    assert int(fresh.stdout) < policy["limits"]["nofile"]
