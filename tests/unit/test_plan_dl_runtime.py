"""What the plan has for jobs: environments, servers on the plan's GPUs and cores, images, a self-test."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import zipapp
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from railwright.node.model import (
    Facts,
    Finding,
    InputError,
    NvlinkDomain,
    Plan,
    PlannedGpu,
    Policy,
    Slice,
    to_json,
)
from railwright.node.model.wheel_lock import read_lock
from railwright.plan import dl_runtime, plan
from railwright.plan.slices import INSTALL_SLICES
from railwright.plan.stack import frameworks
from tests.unit.plan_machines import cores, hgx
from tests.unit.stack_support import H100, machine

SHA = "a" * 64


def lock(**versions: str) -> str:
    return "".join(f"{name.replace('_', '-')}=={one} --hash=sha256:{SHA}\n" for name, one in versions.items())


TRAIN = lock(torch="2.9.1+cu130", nvidia_nccl_cu13="2.27.7")
SERVE = lock(torch="2.9.1+cu130", vllm="0.11.0", sglang="0.5.4")


def asked(
    *, servers: dict[str, Any] | None = None, more: dict[str, Any] | None = None, **group: Any
) -> Policy:
    environments = {
        "train": {"lock": TRAIN, "wheelhouse": "/srv/w"},
        "serve": {"lock": SERVE, "profile": "inference", "indexes": ["https://mirror.example/simple"]},
    }
    group = {"environments": environments, "servers": servers or {}, **group}
    return Policy.read({"dl_runtime": group, **(more or {})})


def server(**more: Any) -> dict[str, Any]:
    return {"environment": "serve", "engine": "vllm", "model": "/srv/models/m", **more}


def gpus(count: int = 8, numas: int = 2) -> list[PlannedGpu]:
    """GPUs as the planner hands them over: four cores each, half of them on each NUMA node."""
    return [
        PlannedGpu(
            n,
            f"GPU{n}",
            f"0000:{0x10 + n:02x}:00.0",
            n * numas // count,
            n,
            (),
            None,
            f"{4 * n}-{4 * n + 3}",
            "",
        )
        for n in range(count)
    ]


def made(policy: Policy, facts: Facts | None = None, **more: Any) -> tuple[Slice | None, list[Finding]]:
    return dl_runtime.slice_of(facts or machine(H100), policy, more.pop("gpus", gpus()), **more)


def entries(policy: Policy, **more: Any) -> list[dict[str, Any]]:
    found, _ = made(policy, **more)
    assert found is not None
    return list(found.entries)


def texts(policy: Policy, **more: Any) -> dict[str, str]:
    return {entry["path"]: entry["content"] for entry in entries(policy, **more) if entry["kind"] == "file"}


def codes(findings: list[Finding]) -> dict[str, str]:
    return {finding.code: finding.severity for finding in findings}


def test_a_policy_without_the_group_has_no_slice_and_its_digest_stays() -> None:
    assert made(Policy()) == (None, [])
    assert "dl_runtime" in INSTALL_SLICES
    assert (
        INSTALL_SLICES.index("container_runtime")
        < INSTALL_SLICES.index("dl_runtime")
        < INSTALL_SLICES.index("limits")
    )


def test_an_environment_is_planned_with_its_lock_and_where_its_wheels_come_from() -> None:
    serve, train = (one for one in entries(asked()) if one["kind"] == "python_environment")
    assert (train["name"], train["wheelhouse"], train["python"]) == ("train", "/srv/w", "/usr/bin/python3")
    assert "indexes" not in train
    assert serve["indexes"] == ["https://mirror.example/simple"]
    assert read_lock(train["lock"], "lock").digest == read_lock(TRAIN, "lock").digest


def test_the_self_test_lies_beside_and_is_one_program_that_needs_nothing(tmp_path: Path) -> None:
    text = texts(asked())[dl_runtime.SELF_TEST]
    tree = ast.parse(text)
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level]
    place = tmp_path / "self_test.py"
    place.write_text(text)
    helped = subprocess.run(
        [sys.executable, "-I", place, "--help"], capture_output=True, text=True, check=True, cwd="/"
    ).stdout
    assert "--measure" in helped


def test_the_same_text_comes_out_of_a_zipapp(tmp_path: Path) -> None:
    """First boot plans from an archive."""
    source = Path(dl_runtime.__file__).parents[1]
    shutil.copytree(source, tmp_path / "app/railwright", ignore=shutil.ignore_patterns("__pycache__"))
    zipapp.create_archive(tmp_path / "app", tmp_path / "app.pyz", main="railwright.plan.dl_runtime:slice_of")
    program = f"import sys; sys.path.insert(0, {str(tmp_path / 'app.pyz')!r})\n"
    program += "from railwright.plan import dl_runtime; sys.stdout.write(dl_runtime._source())"
    said = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert said == texts(asked())[dl_runtime.SELF_TEST]


# ----- what stands against a lock ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "cuda"),
    [
        (lock(torch="2.13.0+cpu"), "cpu"),
        (lock(torch="2.9.1+cu128"), "12.8"),
        (lock(torch="2.9.1+cu130"), "13.0"),
        (lock(torch="2.9.1", nvidia_cuda_runtime_cu12="12.8.90"), "12.8"),
        (lock(torch="2.10.0", nvidia_cuda_runtime="13.0.96"), "13.0"),
        (lock(torch="2.9.1"), None),
    ],
)
def test_the_cuda_of_a_lock_is_told_by_its_own_names(text: str, cuda: str | None) -> None:
    assert frameworks.cuda_of(read_lock(text, "lock")) == cuda


def test_a_profile_without_its_package_is_no_environment_and_has_no_server() -> None:
    policy = asked(environments={"serve": {"lock": TRAIN, "profile": "inference", "wheelhouse": "/w"}})
    policy = replace(policy, dl_runtime=replace(policy.dl_runtime, servers={}))  # type: ignore[type-var]
    found, said = made(policy)
    assert found is None
    (error,) = said
    assert error.severity == "error"
    assert error.why == "the profile is inference, and the lock has no vllm and no sglang"


# The least drivers of CUDA 12.0 and 13.0 (CUDA release notes, table of minimum drivers).
@pytest.mark.parametrize(
    ("driver", "severity"),
    [
        ("580.65.06", None),
        ("580.173.02", None),
        ("580.65.05", "error"),
        ("535.261.03", "error"),
        ("440.33.01", "error"),
    ],
)
def test_a_driver_that_is_too_old_for_the_build_is_told_before_anything_is_installed(
    driver: str, severity: str | None
) -> None:
    _, said = made(asked(more={"driver": {"version": driver}}))
    assert codes(said).get("dl_runtime.driver") == severity


def test_a_driver_that_is_there_counts_where_the_policy_names_none() -> None:
    facts = machine(H100)
    _, said = made(asked(), replace(facts, host=replace(facts.host, driver="535.261.03")))
    (why,) = {finding.why for finding in said if finding.code == "dl_runtime.driver"}
    assert "built for CUDA 13.0, and driver 535.261.03 runs programs of CUDA 12" in why


def test_a_cpu_build_on_a_node_with_gpus_is_a_warning() -> None:
    environments = {"train": {"lock": lock(torch="2.13.0+cpu"), "wheelhouse": "/w"}}
    assert codes(made(asked(environments=environments))[1]) == {"dl_runtime.cpu_build": "warning"}
    assert made(asked(environments=environments), machine())[1] == []


def test_wheels_that_bring_another_nccl_than_the_one_that_is_meant_are_told() -> None:
    _, said = made(asked(more={"nccl": {"version": "2.30.7"}}))
    (told,) = (finding for finding in said if finding.code == "dl_runtime.nccl")
    assert "bring NCCL 2.27.7" in told.why
    assert "railwright audit libraries" in told.remedy
    assert codes(made(asked(more={"nccl": {"version": "2.27.7"}}))[1]) == {}


# ----- servers -------------------------------------------------------------------------------------------------------


def env(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if not line.startswith("#"))


def test_each_replica_has_its_gpus_in_pci_order_its_cores_and_its_port() -> None:
    found = texts(asked(servers={"m": server(tensor_parallel=4)}), nccl={"NCCL_IB_HCA": "=mlx5_0:1"})
    first, second = (env(found[f"/etc/railwright/serve/m-{n}.env"]) for n in (0, 1))
    assert first == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "0,1,2,3",
        "RAILWRIGHT_PORT": "8000",
        "NCCL_IB_HCA": "=mlx5_0:1",
    }
    assert (second["CUDA_VISIBLE_DEVICES"], second["RAILWRIGHT_PORT"]) == ("4,5,6,7", "8001")
    drop_in = found["/etc/systemd/system/railwright-serve-m@1.service.d/60-railwright.conf"]
    assert drop_in.splitlines()[1:] == [
        "[Service]",
        "CPUAffinity=16-31",
        "NUMAPolicy=preferred",
        "NUMAMask=1",
    ]


@pytest.mark.parametrize(
    ("engine", "command"),
    [
        (
            "vllm",
            "bin/vllm serve /srv/models/m --tensor-parallel-size 2 --host 127.0.0.1 --port ${RAILWRIGHT_PORT}",
        ),
        (
            "sglang",
            "bin/python -m sglang.launch_server --model-path /srv/models/m --tp-size 2 --host 127.0.0.1 "
            "--port ${RAILWRIGHT_PORT}",
        ),
    ],
)
def test_the_unit_runs_the_engine_of_the_environment_that_is_meant(engine: str, command: str) -> None:
    unit = texts(
        asked(servers={"m": server(engine=engine, tensor_parallel=2, arguments=["--max-model-len", "4096"])})
    )
    text = unit["/etc/systemd/system/railwright-serve-m@.service"]
    assert f"ExecStart=/opt/railwright/serve/current/{command} --max-model-len 4096\n" in text
    assert "DynamicUser=yes\n" in text
    # The engines look for ninja when they start.
    assert "\nEnvironment=PATH=/opt/railwright/serve/current/bin:/usr/local/sbin:" in text


def test_systemd_itself_reads_the_unit(tmp_path: Path) -> None:
    """systemd-analyze is the witness; the program that is not there is its only complaint."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    found = texts(asked(servers={"m": server(tensor_parallel=4)}))
    place = tmp_path / "railwright-serve-m@0.service"
    drop_in = tmp_path / f"{place.name}.d/60-railwright.conf"
    drop_in.parent.mkdir()
    place.write_text(found["/etc/systemd/system/railwright-serve-m@.service"])
    drop_in.write_text(found["/etc/systemd/system/railwright-serve-m@0.service.d/60-railwright.conf"])
    said = subprocess.run(["systemd-analyze", "verify", place], capture_output=True, text=True, check=False)
    told = [
        line
        for line in said.stderr.splitlines()
        if "railwright-serve" in line and "not executable" not in line
    ]
    assert told == [], said.stderr


