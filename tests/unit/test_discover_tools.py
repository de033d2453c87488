"""Other tools on the node, systemd's units, and nvidia-smi's view beside sysfs."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from railwright.node.discover import discover
from railwright.node.discover import tools as tools_module
from railwright.node.discover.nvidia_smi import with_nvidia_smi
from railwright.node.discover.tools import parse_units, port_tools, read_units, run_tool, run_tools
from railwright.node.model import Claim, Conflict, Fabric, Gpu, InputError, Nic, NvLink, Tool, Unit


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of tools that comes first."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def script(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    (folder / name).chmod(0o755)


def test_a_tool_that_is_not_there_has_no_code(path: Path) -> None:
    assert run_tool("nvidia-smi", ("no-such-tool", "-q")) == Tool(
        "nvidia-smi", ("no-such-tool", "-q"), None, ""
    )


def test_what_a_tool_says_and_how_it_ends_are_kept(path: Path) -> None:
    script(path, "tool", 'echo "$LC_ALL $1 $(cat)"; echo oops >&2; exit 3')
    assert run_tool("t", ("tool", "*;x")) == Tool("t", ("tool", "*;x"), 3, "C *;x \noops\n")


def test_a_tool_that_hangs_is_stopped_with_its_children(path: Path) -> None:
    script(path, "tool", f"echo begun; sleep 600 & echo $! > {path}/child; wait")
    assert run_tool("t", ("tool",), timeout=1.0) == Tool("t", ("tool",), 124, "begun\n")
    child = int((path / "child").read_text(encoding="utf-8"))
    status = Path(f"/proc/{child}/stat")

    def is_over() -> bool:
        # Killed: gone, or a zombie until somebody reaps it.
        return not status.exists() or status.read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"

    # A busy machine lets a killed process wait for its end.
    for _ in range(100):
        if is_over():
            return
        time.sleep(0.1)
    pytest.fail(f"process {child} goes on")


def test_a_tool_that_closes_its_output_and_hangs_is_stopped(path: Path) -> None:
    script(path, "tool", "echo begun; exec >&- 2>&-; sleep 600")
    assert run_tool("t", ("tool",), timeout=1.0) == Tool("t", ("tool",), 124, "begun\n")


def test_output_without_end_is_cut(path: Path) -> None:
    script(path, "tool", "while :; do echo yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy; done")
    tool = run_tool("t", ("tool",), limit=100000)
    assert (tool.code, len(tool.output)) == (124, 100000)


def test_a_tool_that_cannot_be_started_says_why(path: Path) -> None:
    (path / "tool").write_bytes(b"\x7fELF no program")
    (path / "tool").chmod(0o755)
    tool = run_tool("t", ("tool",))
    assert (tool.code, "Exec format error" in tool.output) == (126, True)


def test_all_tools_are_asked_by_name(path: Path) -> None:
    for name in ("lspci", "nvidia-smi", "systemctl", "ip"):
        script(path, name, 'echo "$0 $*"')
    outputs = {tool.name: tool.output for tool in run_tools()}
    assert outputs["lspci"] == f"{path}/lspci -D -nn -vvv\n"
    assert outputs["nvidia-smi-topo"] == f"{path}/nvidia-smi topo -m\n"
    assert outputs["systemctl"] == f"{path}/systemctl --version\n"
    assert set(outputs) == {
        "lspci",
        "nvidia-smi-topo",
        "nvidia-smi-query",
        "nvidia-smi-fabric",
        "systemctl",
        "ip-link",
        "ip-rule",
        "ip-route",
    }


def test_the_live_machine_keeps_what_its_tools_say(path: Path) -> None:
    script(path, "nvidia-smi", "echo none; exit 9")
    tools = {tool.name: tool for tool in discover(Path("/"), tools=True).tools}
    assert tools["nvidia-smi-query"].code == 9
    # This machine's own ports may be asked besides.
    assert set(tools) >= {name for name, _ in tools_module.TOOLS}


def test_the_ports_alone_may_be_asked(path: Path) -> None:
    asked = {tool.name for tool in discover(Path("/"), ports=True).tools}
    assert not asked & {name for name, _ in tools_module.TOOLS}


# Ports of an Ethernet fabric.

RAIL = Nic(
    "mlx5_0", rdma="mlx5_0", netdev="rail0", link_layer="Ethernet", physical_function="", default_route=False
)


def ports_said(*nics: Nic) -> dict[str, Tool]:
    general = {name for name, _ in tools_module.TOOLS}
    return {tool.name: tool for tool in run_tools(nics) if tool.name not in general}


def test_a_port_is_asked_for_its_dcb_its_pause_and_its_neighbour(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools_module, "TOOLS", ())
    for name in ("dcb", "ethtool", "lldpcli"):
        script(path, name, 'echo "$(basename $0) $*"')
    assert {name: tool.output for name, tool in ports_said(RAIL).items()} == {
        "lldpcli": "lldpcli -f json show neighbors details\n",
        "dcb-pfc-rail0": "dcb -j pfc show dev rail0\n",
        "dcb-app-rail0": "dcb -j app show dev rail0\n",
        "dcb-ets-rail0": "dcb -j ets show dev rail0\n",
        "dcb-dcbx-rail0": "dcb -j dcbx show dev rail0\n",
        "dcb-buffer-rail0": "dcb -j buffer show dev rail0\n",
        "dcb-maxrate-rail0": "dcb -j maxrate show dev rail0\n",
        "ethtool-pause-rail0": "ethtool -a rail0\n",
    }


def test_a_port_whose_tools_are_absent_or_fail_keeps_that(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools_module, "TOOLS", ())
    monkeypatch.setattr(tools_module, "DCB", ("pfc",))
    monkeypatch.setattr(tools_module, "DCB_OF_HOST", ())
    which = shutil.which
    monkeypatch.setattr(
        shutil, "which", lambda name, path: None if name == "lldpcli" else which(name, path=path)
    )
    script(path, "dcb", "echo Operation not supported >&2; exit 1")
    script(path, "ethtool", "echo Pause parameters")
    assert [(tool.code, tool.output) for tool in ports_said(RAIL).values()] == [
        (None, ""),
        (1, "Operation not supported\n"),
        (0, "Pause parameters\n"),
    ]


def test_a_port_that_hangs_does_not_hold_the_others_up_for_long(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools_module, "TOOLS", ())
    monkeypatch.setattr(tools_module, "PORTS_SECONDS", 1.0)
    script(path, "lldpcli", "echo heard; exec sleep 600")
    script(path, "dcb", f"touch {path}/asked")
    said = ports_said(RAIL)
    assert (said["lldpcli"].code, said["lldpcli"].output) == (124, "heard\n")
    assert {(tool.code, tool.output) for name, tool in said.items() if name != "lldpcli"} == {(124, "")}
    assert not (path / "asked").exists()


@pytest.mark.parametrize(
    ("nic", "asked"),
    [
        (RAIL, True),
        # The management network carries the default route; a rail has it where there is one network only.
        (replace(RAIL, default_route=True), True),
        (replace(RAIL, rdma=None), True),
        (replace(RAIL, rdma=None, default_route=True), False),
        (replace(RAIL, rdma=None, default_route=None), False),
        (replace(RAIL, link_layer="InfiniBand"), False),
        (replace(RAIL, netdev=None), False),
        (replace(RAIL, physical_function="0000:0c:00.0"), False),
        (replace(RAIL, management=True), False),
        (replace(RAIL, netdev="-a"), False),
    ],
)
def test_ports_of_an_ethernet_fabric_are_asked_and_no_others(nic: Nic, asked: bool) -> None:
    assert bool(port_tools([nic])) is asked


def test_however_many_ports_a_node_has_a_bounded_number_is_asked_rdma_first() -> None:
    plain = [replace(RAIL, rdma=None, netdev=f"eth{number}") for number in range(100)]
    asked = [argv[-1] for name, argv in port_tools([*plain, RAIL]) if name.startswith("ethtool-")]
    assert asked == ["rail0", *(f"eth{number}" for number in range(63))]


# Units.

SHOWN = """LoadState=loaded
ActiveState=active
UnitFileState=enabled
NeedDaemonReload=no
Type=simple
Result=success
InactiveEnterTimestampMonotonic=0

