"""NCCL's topology file: where it is needed, what it says, and that a reader of such files finds the machine in it."""

from __future__ import annotations

import os
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from railwright import captures
from railwright.captures.nccl_xml import read_nccl_xml
from railwright.captures.source import Source
from railwright.node.discover import discover
from railwright.node.model import Facts, InputError, Link, NvLink, Plan, Policy, to_json
from railwright.node.model import Path as PathFact
from railwright.plan import plan
from tests.machinery import build
from tests.unit.nccl_text import must_fit_nccl
from tests.unit.plan_machines import Chassis, Part, hgx
from tests.unit.test_plan_properties import random_machine

MACHINES = Path(__file__).resolve().parents[1] / "machines"
FILE = "/etc/railwright/nccl-topology.xml"
_PLACE = os.environ.get("RAILWRIGHT_CAPTURES", "")


def _policy(**more: Any) -> Policy:
    return Policy.read({"schema": "railwright.policy/1", **more})


def _loaded(facts: Facts, text: str = "gen5 x16") -> dict[str, str]:
    return {gpu.address: text for gpu in facts.gpus if gpu.address is not None}


def _text(result: Plan) -> str | None:
    files = {entry["path"]: entry["content"] for entry in result.slices["nccl_conf"].entries}
    assert (FILE in files) is (result.nccl.get("NCCL_TOPO_FILE") == FILE)
    if FILE in files:
        # Containers get the file with the variable that names it.
        carried = [path for path, text in files.items() if "containers" not in path and FILE in text]
        assert {"/etc/nccl.conf", "/etc/cdi/railwright-nccl.json"} <= set(carried)
        assert FILE in files["/etc/enroot/mounts.d/60-railwright-nccl.fstab"]
    return files.get(FILE)


def _codes(result: Plan) -> list[tuple[str, str, str]]:
    return [(f.code, f.severity, f.where) for f in result.findings if f.code.startswith("nccl.")]


def _as_nccl_reads(text: str, facts: Facts) -> Facts:
    """The machine as NCCL sees it with this file: what the file leaves out NCCL reads from the kernel.

    That is, for a link, the least of what the function and the port above it are capable of (xml.cc:681-716).
    """
    read = read_nccl_xml(Source("topology.xml", text))
    own = {device.address: device for device in facts.pci}
    shown = any(device.port in {"root", "downstream"} for device in facts.pci)
    devices = []
    for device in read.pci:
        if device.link.max_speed is None and device.address in own:
            kernel = own[device.address]
            port = own.get(kernel.parent or "") if shown else None
            ends = [kernel.link] + ([port.link] if port is not None else [])
            speeds = [end.max_speed for end in ends if end.max_speed is not None]
            widths = [end.max_width for end in ends if end.max_width is not None]
            link = Link(max_speed=min(speeds, default=None), max_width=min(widths, default=None))
            device = replace(device, link=link)
        devices.append(device)
    return replace(facts, witnesses=read.witnesses, pci=tuple(devices), roots=read.roots, paths=())


def _decision(result: Plan) -> Any:
    """What the plan decides and proves, without the names of links."""
    return to_json(
        (
            [(gpu.name, gpu.nics, gpu.rail, gpu.path) for gpu in result.gpus],
            [(nic.name, nic.role, nic.rail, nic.gpus) for nic in result.nics],
            [result.bound.achieved_gbytes, result.bound.credible_gbytes, result.bound.per_gpu_gbytes],
            [result.bound.index_pairing_gbytes, result.bound.nearest_gbytes, result.bound.nccl_gbytes],
        )
    )


# ----- where none is needed ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [None, "2.29.2", "2.30.7"])
def test_a_machine_that_shows_its_tree_needs_no_file(version: str | None) -> None:
    facts = hgx(8, storage=2).facts()
    result = plan(facts, _policy(nccl={"version": version}))
    assert _text(result) is None


def test_links_under_load_make_no_file_for_a_nccl_that_does_not_read_idle_ones() -> None:
    facts = hgx(2).facts()
    assert _text(plan(facts, _policy(nccl={"version": "2.29.2", "loaded_links": _loaded(facts)}))) is None