def test_gpus_that_share_nvlinks_stay_together() -> None:
    """Four pairs that are linked crosswise: 0-2, 1-3, 4-6, 5-7."""
    pairs = [("GPU0", "GPU2"), ("GPU1", "GPU3"), ("GPU4", "GPU6"), ("GPU5", "GPU7")]
    domains = [NvlinkDomain(pair, "pair", 4, None, "", None, None, "") for pair in pairs]
    found = texts(asked(servers={"m": server(tensor_parallel=2)}), domains=domains)
    visible = [env(found[f"/etc/railwright/serve/m-{n}.env"])["CUDA_VISIBLE_DEVICES"] for n in range(4)]
    assert visible == ["0,2", "1,3", "4,6", "5,7"]


def test_two_servers_never_share_a_gpu_and_one_that_finds_too_few_is_refused() -> None:
    servers = {
        "a": server(tensor_parallel=4, replicas=1),
        "b": server(tensor_parallel=2, port=9000),
        "c": server(port=9100),
    }
    found, said = made(asked(servers=servers))
    assert found is not None
    shown = [
        env(entry["content"])["CUDA_VISIBLE_DEVICES"]
        for entry in found.entries
        if entry.get("path", "").endswith(".env")
    ]
    assert shown == ["0,1,2,3", "4,5", "6,7"]
    (refused,) = (finding for finding in said if finding.severity == "error")
    assert refused.where == "policy.dl_runtime.servers.c"
    assert "8 GPUs 0 with cores in the plan are left" in refused.why


