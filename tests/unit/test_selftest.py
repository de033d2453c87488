"""What the self-test says of machines that it may meet; what torch and libcuda say is given."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from railwright.node import selftest
from railwright.node.check.runtimes import environment
from railwright.node.discover.runtimes import read_runtimes
from railwright.node.discover.tree import Tree
from railwright.node.libraries import audit
from railwright.node.model import Facts
from railwright.node.model.wheel_lock import read_lock
from tests.unit.stack_support import machine
from tests.unit.test_libraries import library

DEVICE = {"name": "NVIDIA H100 80GB HBM3", "bytes": 85 << 30, "capability": "9.0"}
TORCH = {
    "version": "2.9.1+cu130",
    "path": "/x",
    "cuda": "13.0",
    "available": True,
    "nccl": "2.27.7",
    "devices": [DEVICE],
}
GPU = {"pci": "0000:18:00.0", "driver": "nvidia"}
LOCK = f"torch==2.9.1 --hash=sha256:{'a' * 64}\n"
VERSION = f"{read_lock(LOCK, 'lock').digest[:12]}-py3.12"


def found(**changes: Any) -> dict[str, Any]:
    torch = {**TORCH, **changes.pop("torch", {})}
    whole = {
        "python": "3.12.3",
        "prefix": f"/opt/railwright/train/{VERSION}",
        "visible": None,
        "gpus": [GPU],
        "switches": [],
        "driver": "580.173.02",
        "nodes": ["nvidia0"],
        "libcuda": {"init": 0, "cuda": [13, 0]},
        "torch": torch,
        "nccl_loaded": [],
    }
    return {**whole, **changes}


def dark(**changes: Any) -> dict[str, Any]:
    """torch.cuda.is_available() is False."""
    torch = {
        "available": False,
        "devices": [],
        "says": "No CUDA GPUs are available",
        **changes.pop("torch", {}),
    }
    return found(torch=torch, **changes)


def problem(page: dict[str, Any]) -> dict[str, str]:
    code, problems = selftest.judge(page)
    assert code == selftest.BROKEN
    (only,) = problems
    return only


def test_cuda_that_sees_every_gpu_of_the_bus_is_good() -> None:
    assert selftest.judge(found()) == (0, [])


def test_a_machine_without_a_gpu_has_its_own_code() -> None:
    assert selftest.judge(dark(gpus=[], driver=None, libcuda={"missing": "x"})) == (4, [])
    # GPUs that are kept for virtual machines are not this system's.
    assert selftest.judge(dark(gpus=[{**GPU, "driver": "vfio-pci"}]))[0] == 4


def test_torch_that_cannot_be_imported_is_a_fault_with_a_gpu_and_without() -> None:
    page = {**found(gpus=[]), "torch": {"missing": "ImportError: libcudnn.so.9"}}
    assert problem(page)["why"] == "torch cannot be imported: ImportError: libcudnn.so.9"


@pytest.mark.parametrize(
    ("page", "code", "words"),
    [
        (
            dark(torch={"cuda": None, "version": "2.13.0+cpu"}),
            "cpu_build",
            "torch 2.13.0+cpu is a CPU build, and 1 GPU is",
        ),
        (
            dark(driver=None, gpus=[{**GPU, "driver": "nouveau"}], libcuda={"missing": "x"}),
            "no_driver",
            "1 GPU is on the bus (nouveau holds it), and the module nvidia is not loaded",
        ),
        (dark(visible=""), "hidden", "CUDA_VISIBLE_DEVICES is '', which hides every GPU"),
        (dark(visible="-1"), "hidden", "'-1', which hides every GPU"),
        (dark(visible="7"), "hidden", "'7', and none of it is a GPU here"),
        (dark(libcuda={"missing": "libcuda.so.1: cannot open"}), "no_libcuda", "libcuda.so.1 cannot be"),
        (
            dark(driver="535.261.03", libcuda={"init": 0, "cuda": [12, 2]}),
            "old_driver",
            "driver 535.261.03 speaks CUDA 12.2, and torch 2.9.1+cu130 is built for 13.0: the driver is too old",
        ),
        (
            dark(libcuda={"init": 802, "cuda": [13, 0]}, switches=[{"pci": "x", "driver": None}] * 4),
            "init",
            "cuInit says 802, CUDA_ERROR_SYSTEM_NOT_READY; 4 NVSwitches are on the bus",
        ),
        (dark(libcuda={"init": 803, "cuda": [13, 0]}), "init", "803, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
        (dark(libcuda={"init": 4711, "cuda": [13, 0]}), "init", "cuInit says 4711, an error"),
        (dark(nodes=[]), "no_nodes", "/dev has no nvidia0"),
        (dark(), "unknown", "torch says: No CUDA GPUs are available"),
        (found(gpus=[GPU, GPU]), "missing_gpu", "CUDA sees 1 of the 2 GPUs on the bus"),
        (
            found(gpus=[GPU, GPU], instances=14),
            "mig",
            "sees 1 of the 2 GPUs on the bus: they are cut into 14 GPU instances",
        ),
        # An index that is not there ends the list (CUDA programming guide, CUDA_VISIBLE_DEVICES).
        (found(gpus=[GPU] * 8, visible="0,9,1"), "hidden", "'0,9,1', and CUDA sees 1"),
        (
            found(gpus=[GPU] * 8, container=True, nodes=["nvidia0", "nvidia1"]),
            "missing_gpu",
            "sees 1 of the 2",
        ),
        (
            found(torch={"devices": [{**DEVICE, "fails": "AcceleratorError: no kernel image"}]}),
            "dead_gpu",
            "GPU 0 (NVIDIA H100 80GB HBM3, compute capability 9.0) computes nothing: AcceleratorError: no kernel",
        ),
    ],
)
def test_cuda_that_should_work_and_does_not_is_told_with_its_cause(
    page: dict[str, Any], code: str, words: str
) -> None:
    told = problem(page)
    assert told["code"] == f"self_test.{code}"
    assert words in told["why"]
    assert told["remedy"]


def test_the_fabric_manager_is_named_where_the_switches_are_not_set_up() -> None:
    assert "nvidia-fabricmanager" in problem(dark(libcuda={"init": 802}))["remedy"]


def test_gpus_that_somebody_hides_on_purpose_are_no_fault() -> None:
    assert selftest.judge(found(gpus=[GPU, GPU], visible="0"))[0] == selftest.GOOD
    assert selftest.judge(found(gpus=[GPU, GPU], visible="0,-1,1"))[0] == selftest.GOOD
    # A container that was given one of eight.
    assert selftest.judge(found(gpus=[GPU] * 8, container=True))[0] == selftest.GOOD


class Sum:
    """As much of a tensor as the self-test uses."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __mul__(self, other: int) -> Sum:
        return self

    def sum(self) -> Sum:
        return self

    def item(self) -> float:
        return self.value


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (2048.0, None),
        (2047.0, "1024 times 2 is 2047.0"),
        (None, "RuntimeError: CUDA error: no kernel image is available"),
    ],
)
def test_each_gpu_computes_something_before_it_is_good(value: float | None, told: str | None) -> None:
    class Torch:
        @staticmethod
        def ones(count: int, device: str) -> Sum:
            assert (count, device) == (1024, "cuda:3")
            if value is None:
                raise RuntimeError("CUDA error: no kernel image is available\nmore")
            return Sum(value)

    assert selftest._fails(Torch, 3) == told