@pytest.mark.parametrize(
    "more",
    [
        {"manage": {"nccl_conf": False}},
        {"nccl": {"env": {"NCCL_TOPO_FILE": "/srv/ours.xml"}}},
        {"nccl": {"env": {"NCCL_TOPO_FILE": ""}}},
    ],
)
def test_a_policy_that_has_its_own_file_or_wants_none_gets_none(more: dict[str, Any]) -> None:
    facts = hgx(2).facts()
    nccl = {"version": "2.30.7", "loaded_links": _loaded(facts), **more.get("nccl", {})}
    result = plan(facts, _policy(**{**more, "nccl": nccl}))
    entries = result.slices["nccl_conf"].entries if "nccl_conf" in result.slices else ()
    assert FILE not in [entry["path"] for entry in entries]
    assert result.nccl.get("NCCL_TOPO_FILE") == (
        more.get("nccl", {}).get("env", {}).get("NCCL_TOPO_FILE") or None
    )


# ----- idle links ----------------------------------------------------------------------------------------------------


def test_the_file_for_idle_links_byte_for_byte() -> None:
    facts = hgx(1, storage=0).facts()
    gpu = facts.gpus[0].address or ""
    result = plan(facts, _policy(nccl={"version": "2.30.7", "loaded_links": {gpu: "gen5 x8"}}))
    # A link that has lost lanes under load is not hidden: the file says x8.
    assert _text(result) == (
        '<system version="1">\n'
        "  <!-- Written by Railwright; changes made here are lost. NCCL 2.30.7 counts with a GPU's link as it idles "
        "when a job starts. -->\n"
        '  <cpu numaid="0">\n'
        '    <pci busid="0000:11:00.0" class="0x060400">\n'
        '      <pci busid="0000:13:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="8"/>\n'
        '      <pci busid="0000:15:00.0" class="0x020700"/>\n'
        "    </pci>\n"
        "  </cpu>\n"
        "</system>\n"
    )
    assert _codes(result) == [("nccl.topology_file", "info", FILE)]


def test_idle_links_are_asked_for_until_they_are_known() -> None:
    facts = hgx(2).facts()
    result = plan(facts, _policy(nccl={"version": "2.30.7"}))
    (idle,) = [finding for finding in result.findings if finding.code == "nccl.idle_links"]
    assert "policy.nccl.loaded_links" in idle.remedy
    some = {facts.gpus[0].address: "gen5 x16"}
    result = plan(facts, _policy(nccl={"version": "2.30.7", "loaded_links": some}))
    assert [f.where for f in result.findings if f.code == "nccl.idle_links"] == ["GPU1"]


# ----- bridges that say nothing --------------------------------------------------------------------------------------


