"""Locked memory and open files: what is written for whom, what stands against it, and what still runs with less."""

from __future__ import annotations

import configparser
from dataclasses import replace
from typing import Any

import pytest

from railwright.node.check import check, checks
from railwright.node.model import (
    Containers,
    DockerConfig,
    Facts,
    Finding,
    InputError,
    Limits,
    Plan,
    Policy,
    ProcessLimits,
    Slice,
    SlurmPropagation,
    to_json,
)
from railwright.node.state.kinds import read_slices
from railwright.plan import limits, plan
from railwright.plan.slices import INSTALL_SLICES
from tests.unit.plan_machines import hgx
from tests.unit.stack_support import H100, machine

DAEMONS = ("containerd.service", "docker.service", "slurmd.service", "ssh.service")
LOW, HIGH = ("8388608", "8388608"), ("unlimited", "unlimited")
MANY = ("1048576", "1048576")


def known(**changes: Any) -> Limits:
    """A Debian node whose sshd uses pam_limits, with Docker and Slurm, all of them as they come."""
    found = Limits(
        units=(*DAEMONS, "user@.service"),
        processes=(ProcessLimits("slurmd.service", "slurmd", LOW, MANY),),
        first=ProcessLimits("init.scope", "systemd", HIGH, MANY),
        may_raise=True,
        nr_open=1073741816,
        pam={"sshd": True},
        use_pam=True,
    )
    return replace(found, **changes)


def facts(**changes: Any) -> Facts:
    return replace(machine(H100), limits=known(**changes))


def asked(**more: Any) -> Policy:
    return Policy.read({"limits": more})


def files(made: Slice) -> dict[str, str]:
    return {entry["path"]: entry["content"] for entry in made.entries}


def planned(node: Facts, policy: Policy) -> Slice:
    made, findings = limits.slice_of(node, policy)
    assert made is not None, findings
    return made


def refusal(node: Facts, policy: Policy) -> Finding:
    made, findings = limits.slice_of(node, policy)
    assert made is None
    (found,) = findings
    assert found.severity == "error"
    return found


def codes(node: Facts, policy: Policy) -> list[str]:
    return [finding.code for finding in limits.slice_of(node, policy)[1]]


# ----- what is written -----------------------------------------------------------------------------------------------


def test_a_policy_without_limits_writes_and_says_nothing() -> None:
    assert limits.slice_of(facts(), Policy()) == (None, [])


def test_logins_get_limits_d_and_root_by_its_own_name() -> None:
    text = files(planned(facts(), asked()))[limits.LOGINS]
    rows = [line.split() for line in text.splitlines() if not line.startswith("#")]
    # pam_limits(8): group and wildcard limits are not applied to root.
    assert {who for who, *_ in rows} == {"*", "root"}
    assert ["*", "hard", "memlock", "unlimited"] in rows
    assert ["root", "soft", "nofile", "1048576"] in rows
    assert len(rows) == 8


def test_each_daemon_of_the_node_gets_a_drop_in_and_no_other_does() -> None:
    written = files(planned(facts(), asked(services=["jobd.service"])))
    names = {path.split("/")[4][:-2] for path in written if path.startswith("/etc/systemd/system/")}
    assert names == {*DAEMONS, "user@.service", "jobd.service"}
    page = configparser.ConfigParser()
    page.read_string(written["/etc/systemd/system/slurmd.service.d/60-railwright-limits.conf"])
    assert dict(page["Service"]) == {"limitmemlock": "infinity", "limitnofile": "1048576"}


def test_a_runtime_that_only_comes_with_this_run_has_its_drop_in_before() -> None:
    policy = Policy.read({"limits": {}, "container_runtime": {"runtime": "docker"}})
    bare = facts(units=("ssh.service",))
    written = set(files(planned(bare, policy)))
    after = set(files(planned(facts(units=("containerd.service", "docker.service", "ssh.service")), policy)))
    assert written == after
    assert "/etc/systemd/system/docker.service.d/60-railwright-limits.conf" in written


def test_a_runtime_of_which_only_the_package_is_named_counts_before_it_is_there() -> None:
    policy = Policy.read(
        {"limits": {}, "container_runtime": {"packages": {"podman": "5.4.2", "containerd.io": None}}}
    )
    written = files(planned(facts(units=("ssh.service",)), policy))
    assert limits.PODMAN in written
    assert not [path for path in written if "containerd.service" in path]


def test_podman_has_no_daemon_and_gets_its_own_file_in_bytes() -> None:
    node = replace(facts(), containers=Containers(programs=("podman",)))
    assert limits.PODMAN not in files(planned(facts(), asked()))
    text = files(planned(node, asked(memlock="8192", nofile=4096)))[limits.PODMAN]
    assert 'default_ulimits = ["memlock=8388608:8388608", "nofile=4096:4096"]' in text
    assert '"memlock=-1:-1"' in files(planned(node, asked()))[limits.PODMAN]


