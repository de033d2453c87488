"""The contract in playbooks: a file for each leaf switch, and the ports of nodes as a check finds them."""

from __future__ import annotations

import json
from pathlib import Path

from railwright.cli import main
from railwright.fabric import Contract, render
from tests.ansible.playing import play
from tests.ansible.racks import build_rack, plain_python, scratch
from tests.ansible.test_filters import render as evaluate
from tests.unit.fabric_samples import contract, contract_data
from tests.unit.test_fabric_hosts import APP, DCBX, ETS, LLDP, PFC

SYSTEMS = ("sonic", "h3c")


def inventory(folder: Path, variables: dict[str, object]) -> Path:
    (folder / "site/group_vars").mkdir(parents=True)
    (folder / "site/hosts.yml").write_text("gpu_nodes: {hosts: {gpu01: }}\n", encoding="utf-8")
    (folder / "site/group_vars/all.json").write_text(json.dumps(variables), encoding="utf-8")
    return folder / "site"


def files(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text("utf-8") for path in folder.iterdir() if path.name != "rendered.txt"}


def test_every_switch_gets_its_file_byte_for_byte_and_a_second_run_changes_nothing(tmp_path: Path) -> None:
    site = inventory(tmp_path, {"fabric": contract_data(*SYSTEMS)})
    kept = tmp_path / "rendered"
    first = play("render_fabric.yml", site, tmp_path / "out", variables={"fabric_output": str(kept)})
    assert first.code == 0, first.output
    of = contract(*SYSTEMS)
    fragments = [render(of, system) for system in SYSTEMS]
    assert files(kept) == {
        **{fragment.file: fragment.content for fragment in fragments},
        **{f"{fragment.switch}.commands.txt": fragment.commands for fragment in fragments},
    }
    assert "sudo config load sonic.json -y" in files(kept)["sonic.commands.txt"]
    assert "ECN marking of the lossless queue" in files(kept)["h3c.commands.txt"]
    second = play("render_fabric.yml", site, tmp_path / "out", variables={"fabric_output": str(kept)})
    assert second.changed == {"localhost": 0}


def test_a_system_that_is_not_rendered_fails_the_run_after_the_others_are_written(tmp_path: Path) -> None:
    site = inventory(tmp_path, {"fabric": contract_data("eos", "huawei")})
    kept = tmp_path / "rendered"
    run = play("render_fabric.yml", site, tmp_path / "out", variables={"fabric_output": str(kept)})
    assert run.code != 0
    (said,) = run.failures("localhost")
    assert "configuration for huawei is not rendered: its commands for PFC are not certain" in said
    assert set(files(kept)) == {"eos.cfg", "eos.commands.txt"}


def test_a_switch_that_left_or_is_refused_leaves_no_file_and_nothing_else_is_touched(tmp_path: Path) -> None:
    kept = tmp_path / "rendered"
    kept.mkdir()
    foreign = {"mine.cfg": "mine\n", "all.yaml": "a: 1\n"}
    for name, text in foreign.items():
        (kept / name).write_text(text, encoding="utf-8")
    (tmp_path / "outside.cfg").write_text("outside\n", encoding="utf-8")
    variables = {"fabric_output": str(kept)}
    data = contract_data("sonic", "eos", "h3c")
    site = inventory(tmp_path, {"fabric": data})
    assert play("render_fabric.yml", site, tmp_path / "out", variables=variables).code == 0
    mine = {f"{name}.commands.txt" for name in ("sonic", "eos", "h3c")} | {"sonic.json", "eos.cfg", "h3c.cfg"}
    assert set(files(kept)) == {*mine, *foreign}
    # The list of an earlier run is a file that anybody may have edited.
    with (kept / "rendered.txt").open("a", encoding="utf-8") as listed:
        listed.write("../outside.cfg\n/etc/hostname\n.\n")
    del data["switches"]["eos"]
    data["switches"]["h3c"] |= {"os": "huawei", "ports": {"400GE1/0/1": {"host": "gpu09", "nic": "rail0"}}}
    (site / "group_vars/all.json").write_text(json.dumps({"fabric": data}), encoding="utf-8")
    second = play("render_fabric.yml", site, tmp_path / "out", variables=variables)
    assert second.code != 0
    assert set(files(kept)) == {"sonic.json", "sonic.commands.txt", *foreign}
    assert {name: files(kept)[name] for name in foreign} == foreign
    assert (tmp_path / "outside.cfg").read_text("utf-8") == "outside\n"
    assert play("render_fabric.yml", site, tmp_path / "out", variables=variables).changed == {"localhost": 0}