def _bridged(speed: float, width: int) -> Chassis:
    """Two sockets with two GPUs and NICs each, each pair below a bridge of its own."""
    chassis = Chassis()
    for index in range(4):
        bridge = chassis.switch(index // 2, speed, width)
        chassis.gpu(bridge, 16.0, 16)
        chassis.nic(bridge, f"mlx5_{index}", 200_000, 16.0, 8 if index == 3 else 16)
    return chassis


def test_a_bridge_that_says_nothing_gets_the_link_of_the_fastest_device_below() -> None:
    result = plan(_bridged(2.5, 1).facts(), Policy())
    text = _text(result) or ""
    must_fit_nccl(text)
    bridges = re.findall(
        r'<pci busid="[^"]+" class="0x060400"(?: link_speed="([^"]+)" link_width="(\d+)")?>', text
    )
    assert bridges == [("16.0 GT/s PCIe", "16")] * 4
    # Devices keep what NCCL reads of them.
    assert len(re.findall("link_speed", text)) == 4


def test_with_the_file_nccl_sees_the_machine_without_its_lie() -> None:
    lying, true = _bridged(2.5, 1), _bridged(16.0, 16)
    facts = lying.facts()
    result = plan(facts, Policy())
    told = plan(_as_nccl_reads(_text(result) or "", facts), Policy())
    assert _decision(told) == _decision(plan(true.facts(), Policy()))
    assert told.bound.achieved_gbytes == 12
    # The lie costs nothing here, since no flow passes these uplinks; with the pairs crossed it does.
    assert _decision(told)[:1] == _decision(result)[:1]


def _below_lying_ports() -> Facts:
    """GPU and NIC each below a virtual root port that states 2.5 GT/s x1; each tells its own link."""
    chassis = Chassis(virtual="kvm")
    bridge = chassis.switch(0)
    chassis.gpu(bridge)
    chassis.nic(bridge, "mlx5_0", 400_000, 32.0, 16)
    facts = chassis.facts()
    ports = {device.parent for device in facts.pci if device.port in {"endpoint", "upstream"}}
    return replace(
        facts,
        pci=tuple(
            replace(device, link=Link(2.5, 1, 2.5, 1))
            if device.address in ports
            else replace(device, link=replace(device.link, speed=32.0))
            for device in facts.pci
        ),
    )


def test_a_gpu_below_a_port_that_says_nothing_waits_for_its_link_under_load() -> None:
    facts = _below_lying_ports()
    result = plan(facts, Policy())
    assert _text(result) is None
    assert _codes(result) == [("nccl.topology_file", "warning", "GPU0")]
    (asked,) = [finding for finding in result.findings if finding.code == "nccl.topology_file"]
    assert "pcie.link.gen.current" in asked.remedy
    told = plan(facts, _policy(nccl={"loaded_links": _loaded(facts)}))
    text = _text(told) or ""
    # The NIC's link does not idle: its own reading counts. All three stand in the file.
    assert text.count('link_speed="32.0 GT/s PCIe" link_width="16"') == 3
    assert plan(_as_nccl_reads(text, facts), Policy()).bound.achieved_gbytes == 48
    # NCCL from 2.30.7 on asks the driver for the GPU's link.
    new = _text(plan(facts, _policy(nccl={"version": "2.30.7"}))) or ""
    assert new.count("link_speed") == 2


def test_a_nic_that_is_no_rail_keeps_no_file_from_being_written() -> None:
    # Storage below a virtual port of which nobody knows more; NCCL's list leaves it out.
    chassis = _bridged(2.5, 1)
    chassis.nic(0, "mlx5_9", 25_000, link_layer="Ethernet", default_route=True)
    facts = chassis.facts()
    odd = facts.nics[-1].address
    port = next(device.parent for device in facts.pci if device.address == odd)
    pci = tuple(
        replace(device, link=Link(None, None, 2.5, 1)) if device.address in (odd, port) else device
        for device in facts.pci
    )
    result = plan(replace(facts, pci=pci), Policy())
    assert [nic.role for nic in result.nics if nic.name == "mlx5_9"] == ["management"]
    assert _text(result) is not None


def test_a_rail_without_a_pci_address_is_named_instead_of_left_out() -> None:
    facts = hgx(1, storage=0).facts()
    nic = replace(facts.nics[0], address=None, numa=0)
    pci = tuple(device for device in facts.pci if device.address != facts.nics[0].address)
    nccl = {"version": "2.30.7", "loaded_links": _loaded(facts)}
    result = plan(replace(facts, nics=(nic,), pci=pci), _policy(nccl=nccl))
    assert _text(result) is None
    assert ("nccl.topology_file", "warning", "mlx5_0") in _codes(result)


def test_a_gpu_that_the_tree_does_not_hold_is_named() -> None:
    facts = hgx(2, storage=0).facts()
    pci = tuple(device for device in facts.pci if device.address != facts.gpus[1].address)
    nics = [{"match": f"mlx5_{rail}", "role": "rail", "rail": rail} for rail in (0, 1)]
    result = plan(replace(facts, pci=pci), _policy(nics=nics))
    assert _text(result) is None
    assert ("nccl.topology_file", "warning", "GPU1") in _codes(result)


def test_a_matrix_has_no_addresses_to_write() -> None:
    facts = hgx(2, storage=0, virtual="kvm").facts()
    flat = replace(
        facts,
        pci=(),
        gpus=tuple(replace(gpu, address=None) for gpu in facts.gpus),
        nics=tuple(replace(nic, address=None) for nic in facts.nics),
        paths=tuple(PathFact(gpu.name, nic.name, "PHB") for gpu in facts.gpus for nic in facts.nics),
    )
    nics = [{"match": f"mlx5_{rail}", "role": "rail", "rail": rail} for rail in (0, 1)]
    result = plan(flat, _policy(nics=nics))
    assert result.status == "planned"
    assert _text(result) is None
    assert ("nccl.topology_file", "warning", "GPU0, GPU1, mlx5_0, mlx5_1") in _codes(result)


def test_where_one_gpu_has_no_way_up_all_are_paired_as_the_policy_numbers_them() -> None:
    facts = hgx(2, storage=0).facts()
    lost = facts.gpus[1].address
    pci = tuple(replace(device, parent=None) if device.address == lost else device for device in facts.pci)
    nics = [{"match": f"mlx5_{rail}", "role": "rail", "rail": rail} for rail in (0, 1)]
    nccl = {"version": "2.30.7", "loaded_links": _loaded(facts)}
    result = plan(replace(facts, pci=pci), _policy(nics=nics, nccl=nccl))
    # Half a tree is none: GPUs are paired by number, and each pair gets its own bridge.
    assert (_text(result) or "").count("ffff:ff:") == 2


# ----- machines without a tree ---------------------------------------------------------------------------------------


def _flat_machine(tmp_path: Path) -> Facts:
    build(MACHINES / "1s_8xh200_8xcx7_vm", tmp_path / "tree")
    return discover(tmp_path / "tree")


def test_a_flat_virtual_machine_gets_the_pairs_that_its_policy_names(tmp_path: Path) -> None:
    facts = _flat_machine(tmp_path)
    # The host's order, which nothing in the guest tells.
    order = [5, 2, 7, 0, 3, 6, 1, 4]
    nics = [{"match": f"mlx5_{nic}", "role": "rail", "rail": rail} for rail, nic in enumerate(order)]
    result = plan(facts, _policy(nics=nics))
    assert [gpu.nics for gpu in result.gpus] == [(f"mlx5_{nic}",) for nic in order]
    text = _text(result) or ""
    parsed = must_fit_nccl(text)
    # The system, its one CPU, a bridge, a GPU and a NIC for each pair.
    assert parsed.elements == 2 + 3 * 8
    seen = plan(_as_nccl_reads(text, facts), Policy())
    assert [(gpu.nics, gpu.path) for gpu in seen.gpus] == [((f"mlx5_{nic}",), "PIX") for nic in order]
    assert seen.bound.verdict.startswith("NCCL already reaches this on its own")
    # Without the file NCCL would take other pairs, all of them through the CPU.
    assert "NCCL already" not in result.bound.verdict or {gpu.path for gpu in result.gpus} == {"PHB"}


def test_gpus_that_share_a_nic_share_a_bridge() -> None:
    chassis = Chassis(virtual="kvm")
    for _ in range(4):
        chassis.gpu(0)
    chassis.nic(0, "mlx5_0")
    chassis.nic(0, "mlx5_1")
    facts = chassis.facts()
    nics = [{"match": f"mlx5_{rail}", "role": "rail", "rail": rail} for rail in (0, 1)]
    result = plan(facts, _policy(nics=nics))
    text = _text(result) or ""
    groups = [re.findall(r'busid="(0000[^"]+)"', part) for part in text.split('busid="ffff:ff:')[1:]]
    place = {gpu.name: gpu.address for gpu in facts.gpus} | {nic.name: nic.address for nic in facts.nics}
    expected = [
        {place[gpu.name] for gpu in result.gpus if gpu.nics == (nic,)} | {place[nic]}
        for nic in ("mlx5_0", "mlx5_1")
    ]
    assert [set(group) for group in groups] == expected


def test_made_up_bridges_take_no_address_that_the_machine_has(tmp_path: Path) -> None:
    facts = _flat_machine(tmp_path)
    taken = replace(facts.pci[0], address="ffff:ff:01.0", parent=None)
    nics = [{"match": f"mlx5_{rail}", "role": "rail", "rail": rail} for rail in range(8)]
    text = _text(plan(replace(facts, pci=(*facts.pci, taken)), _policy(nics=nics))) or ""
    assert "ffff:ff:01.0" not in text
    assert "ffff:ff:02.0" in text


# ----- what cannot be written ----------------------------------------------------------------------------------------


def test_a_tree_that_nccl_has_no_room_for_is_not_written() -> None:
    # 16 GPUs and NICs below six bridges each: 131 elements, and each process adds its GPU, NVLinks, 16 NICs and nets.
    def deep(nvlinks: int) -> Facts:
        chassis = Chassis()
        for index in range(16):
            below: Part | int = index % 2
            for _ in range(6):
                below = chassis.switch(below, 2.5, 1)
            links = tuple(NvLink(f"0000:e{n // 32}:{n % 32:02x}.0", 1) for n in range(nvlinks))
            chassis.gpu(below, nvlinks=links)
            chassis.nic(below, f"mlx5_{index}")
        return chassis.facts("merged", first_bus=0)

    room = 256 - 131 - 2 - 32
    assert must_fit_nccl(_text(plan(deep(room), Policy())) or "").elements == 131
    full = plan(deep(room + 1), Policy())
    assert _text(full) is None
    assert ("nccl.topology_file", "warning", FILE) in _codes(full)


@pytest.mark.parametrize(
    ("links", "why"),
    [
        ({"0000:77:00.0": "gen5 x16"}, "no GPU or NIC of this node has that address"),
        ({"0000:13:00.0": "gen6 x16"}, "is capable of 32.0 GT/s x16"),
    ],
)
def test_links_that_this_machine_cannot_have_are_named_and_not_written(
    links: dict[str, str], why: str
) -> None:
    result = plan(hgx(1, storage=0).facts(), _policy(nccl={"version": "2.30.7", "loaded_links": links}))
    (wrong,) = [finding for finding in result.findings if finding.code == "nccl.loaded_links"]
    assert why in wrong.why
    assert _text(result) is None


def test_a_gpu_that_was_read_while_it_idled_can_have_more_under_load() -> None:
    facts = hgx(1, storage=0).facts()
    gpu = facts.gpus[0].address or ""

    def with_link(link: Link) -> Plan:
        pci = tuple(replace(device, link=link) if device.address == gpu else device for device in facts.pci)
        policy = _policy(nccl={"version": "2.30.7", "loaded_links": {gpu: "gen5 x16"}})
        return plan(replace(facts, pci=pci), policy)

    for link in (Link(2.5, 16, 2.5, 16), Link(None, None, None, None)):
        assert 'link_speed="32.0 GT/s PCIe" link_width="16"' in (_text(with_link(link)) or "")
    (wrong,) = [f for f in with_link(Link(None, None, None, 8)).findings if f.code == "nccl.loaded_links"]
    assert wrong.why.endswith("is capable of unknown GT/s x8")


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("0000:13:00.0", "gen1 x16"),
        ("0000:13:00.0", "gen2 x8"),
        ("0000:13:00.0", "32 GT/s x16"),
        ("0000:13:00.0", "gen5 x3"),
        ("0000:13:00.0", "gen5 x16\n"),
        ("13:00.0", "gen5 x16"),
        ("GPU0", "gen5 x16"),
    ],
)
def test_links_that_are_not_read_under_load_or_not_in_the_form_are_input_errors(
    address: str, text: str
) -> None:
    with pytest.raises(InputError) as caught:
        plan(hgx(1).facts(), _policy(nccl={"loaded_links": {address: text}}))
    assert caught.value.where == f"policy.nccl.loaded_links.{address}"