@pytest.mark.parametrize(
    ("port", "why"),
    [
        (8003, "8003 is a port of a, too"),
        (7999, "8000 is a port of a, too (4 from 7999 on are asked for)"),
        (8004, None),
        (65533, "4 ports from 65533 on end at 65536"),
    ],
)
def test_every_replica_has_a_port_of_its_own_or_the_server_is_refused(port: int, why: str | None) -> None:
    servers = {"a": server(replicas=4), "b": server(port=port)}
    found, said = made(asked(servers=servers))
    assert found is not None
    shown = [entry["path"] for entry in found.entries if entry.get("path", "").endswith(".env")]
    assert len(shown) == (8 if why is None else 4)
    told = [finding.why for finding in said if finding.code == "dl_runtime.ports"]
    assert (not told) if why is None else (why in told[0])


def test_an_engine_that_the_lock_has_not_got_is_refused() -> None:
    serve = {"lock": lock(torch="2.9.1+cu130", sglang="0.5.4"), "profile": "inference", "wheelhouse": "/w"}
    found, said = made(asked(environments={"serve": serve}, servers={"m": server()}))
    assert found is not None
    assert not [entry for entry in found.entries if "serve-m" in entry.get("path", "")]
    (told,) = (finding for finding in said if finding.code == "dl_runtime.engine")
    assert told.why == "it is vllm, and the lock of the environment serve has no vllm"


