"""The units that put a plan back: read by systemd itself where it is here, and by their words."""

from __future__ import annotations

import configparser
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from railwright.fleet import steps, zipapp
from railwright.node import boot as booting
from railwright.node import readiness
from railwright.node.__main__ import main
from railwright.node.boot import boot, runtime_slices
from railwright.node.model import InputError, Plan, Policy, Slice
from railwright.node.model import plan as plan_model
from railwright.plan import boot_unit
from tests.unit.small_machine import gpu_node
from tests.unit.test_boot_node import Clock
from tests.unit.test_node_gids import mapped

UNITS = "/etc/systemd/system"


def entries(gate: tuple[str, ...] = ()) -> tuple[dict[str, Any], ...]:
    policy = Policy.read({"boot": {"sha256": "ab" * 32, "gate": list(gate)}})
    made = boot_unit.slice_of(policy)
    assert made is not None
    return made.entries


def test_a_policy_that_states_no_program_has_no_boot_unit() -> None:
    assert boot_unit.slice_of(Policy()) is None
    # The controller fills it in, and keeps what the inventory says beside it.
    asked = {"schema": "railwright.policy/1", "boot": {"gate": ["slurmd.service"]}}
    assert boot_unit.slice_of(Policy.read(asked)) is None
    filled = Policy.read(steps.node_policy(asked))
    assert filled.boot is not None
    assert (filled.boot.sha256, filled.boot.gate) == (zipapp.digest(), ("slurmd.service",))


def files(gate: tuple[str, ...] = ()) -> dict[str, str]:
    return {entry["path"]: entry["content"] for entry in entries(gate) if "content" in entry}