def test_what_a_witness_says_of_a_device_cannot_add_elements() -> None:
    facts = hgx(1, storage=0).facts()
    policy = _policy(nccl={"version": "2.30.7", "loaded_links": _loaded(facts)})
    for vendor in ('0x10de"/><pci busid="x', "0x10de\n", "x"):
        odd = tuple(replace(device, vendor=vendor) for device in facts.pci)
        assert "vendor" not in (_text(plan(replace(facts, pci=odd), policy)) or "vendor")


# ----- the same machine ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", ["2s_8xh100_10xcx7", "2s_8xh200_8xcx7_snc2", "2s_4xh100pcie_2xcx6"])
def test_a_recorded_machine_read_from_the_file_has_the_same_plan(machine: str, tmp_path: Path) -> None:
    build(MACHINES / machine, tmp_path / "tree")
    facts = discover(tmp_path / "tree")
    # Under load these GPUs run at what they are capable of.
    generation = {8.0: 3, 16.0: 4, 32.0: 5}
    links = {device.address: device.link for device in facts.pci}
    loaded = {
        address: f"gen{generation[links[address].max_speed or 0]} x{links[address].max_width}"
        for address in _loaded(facts)
    }
    result = plan(facts, _policy(nccl={"version": "2.30.7", "loaded_links": loaded}))
    text = _text(result) or ""
    must_fit_nccl(text)
    assert _decision(plan(_as_nccl_reads(text, facts), Policy())) == _decision(plan(facts, Policy()))


