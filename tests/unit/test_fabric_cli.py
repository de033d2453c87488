"""`railwright lint-fabric` as a user meets it: words, exit codes, JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from railwright.cli import main
from railwright.fabric import Contract, render
from railwright.node.model import Finding, from_json
from tests.unit.fabric_samples import PORTS, as_file, contract_data, stock_sonic
from tests.unit.test_fabric_hosts import HOSTS

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that this process is in: a long path in a sentence would break its lines elsewhere."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "group_vars").mkdir()
    data = {"fabric": contract_data("sonic", "eos")}
    (tmp_path / "group_vars/all.yml").write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    (tmp_path / "stock.json").write_text(as_file(stock_sonic(*PORTS["sonic"])), encoding="utf-8")
    for name in ("sonic", "eos"):
        fragment = render(Contract.read(data["fabric"]), name)
        (tmp_path / fragment.file).write_text(fragment.content, encoding="utf-8")
    return tmp_path


def test_a_good_contract_ends_with_code_zero(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint-fabric", ".", "--switch-config", "sonic.json", "eos.cfg"]) == 0
    shown = capsys.readouterr().out
    assert "roce   26    3" in shown
    # 400G, 3 m and 30 m: bound, table, host buffer.
    assert "77932       231424 (5 m)" in shown
    assert "91568       283648 (40 m)" in shown
    assert "179824" in shown
    assert "sonic-buildimage" in shown


def test_what_is_found_ends_with_code_one_and_the_mend(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lint-fabric", ".", "--switch-config", "sonic=stock.json"]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "DSCP 26 (roce) goes to a lossy queue, traffic class 1 instead of 3: SONiC's default map" in shown
    assert '`"DSCP_TO_TC_MAP": {"AZURE": {"26": "3"}}`' in shown
    assert "stock.json:" in shown


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["nowhere"], "nowhere: is not there"),
        ([".", "--switch-config", "nofile.json"], "nofile.json: cannot be read"),
        ([".", "--switch-config", "stock.json"], "does not tell which switch it is of"),
        (
            [".", "--switch-config", "sonic=sonic.json", "sonic=stock.json"],
            "is of the switch sonic, and so is",
        ),
        ([".", "--host-state", "sonic.json"], "sonic.json: DSCP_TO_TC_MAP"),
    ],
)
def test_bad_input_ends_with_code_two(
    site: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    why: str,
) -> None:
    monkeypatch.chdir(site)
    assert main(["lint-fabric", *arguments]) == 2
    assert why in capsys.readouterr().err


def test_an_empty_switch_file_is_no_configuration(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (site / "eos.cfg").write_text("\n", encoding="utf-8")
    assert main(["lint-fabric", str(site), "--switch-config", str(site / "eos.cfg")]) == 2
    assert "is empty (give the switch's running configuration)" in capsys.readouterr().err


def test_a_file_tells_its_switch_by_its_host_name(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables = stock_sonic(*PORTS["sonic"]) | {"DEVICE_METADATA": {"localhost": {"hostname": "sonic"}}}
    (site / "config_db.json").write_text(as_file(tables), encoding="utf-8")
    (site / "running.txt").write_text(
        "hostname eos\n" + (site / "eos.cfg").read_text("utf-8"), encoding="utf-8"
    )
    files = [str(site / "config_db.json"), str(site / "running.txt")]
    assert main(["lint-fabric", str(site), "--json", "--switch-config", *files]) == 1
    assert json.loads(capsys.readouterr().out)["seen"] == ["sonic", "eos"]
    tables["DEVICE_METADATA"]["localhost"]["hostname"] = "spine9"
    (site / "config_db.json").write_text(as_file(tables), encoding="utf-8")
    assert main(["lint-fabric", str(site), "--switch-config", files[0]]) == 2
    assert "is of 'spine9', which the contract has not" in capsys.readouterr().err


def test_json_holds_classes_links_pools_and_findings(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (site / "hosts.json").write_text(json.dumps(HOSTS), encoding="utf-8")
    arguments = [
        "--json",
        "--switch-config",
        f"sonic={site / 'stock.json'}",
        "--host-state",
        str(site / "hosts.json"),
    ]
    assert main(["lint-fabric", str(site), *arguments]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["schema"] == "railwright.fabric/1"
    assert data["ok"] is False
    assert [one["name"] for one in data["classes"]] == ["roce", "cnp"]
    link = data["links"][1]
    assert (link["switch"], link["port"], link["host"], link["cable_m"]) == (
        "sonic",
        "Ethernet8",
        "gpu02",
        30,
    )
    assert link["bound"]["bytes"] == 91_568
    assert link["table"]["bytes"] == 283_648
    assert link["table"]["confidence"] == "A"
    assert link["table"]["source"].startswith("sonic-buildimage ")
    assert link["host_buffer"]["bytes"] == 179_824
    assert data["links"][2]["table"] is None
    assert data["pools"][0] == {"switch": "sonic", "wanted_bytes": 515_072, "pool_bytes": None}
    found = [from_json(Finding, one, "finding") for one in data["findings"]]
    assert {"fabric.dscp_map", "fabric.both_pfc", "fabric.switch"} <= {one.code for one in found}
    assert data["seen"] == ["sonic", "gpu01 rail0"]
    ecn = data["ecn"][0]
    assert (ecn["speed_gbps"], ecn["min_bytes"], ecn["confidence"]) == (400, 500_000, "C")


def test_the_document_is_kept_for_the_report_of_a_run(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (site / "out").mkdir()
    assert main(["lint-fabric", str(site), "--output", str(site / "out")]) == 0
    kept = json.loads((site / "out/fabric.json").read_text("utf-8"))
    # Nothing is open, and nothing was looked at.
    assert (kept["seen"], kept["ok"]) == ([], False)
    assert main(["lint-fabric", str(site), "--output", str(site / "missing")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_the_example_inventory_is_good(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint-fabric", str(ROOT / "inventories/example")]) == 0
    assert "leaf02" in capsys.readouterr().out
