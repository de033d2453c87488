"""sysfs against lspci and nvidia-smi: on recorded machines, and where the two disagree."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from railwright.node.check import check, checks
from railwright.node.check.witnesses import parse_lspci
from railwright.node.discover import discover
from railwright.node.model import Claim, Conflict, Facts, InputError, Plan, Tool
from railwright.node.model import plan as plan_model
from tests.machinery import build
from tests.unit.small_machine import gpu_node

MACHINES = Path(__file__).resolve().parents[1] / "machines"
NAMES = ("2s_4xh100pcie_2xcx6", "1s_8xh200_8xcx7_vm")
EMPTY = Plan(plan_model.SCHEMA, "planned")

# Field case: open-mpi/hwloc#653, an A100 with lines of a second link after its own.
A100 = """da:00.0 3D controller [0302]: NVIDIA Corporation GA100 [A100 SXM4 40GB] [10de:20b0] (rev a1)
\tNUMA node: 5
\tCapabilities: [78] Express (v2) Endpoint, MSI 00
\t\tLnkCap:\tPort #0, Speed 16GT/s, Width x16, ASPM not supported
\t\tLnkSta:\tSpeed 16GT/s (ok), Width x8 (downgraded)
\t\tLnkSta2: Current De-emphasis Level: -3.5dB
\tCapabilities: [c8] Designated Vendor-Specific
\t\tLnkSta:\tSpeed 2.5GT/s (ok), Width x1 (ok)
"""
SWITCH = """
0000:3e:01.0 PCI bridge [0604]: PMC-Sierra Inc. Device [11f8:4128] (prog-if 00 [Normal decode])
\t\tLnkSta:\tSpeed unknown, Width x0
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir- UpstreamFwd+ EgressCtrl- DirectTrans-
"""


def test_the_first_link_of_a_function_is_its_own() -> None:
    functions = parse_lspci("pcilib: warning\n0000:" + A100 + SWITCH)
    gpu = functions["0000:da:00.0"]
    assert (gpu.class_code, gpu.vendor, gpu.device, gpu.numa) == ("0x0302", "0x10de", "0x20b0", 5)
    assert (gpu.max_speed, gpu.max_width, gpu.width, gpu.acs_control) == (16.0, 16, 8, None)
    switch = functions["0000:3e:01.0"]
    assert (switch.width, switch.numa, switch.max_width) == (None, None, None)
    assert switch.acs_control == frozenset({"SrcValid", "ReqRedir", "UpstreamFwd"})


def test_what_is_no_lspci_is_refused() -> None:
    with pytest.raises(InputError, match="expected the output of lspci -D -nn -vvv"):
        parse_lspci("lspci: command not found\n")


@pytest.fixture(scope="module", params=NAMES)
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Facts:
    """A recorded machine, with what lspci reads from its tree."""
    if shutil.which("lspci") is None:
        pytest.skip("pciutils is not installed")
    root = tmp_path_factory.mktemp("machine") / request.param
    build(MACHINES / request.param, root)
    run = subprocess.run(
        ["lspci", "-A", "linux-sysfs", "-O", f"sysfs.path={root}/sys/bus/pci", "-D", "-nn", "-vvv"],
        capture_output=True,
        check=True,
        encoding="utf-8",
        timeout=60,
    )
    return replace(discover(root), tools=(Tool("lspci", ("lspci",), 0, run.stdout),))


def lspci_row(facts: Facts) -> tuple[bool, bool]:
    (row,) = [row for row in checks(EMPTY, facts) if row["name"] == "facts.lspci"]
    return row["ok"], row["skipped"]


def test_lspci_agrees_with_the_reader(recorded: Facts) -> None:
    assert check(EMPTY, recorded) == ()
    assert lspci_row(recorded) == (True, False)


def test_each_difference_is_found_and_named(recorded: Facts) -> None:
    gpu = recorded.gpus[0]
    devices = {device.address: device for device in recorded.pci}
    device = devices[str(gpu.address)]
    others = tuple(other for other in recorded.pci if other is not device)
    changed = replace(
        device,
        numa=7,
        device="0x20b0",
        class_code="0x030000",
        link=replace(device.link, max_width=4, width=2, max_speed=2.5),
    )
    findings = check(EMPTY, replace(recorded, pci=(*others, changed)))
    assert {finding.code for finding in findings} == {"facts.disagree"}
    assert {finding.where for finding in findings} == {gpu.address}
    words = {finding.why.partition(":")[0] for finding in findings}
    expected = {"class", "device", "most lanes", "highest GT/s", "lanes", "NUMA node"}
    # A virtual machine's lspci prints no node, so none can be contradicted.
    assert words == expected - ({"NUMA node"} if device.numa is None else set())
    assert device.link.width is not None


def test_acs_that_differs_is_found(recorded: Facts) -> None:
    bridges = [device for device in recorded.pci if device.acs is not None and device.acs.capability]
    if not bridges:
        pytest.skip("no function of this machine has ACS")
    bridge = bridges[0]
    assert bridge.acs is not None
    other = () if bridge.acs.control else ("SrcValid", "ReqRedir")
    changed = replace(bridge, acs=replace(bridge.acs, control=other))
    facts = replace(recorded, pci=tuple(changed if device is bridge else device for device in recorded.pci))
    (finding,) = check(EMPTY, facts)
    assert (finding.where, finding.why.startswith("ACS control: sysfs says")) == (bridge.address, True)


def test_a_function_that_one_side_lacks_is_found(recorded: Facts) -> None:
    gpu = str(recorded.gpus[0].address)
    without = replace(recorded, pci=tuple(device for device in recorded.pci if device.address != gpu))
    (finding,) = check(EMPTY, without)
    assert (finding.where, "the facts do not" in finding.why) == (gpu, True)
    moved = tuple(
        replace(device, address="0000:fe:1f.7") if device.address == gpu else device
        for device in recorded.pci
    )
    assert {finding.where for finding in check(EMPTY, replace(recorded, pci=moved))} == {gpu, "0000:fe:1f.7"}


@pytest.mark.parametrize(
    ("tools", "words"),
    [
        ((), "lspci was not asked"),
        ((Tool("lspci", ("lspci", "-D"), None, ""),), "lspci is not on the node"),
        (
            (Tool("lspci", ("lspci", "-D"), 1, "lspci: Cannot open /sys\nmore"),),
            "ended with 1: lspci: Cannot open /sys",
        ),
        ((Tool("lspci", ("lspci", "-D"), 124, ""),), "ended with 124: without a word"),
    ],
)
def test_a_tool_that_is_absent_or_fails_is_skipped_and_no_fault(
    tmp_path: Path, tools: tuple[Tool, ...], words: str
) -> None:
    facts = replace(discover(gpu_node(tmp_path)), tools=tools)
    assert check(EMPTY, facts) == ()
    (row,) = [row for row in checks(EMPTY, facts) if row["name"] == "facts.lspci"]
    assert (row["ok"], row["skipped"], words in row["detail"]) == (False, True, True)


def with_smi(tmp_path: Path, drop: int = 0, more: str = "", code: int | None = 0) -> Facts:
    facts = discover(gpu_node(tmp_path))
    lines = [
        f"0000{str(gpu.address).upper()}, GPU-{gpu.index}, NVIDIA H100 PCIe, 9.0\n"
        for gpu in facts.gpus[drop:]
    ]
    return replace(facts, tools=(Tool("nvidia-smi-query", ("nvidia-smi",), code, "".join(lines) + more),))


def smi_row(facts: Facts) -> tuple[bool, bool, str]:
    (row,) = [row for row in checks(EMPTY, facts) if row["name"] == "facts.nvidia_smi"]
    return row["ok"], row["skipped"], row["detail"]


def test_nvidia_smi_with_the_same_gpus_agrees(tmp_path: Path) -> None:
    assert smi_row(with_smi(tmp_path)) == (True, False, "nvidia-smi lists the same 2 GPUs")


def test_a_gpu_that_nvidia_smi_lost_is_named(tmp_path: Path) -> None:
    facts = with_smi(tmp_path, drop=1)
    (finding,) = check(EMPTY, facts)
    assert (finding.code, finding.where) == ("facts.disagree", facts.gpus[0].address)
    assert "fallen off" in finding.why


def test_a_gpu_that_only_nvidia_smi_sees_is_named(tmp_path: Path) -> None:
    (finding,) = check(EMPTY, with_smi(tmp_path, more="00000000:FE:00.0, GPU-x, NVIDIA H100 PCIe, 9.0\n"))
    assert (finding.where, "sysfs does not" in finding.why) == ("0000:fe:00.0", True)


def test_a_node_without_a_driver_is_no_node_with_lost_gpus(tmp_path: Path) -> None:
    facts = with_smi(tmp_path, code=None)
    assert check(EMPTY, facts) == ()
    assert smi_row(facts)[:2] == (False, True)


def test_a_conflict_that_the_reader_met_is_an_error(tmp_path: Path) -> None:
    conflict = Conflict("gpus[GPU0].uuid", (Claim("sysfs", "GPU-a"), Claim("nvidia-smi", "GPU-z")))
    facts = replace(with_smi(tmp_path), conflicts=(conflict,))
    (finding,) = check(EMPTY, facts)
    assert (finding.code, finding.severity) == ("facts.disagree", "error")
    assert finding.why == "sysfs says GPU-a; nvidia-smi says GPU-z"


def test_this_machines_lspci_agrees() -> None:
    facts = discover(Path("/"), tools=True)
    tool = next(tool for tool in facts.tools if tool.name == "lspci")
    if tool.code != 0:
        pytest.skip("lspci does not run here")
    assert [finding for finding in check(EMPTY, facts) if finding.code == "facts.disagree"] == []
