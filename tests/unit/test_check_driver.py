"""After the driver: one version everywhere, no rival, held; and before a reboot, a module for every kernel."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from railwright.node.check import driver
from railwright.node.check.answer import is_open, rows
from railwright.node.check.gate import gate, planned_version
from railwright.node.model import (
    CudaTried,
    DriverUse,
    Fabric,
    Facts,
    FailedBuild,
    Finding,
    Module,
    Plan,
    Platform,
    Slice,
    Tool,
    Unit,
)
from railwright.node.model.software import Dkms, Kernel, Moved
from railwright.plan import fabric_manager, nvidia_driver
from tests.unit.stack_support import B200, H100, NEW, OLD, machine, policy, rail, software, with_driver

VERSION = "580.173.02"


def plan_for(facts: Facts, **more: Any) -> Plan:
    """A plan that has nothing but the driver and the fabric manager."""
    asked = policy(VERSION, **more)
    parts = {
        "nvidia_driver": nvidia_driver.slice_of(facts, asked)[0],
        "fabric_manager": fabric_manager.slice_of(facts, asked)[0],
    }
    slices: dict[str, Slice] = {name: part for name, part in parts.items() if part is not None}
    return Plan(schema="railwright.plan/1", status="planned", slices=slices)


def problems(facts: Facts, plan: Plan | None = None) -> dict[str, Finding]:
    found = [answer.finding for answer in driver.answers(plan or plan_for(facts), facts)]
    return {finding.code: finding for finding in found if finding is not None and is_open(finding)}


# ----- one version ---------------------------------------------------------------------------------------------------


def test_a_driver_that_is_whole_has_nothing_to_tell() -> None:
    facts = with_driver(machine(H100), VERSION, VERSION)
    assert problems(facts) == {}
    answered = {row["name"]: row for row in rows(driver.answers(plan_for(facts), facts))}
    assert answered["nvidia_driver.versions"]["ok"]
    assert answered["nvidia_driver.versions"]["detail"] == f"loaded module and 3 packages are all {VERSION}"


def test_user_space_that_moved_under_a_loaded_module_is_told_with_both_versions() -> None:
    """As one night of unattended-upgrades leaves it: 520.56.06 is loaded, nvidia-smi is of 525.85.12."""
    facts = with_driver(machine(H100), "525.85.12", "520.56.06")
    (told,) = (finding for code, finding in problems(facts).items() if code == "nvidia_driver.versions")
    assert "520.56.06: loaded module" in told.why
    assert "525.85.12: package" in told.why
    assert "last moved" not in told.why
    assert facts.software is not None
    moved = Moved(
        "2021-04-24 06:50:54", "/usr/bin/unattended-upgrade", "nvidia-utils 520.56.06-1 -> 525.85.12-1"
    )
    facts = replace(facts, software=replace(facts.software, moved=moved))
    assert problems(facts)["nvidia_driver.versions"].why.endswith(
        "; last moved 2021-04-24 06:50:54 by /usr/bin/unattended-upgrade: nvidia-utils 520.56.06-1 -> 525.85.12-1"
    )


def test_what_nvml_says_of_itself_is_a_witness_too() -> None:
    facts = with_driver(machine(H100), "580.178", "580.178")
    said = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.173\n"
    facts = replace(facts, tools=(Tool("nvidia-smi-query", ("nvidia-smi",), 18, said),))
    assert "580.173: NVML" in problems(facts)["nvidia_driver.versions"].why


# Five pairs of five sites, as the fabric manager's own messages tell them.
@pytest.mark.parametrize(
    ("manager", "loaded"),
    [
        ("590.48.01", "580.126.09"), ("530.30.02", "530.41.03"), ("550.127.05", "550.120"),
        ("550.90.07", "550.107.02"), ("525.85.12", "530.41.03"),
    ],
)  # fmt: skip
def test_a_fabric_manager_of_another_version_is_named(manager: str, loaded: str) -> None:
    facts = with_driver(machine(H100, switches=4), loaded, loaded, nvidia_fabricmanager=manager)
    told = problems(facts)["fabric_manager.version"]
    assert f"the fabric manager is {manager}, the loaded driver {loaded}" in told.why


def test_a_node_without_a_driver_and_without_a_plan_for_one_is_not_asked() -> None:
    facts = machine(H100)
    assert list(driver.answers(Plan(schema="railwright.plan/1", status="planned"), facts)) == []


def test_packages_without_a_loaded_module_are_not_called_good() -> None:
    facts = with_driver(machine(H100), VERSION, None)
    (row,) = (
        row for row in rows(driver.answers(plan_for(facts), facts)) if row["name"] == "nvidia_driver.versions"
    )
    assert row["skipped"]
    assert not row["ok"]


def test_nouveau_is_told_with_the_gpu_that_it_holds() -> None:
    facts = with_driver(machine(H100), VERSION, None)
    host = replace(facts.host, modules=(Module("nouveau"),))
    facts = replace(facts, host=host, pci=(replace(facts.pci[0], driver="nouveau"),))
    assert "nouveau is loaded and holds 0000:10:00.0" in problems(facts)["nvidia_driver.rival"].why


def test_nova_is_a_rival_like_nouveau() -> None:
    facts = with_driver(machine(H100), VERSION, None)
    facts = replace(facts, host=replace(facts.host, modules=(Module("nova_core"),)))
    assert "nova_core" in problems(facts)["nvidia_driver.rival"].why


def test_persistence_that_is_off_is_a_warning() -> None:
    facts = with_driver(machine(H100), VERSION, VERSION)
    facts = replace(facts, units=(Unit("nvidia-persistenced.service", "loaded", "inactive", "disabled"),))
    assert problems(facts)["nvidia_driver.persistence"].severity == "warning"


@pytest.mark.parametrize(
    ("state", "good"), [("Completed", True), ("In Progress", False), ("Not Started", False)]
)
def test_a_fabric_is_good_when_the_driver_says_completed(state: str, good: bool) -> None:
    facts = with_driver(machine(H100, switches=4), VERSION, VERSION, nvidia_fabricmanager=VERSION)
    facts = replace(facts, gpus=tuple(replace(gpu, fabric=Fabric(state)) for gpu in facts.gpus))
    assert ("fabric_manager.state" not in problems(facts)) is good


# ----- the gate ------------------------------------------------------------------------------------------------------


def test_every_kernel_with_its_module_lets_the_node_reboot() -> None:
    facts = with_driver(machine(H100), VERSION, VERSION)
    assert planned_version(plan_for(facts)) == VERSION
    assert gate(facts, plan_for(facts)) == ()


def test_a_plan_without_a_driver_asks_for_no_module() -> None:
    assert gate(machine(H100), Plan(schema="railwright.plan/1", status="planned")) == ()


def test_a_failed_build_keeps_the_old_kernel_and_names_the_log_its_first_error_and_what_works() -> None:
    facts = with_driver(machine(H100), VERSION, VERSION)
    known = facts.software
    assert known is not None
    error = "nv-pci.c:237:34: error: too few arguments to function 'pci_resize_resource'"
    log = f"/var/lib/dkms/nvidia/{VERSION}/build/make.log"
    facts = replace(
        facts,
        host=replace(facts.host, kernel=OLD),
        software=replace(known, dkms=(Dkms("nvidia", VERSION, OLD, "x86_64", "installed"),)),
        platform=Platform(failed_builds=(FailedBuild(log, NEW, error),)),
    )
    (said,) = gate(facts, plan_for(facts))
    assert said.startswith(f"kernel {NEW} has no module of driver {VERSION}")
    assert f"{log} says: {error}" in said
    assert f"the running kernel {OLD} has it and stays: no reboot" in said


def test_a_module_that_is_built_and_not_installed_is_no_module() -> None:
    facts = with_driver(machine(H100), VERSION, VERSION)
    known = facts.software
    assert known is not None
    dkms = tuple(replace(row, state="built") if row.kernel == NEW else row for row in known.dkms)
    assert len(gate(replace(facts, software=replace(known, dkms=dkms)), plan_for(facts))) == 1


def test_a_module_of_the_last_driver_is_no_module_of_this_one() -> None:
    facts = with_driver(machine(H100), "570.211.01", "570.211.01")
    assert len(gate(facts, plan_for(facts))) == 2


def test_missing_headers_are_told_as_the_cause() -> None:
    kernels = (Kernel(NEW, headers=False),)
    facts = machine(H100, software=software(kernels=kernels))
    assert "its headers are not installed" in gate(facts, plan_for(facts))[0]


def test_modules_of_the_distribution_count_where_dkms_has_none() -> None:
    modules = {"nvidia": "kernel/nvidia-580-open/nvidia.ko"}
    kernels = (Kernel(NEW, headers=True, modules=modules),)
    facts = machine(H100, software=software(kernels=kernels))
    assert gate(facts, plan_for(facts)) == ()


def test_what_modinfo_tells_decides_which_module_a_kernel_has() -> None:
    """An older module below kernel/ (a .run installer's) is none of the planned driver's, whatever lies beside it."""
    modules = {"nvidia": "kernel/drivers/video/nvidia.ko"}
    old, new = (Kernel(NEW, headers=True, modules=modules, driver=each) for each in ("570.211.01", VERSION))
    assert len(gate(machine(H100, software=software(kernels=(old,))), plan_for(machine(H100)))) == 1
    assert gate(machine(H100, software=software(kernels=(new,))), plan_for(machine(H100))) == ()
    facts = with_driver(machine(H100), VERSION, VERSION)
    assert facts.software is not None
    stale = replace(facts, software=replace(facts.software, kernels=(old,)))
    assert len(gate(stale, plan_for(stale))) == 1
    assert "module on disk (modinfo)" in problems(stale)["nvidia_driver.versions"].why


def test_modules_beside_the_driver_are_none_of_its_builds() -> None:
    """GPUDirect Storage builds nvidia-fs by DKMS, also beside modules that the distribution has built."""
    modules = {"nvidia": "kernel/nvidia-580-open/nvidia.ko"}
    kernels = (Kernel(NEW, headers=True, modules=modules),)
    storage = (Dkms("nvidia-fs", "2.26.6", NEW, "x86_64", "installed"),)
    facts = machine(H100, software=software(kernels=kernels, dkms=storage))
    assert gate(facts, plan_for(facts)) == ()


def test_a_module_of_the_kernel_that_only_ends_like_the_drivers_is_none() -> None:
    """Debian's 6.12 has typec_nvidia.ko."""
    modules = {"nvidia": "kernel/drivers/usb/typec/altmodes/typec_nvidia.ko.xz"}
    facts = machine(H100, software=software(kernels=(Kernel(NEW, headers=True, modules=modules),)))
    assert len(gate(facts, plan_for(facts))) == 1


# ----- who uses it ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("use", "busy"),
    [
        (DriverUse(None, None, 0), False),
        (DriverUse(3, 3, 0), False),  # uvm, modeset, peermem
        (DriverUse(12, 3, 9), False),  # and persistenced with eight GPUs and the control device
        (DriverUse(13, 3, 9), True),
        (DriverUse(4, 3, 0), True),
        (DriverUse(3, 3, 0, ("python3 (process 4711)",)), True),
    ],
)
def test_a_node_is_busy_when_the_module_is_held_more_often_than_by_its_own(
    use: DriverUse, busy: bool
) -> None:
    assert (use.busy is not None) is busy


