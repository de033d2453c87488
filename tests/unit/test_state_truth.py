"""Whether a check tells the truth and a revert keeps its promise, judged by the tree, the units and the kernel, never
by the writer's own word."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from railwright.node.state import Outcome, apply, revert
from tests.unit.kind_nodes import (
    KINDS,
    KNOBS,
    MARKS,
    PORT,
    REGISTER,
    SECRET,
    UNIT,
    UNIT_FILE,
    Entry,
    Kind,
    every_kind,
)
from tests.unit.state_support import DEVICE, Systemd, fingerprint, items, stamps
from tests.unit.test_state_crash import OWN, Stand

SOURCE = Path(__file__).resolve().parents[2] / "src"
DRIFTS = 40
LEFT = "was changed since by someone else: left"


def changed(outcome: Outcome) -> set[str]:
    return {item.id for part in outcome.slices.values() for item in part if item.changed}


def shown(outcome: Outcome) -> str:
    return json.dumps(outcome.to_json())


def touched(stand: Stand) -> Any:
    """Everything that a check may not touch."""
    systemd = stand.systemd
    return stamps(stand.node), list(systemd.calls), dict(systemd.enabled), dict(systemd.since)


def wished(item_id: str, seen: Any) -> Any:
    """Of what stands there, what an entry asks for."""
    if item_id.startswith("json_keys") and isinstance(seen, list):
        return seen[1]
    if item_id.startswith("systemd_unit"):
        enabled, since, stale = seen
        return enabled, since is not None, stale
    if item_id.startswith("irq_affinity"):
        return {irq: cpus for irq, cpus in seen.items() if irq != 13}  # no driver has asked for that one
    if item_id.startswith("sysfs") and seen is not None:
        return [word.strip("[]") for word in seen if word.startswith("[")] or seen
    return seen


@pytest.mark.parametrize("name", [*KINDS, "every"])
def test_a_check_names_what_a_run_then_changes_and_nothing_else(tmp_path: Path, name: str) -> None:
    kind = every_kind() if name == "every" else KINDS[name]
    model = Stand(*kind.node(tmp_path / "model"))
    apply(kind.slices, root=str(model.node), runner=model.systemd)
    tuned = kind.see(model.node, model.systemd)
    told = right = missed = 0
    for seed in range(DRIFTS):
        rng = random.Random(f"{name} {seed}")  # noqa: S311 - a seed that gives the same drift again
        stand = Stand(*kind.node(tmp_path / str(seed)))
        root, systemd = str(stand.node), stand.systemd
        if seed % 4:  # the fourth is a node that nobody has tuned
            assert apply(kind.slices, root=root, runner=systemd).failures == ()
        for _ in range(rng.randrange(1, 5)):
            kind.drift(stand.node, rng, systemd)
        before, seen = touched(stand), kind.see(stand.node, systemd)
        foretold = apply(kind.slices, root=root, runner=systemd, check=True)
        assert touched(stand) == before
        done = apply(kind.slices, root=root, runner=systemd)
        now = kind.see(stand.node, systemd)
        truth = {item_id for item_id in now if now[item_id] != seen[item_id]}
        for item_id in now:
            is_whole = not item_id.startswith("irq") or now[item_id].keys() == tuned[item_id].keys()
            if is_whole and not any(f"({item_id})" in failure.where for failure in done.failures):
                assert (wished(item_id, now[item_id]), seed) == (wished(item_id, tuned[item_id]), seed)
        told += len(changed(foretold))
        right += len(truth & changed(foretold))
        missed += len(truth - changed(foretold))
        assert (foretold.to_json(), seed) == (done.to_json(), seed)
        assert SECRET not in shown(done)
        assert "the old secret" not in shown(done)
    print(
        f"{name}: {told} changes foretold in {DRIFTS} drifts, {told - right} of them untrue, {missed} missed"
    )
    assert (told - right, missed) == (0, 0)
    assert right >= DRIFTS / 2


@pytest.mark.parametrize("name", [*KINDS, "every"])
def test_a_check_names_what_a_revert_then_puts_back_and_nothing_else(tmp_path: Path, name: str) -> None:
    kind = every_kind() if name == "every" else KINDS[name]
    told = 0
    for seed in range(DRIFTS):
        rng = random.Random(f"back {name} {seed}")  # noqa: S311 - as above
        stand = Stand(*kind.node(tmp_path / str(seed)))
        root, systemd = str(stand.node), stand.systemd
        assert apply(kind.slices, root=root, runner=systemd).failures == ()
        for _ in range(rng.randrange(3)):
            kind.drift(stand.node, rng, systemd)
        before, seen = touched(stand), kind.see(stand.node, systemd)
        foretold = revert(root=root, runner=systemd, check=True)
        assert touched(stand) == before
        done = revert(root=root, runner=systemd)
        now = kind.see(stand.node, systemd)
        assert ({item_id for item_id in now if now[item_id] != seen[item_id]}, seed) == (
            changed(foretold),
            seed,
        )
        assert foretold.to_json() == done.to_json()
        assert SECRET not in shown(done)
        told += len(changed(foretold))
    assert told >= DRIFTS / 2


def test_a_diff_shows_a_files_text_before_and_after_and_of_a_secret_only_its_size(tmp_path: Path) -> None:
    kind = KINDS["file"]
    stand = Stand(*kind.node(tmp_path / "node"))
    (stand.node / "etc/old").write_text("no end of line")
    before = {path: (stand.node / path).read_text() for path in ("etc/old", "etc/mode")}
    outcome = apply(kind.slices, root=str(stand.node), check=True)
    diff = {entry["after_header"].split()[0]: entry for entry in outcome.to_json()["diff"]}
    assert set(diff) == {"/etc/old", "/etc/deep/er/new", "/etc/mode", "/etc/secret"}
    assert (diff["/etc/old"]["before"], diff["/etc/old"]["after"]) == (before["etc/old"], "new\n")
    assert (diff["/etc/mode"]["before"], diff["/etc/mode"]["after"]) == (
        before["etc/mode"],
        before["etc/mode"],
    )
    headers = diff["/etc/mode"]["before_header"], diff["/etc/mode"]["after_header"]
    assert [header.split()[1] for header in headers] == ["(0644", "(0640"]
    assert diff["/etc/deep/er/new"]["before_header"] == "/etc/deep/er/new (absent)"
    secret = diff["/etc/secret"]
    assert [secret[side].split(",")[:2] for side in ("before", "after")] == [
        ["(secret", f" {len(text)} bytes"] for text in ("the old secret\n", f"token={SECRET}\n")
    ]


REAL = """
import json, random, sys
sys.path.insert(0, {source!r})
from railwright.node.state import apply, revert
rng = random.Random({seed!r})
values = {values!r}
entries = {entries!r}
def see():
    found = dict()
    for name, path in values.items():
        with open(path) as file:
            found[name] = file.read().split()
    return found
