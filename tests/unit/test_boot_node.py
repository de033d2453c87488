"""The boot entry on recorded machines: what it puts back, what it says and how it ends."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from railwright.node import boot as booting
from railwright.node import state
from railwright.node.boot import boot, read_policy, runtime_slices
from railwright.node.check import check
from railwright.node.discover import discover
from railwright.node.model import Finding, InputError, Plan, Policy, Slice
from railwright.node.model import plan as plan_model
from railwright.node.readiness import Waiting
from railwright.plan import plan as make_plan
from railwright.plan.boot_unit import LONGEST_SECONDS
from tests.unit.small_machine import gpu_node

needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="files on a node belong to root, so writing them needs root"
)


class Clock:
    """Time that passes only when somebody sleeps; `then` happens at the first sleep."""

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        self.time = 1000.0
        self.slept: list[float] = []
        self._then = then

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds
        self._then()

    def waiting(self, longest: float = 60.0) -> Waiting:
        return Waiting(longest=longest, between=2.0, now=lambda: self.time, sleep=self.sleep)


def lay(root: Path, text: str) -> None:
    (root / "etc/railwright/policy.json").write_text(text, encoding="utf-8")


def run(root: Path, **options: Any) -> tuple[int, list[str]]:
    lines: list[str] = []
    return boot(root, lines.append, **options), lines


@needs_root
def test_a_boot_brings_the_node_to_its_plan(tmp_path: Path) -> None:
    root = gpu_node(tmp_path)
    plan = make_plan(discover(root), read_policy(root))
    status, lines = run(root)
    assert status == 0
    assert lines[-1] == "good: the node is as planned"
    assert lines[0] == "read 2 GPUs and 2 NIC ports"
    entry = plan.slices["nccl_conf"].entries[0]
    assert (root / "etc/nccl.conf").read_text(encoding="utf-8") == entry["content"]
    found = check(plan, discover(root, watch=plan.files()))
    assert [finding for finding in found if finding.severity == "error"] == []


@needs_root
def test_a_boot_asks_the_ports_at_its_end_and_its_waits_fit_into_its_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = gpu_node(tmp_path)
    asked: list[Any] = []
    waits: dict[str, float] = {}

    def look(place: Path, **options: Any) -> Any:
        asked.append(options.get("ports", False))
        return discover(place, **options)

    apply = state.apply

    def write(slices: Any, **options: Any) -> Any:
        waits.update(lock=options["wait"], links=options["link_seconds"])
        return apply(slices, **options)

    monkeypatch.setattr(booting, "discover", look)
    monkeypatch.setattr(state, "apply", write)
    assert run(root)[0] == 0
    assert asked[-1] is True
    assert Waiting().longest + sum(waits.values()) < LONGEST_SECONDS


@needs_root
def test_a_second_boot_has_nothing_to_do(tmp_path: Path) -> None:
    root = gpu_node(tmp_path)
    _, first = run(root)
    status, second = run(root)
    assert any(line.startswith("nccl_conf: 3 of 3 items set") for line in first)
    assert "nccl_conf: as planned already" in second
    assert not any(" items set" in line for line in second)
    assert status == 0


@needs_root
def test_interrupts_that_a_reboot_scattered_come_back(tmp_path: Path) -> None:
    root = gpu_node(tmp_path)
    run(root)
    placed = {path: path.read_text(encoding="utf-8") for path in root.glob("proc/irq/*/smp_affinity_list")}
    plan = make_plan(discover(root), read_policy(root))
    devices = {entry["device"] for entry in plan.slices["irq_affinity"].entries}
    numbers = {
        irq.number for irq in discover(root).irqs if irq.device in devices and "comp" in str(irq.action)
    }
    for number in numbers:
        (root / f"proc/irq/{number}/smp_affinity_list").write_text("0-15\n", encoding="utf-8")
    assert run(root)[0] == 0
    assert numbers
    assert {path: path.read_text(encoding="utf-8") for path in placed} == placed


@needs_root
def test_an_item_that_cannot_be_set_is_named_and_the_others_are_set(tmp_path: Path) -> None:
    root = gpu_node(tmp_path)
    (root / "etc/nccl.conf").mkdir()
    status, lines = run(root)
    assert status == 1
    assert any(line.startswith("failed: ") and "nccl.conf" in line for line in lines)
    assert "error: nccl_conf.content: /etc/nccl.conf: is a folder, expected a file" in "\n".join(lines)
    assert lines[-1] == "not as planned: 1 failure, 1 finding"
    assert (root / "etc/profile.d/railwright-gpu-order.sh").exists()


@needs_root
def test_a_finding_that_the_policy_bears_is_said_and_does_not_count(tmp_path: Path) -> None:
    program = tmp_path / "another.pyz"
    program.write_bytes(b"another")
    boot_policy = {"sha256": "ab" * 32}
    accept = {"boot_unit.zipapp": "built by hand", "boot_unit.content": "x", "boot_unit.unit": "x"}
    status, lines = run(gpu_node(tmp_path, boot=boot_policy, accept=accept), archive=program)
    assert any(
        line.startswith("accepted: boot_unit.zipapp: ") and line.endswith("built by hand") for line in lines
    )
    assert status == 0


@needs_root
@pytest.mark.parametrize("same", [True, False])
def test_a_program_that_the_policy_does_not_state_says_so(tmp_path: Path, same: bool) -> None:
    program = tmp_path / "railwright.pyz"
    program.write_bytes(b"program")
    digest = hashlib.sha256(b"program").hexdigest() if same else "ab" * 32
    status, lines = run(gpu_node(tmp_path, boot={"sha256": digest}), archive=program)
    own = [line for line in lines if line.startswith("error: boot_unit.zipapp") and str(program) in line]
    assert bool(own) is not same
    # The boot unit's files are not in this tree, which the check says too.
    assert status == 1


@needs_root
def test_the_program_in_its_own_place_is_judged_once(tmp_path: Path) -> None:
    root = gpu_node(tmp_path, boot={"sha256": "ab" * 32})
    program = root / "usr/local/lib/railwright/railwright.pyz"
    program.parent.mkdir(parents=True)
    program.write_bytes(b"program")
    _, lines = run(root, archive=program)
    assert len([line for line in lines if "boot_unit.zipapp" in line]) == 1


def test_a_program_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    policy = Policy.read({"boot": {"sha256": "ab" * 32}})
    with pytest.raises(InputError, match="cannot be read"):
        booting.wrong_archive(policy, tmp_path / "gone.pyz")
    assert booting.wrong_archive(policy, None) is None


# What cannot be read.


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read: No such file or directory (run playbooks/retune.yml"),
        ("{", "is no JSON"),
        ('{"schema": "railwright.policy/1", "workload": "mining"}', "found 'mining'"),
        ("[" * 5_000_000, "is larger than 4194304 bytes"),
    ],
)
def test_a_policy_that_cannot_be_read_ends_with_2(tmp_path: Path, text: str | None, words: str) -> None:
    root = gpu_node(tmp_path)
    if text is None:
        (root / "etc/railwright/policy.json").unlink()
    else:
        lay(root, text)
    status, lines = run(root)
    assert status == 2
    assert len(lines) == 1
    assert lines[0].startswith(f"unreadable: {root}/etc/railwright/policy.json")
    assert words in lines[0]


def test_a_machine_that_cannot_be_read_ends_with_2_and_nothing_is_written(tmp_path: Path) -> None:
    root = gpu_node(tmp_path)
    (root / "sys/bus/pci/devices/0000:17:00.0/max_link_width").write_text("x1?", encoding="utf-8")
    status, lines = run(root)
    assert (status, len(lines)) == (2, 1)
    assert "max_link_width" in lines[0]
    assert not (root / "etc/nccl.conf").exists()


# What is refused.


def test_a_machine_that_cannot_be_planned_ends_with_3_and_nothing_is_written(tmp_path: Path) -> None:
    root = gpu_node(tmp_path)
    unplug(root, "0000:17:00.0")
    unplug(root, "0000:27:00.0")
    status, lines = run(root, waiting=Clock().waiting())
    assert status == 3
    assert any(line.startswith("refused: ") for line in lines)
    assert not (root / "etc/nccl.conf").exists()


def test_another_run_at_work_ends_with_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def held(*_: Any, **__: Any) -> Any:
        raise state.Held("/run/railwright.lock", "another run is at work", "wait")

    monkeypatch.setattr(state, "apply", held)
    status, lines = run(gpu_node(tmp_path))
    assert (status, lines[-1]) == (3, "refused: /run/railwright.lock: another run is at work (wait)")


def test_a_record_that_cannot_be_read_ends_with_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise state.StateError("/var/lib/railwright/state.json", "is no JSON")

    monkeypatch.setattr(state, "apply", broken)
    status, lines = run(gpu_node(tmp_path))
    assert (status, lines[-1]) == (2, "unreadable: /var/lib/railwright/state.json: is no JSON")


# Waiting for devices.


def unplug(root: Path, address: str) -> Callable[[], None]:
    """Takes a function off the bus; returns what puts it back."""
    link = root / "sys/bus/pci/devices" / address
    target = os.readlink(link)
    link.unlink()

    def plug() -> None:
        if not os.path.lexists(link):
            os.symlink(target, link)

    return plug


@needs_root
def test_a_gpu_that_comes_late_is_waited_for(tmp_path: Path) -> None:
    root = gpu_node(tmp_path, expect={"gpus": 2})
    clock = Clock(then=unplug(root, "0000:27:00.0"))
    status, lines = run(root, waiting=clock.waiting())
    assert (status, clock.slept) == (0, [2.0])
    assert lines[0].startswith("waiting up to 60 s: 1 of 2 GPUs are visible")
    assert lines[1] == "read 2 GPUs and 2 NIC ports"


def test_a_nic_that_the_policy_names_and_that_comes_late_is_waited_for(tmp_path: Path) -> None:
    named = [{"match": f"0000:{bus}6:00.0", "role": "rail", "rail": n} for n, bus in enumerate("12")]
    root = gpu_node(tmp_path, expect={"gpus": 2, "rails": 2}, nics=named)
    clock = Clock(then=unplug(root, "0000:26:00.0"))
    status, lines = run(root, waiting=clock.waiting())
    assert (status, clock.slept) == (0, [2.0])
    assert lines[0].startswith("waiting up to 60 s: the policy names 0000:26:00.0")


@needs_root
def test_a_gpu_that_does_not_come_is_waited_for_once_and_refused(tmp_path: Path) -> None:
    root = gpu_node(tmp_path, expect={"gpus": 3})
    clock = Clock()
    status, lines = run(root, waiting=clock.waiting(10.0))
    assert status == 3
    assert clock.slept == [2.0] * 5
    assert [line.partition(":")[0] for line in lines[:3]] == [
        "waiting up to 10 s",
        "waited 10 s in vain",
        "read 2 GPUs and 2 NIC ports",
    ]
    assert lines[3].startswith("refused: ")


def test_nothing_is_waited_for_that_the_policy_does_not_expect(tmp_path: Path) -> None:
    root = gpu_node(tmp_path)
    unplug(root, "0000:17:00.0")
    unplug(root, "0000:27:00.0")
    clock = Clock()
    status, _ = run(root, waiting=clock.waiting())
    assert (status, clock.slept) == (3, [])


def test_a_refusal_that_time_does_not_heal_is_not_waited_for(tmp_path: Path) -> None:
    clock = Clock()
    nics = [{"match": "mlx5_9", "role": "rail", "rail": 0}]
    root = gpu_node(tmp_path, expect={"gpus": 3}, nics=nics)
    status, _ = run(root, waiting=clock.waiting())
    assert (status, clock.slept) == (3, [])


# What the boot puts back.


def test_the_boot_units_own_slice_and_what_needs_a_reboot_are_left_alone() -> None:
    entry = {"kind": "sysctl", "name": "vm.swappiness", "value": "1"}
    slices = {
        "sysctls": Slice("runtime", (entry,), ""),
        "boot_unit": Slice("runtime", (entry,), ""),
        "kernel_cmdline": Slice("persistent", (entry,), ""),
    }
    assert runtime_slices(Plan(plan_model.SCHEMA, "planned", slices=slices)) == {"sysctls": [entry]}


def test_what_takes_effect_at_the_next_boot_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    item = state.ItemOutcome("file:/etc/x", "file", True, "write", None, None, "a note")
    failure = state.Failure("slices.x[0]", "no space", "")
    outcome = state.Outcome({"x": (item,)}, (), (failure,), ("file:/etc/x",))
    monkeypatch.setattr(state, "apply", lambda *_, **__: outcome)
    monkeypatch.setattr(booting, "check", lambda *_: (Finding("a.b", "warning", "here", "why", ""),))
    status, lines = run(gpu_node(tmp_path))
    assert status == 1
    assert lines[-7:] == [
        "x: 1 of 1 items set",
        "x: file:/etc/x: write",
        "x: file:/etc/x: a note",
        "failed: slices.x[0]: no space",
        "takes effect at the next boot: file:/etc/x",
        "warning: a.b: here: why",
        "not as planned: 1 failure, 1 finding",
    ]


def test_an_open_warning_of_the_check_is_no_good_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "apply", lambda *_, **__: state.Outcome({}, (), (), ()))
    monkeypatch.setattr(booting, "check", lambda *_: (Finding("a.b", "warning", "here", "why", "do"),))
    status, lines = run(gpu_node(tmp_path))
    assert (status, lines[-2:]) == (
        1,
        ["warning: a.b: here: why (do)", "not as planned: 0 failures, 1 finding"],
    )


def _set_links(root: Path, state: str) -> None:
    ports = [path for path in root.glob("sys/devices/**/ports/*/state") if not path.is_symlink()]
    assert ports
    for port in ports:
        port.write_text(f"{state}\n", encoding="utf-8")


@needs_root
def test_links_that_stay_down_do_not_write_themselves_out_of_nccls_file(tmp_path: Path) -> None:
    root, clock = gpu_node(tmp_path), Clock()
    assert run(root)[0] == 0
    files = {path: path.read_bytes() for path in (root / "etc/nccl.conf", root / "etc/railwright/gpus.tsv")}
    _set_links(root, "1: DOWN")
    status, lines = run(root, waiting=clock.waiting())
    assert status == 1
    assert sum(clock.slept) == 60.0
    assert {path: path.read_bytes() for path in files} == files
    assert any(line.startswith("left as they are") and "nccl_conf" in line for line in lines)
    assert any(line.startswith("error: nics.down: ") for line in lines)


@needs_root
def test_links_that_come_up_in_time_are_waited_for(tmp_path: Path) -> None:
    root = gpu_node(tmp_path)
    _set_links(root, "1: DOWN")
    clock = Clock(lambda: _set_links(root, "4: ACTIVE"))
    status, lines = run(root, waiting=clock.waiting())
    assert (status, clock.slept) == (0, [2.0])
    assert any(line.startswith("waiting up to 60 s: ") for line in lines)
    assert "NCCL_IB_HCA==" in (root / "etc/nccl.conf").read_text(encoding="utf-8")


# A rail whose link is not up.


def set_link(root: Path, rail: int, state_text: str) -> None:
    place = next(root.glob(f"sys/devices/pci*/*/*/infiniband/mlx5_{rail}/ports/1/state"))
    place.write_text(state_text, encoding="utf-8")


@needs_root
def test_a_rail_that_is_down_is_waited_for_and_does_not_leave_nccls_list(tmp_path: Path) -> None:
    root = gpu_node(tmp_path)
    run(root)
    before = (root / "etc/nccl.conf").read_bytes()
    set_link(root, 1, "1: DOWN")
    clock = Clock()
    status, lines = run(root, waiting=clock.waiting(10.0))
    assert status == 1
    assert clock.slept == [2.0] * 5
    assert any(line.startswith("error: nics.down: mlx5_1") for line in lines)
    assert "left as they are, for something is wrong with the devices: nccl_conf, gpu_order" in lines
    assert (root / "etc/nccl.conf").read_bytes() == before


def interrupts(root: Path) -> dict[str, str]:
    return {
        path.parent.name: path.read_text("utf-8").strip()
        for path in root.glob("proc/irq/*/smp_affinity_list")
    }


@needs_root
def test_a_rail_without_a_link_keeps_its_interrupts_and_the_others_keep_theirs(tmp_path: Path) -> None:
    root = gpu_node(tmp_path)
    assert run(root)[0] == 0
    tuned = interrupts(root)
    assert tuned["20"] != "0-15"
    assert tuned["21"] != "0-15"
    set_link(root, 1, "1: DOWN")
    status, lines = run(root, waiting=Clock().waiting(10.0))
    assert status == 1
    assert interrupts(root) == tuned
    assert "irq_affinity: as planned already" in lines
    assert [line for line in lines if line.startswith(("error: ", "warning: "))] == [
        line for line in lines if line.startswith("error: nics.down: mlx5_1")
    ]
    # What goes back then is the value before the first tune.
    state.revert(["irq_affinity"], root=str(root))
    assert set(interrupts(root).values()) == {"0-15"}


@needs_root
def test_a_rail_whose_nic_is_gone_is_not_kept(tmp_path: Path) -> None:
    root = gpu_node(tmp_path)
    assert run(root)[0] == 0
    set_link(root, 1, "1: DOWN")
    (root / "sys/bus/pci/devices/0000:16:00.0").unlink()
    status, lines = run(root, waiting=Clock().waiting(2.0))
    assert status in (1, 3)
    assert not any(line.startswith("failed: ") for line in lines)


@needs_root
def test_a_rail_that_comes_up_late_is_planned_as_ever(tmp_path: Path) -> None:
    root = gpu_node(tmp_path)
    run(root)
    set_link(root, 1, "1: DOWN")
    clock = Clock(then=lambda: set_link(root, 1, "4: ACTIVE"))
    status, lines = run(root, waiting=clock.waiting())
    assert (status, clock.slept) == (0, [2.0])
    assert "nccl_conf: as planned already" in lines


@needs_root
def test_a_rail_that_is_down_and_borne_is_left_out(tmp_path: Path) -> None:
    root = gpu_node(tmp_path, accept={"nics.down": "cable ordered"})
    set_link(root, 1, "1: DOWN")
    clock = Clock()
    status, _ = run(root, waiting=clock.waiting())
    assert (status, clock.slept) == (0, [])
    assert "mlx5_1" not in (root / "etc/nccl.conf").read_text(encoding="utf-8")


@needs_root
def test_interrupts_that_are_not_there_yet_are_waited_for(tmp_path: Path) -> None:
    root = gpu_node(tmp_path)
    table = root / "proc/interrupts"
    whole = table.read_text(encoding="utf-8")
    table.write_text(
        "\n".join(line for line in whole.splitlines() if "comp" not in line) + "\n", encoding="utf-8"
    )
    clock = Clock(then=lambda: table.write_text(whole, encoding="utf-8"))
    status, lines = run(root, waiting=clock.waiting())
    assert (status, clock.slept) == (0, [2.0])
    assert lines[0] == "waiting up to 60 s: 0000:16:00.0: has no completion vector yet"