def test_the_writer_takes_the_entries_and_tuning_leaves_them_alone() -> None:
    made = planned(facts(), asked())
    assert len(read_slices({"limits": to_json(made.entries)}, None)["limits"]) == len(made.entries)
    assert "limits" in INSTALL_SLICES


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"memlock": "infinity"}, "policy.limits.memlock"),
        ({"memlock": "-1"}, "policy.limits.memlock"),
        ({"nofile": 10}, "policy.limits.nofile"),
        ({"services": ["../x.service"]}, "policy.limits.services[0]"),
        # Its folder of drop-ins would have a name that no file system takes.
        ({"services": [f"{'x' * 300}.service"]}, "policy.limits.services[0]"),
    ],
)
def test_a_policy_that_no_limit_can_be_is_refused_with_its_place(given: dict[str, Any], place: str) -> None:
    with pytest.raises(InputError) as caught:
        asked(**given)
    assert caught.value.where == place


# ----- what would lock people out ------------------------------------------------------------------------------------


def test_more_files_than_the_kernel_allows_is_refused_since_nobody_could_log_in() -> None:
    found = refusal(facts(nr_open=1048576), asked(nofile=1048577))
    assert found.code == "limits.nr_open"
    assert "1048576" in found.why
    planned(facts(nr_open=1048576), asked())


def test_what_the_policys_own_sysctls_allow_later_counts_like_what_the_kernel_allows_now() -> None:
    lower = Policy.read({"limits": {}, "sysctls": {"fs.nr_open": "524288"}})
    found = refusal(facts(), lower)
    assert (found.code, "524288" in found.why) == ("limits.nr_open", True)
    # fs/file.c: sysctl_nr_open = 1024*1024, which is what holds where nobody has looked.
    assert refusal(machine(H100), asked(nofile=1048577)).code == "limits.nr_open"
    assert refusal(facts(nr_open=None), asked(nofile=1048577)).code == "limits.nr_open"
    planned(machine(H100), asked())


def test_more_files_than_a_kernel_allows_when_it_starts_are_told_unless_the_policy_keeps_them_allowed() -> (
    None
):
    assert "limits.nr_open_kept" in codes(facts(), asked(nofile=2097152))
    kept = Policy.read({"limits": {"nofile": 2097152}, "sysctls": {"fs.nr_open": "2097152"}})
    assert "limits.nr_open_kept" not in codes(facts(), kept)


@pytest.mark.parametrize(
    "wrong",
    [
        {"units": ["../../cron.d/x.service"]},
        {"processes": [{"unit": "a b.service", "process": "a", "memlock": ["1", "1"], "nofile": ["1", "1"]}]},
        {
            "processes": [
                {"unit": "a.service", "process": "a", "memlock": ["lots", "1"], "nofile": ["1", "1"]}
            ]
        },
        {"first": {"unit": "init.scope", "process": "systemd", "memlock": [], "nofile": ["1", "1"]}},
    ],
)
def test_facts_that_no_kernel_and_no_systemd_write_are_refused_with_their_place(
    wrong: dict[str, Any],
) -> None:
    with pytest.raises(InputError) as caught:
        Facts.read({**to_json(machine(H100)), "limits": wrong})
    assert caught.value.where.startswith("facts.limits.")


def test_a_user_of_podman_is_told_to_log_in_again() -> None:
    node = replace(facts(processes=()), containers=Containers(programs=("podman",)))
    assert codes(node, asked()) == ["limits.podman"]


def test_a_node_that_may_not_raise_limits_is_refused_what_it_does_not_have() -> None:
    held = ProcessLimits("init.scope", "systemd", LOW, MANY)
    found = refusal(facts(may_raise=False, first=held), asked())
    assert found.code == "limits.capability"
    # No more than PID 1 has already can be set by whoever may not raise it.
    planned(facts(may_raise=False, first=held), asked(memlock="8192", nofile=1048576))


def test_drop_ins_wait_where_a_reload_would_take_gpus_from_containers_that_run() -> None:
    used = Containers(running={"containerd-shim": 3}, devices=1, unlinked=("/dev/nvidia0",))
    found = refusal(replace(facts(), containers=used), asked())
    assert found.code == "limits.daemon_reload"
    assert "3 containers run" in found.why
    planned(replace(facts(), containers=replace(used, running={})), asked())
    planned(replace(facts(), containers=replace(used, unlinked=())), asked())


# ----- what is told --------------------------------------------------------------------------------------------------