def drift():
    for path in values.values():
        if rng.random() < 0.5:
            with open(path, "w") as file:
                file.write(rng.choice({texts!r}[path]))
start = see()
said = []
for n in range({drifts}):
    if n:
        drift()
    before = see()
    check = apply({{"part": entries}}, check=True)
    same = see() == before
    done = apply({{"part": entries}})
    after = see()
    truth = sorted(name for name in after if after[name] != before[name])
    told = sorted(item.id for item in check.slices["part"] if item.changed)
    said.append([truth, told, same, [failure.why for failure in done.failures]])
foretold = revert(check=True).to_json()
print(json.dumps([said, foretold == revert().to_json(), see() == start]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for namespaces of its own")
@pytest.mark.parametrize("kind", ["sysctl", "sysfs"])
def test_a_check_tells_the_truth_of_a_real_kernel_and_a_revert_gives_it_its_values_back(kind: str) -> None:
    """Values of the network, in a network namespace: no other is this process's own."""
    wishes = {
        "sysctl": {
            "net.ipv4.tcp_rmem": (
                "4096 87380 16777216",
                ["4096 131072 6291456", "4096 87380 16777216", "8192 9000 10000"],
            ),
            "net.core.somaxconn": ("8192", ["4096", "8192", "128"]),
            "net.ipv4.conf.lo.rp_filter": ("2", ["0", "1", "2"]),
        },
        "sysfs": {
            "/sys/class/net/lo/mtu": ("9000", ["65536", "9000", "1500"]),
            "/sys/class/net/lo/tx_queue_len": ("10000", ["1000", "10000", "7"]),
            "/sys/class/net/lo/queues/rx-0/rps_flow_cnt": ("4096", ["0", "4096", "256"]),
        },
    }[kind]
    paths = {
        f"{kind}:{name}": "/proc/sys/" + name.replace(".", "/") if kind == "sysctl" else name
        for name in wishes
    }
    key = "name" if kind == "sysctl" else "path"
    program = REAL.format(
        source=str(SOURCE),
        seed=kind,
        drifts=DRIFTS,
        values=paths,
        entries=[{"kind": kind, key: name, "value": value} for name, (value, _) in wishes.items()],
        texts={paths[f"{kind}:{name}"]: texts for name, (_, texts) in wishes.items()},
    )
    mounts = (
        "mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /var/lib && mount -t sysfs sysfs /sys && exec "
    )
    command = ["unshare", "--net", "--mount", "sh", "-c", mounts + '"$0" -B -', sys.executable]
    done = subprocess.run(command, input=program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said, foretold, is_back = json.loads(done.stdout)
    assert [truth for truth, _, _, _ in said] == [told for _, told, _, _ in said]
    assert all(same and failures == [] for _, _, same, failures in said)
    assert (foretold, is_back) == (True, True)
    assert sum(len(truth) for truth, _, _, _ in said) > DRIFTS / 2


def other_wishes(kind: Kind, rng: random.Random) -> list[Entry]:
    """Another plan for the same node: entries left out, values changed."""
    entries = []
    for entry in kind.entries:
        if rng.random() < 0.25:
            continue
        entry = dict(entry)
        if rng.random() < 0.5:
            if entry["kind"] == "file" and entry["path"] != UNIT_FILE:
                entry["content"], entry["mode"] = f"plan {rng.random()}\n", "0600"
            elif entry["kind"] == "json_keys":
                entry["keys"] = {
                    pointer: rng.randrange(9) for pointer in entry["keys"] if rng.random() < 0.7
                } or {"/z": 1}
            elif entry["kind"] == "sysctl":
                entry["value"] = str(rng.randrange(9))
            elif entry["kind"] == "sysfs":
                entry["value"] = rng.choice(["always", "defer"])
            elif entry["kind"] == "irq_affinity":
                entry["cpus"] = str(rng.randrange(9))
        entries.append(entry)
    if kind.entries[0].get("path") == UNIT_FILE and entries[:1] != [kind.entries[0]]:
        entries = [entry for entry in entries if entry.get("name") != UNIT]  # no unit without its file
    return entries


def state(stand: Stand) -> Any:
    """What a revert promises: the tree to the last time of a file, and the units."""
    return stand.exact(), sorted(stand.systemd.enabled.items()), sorted(stand.systemd.since)


@pytest.mark.parametrize("tunes", [0, 1, 5])
@pytest.mark.parametrize("name", list(KINDS))
def test_a_revert_gives_the_node_back_after_any_number_of_tunes(
    tmp_path: Path, name: str, tunes: int
) -> None:
    kind = KINDS[name]
    for seed in range(4 if tunes else 1):
        rng = random.Random(f"{name} {tunes} {seed}")  # noqa: S311 - as above
        stand = Stand(*kind.node(tmp_path / str(seed)))
        before = state(stand)
        for n in range(tunes):
            entries = list(kind.entries) if n == 0 else other_wishes(kind, rng)
            outcome = apply({"part": entries}, root=str(stand.node), runner=stand.systemd)
            assert outcome.failures == ()
            assert n > 0 or state(stand) != before
        assert revert(root=str(stand.node), runner=stand.systemd).failures == ()
        assert state(stand) == before


def _upgrade_unit(node: Path, systemd: Systemd) -> None:
    (node / UNIT_FILE[1:]).write_text("[Service]\nExecStart=/bin/false\n[Install]\n")
    systemd(["daemon-reload"])


Upgrade = Callable[[Path, Systemd], None]
# What a package brings, by kind: the item that it changes, and how.
UPGRADES: dict[str, tuple[str, Upgrade]] = {
    "file": ("file:/etc/old", lambda node, _: void((node / "etc/old").write_text("the package's\n"))),
    "json_keys": (
        "json_keys:/etc/docker/daemon.json",
        lambda node, _: void(
            (node / "etc/docker/daemon.json").write_text(
                json.dumps(
                    {**json.loads((node / "etc/docker/daemon.json").read_text()), "default-runtime": "crun"}
                )
            )
        ),
    ),
    "sysctl": (
        "sysctl:vm.swappiness",
        lambda node, _: void((node / "proc/sys/vm/swappiness").write_text("55\n")),
    ),
    "sysfs": (
        "sysfs:/sys/devices/system/cpu/smt/control",
        lambda node, _: void((node / "sys/devices/system/cpu/smt/control").write_text("forceoff\n")),
    ),
    "pci_register": (
        f"pci_register:{DEVICE}:CAP_EXP+8.w:7000",
        lambda node, _: void(
            (node / REGISTER[1:]).write_bytes(
                (node / REGISTER[1:]).read_bytes()[:0x69]
                + b"\x49"
                + (node / REGISTER[1:]).read_bytes()[0x6A:]
            )
        ),
    ),
    "congestion": (
        f"congestion:{PORT}",
        lambda node, _: void((node / KNOBS["np_cnp_dscp"][1:]).write_text("7\n")),
    ),
    "rdma_marking": (
        f"rdma_marking:{PORT}",
        lambda node, _: void((node / MARKS["tos"][1:]).write_text("7\n")),
    ),
    "irq_affinity": (
        "irq_affinity:0000:18:00.0",
        lambda node, _: void((node / "proc/irq/10/smp_affinity_list").write_text("7\n")),
    ),
    "systemd_unit": (f"file:{UNIT_FILE}", _upgrade_unit),
}


def void(value: object) -> None:
    """Of a call whose value is of no use."""


@pytest.mark.parametrize("name", list(KINDS))
def test_what_a_package_upgrade_changed_in_between_is_left_and_said_and_all_else_goes_back(
    tmp_path: Path, name: str
) -> None:
    kind = KINDS[name]
    stand = Stand(*kind.node(tmp_path / "node"))
    start = kind.see(stand.node, stand.systemd)
    root, systemd = str(stand.node), stand.systemd
    apply(kind.slices, root=root, runner=systemd)
    item_id, upgrade = UPGRADES[name]
    upgrade(stand.node, systemd)
    upgraded = kind.see(stand.node, systemd)[item_id]
    foretold = revert(root=root, runner=systemd, check=True)
    done = revert(root=root, runner=systemd)
    assert (done.to_json(), done.failures) == (foretold.to_json(), ())
    assert LEFT in items(done, "part")[item_id]["note"]
    now = kind.see(stand.node, systemd)
    assert {key: value for key, value in now.items() if key != item_id} == {
        key: value for key, value in start.items() if key != item_id
    }
    if name == "json_keys":  # its other key goes, the changed one stays
        assert json.loads(now[item_id][0]) == {**json.loads(start[item_id][0]), "default-runtime": "crun"}
    elif name == "irq_affinity":
        assert now[item_id] == {**start[item_id], 10: "7"}
    elif name in ("congestion", "rdma_marking"):
        assert sorted(now[item_id].values()) == sorted(["7\n", *list(start[item_id].values())[1:]])
    else:
        assert now[item_id] == upgraded
    assert not (stand.node / "var/lib/railwright").exists()  # what was left is nobody's any more
    assert not revert(root=root, runner=systemd).changed


@pytest.mark.parametrize("seed", range(20))
def test_slices_come_to_the_same_state_in_whatever_order(tmp_path: Path, seed: int) -> None:
    kind = every_kind()
    rng = random.Random(seed)  # noqa: S311 - as above
    units = [
        entry for entry in kind.entries if "rail" in json.dumps(entry) or "other.service" in json.dumps(entry)
    ]
    slices = {f"slice{n}": [entry] for n, entry in enumerate(kind.entries) if entry not in units}
    slices["units"] = units  # one slice: a unit needs its file

    def end(names: list[str], at_once: bool) -> Any:
        stand = Stand(*kind.node(tmp_path / f"{'-'.join(names)[:40]}{at_once}"))
        calls = [names] if at_once else [[name] for name in names]
        for call in calls:
            outcome = apply({name: slices[name] for name in call}, root=str(stand.node), runner=stand.systemd)
            assert outcome.failures == ()
        tree = {
            path: found[:4] for path, found in fingerprint(stand.node).items() if OWN.fullmatch(path) is None
        }
        return tree, sorted(stand.systemd.enabled), sorted(stand.systemd.since)

    expected = end(list(slices), at_once=True)
    names = rng.sample(list(slices), len(slices))
    assert end(names, at_once=seed % 2 == 0) == expected