@pytest.mark.parametrize("seed", range(60))
def test_a_random_machine_read_from_the_file_has_the_same_plan(seed: int) -> None:
    facts = random_machine(random.Random(seed))  # noqa: S311 (a dice, no secret)
    generation = {16.0: 4, 32.0: 5}
    links = {device.address: device.link for device in facts.pci}
    loaded = {address: f"gen{generation[links[address].max_speed or 0]} x16" for address in _loaded(facts)}
    result = plan(facts, _policy(nccl={"version": "2.30.7", "loaded_links": loaded}))
    if not result.nccl:
        return
    text = _text(result) or ""
    must_fit_nccl(text)
    seen, own = plan(_as_nccl_reads(text, facts), Policy()), plan(facts, Policy())
    # NICs that are down stand in no file, and rail numbers mind them, so only the pairs and rates can be compared.
    (gpus, nics, rates, rules), (own_gpus, own_nics, own_rates, own_rules) = _decision(seen), _decision(own)
    assert [(name, nic, path) for name, nic, _, path in gpus] == [
        (name, nic, path) for name, nic, _, path in own_gpus
    ]
    assert [(name, users) for name, _, _, users in nics if users] == [
        (name, users) for name, _, _, users in own_nics if users
    ]
    if any((device.link.max_speed, device.link.max_width) == (2.5, 1) for device in facts.pci):
        # Where a bridge lied the file does not, so no rate with links as stated is lower.
        assert (rates[0] or 0, rates[2] or 0) >= (own_rates[0] or 0, own_rates[2] or 0)
    else:
        assert (rates, rules) == (own_rates, own_rules)