def test_the_processes_that_use_a_gpu_are_named_without_the_drivers_own(tmp_path: Any) -> None:
    from railwright.node.driver_use import driver_use

    for number, (comm, targets) in {
        "7": ("nvidia-persiste", ["/dev/nvidia0", "/dev/nvidiactl"]),
        "8": ("python3", ["/dev/nvidia1", "/dev/null"]),
        "9": ("sshd", ["/dev/null", "/dev/nvidia-uvm"]),
    }.items():
        folder = tmp_path / "proc" / number / "fd"
        folder.mkdir(parents=True)
        (folder.parent / "comm").write_text(f"{comm}\n")
        for fd, target in enumerate(targets):
            (folder / str(fd)).symlink_to(target)
    module = tmp_path / "sys/module/nvidia"
    (module / "holders/nvidia_uvm").mkdir(parents=True)
    (module / "refcnt").write_text("4\n")
    use = driver_use(tmp_path)
    assert use == DriverUse(4, 1, 2, ("python3 (process 8)",))
    assert use.busy == "in use by python3 (process 8)"


class Cuda:
    """libcuda as far as it is used: memory that keeps what it is told, or one that does not."""

    def __init__(self, gpus: int, init: int = 0, lost: bool = False) -> None:
        self.gpus, self.init, self.lost = gpus, init, lost
        self.word = 0

    def cuInit(self, _flags: int) -> int:
        return self.init

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = self.gpus
        return 0

    def cuMemsetD32_v2(self, _memory: Any, word: Any, _count: Any) -> int:
        self.word = 0 if self.lost else word.value
        return 0

    def cuMemcpyDtoH_v2(self, back: Any, _memory: Any, _size: Any) -> int:
        back[:] = [self.word] * len(back)
        return 0

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: 0


