"""What the plan writes: the exact bytes of every slice of one machine, NCCL's list, ranks, and sentences."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest

from railwright.node.model import Facts, Gpu, InputError, Irq, Plan, Policy, to_json
from railwright.plan import explain, plan
from railwright.plan.slices import GPU_ORDER
from tests.unit.plan_machines import Chassis, cores, hgx, with_cores

# Two GPUs and rails, one on each node of 5 cores with two threads; a further port holds the default route.
SYSCTLS = {
    "kernel.numa_balancing": "1",
    "net.ipv4.conf.all.arp_announce": "0",
    "vm.zone_reclaim_mode": "0",
    "vm.swappiness": "60",
}


def _policy(**more: Any) -> Policy:
    return Policy.read({"schema": "railwright.policy/1", **more})


def _facts(**host: Any) -> Facts:
    chassis = hgx(2, storage=1, sysctls=SYSCTLS, **host)
    for part, uuid in zip(
        [part for part in chassis.parts if part.kind == "gpu"], ("GPU-aaaa", "GPU-bbbb"), strict=True
    ):
        part.more.update(uuid=uuid, slot=f"2{uuid[-1]}")
    facts = with_cores(chassis.facts(), *cores(sockets=2, nodes=2, each=5))
    front = replace(facts.nics[2], default_route=True, netdev="ens0", addresses=("10.0.0.5/24",))
    irqs = (Irq(40, facts.nics[0].address or ""), Irq(41, facts.nics[1].address or ""))
    return replace(facts, nics=(*facts.nics[:2], front), irqs=irqs)


def _files(result: Plan, role: str) -> dict[str, str]:
    return {entry["path"]: entry["content"] for entry in result.slices[role].entries if "content" in entry}


def test_every_slice_of_one_machine_byte_for_byte() -> None:
    policy = _policy(
        boot={"sha256": "ab" * 32}, nccl={"version": "2.29.2", "traffic_class": 106, "gid_index": 3}
    )
    result = plan(_facts(), policy)
    assert list(result.slices) == ["gpu_order", "nccl_conf", "irq_affinity", "sysctls", "boot_unit"]
    assert {slice_.stage for slice_ in result.slices.values()} == {"runtime"}
    # Of the groups that nobody asked for, those that came first are written out.
    said = {
        name: group
        for name, group in to_json(policy).items()
        if group is not None or name in ("boot", "kernel", "lossless")
    }
    digest = hashlib.sha256(
        (json.dumps(said, sort_keys=True, separators=(",", ":")) + "\n").encode()
    ).hexdigest()
    assert result.policy_sha256 == digest
    conf, cdi, enroot = result.slices["nccl_conf"].entries
    assert (conf,) == (
        {
            "kind": "file",
            "path": "/etc/nccl.conf",
            "content": (
                "# Written by Railwright; changes made here are lost. What is wanted stands in the node's policy,\n"
                f"# digest {digest[:16]}. NCCL_IB_HCA is exact, in rail order: its value begins with an equals sign.\n"
                "NCCL_IB_HCA==mlx5_0:1,mlx5_1:1\n"
                "NCCL_SOCKET_IFNAME==ens0\n"
                "NCCL_IB_TC=106\n"
                "NCCL_IB_GID_INDEX=3\n"
            ),
            "mode": "0644",
        },
    )
    assert (cdi["path"], cdi["mode"]) == ("/etc/cdi/railwright-nccl.json", "0644")
    mount = {"hostPath": "/etc/nccl.conf", "containerPath": "/etc/nccl.conf"}
    edits = {
        "env": ["CUDA_DEVICE_ORDER=PCI_BUS_ID"],
        "mounts": [{**mount, "options": ["ro", "nosuid", "nodev", "bind"]}],
    }
    assert json.loads(cdi["content"]) == {
        "cdiVersion": "0.3.0",
        "kind": "railwright/node",
        "devices": [{"name": "nccl", "containerEdits": edits}],
    }
    assert enroot == {
        "kind": "file",
        "path": "/etc/enroot/mounts.d/60-railwright-nccl.fstab",
        "content": "/etc/nccl.conf /etc/nccl.conf none "
        "x-create=file,bind,ro,nosuid,nodev,noexec,nofail,silent\n",
        "mode": "0644",
    }
    head = "# Written by Railwright; changes made here are lost.\n"
    ordered = _files(result, "gpu_order")
    assert json.loads(ordered.pop("/etc/cdi/railwright-gpu-order.json"))["devices"] == [
        {"name": "gpu-order", "containerEdits": {"env": ["CUDA_DEVICE_ORDER=PCI_BUS_ID"]}}
    ]
    assert ordered == {
        "/etc/systemd/system.conf.d/60-railwright-gpu-order.conf": (
            f"{head}[Manager]\nDefaultEnvironment=CUDA_DEVICE_ORDER=PCI_BUS_ID\n"
        ),
        "/etc/environment.d/60-railwright-gpu-order.conf": f"{head}CUDA_DEVICE_ORDER=PCI_BUS_ID\n",
        "/etc/profile.d/railwright-gpu-order.sh": f"{head}export CUDA_DEVICE_ORDER=PCI_BUS_ID\n",
        "/etc/enroot/environ.d/60-railwright-gpu-order.env": "CUDA_DEVICE_ORDER=PCI_BUS_ID\n",
        "/etc/railwright/gpus.tsv": (
            "slot\tcuda\tpci\trail\tnic\n2a\t0\t0000:13:00.0\t0\tmlx5_0\n2b\t1\t0000:19:00.0\t1\tmlx5_1\n"
        ),
    }
    # Node 0 has cores 0-4 (CPUs 0-4,10-14): 0 stays, 3 and 4 serve the NIC, 1 and 2 are the rank's.
    assert result.slices["irq_affinity"].entries == (
        {"kind": "irq_affinity", "device": "0000:15:00.0", "cpus": "3-4", "control_cpus": "0,10"},
        {"kind": "irq_affinity", "device": "0000:1b:00.0", "cpus": "8-9", "control_cpus": "5,15"},
    )
    assert result.slices["sysctls"].entries == (
        {
            "kind": "file",
            "path": "/etc/sysctl.d/90-railwright.conf",
            "content": (
                "# Written by Railwright; changes made here are lost. What is wanted stands in the node's policy.\n"
                "kernel.numa_balancing = 0\n"
                "net.ipv4.conf.all.arp_announce = 2\n"
            ),
            "mode": "0644",
        },
        {"kind": "sysctl", "name": "kernel.numa_balancing", "value": "0"},
        {"kind": "sysctl", "name": "net.ipv4.conf.all.arp_announce", "value": "2"},
    )
    zipapp, unit = "/usr/local/lib/railwright/railwright.pyz", "/etc/systemd/system/railwright.service"
    program, text, service, *_, path, state = result.slices["boot_unit"].entries
    assert path["name"] == "railwright-again.path"
    assert program == {"kind": "file", "path": zipapp, "sha256": "ab" * 32, "mode": "0644"}
    assert (text["path"], service["path"]) == ("/etc/railwright/policy.json", unit)
    assert Policy.read(json.loads(text["content"])) == policy
    assert hashlib.sha256(text["content"].encode()).hexdigest() == digest
    assert state == {
        "kind": "systemd_unit",
        "name": "railwright.service",
        "enabled": True,
        "state": "started",
        "restart_if_older_than": [zipapp, "/etc/railwright/policy.json", unit],
    }


def test_the_boot_unit_runs_before_work_and_never_in_the_way_of_a_login() -> None:
    service = _files(plan(_facts(), _policy(boot={"sha256": "ab" * 32})), "boot_unit")[
        "/etc/systemd/system/railwright.service"
    ]
    lines = service.splitlines()
    assert "Type=oneshot" in lines
    assert "RemainAfterExit=yes" in lines
    assert "ExecStart=/usr/bin/python3 /usr/local/lib/railwright/railwright.pyz boot" in lines
    assert "Before=slurmd.service kubelet.service docker.service containerd.service" in lines
    assert any(line.startswith("TimeoutStartSec=") for line in lines)
    assert "ssh" not in service


def test_a_slice_that_the_policy_leaves_alone_is_left_out_and_said() -> None:
    result = plan(_facts(), _policy(manage={"sysctls": False, "irq_affinity": False, "nccl_conf": True}))
    assert list(result.slices) == ["gpu_order", "nccl_conf"]
    codes = [finding.code for finding in result.findings]
    assert codes == ["irq_affinity.unmanaged", "sysctls.unmanaged"]


def test_a_slice_that_there_is_none_of_cannot_be_left_alone() -> None:
    with pytest.raises(InputError) as error:
        plan(_facts(), _policy(manage={"irqaffinity": False}))
    assert error.value.where == "policy.manage.irqaffinity"
    assert "irq_affinity" in error.value.remedy


def test_files_do_not_change_with_what_the_driver_has_told_so_far() -> None:
    facts = _facts()
    before = replace(facts, gpus=tuple(replace(gpu, uuid=None, model=None) for gpu in facts.gpus))
    assert plan(before, Policy()).slices == plan(facts, Policy()).slices


def test_nics_without_interrupts_are_left_alone_where_interrupts_are_known() -> None:
    facts = _facts()
    some = plan(replace(facts, irqs=facts.irqs[:1]), Policy())
    assert [entry["device"] for entry in some.slices["irq_affinity"].entries] == ["0000:15:00.0"]
    unknown = plan(replace(facts, irqs=()), Policy())
    assert len(unknown.slices["irq_affinity"].entries) == 2
    none = plan(replace(facts, irqs=(Irq(9, "0000:00:1f.0"),)), Policy())
    assert "irq_affinity" not in none.slices


@pytest.mark.parametrize(
    ("version", "written"),
    [
        (None, "=mlx5_0:1,mlx5_1:1"),
        ("2.19.3", "=mlx5_0:1,mlx5_1:1"),
        ("2.30.6", "=mlx5_0:1,mlx5_1:1"),
        ("2.30.7", "=mlx5_0:1:0,mlx5_1:1:1"),
        ("2.31", "=mlx5_0:1:0,mlx5_1:1:1"),
        ("3.0.0", "=mlx5_0:1:0,mlx5_1:1:1"),
    ],
)
def test_rails_are_written_for_nccl_from_2_30_7_on(version: str | None, written: str) -> None:
    assert plan(_facts(), _policy(nccl={"version": version})).nccl["NCCL_IB_HCA"] == written


def test_the_list_is_in_rail_order_whatever_the_kernel_numbers() -> None:
    chassis = Chassis()
    for name in ("mlx5_9", "mlx5_10", "mlx5_3"):
        switch = chassis.switch(0)
        chassis.gpu(switch)
        chassis.nic(switch, name)
    assert plan(chassis.facts(), Policy()).nccl["NCCL_IB_HCA"] == "=mlx5_9:1,mlx5_10:1,mlx5_3:1"


@pytest.mark.parametrize(
    ("wanted", "written"),
    [("bond0", "=bond0"), ("=eth0", "=eth0"), ("^docker,lo", "^docker,lo"), (None, "=ens0")],
)
def test_the_bootstrap_interface_is_exact(wanted: str | None, written: str) -> None:
    assert plan(_facts(), _policy(nccl={"socket_ifname": wanted})).nccl["NCCL_SOCKET_IFNAME"] == written


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        # A VLAN or a bridge over the port holds route and address: NCCL finds no address on the port itself.
        ({2: {"addresses": ()}}, "ens0"),
        ({1: {"default_route": True, "netdev": "ens1", "addresses": ("10.0.1.5/24",)}}, "ens1, ens0"),
    ],
)
def test_a_bootstrap_interface_that_cannot_be_told_is_asked_for(
    changes: dict[int, dict[str, Any]], names: str
) -> None:
    facts = _facts()
    nics = tuple(replace(nic, **changes.get(number, {})) for number, nic in enumerate(facts.nics))
    result = plan(replace(facts, nics=nics), Policy())
    assert "NCCL_SOCKET_IFNAME" not in result.nccl
    asked = [finding for finding in result.findings if finding.code == "nccl.bootstrap"]
    assert [finding.where for finding in asked] == [names]
    answered = plan(replace(facts, nics=nics), _policy(nccl={"socket_ifname": "ens0.100"}))
    assert answered.nccl["NCCL_SOCKET_IFNAME"] == "=ens0.100"
    assert "nccl.bootstrap" not in [finding.code for finding in answered.findings]


def test_further_variables_of_the_policy_have_the_last_word() -> None:
    env = {"NCCL_CROSS_NIC": "0", "NCCL_IB_HCA": "=mlx5_1", "NCCL_NET_GDR_LEVEL": "PHB"}
    result = plan(_facts(), _policy(nccl={"env": env}))
    assert result.nccl == {
        "NCCL_IB_HCA": "=mlx5_1",
        "NCCL_SOCKET_IFNAME": "=ens0",
        "NCCL_CROSS_NIC": "0",
        "NCCL_NET_GDR_LEVEL": "PHB",
    }


@pytest.mark.parametrize(
    ("nccl", "where", "remedy"),
    [
        ({"env": {"NCCL_NET_GDR_LEVEL": "5"}}, "policy.nccl.env.NCCL_NET_GDR_LEVEL", "write the word"),
        ({"env": {"NCCL_P2P_LEVEL": " -1 "}}, "policy.nccl.env.NCCL_P2P_LEVEL", "write the word"),
        ({"env": {"nccl debug": "1"}}, "policy.nccl.env.nccl debug", "NCCL_IB_TIMEOUT"),
        ({"env": {"NCCL_DEBUG": "INFO\nNCCL_X=1"}}, "policy.nccl.env.NCCL_DEBUG", "line by line"),
        ({"env": {"NCCL_DEBUG": "x" * 1024}}, "policy.nccl.env.NCCL_DEBUG", "line by line"),
        ({"version": "2"}, "policy.nccl.version", "2.30.7"),
        ({"version": "v2.30.7"}, "policy.nccl.version", "2.30.7"),
        ({"version": "9" * 5000 + ".1.1"}, "policy.nccl.version", "2.30.7"),
        ({"traffic_class": 256}, "policy.nccl.traffic_class", "255 at most"),
        ({"gid_index": -1}, "policy.nccl.gid_index", "0 to 255"),
    ],
)
def test_settings_that_nccl_would_misread_are_input_errors(
    nccl: dict[str, Any], where: str, remedy: str
) -> None:
    with pytest.raises(InputError) as caught:
        plan(_facts(), _policy(nccl=nccl))
    assert caught.value.where == where
    assert remedy in caught.value.remedy


def test_no_line_of_nccl_conf_can_be_taken_for_a_variable_that_is_not_one() -> None:
    # NCCL skips lines that begin with #, and old versions split every other line at its first equals sign.
    lines = _files(plan(_facts(), Policy()), "nccl_conf")["/etc/nccl.conf"].splitlines()
    assert all("=" not in line for line in lines if line.startswith("#"))
    assert all(len(line.split("=", 1)[1]) <= 1023 for line in lines if not line.startswith("#"))


def test_more_ports_than_nccl_takes_are_an_error_and_the_last_are_left_out() -> None:
    chassis = hgx(34, storage=0)
    result = plan(chassis.facts(), Policy())
    assert len(result.nccl["NCCL_IB_HCA"].split(",")) == 32
    (many,) = [finding for finding in result.findings if finding.code == "nccl.hcas"]
    assert (many.severity, many.where) == ("error", "mlx5_32, mlx5_33")


def test_names_that_the_witness_does_not_tell_are_said_and_not_invented() -> None:
    facts = hgx(1, storage=0).facts("merged")
    facts = replace(facts, nics=tuple(replace(nic, rdma=None) for nic in facts.nics))
    result = plan(facts, Policy())
    assert "NCCL_IB_HCA" not in result.nccl
    assert [finding.code for finding in result.findings] == ["nccl.names"]
    assert "nccl_conf" not in result.slices


@pytest.mark.parametrize(
    ("workload", "names"),
    [
        ("train-large", {"kernel.numa_balancing", "net.ipv4.neigh.default.gc_thresh3"}),
        ("train-single-node", {"kernel.numa_balancing"}),
        ("inference-latency", {"kernel.numa_balancing", "net.core.busy_poll"}),
        ("inference-throughput", {"kernel.numa_balancing"}),
        ("moe-alltoall", {"kernel.numa_balancing", "net.ipv4.neigh.default.gc_thresh3"}),
    ],
)
def test_kernel_settings_follow_the_workload(workload: str, names: set[str]) -> None:
    every = dict.fromkeys(
        ["kernel.numa_balancing", "net.ipv4.neigh.default.gc_thresh3", "net.core.busy_poll"], "1"
    )
    facts = _facts()
    facts = replace(facts, host=replace(facts.host, sysctls=every))
    entries = plan(facts, _policy(workload=workload)).slices["sysctls"].entries
    assert {entry["name"] for entry in entries if entry["kind"] == "sysctl"} == names


def test_a_node_that_knows_more_neighbours_than_we_ask_for_keeps_them() -> None:
    name = "net.ipv4.neigh.default.gc_thresh3"

    def planned(now: str, **policy: Any) -> str:
        facts = _facts()
        facts = replace(facts, host=replace(facts.host, sysctls={name: now}))
        entries = plan(facts, _policy(**policy)).slices["sysctls"].entries
        return next(str(entry["value"]) for entry in entries if entry["kind"] == "sysctl")

    assert planned("1024") == "16384"
    assert planned("65536") == "65536"
    assert planned("65536", sysctls={name: "32768"}) == "32768"


def test_the_policys_kernel_settings_come_over_the_defaults() -> None:
    wanted = {"kernel.numa_balancing": "", "vm.zone_reclaim_mode": "1", "vm.no_such_thing": "1"}
    result = plan(_facts(), _policy(sysctls=wanted))
    entries = result.slices["sysctls"].entries
    assert [(entry["name"], entry["value"]) for entry in entries if entry["kind"] == "sysctl"] == [
        ("net.ipv4.conf.all.arp_announce", "2"),
        ("vm.zone_reclaim_mode", "1"),
    ]
    assert [(finding.code, finding.where) for finding in result.findings] == [
        ("sysctls.absent", "vm.no_such_thing")
    ]


def test_kernel_settings_that_the_witness_does_not_show_are_not_written() -> None:
    facts = _facts()
    result = plan(
        replace(facts, host=replace(facts.host, sysctls={})), _policy(sysctls={"vm.swappiness": "1"})
    )
    assert "sysctls" not in result.slices
    assert not result.findings


def test_a_clean_machine_in_sentences() -> None:
    result = plan(hgx(8, storage=2).facts(), Policy())
    assert result.summary == (
        "8 GPUs, 8 rails: every GPU has its own 400 Gb/s NIC behind the same switch (PIX).",
        "With all GPUs sending, each is sure of 48 GB/s, and no other pairing gives more.",
        "NCCL already reaches this on its own: no change needed; the list below only keeps other NICs out.",
        "What limits it: PCIe links of 48 GB/s; the NICs could send more.",
        "Other NIC ports, kept out of NCCL's list: 2 storage.",
    )


def test_a_shared_nic_in_sentences() -> None:
    chassis = Chassis()
    switch = chassis.switch(0)
    for _ in range(3):
        chassis.gpu(switch)
    chassis.nic(switch, "mlx5_0", 200_000)
    summary = plan(chassis.facts(), Policy()).summary
    assert summary[0] == "3 GPUs, 1 rail: up to three GPUs share a 200 Gb/s NIC (PIX)."
    port = chassis.nics()[0].address
    assert f"What limits it: {port} to port mlx5_0, 25 GB/s, carries GPU0, GPU1, GPU2." in summary


def test_doubtful_links_in_sentences() -> None:
    chassis = Chassis()
    bridge = chassis.switch(0, 2.5, 1)
    chassis.gpu(bridge)
    chassis.nic(0, "mlx5_0")
    summary = plan(chassis.facts(), Policy()).summary
    assert (
        "Some links state rates that cannot be true (virtual bridges, idle GPUs); without them it is 48 GB/s."
        in summary
    )


def test_why_a_gpu_and_a_nic_have_their_place() -> None:
    result = plan(_facts(), Policy())
    assert (
        explain(result, "GPU0")
        == explain(result, "0000:13:00.0")
        == explain(result, "0")
        == explain(result, "GPU-aaaa")
    )
    assert explain(result, "GPU0").splitlines() == [
        "GPU0 (CUDA index 0, 0000:13:00.0, NUMA node 0)",
        "  rail 0: mlx5_0 (PIX)",
        "  because mlx5_0 is the only NIC at PIX; 2 cores of numa0",
        "  cores 1-2,11-12",
        "  NVLink: with GPU1: linked by NVSwitches; the state of their fabric, on which NVLS depends, only the driver "
        "tells",
        "  0000:13:00.0 to 0000:11:00.0: 48 of 48 GB/s, 1 GPU, the limit",
        "  0000:11:00.0 to 0000:15:00.0: 48 of 48 GB/s, 1 GPU, the limit",
        "  0000:15:00.0 to port mlx5_0: 48 of 50 GB/s, 1 GPU",
    ]
    assert explain(result, "mlx5_0").splitlines() == [
        "mlx5_0 (0000:15:00.0): rail, rail 0",
        "  because up, PIX to GPU0",
        "  serves GPU0",
        "  interrupts on cores 3-4,13-14",
    ]
    assert explain(result, "ens0").splitlines() == [
        "mlx5_2 (0000:1d:00.0,ens0): management",
        "  because holds the node's default route",
    ]


def test_explaining_an_unknown_device_names_the_known_ones() -> None:
    with pytest.raises(InputError, match="one of GPU0, GPU1, mlx5_0, mlx5_1, mlx5_2"):
        explain(plan(_facts(), Policy()), "mlx5_7")


def test_explaining_a_refusal_says_what_to_do() -> None:
    facts = _facts()
    lone = replace(facts, gpus=facts.gpus[:1])
    refused = plan(lone, _policy(expect={"gpus": 2}))
    assert "reseat the missing GPU" in explain(refused, "mlx5_1") or "reseat" in " ".join(refused.summary)
    assert refused.gpus[0].because == "the plan is refused"


def test_a_gpu_without_a_rail_explains_itself() -> None:
    facts = Chassis().facts()
    result = plan(replace(facts, gpus=(Gpu("GPU0", 0),)), Policy())
    assert explain(result, "GPU0").splitlines()[:2] == ["GPU0 (CUDA index 0)", "  no rail"]
    assert GPU_ORDER in result.slices["gpu_order"].entries[0]["content"]


def test_for_latency_the_nearest_nic_counts_before_the_rate_of_all() -> None:
    # Two GPUs and a NIC on one switch, a second NIC as fast one switch further.
    chassis = Chassis()
    top = chassis.switch(0)
    inner = chassis.switch(top)
    chassis.gpu(inner)
    chassis.gpu(inner)
    chassis.nic(inner, "mlx5_0")
    chassis.nic(top, "mlx5_1")
    facts = chassis.facts()
    assert [gpu.nics for gpu in plan(facts, Policy()).gpus] == [("mlx5_0",), ("mlx5_1",)]
    near = plan(facts, _policy(workload="inference-latency"))
    assert [gpu.nics for gpu in near.gpus] == [("mlx5_0",), ("mlx5_0",)]
    assert near.bound.achieved_gbytes == 48
    assert near.bound.optimal is False