def test_a_daemon_with_less_is_named_and_its_restart_is_left_to_a_person() -> None:
    (told,) = limits.slice_of(facts(), asked())[1]
    assert (told.code, told.where) == ("limits.restart", "slurmd.service")
    assert "8388608" in told.why
    assert "when nobody's work" in told.remedy
    enough = (ProcessLimits("slurmd.service", "slurmd", HIGH, MANY),)
    assert codes(facts(processes=enough), asked()) == []


def test_logins_that_limits_d_does_not_reach_are_told() -> None:
    quiet: dict[str, Any] = {"processes": ()}
    assert codes(facts(pam={"sshd": False}, **quiet), asked()) == ["limits.pam"]
    assert codes(facts(use_pam=False, **quiet), asked()) == ["limits.use_pam"]
    assert codes(facts(**quiet), asked()) == []


@pytest.mark.parametrize(
    ("propagate", "but", "trap"),
    [
        (None, None, True),  # slurm.conf(5): without either line it is ALL
        (("ALL",), None, True),
        (("NONE",), None, False),
        (None, ("MEMLOCK",), False),
        (None, ("NOFILE", "CORE"), True),
        (("MEMLOCK", "NOFILE"), None, True),
        (("NOFILE",), None, False),
    ],
)
def test_slurm_that_carries_the_shells_locked_memory_along_is_told(
    propagate: tuple[str, ...] | None, but: tuple[str, ...] | None, trap: bool
) -> None:
    slurm = SlurmPropagation("/etc/slurm/slurm.conf", propagate, but)
    assert ("limits.slurm" in codes(facts(slurm=slurm), asked())) is trap


# ----- the check -----------------------------------------------------------------------------------------------------


def plan_of(policy: Policy) -> Plan:
    return Plan(schema="railwright.plan/1", status="planned", slices={"limits": planned(facts(), policy)})


def test_the_check_names_what_still_runs_with_less_than_the_drop_in_says() -> None:
    plan = plan_of(asked(memlock="16384"))
    (found,) = [one for one in check(plan, facts()) if one.code == "limits.running"]
    assert "locked memory 8388608, planned 16777216" in found.why
    enough = facts(processes=(ProcessLimits("slurmd.service", "slurmd", ("16777216", "16777216"), MANY),))
    assert not [one for one in check(plan, enough) if one.code == "limits.running"]
    (row,) = [row for row in checks(plan, enough) if row["name"] == "limits.running"]
    assert row["ok"] is True


def test_an_instance_is_compared_with_its_templates_drop_in() -> None:
    low = (ProcessLimits("user@0.service", "systemd", LOW, MANY),)
    (found,) = [one for one in check(plan_of(asked()), facts(processes=low)) if one.code == "limits.running"]
    assert (found.severity, found.remedy) == ("info", "log out and in again")


def test_sshds_own_limits_matter_only_where_pam_gives_logins_none() -> None:
    low = (ProcessLimits("ssh.service", "sshd", LOW, MANY),)

    def severity(**more: Any) -> str:
        found = check(plan_of(asked()), facts(processes=low, **more))
        return next(one.severity for one in found if one.code == "limits.running")

    assert severity() == "info"
    assert severity(pam={"sshd": False}) == severity(use_pam=False) == "warning"


def test_docker_that_gives_its_containers_less_is_told() -> None:
    def node(hard: int) -> Facts:
        values = {"default-ulimits": {"memlock": {"Name": "memlock", "Hard": hard, "Soft": hard}}}
        return replace(facts(processes=()), containers=Containers(docker=DockerConfig(values)))

    assert codes(node(65536), asked()) == ["limits.docker"]
    assert codes(node(-1), asked()) == codes(node(8388608), asked(memlock="8192")) == []


def test_limits_that_nobody_told_of_are_no_pass() -> None:
    (row,) = [row for row in checks(plan_of(asked()), machine(H100)) if row["name"] == "limits.running"]
    assert (row["ok"], row["skipped"]) == (False, True)


def test_the_whole_plan_has_the_slices_in_the_order_in_which_they_are_installed() -> None:
    policy = Policy.read(
        {
            "rdma_stack": {"stack": "doca"},
            "container_runtime": {"runtime": "docker", "labels": {}},
            "limits": {},
        }
    )
    made = plan(hgx().facts(), policy)
    ours = [name for name in INSTALL_SLICES if name in made.slices]
    assert (
        ours
        == ["rdma_stack", "container_runtime", "limits"]
        == [name for name in made.slices if name in ours]
    )
    assert {made.slices[name].stage for name in ours} == {"persistent"}
    assert Plan.read(to_json(made)) == made
    (labels,) = (
        row for row in made.slices["container_runtime"].entries if "features.d" in row.get("path", "")
    )
    assert "railwright-rails=8\n" in labels["content"]
    other = replace(policy, manage={"limits": False})
    assert "limits" not in plan(hgx().facts(), other).slices