@pytest.mark.parametrize(
    ("cuda", "ok", "word"),
    [
        (Cuda(2), True, "2 GPUs"),
        (Cuda(0), False, "finds no GPU"),
        (Cuda(8, init=802), False, "802: the NVLink fabric is not ready"),
        (Cuda(8, init=803), False, "different versions"),
        (Cuda(1, lost=True), False, "memory does not hold what was written"),
    ],
)
def test_cuda_is_good_when_memory_comes_back_as_it_was_written(cuda: Cuda, ok: bool, word: str) -> None:
    from railwright.node.driver_use import use_all

    tried = use_all(cuda)
    assert tried.ok is ok
    assert word in tried.why


def test_no_library_is_no_answer() -> None:
    from railwright.node.driver_use import try_cuda

    tried = try_cuda("libcuda-that-is-not-there.so.1")
    assert tried == CudaTried(None, (), tried.why)


# ----- fabric manager ------------------------------------------------------------------------------------------------


def test_a_node_without_switches_has_no_fabric_manager() -> None:
    """Two A40 with an NVLink bridge: a fabric manager ends there with NV_WARN_NOTHING_TO_DO."""
    facts = machine("0x2235", "0x2235")
    assert fabric_manager.slice_of(facts, policy())[0] is None
    versions = nvidia_driver.choose(facts, policy())[0]
    assert versions is not None
    assert versions.versions["nvidia-fabricmanager"] is None