def test_gpu_instances_are_counted_where_the_driver_lists_them(tmp_path: Path) -> None:
    for place in ("gpu0/mig/gi1/ci0", "gpu0/mig/gi2", "gpu1/mig"):
        (tmp_path / "proc/driver/nvidia/capabilities" / place).mkdir(parents=True)
    assert selftest.instances(tmp_path) == 2


def test_a_rank_that_fails_is_named_while_the_others_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "ranks.py"
    program.write_text(
        "import sys, time\n"
        "if sys.argv[3] == '1':\n"
        "    sys.exit('NCCL error: unhandled system error')\n"
        "time.sleep(120)\n"
    )
    monkeypatch.setattr(selftest, "__file__", str(program))
    monkeypatch.setattr(selftest, "_LIMIT_SECONDS", 60)
    with pytest.raises(RuntimeError, match="rank 1 of reduce: NCCL error: unhandled system error"):
        selftest.run_ranks("reduce", 2)


def test_a_test_that_dies_leaves_no_page_of_an_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "train.json"
    page.write_text(json.dumps(page_of(found())))

    def dies(asked: Any) -> Any:
        raise SystemExit(139)

    monkeypatch.setattr(selftest, "report", dies)
    with pytest.raises(SystemExit):
        selftest.main(["--write", str(page)])
    assert not page.exists()