def test_an_inventory_without_a_contract_is_told_what_to_do(tmp_path: Path) -> None:
    run = play("render_fabric.yml", inventory(tmp_path, {}), tmp_path / "out")
    assert run.code != 0
    (said,) = run.failures("localhost")
    assert "State the contract in group_vars/all.yml as `fabric`" in said


def test_the_filter_takes_what_ansible_hands_over() -> None:
    data = contract_data("sonic")
    found = evaluate("fabric | fabric_fragments", fabric=data)
    assert found["refused"] == []
    assert found["files"][0]["content"] == render(Contract.read(data), "sonic").content


def standins(folder: Path, heard: object) -> None:
    """dcb as of a NIC that is set up but for one port's PFC, ethtool, and lldpd with this neighbour."""
    off = {**PFC, "prio_pfc": [False] * 8}
    said = {"pfc": PFC, "app": APP, "ets": ETS, "dcbx": DCBX}
    cases = "".join(f"{part}\\ *) echo '{json.dumps(value)}' ;;\n" for part, value in said.items())
    dcb = f"""case "$2 $5" in\npfc\\ enp42s0np0) echo '{json.dumps(off)}' ;;\n{cases}esac"""
    programs = {
        "dcb": dcb,
        "ethtool": 'printf "Pause parameters for %s:\\nRX: off\\nTX: off\\n" "$2"',
        "lldpcli": f"echo '{json.dumps(heard)}'",
    }
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        (folder / name).chmod(0o755)


def test_what_the_tools_of_a_node_say_is_kept_and_held_against_the_contract(tmp_path: Path) -> None:
    data = contract_data("sonic")
    ports = {"Ethernet0": "enp12s0np0", "Ethernet8": "enp42s0np0"}
    data["switches"]["sonic"]["ports"] = {
        port: {"host": "gpu01", "nic": nic, "cable_m": 3} for port, nic in ports.items()
    }
    (tmp_path / "all.json").write_text(json.dumps({"fabric": data}), encoding="utf-8")
    heard = json.loads(json.dumps(LLDP).replace('"rail0"', '"enp12s0np0"'))
    with scratch() as place:
        python = plain_python("3.9", "3.10", "3.11", "3.12")
        rack = build_rack(place, {"gpu01": ("2s_8xh100_10xcx7", {})}, python)
        standins(rack.nodes[0].folder / "bin", heard)
        run = rack.play("look.yml")
        assert run.code == 0, run.output
        site, out = str(tmp_path / "all.json"), str(rack.output)
        assert main(["lint-fabric", site, "--host-state", out, "--output", out]) == 1
        told = json.loads((rack.output / "fabric.json").read_text("utf-8"))
    mine = {(one["code"], one["where"]) for one in told["findings"] if "gpu01 enp" in one["where"]}
    assert ("fabric.host_pfc", "gpu01 enp42s0np0") in mine
    assert [where for code, where in mine if code != "fabric.unverified"] == ["gpu01 enp42s0np0"]
    unverified = {one["where"]: one["why"] for one in told["findings"] if "LLDP heard" in one["why"]}
    assert list(unverified) == ["gpu01 enp42s0np0"]
    assert set(told["seen"]) == {f"gpu01 {nic}" for nic in ports.values()}