def test_an_image_for_nvswitches_has_a_fabric_manager_wherever_it_is_baked_and_boots() -> None:
    asked = policy(image={"may_have": ["nvswitch"]})
    paths = [fabric_manager.CONDITION, fabric_manager.WANTED]
    for facts in (machine(), machine("0x2235", "0x2235"), machine(*[H100] * 8, switches=4)):
        made, findings = fabric_manager.slice_of(facts, asked)
        assert made is not None
        assert [row["path"] for row in made.entries] == paths
        assert [found.code for found in findings] == ([] if facts.gpus else ["fabric_manager.nvlsm.no_gpu"])
        chosen, _ = nvidia_driver.choose(facts, asked)
        assert chosen is not None
        assert chosen.versions["nvidia-fabricmanager"] == chosen.versions["nvidia-open"] == "580.173.02-1"


def test_an_image_for_nvlink_5_too_has_its_set_wherever_it_is_baked_and_boots() -> None:
    asked = policy(image={"may_have": ["nvswitch"]}, fabric_manager={"nvlsm": "2025.10.11-1"})
    switch = (rail("mlx5_8", management=True),)
    for facts in (machine(), machine(*[H100] * 8, switches=4), machine(B200, nics=switch)):
        made, findings = fabric_manager.slice_of(facts, asked)
        assert made is not None
        assert [row["path"] for row in made.entries] == [
            fabric_manager.IB_UMAD, fabric_manager.CONDITION, fabric_manager.WANTED,
        ]  # fmt: skip
        assert findings == []
        chosen, _ = nvidia_driver.choose(facts, asked)
        assert chosen is not None
        assert (chosen.versions["nvlsm"], chosen.versions["libnvsdm"]) == ("2025.10.11-1", "580.173.02-1")