def _real() -> list[str]:
    return sorted(path.name for path in (Path(_PLACE) / "nccl_xml").glob("*.xml")) if _PLACE else ["none"]


@pytest.mark.skipif(not _PLACE, reason="RAILWRIGHT_CAPTURES is not set")
@pytest.mark.parametrize("name", _real())
def test_a_real_machine_read_from_the_file_has_the_same_plan(name: str) -> None:
    facts = captures.read([Path(_PLACE) / "nccl_xml" / name])
    generation = {8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
    links = {device.address: device.link for device in facts.pci}
    loaded = {
        address: f"gen{generation[links[address].max_speed or 0]} x{links[address].max_width}"
        for address in _loaded(facts)
        if links[address].max_speed in generation and links[address].max_width
    }
    result = plan(facts, _policy(nccl={"version": "2.30.7", "loaded_links": loaded}))
    text = _text(result) if "nccl_conf" in result.slices else None
    if text is None:
        # No rail, no link that a GPU could have under load, or a NIC without a place in the tree.
        assert not loaded or not result.nccl or _codes(result)
        return
    must_fit_nccl(text)
    seen, own = plan(_as_nccl_reads(text, facts), Policy()), plan(facts, Policy())
    if any((device.link.max_speed, device.link.max_width) == (2.5, 1) for device in facts.pci):
        assert [gpu.nics for gpu in seen.gpus] == [gpu.nics for gpu in own.gpus]
    else:
        assert _decision(seen) == _decision(own)