# The numbers of cuda.h 13.0.
@pytest.mark.parametrize("number", [2, 34, 46, 100, 802, 803, 804, 999])
def test_every_error_that_is_known_has_a_name_and_a_remedy(number: int) -> None:
    told = problem(dark(libcuda={"init": number, "cuda": [13, 0]}))
    assert f"{number}, CUDA_ERROR_" in told["why"]


def bus(folder: Path, *functions: tuple[str, str, str, str | None]) -> Path:
    for address, vendor, kind, driver in functions:
        place = folder / "sys/bus/pci/devices" / address
        place.mkdir(parents=True)
        (place / "vendor").write_text(f"{vendor}\n")
        (place / "class").write_text(f"{kind}\n")
        if driver:
            (place / "driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")
    return folder


def test_gpus_and_switches_are_found_on_the_bus_without_any_driver(tmp_path: Path) -> None:
    root = bus(
        tmp_path,
        ("0000:18:00.0", "0x10de", "0x030200", "nvidia"),
        ("0000:19:00.0", "0x10de", "0x030000", None),
        ("0000:05:00.0", "0x10de", "0x068000", "nvidia-nvswitch"),
        ("0000:18:00.1", "0x10de", "0x040300", "snd_hda_intel"),
        ("0000:0a:00.0", "0x1a03", "0x030000", "ast"),
    )
    assert selftest.on_the_bus(root / "sys") == {
        "gpus": [{"pci": "0000:18:00.0", "driver": "nvidia"}, {"pci": "0000:19:00.0", "driver": None}],
        "switches": [{"pci": "0000:05:00.0", "driver": "nvidia-nvswitch"}],
    }


def test_libcuda_is_asked_for_its_own_word() -> None:
    class Library:
        def cuInit(self, flags: int) -> int:
            return 802

        def cuDriverGetVersion(self, number: Any) -> int:
            number._obj.value = 12040
            return 0

    assert selftest.ask_libcuda(lambda name: Library()) == {"init": 802, "cuda": [12, 4]}

    def missing(name: str) -> Any:
        raise OSError("no such file")

    assert selftest.ask_libcuda(missing) == {"missing": "no such file"}