def test_an_image_without_nvlsm_says_that_it_is_none_for_nvlink_5_at_the_bake_and_on_such_a_board() -> None:
    asked = policy(image={"may_have": ["nvswitch"]})
    chosen, _ = nvidia_driver.choose(machine(), asked)
    assert chosen is not None
    assert chosen.versions["libnvsdm"] is None
    (baked,) = fabric_manager.slice_of(machine(), asked)[1]
    (woken,) = fabric_manager.slice_of(machine(B200), asked)[1]
    assert (baked.code, baked.severity) == ("fabric_manager.nvlsm.no_gpu", "info")
    assert (woken.code, woken.severity, woken.where) == ("fabric_manager.unseen", "warning", "GPU0")
    for told in (baked, woken):
        assert "state policy.fabric_manager.nvlsm" in told.remedy


def test_an_image_that_says_nothing_of_nvswitches_is_told_how_to_ask_for_them() -> None:
    (told,) = fabric_manager.slice_of(machine(), policy())[1]
    assert (told.code, told.severity) == ("fabric_manager.no_gpu", "info")
    assert "policy.image.may_have: [nvswitch]" in told.remedy


@pytest.mark.parametrize(
    ("functions", "starts", "starts_with_nvlsm"),
    [
        # An HGX H100: four NVSwitches, PCI class "bridge, other".
        ([("0x10de", "0x068000", "0x22a3"), ("0x10de", "0x030200", "0x2330")], True, True),
        # An H100 PCIe, its bridge, and a bridge of somebody else's.
        ([("0x10de", "0x030200", "0x2331"), ("0x8086", "0x068000", "0x2901"), ("0x10de", "0x060400", "0x1a")],
         False, False),
        # B200: its switches show no PCI function of NVIDIA's, and are nothing without nvlsm.
        ([("0x10de", "0x030200", "0x2901")], False, True),
        ([], False, False),
    ],
)  # fmt: skip
def test_the_fabric_manager_of_an_image_starts_where_switches_are_that_its_set_is_for(
    functions: list[tuple[str, str, str]], starts: bool, starts_with_nvlsm: bool, tmp_path: Path
) -> None:
    for number, (vendor, kind, device) in enumerate(functions):
        place = tmp_path / f"0000:0{number}:00.0"
        place.mkdir()
        for name, text in (("vendor", vendor), ("class", kind), ("device", device)):
            (place / name).write_text(f"{text}\n", "ascii")
    for group, expected in (({}, starts), ({"nvlsm": "2025.10.11-1"}, starts_with_nvlsm)):
        asked = policy(image={"may_have": ["nvswitch"]}, fabric_manager=group)
        made, _ = fabric_manager.slice_of(machine(), asked)
        assert made is not None
        (text,) = (row["content"] for row in made.entries if row["path"] == fabric_manager.CONDITION)
        (line,) = (row for row in text.splitlines() if row.startswith("ExecCondition=/bin/sh -c '"))
        # As systemd hands it to the shell: two dollars are one (systemd.service(5), COMMAND LINES).
        script = line.split("'")[1].replace("$$", "$").replace("/sys/bus/pci/devices", str(tmp_path))
        assert subprocess.run(["sh", "-c", script], check=False).returncode == (0 if expected else 1)


