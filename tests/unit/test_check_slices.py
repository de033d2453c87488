"""Fresh facts against each kind of entry of a plan."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from railwright.node.check import check, checks
from railwright.node.model import Facts, FileFact, Finding, Host, InputError, Irq, Plan, Slice, Unit, Witness
from railwright.node.model import facts as facts_model
from railwright.node.model import plan as plan_model

CONTENT = "NCCL_IB_HCA==mlx5_0\n"
DIGEST = hashlib.sha256(CONTENT.encode()).hexdigest()
RETUNE = "run `ansible-playbook -i INVENTORY playbooks/retune.yml -l NODE`"
CONF = {"kind": "file", "path": "/etc/nccl.conf", "content": CONTENT, "mode": "0644"}


def plan(status: str = "planned", **slices: dict[str, Any] | list[dict[str, Any]]) -> Plan:
    parts = {name: [entries] if isinstance(entries, dict) else entries for name, entries in slices.items()}
    return Plan(
        plan_model.SCHEMA,
        status,
        slices={name: Slice("runtime", tuple(entries), "") for name, entries in parts.items()},
    )


def facts(**fields: Any) -> Facts:
    known = {"host": Host(name="gpu-a"), **fields}
    return Facts(facts_model.SCHEMA, (Witness("sysfs", "/"),), **known)


def found(planned: Plan, seen: Facts) -> list[tuple[str, str, str]]:
    return [(finding.code, finding.severity, finding.where) for finding in check(planned, seen)]


def row(
    planned: Plan, seen: Facts, name: str, accept: dict[str, str] | None = None
) -> tuple[bool, bool, str]:
    (one,) = [entry for entry in checks(planned, seen, accept) if entry["name"] == name]
    return one["ok"], one["skipped"], one["detail"]


# Files.


def test_a_file_as_planned_is_no_finding() -> None:
    seen = facts(files=(FileFact("/etc/nccl.conf", DIGEST, "0644", 0, 0),))
    assert check(plan(nccl_conf=CONF), seen) == ()
    assert row(plan(nccl_conf=CONF), seen, "nccl_conf.content") == (True, False, "1 as planned")
    assert row(plan(nccl_conf=CONF), seen, "nccl_conf.mode") == (True, False, "1 as planned")


def test_another_content_is_a_finding_with_both_digests_and_the_way_out() -> None:
    seen = facts(files=(FileFact("/etc/nccl.conf", "ab" * 32, "0644", 0, 0),))
    assert check(plan(nccl_conf=CONF), seen) == (
        Finding(
            "nccl_conf.content",
            "error",
            "/etc/nccl.conf",
            f"has another content (sha256 abababababab, planned {DIGEST[:12]})",
            RETUNE,
        ),
    )
    assert row(plan(nccl_conf=CONF), seen, "nccl_conf.content")[:2] == (False, False)


@pytest.mark.parametrize(
    ("mode", "uid", "gid"), [("0600", 0, 0), ("0644", 1000, 0), ("0644", 0, 1000), ("4644", 0, 0)]
)
def test_another_mode_or_owner_is_a_finding(mode: str, uid: int, gid: int) -> None:
    seen = facts(files=(FileFact("/etc/nccl.conf", DIGEST, mode, uid, gid),))
    (finding,) = check(plan(nccl_conf=CONF), seen)
    assert (finding.code, finding.severity) == ("nccl_conf.mode", "error")
    assert finding.why == f"is {mode} {uid}:{gid}, planned 0644 0:0"


def test_owners_by_number_are_compared_and_by_name_they_are_not_seen() -> None:
    seen = facts(files=(FileFact("/etc/nccl.conf", DIGEST, "0644", 7, 8),))
    assert check(plan(nccl_conf={**CONF, "owner": "7", "group": "8"}), seen) == ()
    named = plan(nccl_conf={**CONF, "owner": "slurm"})
    assert found(named, seen) == [("nccl_conf.mode", "info", "/etc/nccl.conf")]
    assert row(named, seen, "nccl_conf.mode")[:2] == (False, True)


@pytest.mark.parametrize(
    ("fact", "why"),
    [
        (FileFact("/etc/nccl.conf"), "is not there"),
        (FileFact("/etc/nccl.conf", DIGEST, "link", 0, 0), "is a link, expected a file"),
        (FileFact("/etc/nccl.conf", None, "folder", 0, 0), "is a folder, expected a file"),
    ],
)
def test_what_is_no_file_is_a_finding(fact: FileFact, why: str) -> None:
    (finding,) = check(plan(nccl_conf=CONF), facts(files=(fact,)))
    assert (finding.code, finding.why) == ("nccl_conf.content", why)


def test_a_file_that_was_not_looked_at_is_never_good() -> None:
    assert found(plan(nccl_conf=CONF), facts()) == [("nccl_conf.content", "info", "/etc/nccl.conf")]
    assert check(plan(nccl_conf=CONF), facts())[0].why.startswith("not looked at")
    assert row(plan(nccl_conf=CONF), facts(), "nccl_conf.content")[:2] == (False, True)


def test_the_boot_units_files_have_names_of_their_own() -> None:
    entries = [
        {
            "kind": "file",
            "path": "/usr/local/lib/railwright/railwright.pyz",
            "sha256": "cd" * 32,
            "mode": "0644",
        },
        {"kind": "file", "path": "/etc/railwright/policy.json", "content": "{}", "mode": "0644"},
        {
            "kind": "file",
            "path": "/etc/systemd/system/railwright.service",
            "content": "[Unit]",
            "mode": "0644",
        },
    ]
    seen = facts(files=tuple(FileFact(str(entry["path"]), "00" * 32, "0644", 0, 0) for entry in entries))
    codes = [finding.code for finding in check(plan(boot_unit=entries), seen)]
    assert codes == ["boot_unit.zipapp", "boot_unit.content", "boot_unit.unit"]


def test_single_keys_of_a_json_file_are_not_seen() -> None:
    entry = {"kind": "json_keys", "path": "/etc/docker/daemon.json", "keys": {"/default-runtime": "nvidia"}}
    seen = facts(files=(FileFact("/etc/docker/daemon.json", DIGEST, "0644", 0, 0),))
    assert found(plan(containers=entry), seen) == [("containers.content", "info", "/etc/docker/daemon.json")]
    gone = facts(files=(FileFact("/etc/docker/daemon.json"),))
    assert found(plan(containers=entry), gone) == [("containers.content", "error", "/etc/docker/daemon.json")]


# Values of the kernel.


def test_sysctls_are_compared_by_words_and_found_under_either_spelling() -> None:
    entries = [
        {"kind": "sysctl", "name": "kernel.numa_balancing", "value": "0"},
        {"kind": "sysctl", "name": "net.ipv4.tcp_rmem", "value": "4096  131072 6291456"},
        {"kind": "sysctl", "name": "net.ipv4.conf.eth0/7.rp_filter", "value": "2"},
        {"kind": "sysctl", "name": "vm.gone", "value": "1"},
    ]
    values = {
        "kernel.numa_balancing": "1",
        "net.ipv4.tcp_rmem": "4096 131072 6291456",
        "net/ipv4/conf/eth0.7/rp_filter": "2",
    }
    planned, seen = plan(sysctls=entries), facts(host=Host(name="gpu-a", sysctls=values))
    assert check(planned, seen)[0].why == "is 1, planned 0"
    assert found(planned, seen) == [
        ("sysctls.value", "error", "kernel.numa_balancing"),
        ("sysctls.value", "info", "vm.gone"),
    ]
    # What differs outweighs what was not seen.
    assert row(planned, seen, "sysctls.value") == (False, False, "kernel.numa_balancing: is 1, planned 0")


THP = "/sys/kernel/mm/transparent_hugepage/enabled"


@pytest.mark.parametrize(
    ("fact", "expected"),
    [
        (FileFact(THP, DIGEST, "0644", 0, 0, "always [madvise] never"), []),
        (FileFact(THP, DIGEST, "0644", 0, 0, "[always] madvise never"), [("memory.value", "error", THP)]),
        (FileFact(THP), [("memory.value", "error", THP)]),
        (FileFact(THP, DIGEST, "0644", 0, 0), [("memory.value", "info", THP)]),
        (FileFact("/other"), [("memory.value", "info", THP)]),
    ],
)
def test_of_a_choice_the_chosen_word_is_compared(
    fact: FileFact, expected: list[tuple[str, str, str]]
) -> None:
    entry = {"kind": "sysfs", "path": THP, "value": "madvise"}
    planned = plan(memory=entry)
    assert planned.files() == (THP,)
    assert found(planned, facts(files=(fact,))) == expected


# Interrupts.

RAIL = "0000:18:00.0"
ENTRY = {"kind": "irq_affinity", "device": RAIL, "cpus": "6,4", "control_cpus": "2"}
IDLE = (Unit("irqbalance.service", "loaded", "inactive", "disabled", False),)


def vector(
    number: int, name: str, affinity: str | None, effective: str | None, managed: bool | None = None
) -> Irq:
    return Irq(number, RAIL, f"{name}@pci:{RAIL}", affinity, effective, managed)


GOOD = (
    vector(10, "mlx5_async0", "0-7", "2"),
    vector(11, "mlx5_comp0", "4", "4"),
    vector(12, "mlx5_comp1", "6", "6"),
    vector(13, "mlx5_comp2", "4", "4"),
)


def test_completion_vectors_that_take_turns_are_as_planned() -> None:
    seen = facts(irqs=GOOD, units=IDLE)
    assert check(plan(irq_affinity=ENTRY), seen) == ()
    assert row(plan(irq_affinity=ENTRY), seen, "irq_affinity.placement") == (True, False, "4 as planned")
    assert row(plan(irq_affinity=ENTRY), seen, "irq_affinity.irqbalance") == (
        True,
        False,
        "irqbalance is not active",
    )


def test_a_vector_on_another_core_is_named_with_both_cores() -> None:
    seen = facts(irqs=(*GOOD[:2], vector(12, "mlx5_comp1", "0-7", "0")), units=IDLE)
    (finding,) = check(plan(irq_affinity=ENTRY), seen)
    assert (finding.code, finding.severity, finding.where) == ("irq_affinity.placement", "error", RAIL)
    assert finding.why == f"IRQ 12 (mlx5_comp1@pci:{RAIL}) is on CPU 0, planned 6"


def test_all_vectors_on_one_planned_core_are_not_as_planned() -> None:
    piled = tuple(vector(irq.number, str(irq.action).partition("@")[0], "4", "4") for irq in GOOD)
    assert found(plan(irq_affinity=ENTRY), facts(irqs=piled, units=IDLE)) == [
        ("irq_affinity.placement", "error", RAIL),
        ("irq_affinity.placement", "info", RAIL),
    ]


def test_all_vectors_of_a_port_are_one_finding() -> None:
    piled = tuple(vector(20 + n, f"mlx5_comp{n}", "0", "0") for n in range(8))
    (finding,) = check(plan(irq_affinity=ENTRY), facts(irqs=piled, units=IDLE))
    assert finding.why.endswith(f"IRQ 23 (mlx5_comp3@pci:{RAIL}) is on CPU 0, planned 6; and 4 more")


def test_a_control_vector_elsewhere_is_information_only() -> None:
    seen = facts(irqs=(vector(10, "mlx5_async0", "5", "5"), *GOOD[1:]), units=IDLE)
    assert found(plan(irq_affinity=ENTRY), seen) == [("irq_affinity.placement", "info", RAIL)]
    assert row(plan(irq_affinity=ENTRY), seen, "irq_affinity.placement")[0] is True
    without = {key: value for key, value in ENTRY.items() if key != "control_cpus"}
    assert check(plan(irq_affinity=without), seen) == ()


def test_a_vector_that_is_set_and_waits_for_its_next_interrupt_is_information() -> None:
    seen = facts(irqs=(*GOOD[:2], vector(12, "mlx5_comp1", "6", "0")), units=IDLE)
    (finding,) = check(plan(irq_affinity=ENTRY), seen)
    assert (finding.severity, "moving at the next interrupt" in finding.why) == ("info", True)


def test_where_the_kernel_does_not_tell_what_is_in_force_the_setting_counts() -> None:
    seen = facts(irqs=(vector(11, "mlx5_comp0", "4", None), vector(12, "mlx5_comp1", "6", "")), units=IDLE)
    assert check(plan(irq_affinity=ENTRY), seen) == ()
    dark = facts(irqs=(vector(11, "mlx5_comp0", None, None),), units=IDLE)
    assert found(plan(irq_affinity=ENTRY), dark) == [("irq_affinity.placement", "info", RAIL)]


def test_vectors_that_the_kernel_places_alone_take_no_turn() -> None:
    seen = facts(
        irqs=(vector(11, "mlx5_comp0", "0", "0", managed=True), vector(12, "mlx5_comp1", "4", "4")),
        units=IDLE,
    )
    assert check(plan(irq_affinity=ENTRY), seen) == ()


def test_no_completion_vector_at_all_is_no_success() -> None:
    seen = facts(irqs=GOOD[:1], units=IDLE)
    assert found(plan(irq_affinity=ENTRY), seen) == [("irq_affinity.placement", "warning", RAIL)]
    assert found(plan(irq_affinity=ENTRY), facts(units=IDLE)) == [("irq_affinity.placement", "info", RAIL)]


def test_an_active_irqbalance_is_a_warning() -> None:
    active = (Unit("irqbalance.service", "loaded", "active", "enabled", False),)
    (finding,) = check(plan(irq_affinity=ENTRY), facts(irqs=GOOD, units=active))
    assert (finding.code, finding.severity) == ("irq_affinity.irqbalance", "warning")
    assert (
        check(
            plan(nccl_conf=CONF),
            facts(files=(FileFact("/etc/nccl.conf", DIGEST, "0644", 0, 0),), units=active),
        )
        == ()
    )


@pytest.mark.parametrize(
    "more",
    [
        {"kind": "systemd_unit", "name": "irqbalance.service", "enabled": True, "state": "started"},
        {"kind": "file", "path": "/etc/default/irqbalance", "content": "", "mode": "0644"},
    ],
)
def test_an_irqbalance_that_the_plan_speaks_of_is_judged_by_that(more: dict[str, Any]) -> None:
    active = (Unit("irqbalance.service", "loaded", "active", "enabled", False),)
    files = (FileFact("/etc/default/irqbalance", hashlib.sha256(b"").hexdigest(), "0644", 0, 0),)
    assert check(plan(irq_affinity=[ENTRY, more]), facts(irqs=GOOD, units=active, files=files)) == ()


def test_without_units_irqbalance_is_not_seen() -> None:
    assert found(plan(irq_affinity=ENTRY), facts(irqs=GOOD)) == [
        ("irq_affinity.irqbalance", "info", "irqbalance.service")
    ]


# Units.

BOOT = {"kind": "systemd_unit", "name": "railwright.service", "enabled": True, "state": "started"}


def unit(**fields: Any) -> Unit:
    known = {"load": "loaded", "active": "active", "enabled": "enabled", "needs_reload": False, **fields}
    return Unit("railwright.service", **known)


@pytest.mark.parametrize(
    ("seen", "entry", "why"),
    [
        (unit(), BOOT, None),
        (unit(active="inactive", done=True), BOOT, None),
        (unit(enabled="alias", active="activating"), BOOT, None),
        (unit(active="inactive", done=False), BOOT, "is inactive, planned started"),
        (unit(active="failed"), BOOT, "is failed, planned started"),
        (unit(enabled="disabled"), BOOT, "is disabled, planned enabled"),
        (unit(enabled=None), BOOT, "is not enabled, planned enabled"),
        (unit(needs_reload=True), BOOT, "systemd runs it by an older unit file"),
        (unit(load="not-found", active="inactive", enabled=None), BOOT, "systemd cannot load it: not-found"),
        (
            unit(load="not-found", active="inactive", enabled=None),
            {**BOOT, "enabled": False, "state": "stopped"},
            None,
        ),
        (
            unit(active="inactive"),
            {**BOOT, "enabled": False, "state": "stopped"},
            "is enabled, planned disabled",
        ),
        (
            unit(enabled="disabled"),
            {**BOOT, "enabled": False, "state": "stopped"},
            "is active, planned stopped",
        ),
        (
            unit(active="inactive", enabled="disabled"),
            {"kind": "systemd_unit", "name": "railwright.service"},
            None,
        ),
    ],
)
def test_units(seen: Unit, entry: dict[str, Any], why: str | None) -> None:
    findings = check(plan(boot_unit=entry), facts(units=(seen,)))
    assert [finding.code for finding in findings] == ([] if why is None else ["boot_unit.unit"])
    assert why is None or why in findings[0].why


def test_a_unit_that_was_not_asked_for_is_not_seen() -> None:
    assert found(plan(boot_unit=BOOT), facts(units=IDLE)) == [
        ("boot_unit.unit", "info", "railwright.service")
    ]


# The whole.


def test_a_kind_that_no_witness_tells_of_is_not_seen() -> None:
    entry = {"kind": "clock", "interface": "eth0"}
    assert found(plan(time=entry), facts()) == [("time.clock", "info", "slices.time.entries[0]")]


def test_an_entry_without_its_key_is_refused_with_its_place() -> None:
    with pytest.raises(InputError, match=r"plan\.slices\.sysctls\.entries\[1\]: has no 'value'"):
        check(
            plan(
                sysctls=[{"kind": "sysctl", "name": "a.b", "value": "1"}, {"kind": "sysctl", "name": "a.c"}]
            ),
            facts(),
        )


def test_an_accepted_finding_bears_its_reason_and_its_row_is_good() -> None:
    seen = facts(files=(FileFact("/etc/nccl.conf", "ab" * 32, "0644", 0, 0),))
    accept = {"nccl_conf.content": "the customer's own file"}
    (finding,) = check(plan(nccl_conf=CONF), seen, accept)
    assert finding.accepted == "the customer's own file"
    ok, skipped, detail = row(plan(nccl_conf=CONF), seen, "nccl_conf.content", accept)
    assert (ok, skipped, detail) == (True, False, "/etc/nccl.conf: accepted, the customer's own file")


def test_a_refused_plan_is_compared_with_nothing() -> None:
    assert check(plan("refused"), facts()) == ()
    assert checks(plan("refused"), facts()) == [
        {"name": "plan", "ok": False, "detail": "the plan was refused: nothing is written", "skipped": True}
    ]


def test_a_row_lists_a_few_cases_and_counts_the_rest() -> None:
    entries = [{"kind": "sysctl", "name": f"vm.a{n}", "value": "1"} for n in range(7)]
    seen = facts(host=Host(name="gpu-a", sysctls={f"vm.a{n}": "0" for n in range(7)}))
    assert row(plan(sysctls=entries), seen, "sysctls.value")[2].endswith("vm.a3: is 0, planned 1; and 3 more")


def test_no_name_that_a_node_gave_itself_stands_in_a_command() -> None:
    seen = facts(host=Host(name="gpu-a"), files=(FileFact("/etc/nccl.conf"),))
    assert "gpu-a" not in check(plan(nccl_conf=CONF), seen)[0].remedy