def test_a_gpu_that_is_cut_into_instances_serves_nobody() -> None:
    facts = machine(H100)
    facts = replace(facts, gpus=(replace(facts.gpus[0], name="GPU1", mig=True),))
    found, _ = made(asked(servers={"m": server(tensor_parallel=4)}), facts)
    assert found is not None
    shown = [
        env(entry["content"])["CUDA_VISIBLE_DEVICES"]
        for entry in found.entries
        if entry.get("path", "").endswith(".env")
    ]
    assert shown == ["0,2,3,4"]


# nvcc's manual, "GPU Feature List": Hopper from 11.8 on; H100 is 9.0.
@pytest.mark.parametrize(("build", "severity"), [("cu117", "error"), ("cu118", None), ("cu130", None)])
def test_a_build_whose_cuda_makes_no_code_for_a_gpu_is_an_error(build: str, severity: str | None) -> None:
    environments = {"train": {"lock": lock(torch=f"2.0.1+{build}"), "wheelhouse": "/w"}}
    found, said = made(asked(environments=environments))
    assert codes(said).get("dl_runtime.architecture") == severity
    assert (found is None) == (severity is not None)


def test_a_replica_over_two_numa_nodes_is_told_and_its_memory_left_to_the_kernel() -> None:
    found, said = made(asked(servers={"m": server(tensor_parallel=8)}))
    assert found is not None
    assert codes(said)["dl_runtime.span"] == "info"
    (drop_in,) = (
        entry["content"] for entry in found.entries if entry.get("path", "").endswith("60-railwright.conf")
    )
    assert drop_in.splitlines()[1:] == ["[Service]", "CPUAffinity=0-31"]


def test_nothing_is_started_and_enabled_only_where_it_is_asked_for() -> None:
    quiet, said = made(asked(servers={"m": server(tensor_parallel=4)}))
    assert quiet is not None
    assert [entry for entry in quiet.entries if entry["kind"] == "systemd_unit"] == []
    (told,) = (finding for finding in said if finding.code == "dl_runtime.servers")
    assert told.remedy.startswith("systemctl start railwright-serve-m@{0..1}")
    loud = entries(asked(servers={"m": server(tensor_parallel=4, enabled=True)}))
    units = [entry for entry in loud if entry["kind"] == "systemd_unit"]
    assert units == [
        {"kind": "systemd_unit", "name": f"railwright-serve-m@{n}.service", "enabled": True} for n in (0, 1)
    ]


def test_the_planner_hands_over_its_own_gpus_cores_and_nccl_values() -> None:
    facts = hgx().facts()
    cpus, numa = cores(2, 2, 32)
    facts = replace(facts, cpus=cpus, numa=numa)
    whole: Plan = plan(facts, asked(servers={"m": server(tensor_parallel=4)}))
    by_path = {entry.get("path"): entry for entry in whole.slices["dl_runtime"].entries}
    found = env(by_path["/etc/railwright/serve/m-0.env"]["content"])
    assert {key: found[key] for key in whole.nccl} == whole.nccl
    ranks = [rank for rank in whole.ranks if str(rank.rank) in found["CUDA_VISIBLE_DEVICES"].split(",")]
    affinity = by_path["/etc/systemd/system/railwright-serve-m@0.service.d/60-railwright.conf"]["content"]
    told = [line for line in affinity.splitlines() if line.startswith("CPUAffinity=")]
    wanted = sorted({cpu for rank in ranks for cpu in _cpus(rank.cpus)})
    assert sorted(_cpus(told[0].partition("=")[2])) == wanted
    assert Plan.read(to_json(whole)) == whole


def _cpus(text: str | None) -> list[int]:
    found = []
    for part in (text or "").split(","):
        first, _, last = part.partition("-")
        found += list(range(int(first), int(last or first) + 1))
    return found


# ----- images and the policy -----------------------------------------------------------------------------------------


def test_images_are_entries_with_their_digest() -> None:
    image = f"registry.example/team/pytorch:25.10@sha256:{SHA}"
    found = [
        one for one in entries(asked(images=[image], image_tool="docker")) if one["kind"] == "container_image"
    ]
    assert found == [{"kind": "container_image", "image": image, "tool": "docker"}]