def test_switches_get_one_of_the_drivers_version_that_nobody_starts() -> None:
    facts = machine(*[H100] * 8, switches=4)
    made, _ = fabric_manager.slice_of(facts, policy())
    assert made is not None
    (wanted,) = made.entries
    assert wanted["content"].endswith("[Unit]\nWants=nvidia-fabricmanager.service\n")
    chosen, _ = nvidia_driver.choose(facts, policy())
    assert chosen is not None
    assert chosen.versions["nvidia-fabricmanager"] == chosen.versions["nvidia-open"] == "580.173.02-1"
    assert "nvlsm" not in chosen.versions


def test_nvlink_5_without_nvlsm_is_refused_with_what_would_happen() -> None:
    facts = machine(B200, nics=(rail("mlx5_8", management=True),))
    made, findings = fabric_manager.slice_of(facts, policy())
    assert made is None
    assert "error 802" in findings[0].why
    assert findings[0].remedy == "state policy.fabric_manager.nvlsm"


def test_nvlink_5_gets_nvlsm_libnvsdm_and_ib_umad() -> None:
    facts = machine(B200, nics=(rail("mlx5_8", management=True),))
    asked = policy(fabric_manager={"nvlsm": "2025.10.11-1"})
    made, _ = fabric_manager.slice_of(facts, asked)
    chosen, _ = nvidia_driver.choose(facts, asked)
    assert made is not None
    assert chosen is not None
    assert [row["path"] for row in made.entries] == [fabric_manager.IB_UMAD, fabric_manager.WANTED]
    assert chosen.versions["nvlsm"] == "2025.10.11-1"
    assert chosen.versions["libnvsdm"] == "580.173.02-1"
    assert chosen.versions["nvidia-imex"] is None


def test_imex_comes_only_where_the_fabric_reaches_over_nodes() -> None:
    facts = machine(B200, nics=(rail("mlx5_8", management=True),))
    asked = policy(fabric_manager={"nvlsm": "2025.10.11-1"})
    cluster = Fabric("Completed", "Success", "0a1b2c3d-0000-0000-0000-000000000001", 1)
    facts = replace(facts, gpus=tuple(replace(gpu, fabric=cluster) for gpu in facts.gpus))
    chosen, _ = nvidia_driver.choose(facts, asked)
    made, _ = fabric_manager.slice_of(facts, asked)
    assert chosen is not None
    assert made is not None
    assert chosen.versions["nvidia-imex"] == "580.173.02-1"
    assert fabric_manager.IMEX_SERVICE in made.entries[-1]["content"]


def test_boards_whose_switches_do_not_show_are_a_warning() -> None:
    _, findings = fabric_manager.slice_of(machine(*[B200] * 8), policy())
    assert [finding.code for finding in findings] == ["fabric_manager.unseen"]


def test_a_partition_mode_is_the_whole_file_and_takes_a_reset() -> None:
    facts = machine(*[H100] * 8, switches=4)
    made, findings = fabric_manager.slice_of(facts, policy(fabric_manager={"partition_mode": "shared"}))
    assert made is not None
    (config,) = (row for row in made.entries if row["path"] == fabric_manager.CONFIG)
    assert "\nFABRIC_MODE=1\n" in config["content"]
    assert config["reboot"]
    assert [finding.code for finding in findings] == ["fabric_manager.partition_mode"]


def test_a_failed_fabric_manager_is_never_to_be_just_restarted() -> None:
    facts = machine(*[H100] * 8, switches=4)
    facts = replace(facts, units=(Unit("nvidia-fabricmanager.service", "loaded", "failed", "enabled"),))
    _, findings = fabric_manager.slice_of(facts, policy())
    assert "drain the node, reset all GPUs and start it, or reboot" in findings[0].remedy
