"""Containers as they are found: links below /dev/char, the CDI file, daemon.json, and facts that lie."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from railwright.node.check import check, checks
from railwright.node.model import CdiFile, Containers, DockerConfig, Facts, InputError, Plan, to_json
from tests.unit.container_support import TOOLKIT, asked, facts, planned
from tests.unit.stack_support import H100, machine


def test_the_check_looks_at_links_and_at_the_cdi_files_driver() -> None:
    plan = Plan(schema="railwright.plan/1", status="planned",
                slices={"container_runtime": planned(facts(), asked(runtime=None, toolkit=TOOLKIT))})  # fmt: skip
    gpus = CdiFile("/var/run/cdi/nvidia.yaml", "nvidia.com/gpu", ("all",), ("580.126.20",))
    node = replace(facts(devices=2, unlinked=("/dev/nvidia0",), cdi=(gpus,)),
                   host=replace(machine(H100).host, driver="580.173.02"))  # fmt: skip
    wrong = {found.code for found in check(plan, node) if found.severity == "error"}
    assert {"container_runtime.dev_char", "container_runtime.cdi"} <= wrong
    good = replace(node, containers=Containers(devices=2, cdi=(replace(gpus, drivers=("580.173.02",)),)))
    rows = {row["name"]: row["ok"] for row in checks(plan, good)}
    assert rows["container_runtime.dev_char"] is rows["container_runtime.cdi"] is True


@pytest.mark.parametrize(
    ("toolkit", "unit"), [("1.17.8-1", "railwright-cdi.service"), ("1.20.1-1", "nvidia-cdi-refresh.service")]
)
def test_the_check_misses_a_cdi_file_that_nobody_has_written(toolkit: str, unit: str) -> None:
    plan = Plan(schema="railwright.plan/1", status="planned",
                slices={"container_runtime": planned(facts(), asked(runtime=None, toolkit=toolkit))})  # fmt: skip
    driven = replace(facts(devices=2), host=replace(machine(H100).host, driver="580.173.02"))
    (found,) = [one for one in check(plan, driven) if one.code == "container_runtime.cdi"]
    assert (found.severity, unit in found.remedy) == ("error", True)
    bare = replace(driven, host=replace(driven.host, driver=None))
    assert not [one for one in check(plan, bare) if one.code == "container_runtime.cdi"]


@pytest.mark.parametrize(
    "containers",
    [
        {"cdi": [{"path": "/etc/cdi/a;reboot;.yaml", "kind": "nvidia.com/gpu"}]},
        {"cdi": [{"path": "/root/.ssh/authorized_keys"}]},
        {"unlinked": ["/dev/nvidia0; reboot"]},
        {"running": {"nothing\nat all": 1}},
    ],
)
def test_facts_that_would_put_words_into_commands_are_refused(containers: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        Facts.read({**to_json(machine(H100)), "containers": containers})
    assert caught.value.where.startswith("facts.containers.")


def test_the_check_compares_the_keys_of_daemon_json_that_are_read() -> None:
    made = planned(facts(), asked(cgroup_driver="systemd", daemon={"/debug": True}))
    plan = Plan(schema="railwright.plan/1", status="planned", slices={"container_runtime": made})

    def rows(config: DockerConfig | None) -> dict[str, Any]:
        return next(row for row in checks(plan, facts(docker=config)) if row["name"].endswith("daemon_json"))

    good = {"features": {"cdi": True, "buildkit": True}, "exec-opts": ["native.cgroupdriver=systemd"]}
    assert rows(DockerConfig(good))["ok"] is True
    assert "/features/cdi is not there" in rows(DockerConfig({**good, "features": {}}))["detail"]
    assert "is not there" in rows(None)["detail"]
    assert rows(DockerConfig(why="is no JSON"))["ok"] is False