LoadState=loaded
ActiveState=inactive
UnitFileState=enabled
NeedDaemonReload=yes
Type=oneshot
Result=success
InactiveEnterTimestampMonotonic=12345678

LoadState=not-found
ActiveState=inactive
UnitFileState=
NeedDaemonReload=
"""


def test_units_are_read_from_one_call(path: Path) -> None:
    script(path, "systemctl", f'echo "$*" > {path}/arguments\ncat <<EOF\n{SHOWN}EOF')
    assert read_units(("irqbalance.service", "railwright.service", "none.timer")) == (
        Unit("irqbalance.service", "loaded", "active", "enabled", False, False),
        Unit("railwright.service", "loaded", "inactive", "enabled", True, True),
        Unit("none.timer", "not-found", "inactive", None, None, False),
    )
    arguments = (path / "arguments").read_text(encoding="utf-8").split()
    assert arguments[-4:] == ["--", "irqbalance.service", "railwright.service", "none.timer"]


def test_where_systemd_does_not_run_no_unit_is_claimed(path: Path) -> None:
    script(path, "systemctl", "echo System has not been booted with systemd >&2; exit 1")
    assert read_units(("irqbalance.service",)) == ()


def test_irqbalance_and_lldpad_are_always_asked_for(path: Path) -> None:
    block = "echo LoadState=not-found; echo ActiveState=inactive"
    script(path, "systemctl", f"{block}; echo; {block}")
    assert [unit.name for unit in discover(Path("/")).units] == ["irqbalance.service", "lldpad.service"]


@pytest.mark.parametrize("name", ["irqbalance", "a b.service", "x.service;reboot", "../x.service"])
def test_what_is_no_unit_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="expected a name like"):
        read_units((name,))


@pytest.mark.parametrize("output", ["", "ActiveState=active\n", SHOWN])
def test_an_answer_that_does_not_fit_the_question_is_refused(output: str) -> None:
    with pytest.raises(InputError, match="expected 1 blocks of properties"):
        parse_units(Tool("systemctl", ("systemctl", "show"), 0, output), ("irqbalance.service",))


# nvidia-smi.

GPUS = (Gpu("GPU0", 0, "0000:18:00.0", uuid="GPU-a"), Gpu("GPU1", 1, "0000:2a:00.0"))
QUERY = """00000000:18:00.0, GPU-a, NVIDIA H100 80GB HBM3, 9.0
WARNING: something
00000000:2A:00.0, GPU-b, NVIDIA H100 80GB HBM3, 9.0
"""
TOPO = (
    "\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV18\tPIX\t0-55\t0\t\tN/A\n"
    "GPU1\tNV18\t X \tSYS\t56-111\t1\t\tN/A\n"
    "NIC0\tPIX\tSYS\t X \n\nLegend:\n\n  X    = Self\n"
)


def tool(name: str, output: str, code: int | None = 0) -> Tool:
    return Tool(name, ("nvidia-smi",), code, output)


def test_nvidia_smi_adds_capability_uuid_model_and_nvlinks() -> None:
    gpus, conflicts = with_nvidia_smi(GPUS, (tool("nvidia-smi-query", QUERY), tool("nvidia-smi-topo", TOPO)))
    assert conflicts == ()
    assert [(gpu.uuid, gpu.model, gpu.sm) for gpu in gpus] == [
        ("GPU-a", "NVIDIA H100 80GB HBM3", 90),
        ("GPU-b", "NVIDIA H100 80GB HBM3", 90),
    ]
    assert [gpu.nvlinks for gpu in gpus] == [(NvLink("GPU1", 18),), (NvLink("GPU0", 18),)]


def test_a_gpu_with_another_uuid_is_a_conflict() -> None:
    _, conflicts = with_nvidia_smi(GPUS, (tool("nvidia-smi-query", QUERY.replace("GPU-a", "GPU-z")),))
    assert conflicts == (
        Conflict("gpus[GPU0].uuid", (Claim("sysfs", "GPU-a"), Claim("nvidia-smi", "GPU-z"))),
    )


def test_cards_without_nvlink_are_known_to_have_none() -> None:
    gpus, _ = with_nvidia_smi(
        GPUS, (tool("nvidia-smi-query", QUERY), tool("nvidia-smi-topo", TOPO.replace("NV18", "SYS")))
    )
    assert [gpu.nvlinks for gpu in gpus] == [(), ()]


def test_a_matrix_of_other_gpus_is_not_applied() -> None:
    one = QUERY.splitlines()[0]
    gpus, _ = with_nvidia_smi(GPUS, (tool("nvidia-smi-query", one), tool("nvidia-smi-topo", TOPO)))
    assert [gpu.nvlinks for gpu in gpus] == [None, None]
    assert [gpu.sm for gpu in gpus] == [90, None]


def test_a_cut_row_leaves_its_gpu_unknown() -> None:
    text = TOPO.replace("GPU1\tNV18\t X \tSYS\t56-111\t1\t\tN/A", "GPU1\tNV18")
    gpus, _ = with_nvidia_smi(GPUS, (tool("nvidia-smi-query", QUERY), tool("nvidia-smi-topo", text)))
    assert [gpu.nvlinks for gpu in gpus] == [(NvLink("GPU1", 18),), None]


@pytest.mark.parametrize("code", [None, 9])
def test_without_a_driver_nothing_is_known_of_nvlinks(code: int | None) -> None:
    failed = (tool("nvidia-smi-query", "NVIDIA-SMI has failed", code), tool("nvidia-smi-topo", "", code))
    assert with_nvidia_smi(GPUS, failed) == (GPUS, ())


def test_a_capability_that_is_not_told_is_unknown() -> None:
    gpus, _ = with_nvidia_smi(GPUS, (tool("nvidia-smi-query", QUERY.replace("9.0", "[N/A]")),))
    assert [gpu.sm for gpu in gpus] == [None, None]


ZEROS = "00000000-0000-0000-0000-000000000000"
RACK = "0A1B2C3D-1111-2222-3333-444444444444"


@pytest.mark.parametrize(
    ("line", "fabric"),
    [
        (f"Completed, Success, 0, {ZEROS}", Fabric("Completed", "Success", "", 0)),
        (f"Completed, Success, 4000000004, {RACK}", Fabric("Completed", "Success", RACK.lower(), 4000000004)),
        ("In Progress, N/A, N/A, N/A", Fabric("In Progress")),
        # No NVSwitch: known to have none. A driver that cannot answer: unknown.
        ("N/A, N/A, N/A, N/A", Fabric("")),
        ("[N/A], [N/A], [N/A], [N/A]", None),
        ("[Unknown Error], [Unknown Error], [Unknown Error], [Unknown Error]", None),
        ("GPU requires reset, N/A, N/A, N/A", None),
    ],
)
def test_the_nvlink_fabric_is_what_the_driver_says(line: str, fabric: Fabric | None) -> None:
    text = f"WARNING: something\n00000000:18:00.0, {line}\n"
    gpus, _ = with_nvidia_smi(GPUS, (tool("nvidia-smi-fabric", text),))
    assert [gpu.fabric for gpu in gpus] == [fabric, None]


def test_a_driver_that_does_not_know_the_fabrics_fields_leaves_it_unknown() -> None:
    said = tool("nvidia-smi-fabric", 'Field "fabric.cliqueId" is not a valid field to query.\n', 2)
    assert with_nvidia_smi(GPUS, (said,)) == (GPUS, ())


@pytest.mark.parametrize("state", ["\x1b[31mCompleted", "Completed;x", "5"])
def test_a_fabric_state_that_is_no_word_is_refused(state: str) -> None:
    with pytest.raises(InputError, match="expected a fabric state like Completed"):
        with_nvidia_smi(GPUS, (tool("nvidia-smi-fabric", f"0000:18:00.0, {state}, Success, 0, {ZEROS}"),))


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="is no PCI address"):
        with_nvidia_smi(GPUS, (tool("nvidia-smi-query", "a, b, c, d"),))