@pytest.mark.parametrize(
    ("group", "where"),
    [
        ({"images": ["registry.example/pytorch:latest"]}, "images[0]"),
        ({"images": ["pytorch"]}, "images[0]"),
        ({"image_tool": "rkt"}, "image_tool"),
        ({"environments": {"train": {"lock": TRAIN}}}, "environments.train"),
        (
            {"environments": {"train": {"lock": TRAIN, "wheelhouse": "/w", "indexes": ["https://x"]}}},
            "environments.train",
        ),
        ({"environments": {"train": {"lock": TRAIN, "wheelhouse": "srv"}}}, "wheelhouse"),
        ({"environments": {"Train": {"lock": TRAIN, "wheelhouse": "/w"}}}, "environments"),
        ({"environments": {"train": {"lock": "torch", "wheelhouse": "/w"}}}, "lock, line 1"),
        (
            {"environments": {"train": {"lock": TRAIN, "indexes": ["https://me:hunter2@x/simple"]}}},
            "indexes[0]",
        ),
        ({"servers": {"m": server(environment="train")}}, "servers.m.environment"),
        ({"servers": {"m": server(engine="tgi")}}, "servers.m.engine"),
        ({"servers": {"m": server(tensor_parallel=0)}}, "servers.m"),
        ({"servers": {"m": server(model="a b")}}, "servers.m.model"),
        ({"servers": {"m": server(arguments=["$(reboot)"])}}, "servers.m.arguments[0]"),
        ({"servers": {"m": server(arguments=["--api-key=hunter2"])}}, "servers.m.arguments[0]"),
        ({"servers": {"m": server(arguments=["--port", "1"])}}, "servers.m.arguments[0]"),
        ({"servers": {"m": server(arguments=["-tp=8"])}}, "servers.m.arguments[0]"),
        # argparse takes the beginning of a word for the word, and vLLM takes _ for -.
        ({"servers": {"m": server(arguments=["--api_key=hunter2"])}}, "servers.m.arguments[0]"),
        ({"servers": {"m": server(arguments=["--api-k", "hunter2"])}}, "servers.m.arguments[0]"),
        ({"servers": {"m": server(arguments=["--tensor_parallel_size=8"])}}, "servers.m.arguments[0]"),
        ({"servers": {"m": server(arguments=["--por=1"])}}, "servers.m.arguments[0]"),
        ({"servers": {"m": server(arguments=["x", "hunter2!"])}}, "servers.m.arguments[1]"),
        ({"servers": {"m": server(model="--api-key=hunter2")}}, "servers.m.model"),
        ({"servers": {"m": server(host="../x")}}, "servers.m.host"),
        ({"environments": {"t": {"lock": TRAIN, "indexes": ["https:\\\\me:hunter2\\x"]}}}, "indexes[0]"),
        ({"environments": {"t": {"lock": TRAIN, "indexes": ["https://x/simple#hunter2"]}}}, "indexes[0]"),
        ({"environments": {"t": {"lock": TRAIN, "indexes": ["https://:"]}}}, "indexes[0]"),
        ({"environments": {"t": {"lock": TRAIN, "wheelhouse": "//srv"}}}, "wheelhouse"),
        ({"images": [f"me:hunter2@registry.example/pytorch@sha256:{SHA}"]}, "images[0]"),
        (
            {"environments": {"t": {"lock": TRAIN, "indexes": ["http://x/simple"], "netrc": "/etc/netrc"}}},
            "environments.t.netrc",
        ),
    ],
)
def test_a_policy_that_cannot_be_is_refused_with_its_place_and_without_secrets(
    group: dict[str, Any], where: str
) -> None:
    with pytest.raises(InputError) as error:
        asked(**group)
    assert f"policy.dl_runtime.{where}" in str(error.value) or where in str(error.value)
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize("group", [{}, {"image_tool": "docker"}])
def test_a_group_that_names_nothing_is_refused_and_told_what_to_write(group: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="environments, servers or images, or leave the group out"):
        Policy.read({"dl_runtime": group})


@pytest.mark.parametrize("word", ["--ssl-keyfile=/etc/key.pem", "--max-model-len", "--served-model-name=m"])
def test_words_of_the_engines_own_that_begin_like_others_are_taken(word: str) -> None:
    asked(servers={"m": server(arguments=[word])})


def test_blanks_of_a_lock_are_one_however_many_and_change_nothing() -> None:
    hash_ = f"--hash=sha256:{SHA}"
    few = read_lock(f'a==1 ; python_version > "3.8" {hash_}', "lock")
    assert read_lock(f'a==1  ;   python_version  > "3.8"\t\t{hash_}', "lock") == few
    # Each split of these would be tried, which is a question of minutes.
    with pytest.raises(InputError, match="a is not pinned to one version"):
        read_lock(f"a==1;{' ' * 200_000}\u00e9 {hash_}", "lock")