def test_the_program_writes_its_page_and_ends_with_its_code(tmp_path: Path) -> None:
    """Where this is run there is no torch."""
    page = tmp_path / "page/train.json"
    said = subprocess.run(
        [sys.executable, "-I", selftest.__file__, "--write", page],
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 1
    assert "torch cannot be imported: ModuleNotFoundError" in said.stdout
    assert said.stdout.splitlines()[-1] == "verdict: broken"
    assert json.loads(page.read_text())["code"] == 1
    assert os.listdir(page.parent) == ["train.json"]
    wrong = subprocess.run(
        [sys.executable, "-I", selftest.__file__, "--no"], capture_output=True, check=False
    )
    assert wrong.returncode == selftest.USAGE


# ----- into the report -----------------------------------------------------------------------------------------------

ENTRY = {"kind": "python_environment", "name": "train", "lock": LOCK}


def facts(tmp_path: Path, page: dict[str, Any] | None, version: str | None = None) -> Facts:
    link = tmp_path / "opt/railwright/train/current"
    link.parent.mkdir(parents=True)
    if version != "none":
        link.symlink_to(version or VERSION)
    if page is not None:
        place = tmp_path / "run/railwright-self-test/train.json"
        place.parent.mkdir(parents=True)
        place.write_text(json.dumps(page))
    return replace(machine(), runtimes=read_runtimes(Tree(tmp_path)))


def page_of(whole: dict[str, Any], measured: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    code, problems = selftest.judge(whole)
    words = {0: "good", 1: "broken", 4: "no GPU"}[code]
    return {
        "schema": selftest.SCHEMA,
        "verdict": words,
        "code": code,
        "found": whole,
        "measured": measured or [],
        "problems": problems,
    }


def test_a_good_page_is_a_good_row_with_what_was_measured(tmp_path: Path) -> None:
    measured = [{"what": "all-reduce", "value": 361.5, "unit": "GB/s"}]
    env, test = environment(facts(tmp_path, page_of(found(), measured)), "dl_runtime", ENTRY)
    assert (env.check, env.finding) == ("dl_runtime.environment", None)
    assert test.finding is None
    assert test.why == "torch 2.9.1+cu130, CUDA 13.0, NCCL 2.27.7; all-reduce: 361.5 GB/s"


def test_what_the_page_finds_wrong_is_an_error_of_the_report(tmp_path: Path) -> None:
    _, test = environment(facts(tmp_path, page_of(dark(libcuda={"init": 802}))), "dl_runtime", ENTRY)
    assert test.finding is not None
    assert (test.finding.code, test.finding.severity) == ("dl_runtime.self_test", "error")
    assert "802" in test.finding.why
    assert "nvidia-fabricmanager" in test.finding.why


@pytest.mark.parametrize("page", [None, page_of(dark(gpus=[])), {"schema": "other"}])
def test_no_page_and_no_gpu_are_never_good(tmp_path: Path, page: dict[str, Any] | None) -> None:
    _, test = environment(facts(tmp_path, page), "dl_runtime", ENTRY)
    assert not test.seen


def test_a_page_of_another_version_and_one_with_another_verdict_are_never_good(tmp_path: Path) -> None:
    """The environment was built anew since; or the page is not what the self-test writes."""
    _, test = environment(
        facts(tmp_path / "a", page_of(found(prefix="/opt/railwright/train/0123456789ab-py3.12"))),
        "dl_runtime",
        ENTRY,
    )
    assert not test.seen
    _, test = environment(
        facts(tmp_path / "b", {**page_of(found()), "verdict": "x" * 9000}), "dl_runtime", ENTRY
    )
    assert not test.seen


def test_a_page_that_goes_on_and_on_is_cut(tmp_path: Path) -> None:
    many = {**page_of(found()), "problems": [{"why": "w" * 900, "remedy": ""}] * 900}
    (runtime,) = facts(tmp_path, many).runtimes or ()
    assert runtime.self_test is not None
    assert len("".join(runtime.self_test.problems)) <= 64 * 500


def test_a_link_to_another_version_and_none_at_all_are_errors(tmp_path: Path) -> None:
    env, _ = environment(facts(tmp_path / "a", None, "0123456789ab-py3.12"), "dl_runtime", ENTRY)
    assert env.finding is not None
    assert "0123456789ab-py3.12" in env.finding.why
    (env,) = environment(facts(tmp_path / "b", None, "none"), "dl_runtime", ENTRY)
    assert env.finding is not None
    assert env.finding.why == "is not built"


def test_the_one_audit_of_libraries_tells_which_nccl_the_environment_loads(tmp_path: Path) -> None:
    """Torch of an environment loads the wheel's NCCL whatever else is installed; the audit looks there by itself."""
    site = "opt/railwright/train/0123456789ab-py3.12/lib/python3.12/site-packages"
    library(
        tmp_path,
        f"{site}/torch/_C.cpython-312-x86_64-linux-gnu.so",
        "libtorch_cuda.so",
        runpath="$ORIGIN/lib",
    )
    library(
        tmp_path,
        f"{site}/torch/lib/libtorch_cuda.so",
        "libnccl.so.2",
        runpath="$ORIGIN/../../nvidia/nccl/lib",
    )
    library(
        tmp_path, f"{site}/nvidia/nccl/lib/libnccl.so.2", soname="libnccl.so.2", text=b"NCCL version 2.27.7\0"
    )
    seen = audit(Tree(tmp_path), expect=[("libnccl", "2.30.7")])
    (told,) = (finding for finding in seen.findings if finding.code == "libraries.other_version")
    assert told.where == f"PyTorch at /{site}/torch/_C.cpython-312-x86_64-linux-gnu.so"
    assert "loads libnccl 2.27.7" in told.why
    assert "2.30.7 is meant" in told.why