def unit(name: str) -> configparser.RawConfigParser:
    class Several(dict[str, Any]):
        """systemd's keys may stand several times, and add up."""

        def __setitem__(self, key: str, value: Any) -> None:
            if isinstance(value, list) and key in self:
                value = [*self[key], *value]
            super().__setitem__(key, value)

    parser = configparser.RawConfigParser(dict_type=Several, strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(files()[f"{UNITS}/{name}"])
    return parser


def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd is not installed")
    names = []
    for path, text in files().items():
        if path.startswith(UNITS):
            # The program is not there, and it must be for systemd to say yes.
            name = tmp_path / Path(path).name
            name.write_text(text.replace("/usr/bin/python3", "/bin/true"), encoding="utf-8")
            names.append(str(name))
    assert len(names) == 3
    done = subprocess.run(
        [analyze, "verify", "--man=no", *names],
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr + done.stdout) == (0, "")


def test_the_longest_wait_fits_into_the_units_time_and_gates_work_alone() -> None:
    boot_, again = unit("railwright.service"), unit("railwright-again.service")
    waits = readiness.Waiting().longest + booting._LOCK_SECONDS
    assert waits < int(boot_["Service"]["TimeoutStartSec"].split()[0]) == boot_unit.LONGEST_SECONDS
    assert waits + boot_unit.SETTLE_SECONDS < int(again["Service"]["TimeoutStartSec"])
    assert boot_["Unit"]["Before"] == "slurmd.service kubelet.service docker.service containerd.service"
    everything = "".join(files().values())
    for way_in in ("ssh", "getty", "login", "Before=network", "Before=multi-user"):
        assert way_in not in everything


def test_no_file_that_asks_for_a_run_is_left_behind_by_one() -> None:
    for name in ("railwright.service", "railwright-again.service"):
        assert (
            f"ExecStartPre=/usr/bin/rm -f {boot_unit.GOOD} {boot_unit.ASKED}\n" in files()[f"{UNITS}/{name}"]
        )
    path = unit("railwright-again.path")["Path"]
    assert (path["PathExists"], path["Unit"]) == (boot_unit.ASKED, "railwright-again.service")
    # A unit that is not started would leave it too, and the path unit would try for ever.
    assert "Condition" not in files()[f"{UNITS}/railwright-again.service"]


def test_the_rule_asks_for_nics_and_their_queues_and_never_for_virtual_functions(tmp_path: Path) -> None:
    """The shell that udev starts is the judge: of a tree with a physical function and a virtual one."""
    rules = [line for line in files()[boot_unit.RULES_FILE].splitlines() if "RUN+=" in line]
    assert len(rules) == 3
    (tmp_path / "devices/vf/physfn").mkdir(parents=True)
    (tmp_path / "devices/pf").mkdir()
    for line, subsystem, below in zip(
        rules,
        ("infiniband", "net", "queues"),
        ("infiniband/mlx5_0", "net/eth4", "net/eth4/queues/rx-0"),
        strict=True,
    ):
        assert line.startswith(f'SUBSYSTEM=="{subsystem}"')
        # What udev makes of it (udev(7), substitutions), below a folder of the test's own.
        script = line.partition("/bin/sh -c '")[2].rpartition("'")[0].replace("$$", "$").replace("%%", "%")
        script = script.replace("/sys$", f"{tmp_path}$").replace(boot_unit.ASKED, f"{tmp_path}/asked")
        for function in ("vf", "pf"):
            asked = tmp_path / "asked"
            asked.unlink(missing_ok=True)
            # Neither the netdev nor its queue is there under the event's name: it was renamed.
            subprocess.run(["sh", "-c", script], env={"DEVPATH": f"/devices/{function}/{below}"}, check=True)
            assert asked.exists() is (function == "pf"), (subsystem, function)


def test_a_gated_service_starts_only_where_the_node_was_found_good() -> None:
    text = files(("slurmd.service",))[f"{UNITS}/slurmd.service.d/60-railwright.conf"]
    assert "AssertPathExists=/run/railwright/good" in text
    assert "After=railwright.service" in text
    # Not Requires=: a restart of the boot unit must not restart slurmd under a job.
    assert "Requires" not in text
    assert not any("service.d/" in path for path in files())


@pytest.mark.parametrize(
    "name", ["sshd.service", "ssh.service", "slurmd", "../x.service", "systemd-logind.service", ""]
)
def test_what_is_no_service_that_runs_work_cannot_be_gated(name: str) -> None:
    with pytest.raises(InputError, match=r"policy\.boot\.gate"):
        Policy.read({"boot": {"sha256": "ab" * 32, "gate": [name]}})


def test_at_boot_nobody_is_asked_to_confirm_a_change_of_the_network() -> None:
    network = {"kind": "network", "mode": "flat", "confirm_seconds": 120}
    other = {"kind": "file", "path": "/x", "content": ""}
    plan = Plan(plan_model.SCHEMA, "planned", slices={"rail_network": Slice("runtime", (network, other), "")})
    assert runtime_slices(plan) == {"rail_network": [{**network, "confirm_seconds": 0}, other]}
    assert network["confirm_seconds"] == 120


def roce(root: Path, **policy: Any) -> Path:
    """The small node with Ethernet rails; the second has no address yet."""
    gpu_node(root, **policy)
    for rail, bus in enumerate("12"):
        nic = root / f"sys/devices/pci0000:{bus}5/0000:{bus}5:01.0/0000:{bus}6:00.0"
        port = nic / f"infiniband/mlx5_{rail}/ports/1"
        (port / "link_layer").write_text("Ethernet", encoding="ascii")
        address(root, rail, "fe80:0000:0000:0000:0ac0:ebff:fe00:0001" if rail else mapped("10.100.0.5"))
        net = nic / f"net/rail{rail}"
        net.mkdir(parents=True)
        for name, text in {
            "ifindex": rail + 2,
            "iflink": rail + 2,
            "dev_port": 0,
            "mtu": 9000,
            "type": 1,
        }.items():
            (net / name).write_text(str(text), encoding="ascii")
        (root / "sys/class/net").mkdir(parents=True, exist_ok=True)
        (root / f"sys/class/net/rail{rail}").symlink_to(net)
    return root


def address(root: Path, rail: int, gid: str) -> None:
    port = root / f"sys/class/infiniband/mlx5_{rail}/ports/1"
    for name, text in {
        "gids/3": gid,
        "gid_attrs/types/3": "RoCE v2",
        "gid_attrs/ndevs/3": f"rail{rail}",
    }.items():
        (port / name).parent.mkdir(parents=True, exist_ok=True)
        (port / name).write_text(text, encoding="ascii")


def run(root: Path, clock: Clock) -> list[str]:
    lines: list[str] = []
    boot(root, lines.append, waiting=clock.waiting())
    return lines


def test_the_boot_waits_for_a_rail_that_has_no_address_yet(tmp_path: Path) -> None:
    root = roce(tmp_path)
    clock = Clock(lambda: address(root, 1, mapped("10.100.1.5")))
    lines = run(root, clock)
    assert lines[0] == ("waiting up to 60 s: mlx5_1: no RoCE v2 GID of mlx5_1 stands for an address of rail1")
    assert clock.slept == [2.0]
    assert not any("rails.gid" in line for line in lines)


def test_a_rail_that_never_gets_one_is_waited_for_once_and_then_named(tmp_path: Path) -> None:
    clock = Clock()
    lines = run(roce(tmp_path), clock)
    assert "waited 60 s in vain" in lines
    assert sum(clock.slept) == 60.0
    assert any(line.startswith("error: rails.gid: mlx5_1: ") for line in lines)
    assert lines[-1].startswith("not as planned")


def test_rails_whose_lack_of_addresses_is_accepted_are_not_waited_for(tmp_path: Path) -> None:
    clock = Clock()
    run(roce(tmp_path, accept={"rails.gid": "link-local by design"}), clock)
    assert clock.slept == []


@pytest.mark.parametrize("journal", [True, False])
def test_the_journal_gets_the_weight_of_a_line_and_a_person_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, journal: bool
) -> None:
    root = gpu_node(tmp_path)
    (root / "etc/railwright/policy.json").write_text(json.dumps({"workload": "mining"}), encoding="utf-8")
    monkeypatch.delenv("JOURNAL_STREAM", raising=False)
    if journal:
        monkeypatch.setenv("JOURNAL_STREAM", "8:1234")
    assert main(["boot", "--root", str(root)]) == 2
    assert capsys.readouterr().out.startswith("<3>unreadable: " if journal else "unreadable: ")
