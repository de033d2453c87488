#!/usr/bin/env python3
"""Tests an environment for deep learning on its node: what is there, how fast it is, and why CUDA does not work.

    ENVIRONMENT/bin/python self_test.py [--json] [--write FILE] [--measure] [--ddp]

Exit status: 0 CUDA works on every GPU of this node, or on all that CUDA_VISIBLE_DEVICES names; 1 something that should
work does not, and the text says why; 2 bad usage; 4 no GPU: none is on the PCI bus, and all else that was asked for
works.

One file that needs nothing beside it: it lies on the node and is run by the environment's own Python. Nothing is
installed, written (but FILE) or changed by it.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Optional

SCHEMA = "railwright.self_test/1"
GOOD, BROKEN, USAGE, NO_GPU = 0, 1, 2, 4
_VERDICTS = {GOOD: "good", BROKEN: "broken", NO_GPU: "no GPU"}
_NVIDIA = "0x10de"
# PCI class: VGA and 3D controllers are GPUs, bridges of NVIDIA are NVSwitches.
_DISPLAY, _BRIDGE = ("0x0300", "0x0302"), "0x0680"
# CUresult by number (CUDA 13.0 driver API, cuda.h); what to do is in NVIDIA's own words there or in its guides.
_CU_ERRORS = {
    2: ("CUDA_ERROR_OUT_OF_MEMORY", "see who holds the memory: nvidia-smi"),
    34: (
        "CUDA_ERROR_STUB_LIBRARY",
        "a stub of libcuda is found first: take the toolkit's stubs out of ldconfig",
    ),
    46: ("CUDA_ERROR_DEVICE_UNAVAILABLE", "a GPU is in exclusive use: nvidia-smi -q -d COMPUTE"),
    100: (
        "CUDA_ERROR_NO_DEVICE",
        "the driver has no GPU to give: nvidia-smi -L; dmesg says what fell off the bus",
    ),
    802: (
        "CUDA_ERROR_SYSTEM_NOT_READY",
        "the fabric manager has not set up the NVSwitches: systemctl status nvidia-fabricmanager",
    ),
    803: (
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        "the loaded module and libcuda are of two versions: reboot into the installed one",
    ),
    804: (
        "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        "take the forward-compatibility package out of ldconfig",
    ),
    999: ("CUDA_ERROR_UNKNOWN", "see dmesg for NVRM and Xid; nvidia_uvm has to be loaded"),
}
# What podman, docker and systemd-nspawn leave in a container; its /sys shows the whole machine's bus.
_CONTAINER = ("run/.containerenv", ".dockerenv", "run/systemd/container")
_LIMIT_SECONDS = 300
_LOOK_SECONDS = 0.05
_MATMUL, _REPEATS = 8192, 20
_REDUCED_BYTES = 1 << 28
Problem = dict[str, str]


# ----- what is there -------------------------------------------------------------------------------------------------


def on_the_bus(sysfs: Path) -> dict[str, list[dict[str, Any]]]:
    """GPUs and NVSwitches by their PCI functions, with the kernel driver that holds each (None: none does)."""
    found: dict[str, list[dict[str, Any]]] = {"gpus": [], "switches": []}
    for device in sorted((sysfs / "bus/pci/devices").glob("*")):
        if _text(device / "vendor") != _NVIDIA:
            continue
        kind = (_text(device / "class") or "")[:6]
        name = "gpus" if kind in _DISPLAY else "switches" if kind == _BRIDGE else None
        if name is not None:
            link = device / "driver"
            held = os.path.basename(os.readlink(link)) if link.is_symlink() else None
            found[name].append({"pci": device.name, "driver": held})
    return found


def driver_version(root: Path) -> Optional[str]:
    """Of the module that is loaded; None where none is."""
    return _text(root / "sys/module/nvidia/version")


def ask_libcuda(open_library: Callable[[str], Any] = ctypes.CDLL) -> dict[str, Any]:
    """What libcuda says, whatever torch makes of it: {"init": CUresult, "cuda": [major, minor]} or {"missing"}."""
    try:
        library = open_library("libcuda.so.1")
    except OSError as error:
        return {"missing": str(error)}
    said: dict[str, Any] = {"init": int(library.cuInit(0))}
    number = ctypes.c_int(0)
    if library.cuDriverGetVersion(ctypes.byref(number)) == 0:
        said["cuda"] = [number.value // 1000, number.value % 1000 // 10]
    return said


def ask_torch() -> dict[str, Any]:
    """What torch says of itself, or why it cannot be imported or asked."""
    try:
        return _torch(importlib.import_module("torch"))
    except Exception as error:
        return {"missing": _words(error)}


def _torch(torch: Any) -> dict[str, Any]:
    said: dict[str, Any] = {
        "version": str(torch.__version__),
        "path": os.path.dirname(torch.__file__),
        "cuda": torch.version.cuda,
        "available": bool(torch.cuda.is_available()),
        "gloo": bool(torch.distributed.is_available() and torch.distributed.is_gloo_available()),
        "devices": [],
    }
    if said["cuda"]:
        try:
            said["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        except Exception as error:
            said["nccl_missing"] = _words(error)
    if said["available"]:
        for index in range(torch.cuda.device_count()):
            one = torch.cuda.get_device_properties(index)
            said["devices"].append(
                {
                    "name": one.name,
                    "bytes": one.total_memory,
                    "capability": f"{one.major}.{one.minor}",
                    "fails": _fails(torch, index),
                }
            )
    else:
        try:
            torch.cuda.init()
        except Exception as error:
            said["says"] = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
    return said


def _fails(torch: Any, index: int) -> Optional[str]:
    """Why this GPU computes nothing; None: it does. A build without code for its architecture shows here alone."""
    try:
        sum_of = float((torch.ones(1024, device=f"cuda:{index}") * 2).sum().item())
    except Exception as error:
        return _words(error)
    return None if sum_of == 2048.0 else f"1024 times 2 is {sum_of}"


def _words(error: Exception) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'without a word'}"[:500]


def loaded(name: str, maps: Path = Path("/proc/self/maps")) -> list[str]:
    """Files of this library that this process has loaded."""
    text = _text(maps) or ""
    paths = (line.split(None, 5)[5] for line in text.splitlines() if len(line.split(None, 5)) == 6)
    return sorted({path for path in paths if os.path.basename(path).startswith(name)})


def instances(root: Path) -> int:
    """GPU instances (Multi-Instance GPU) of all GPUs, as the driver lists them (its README, "MIG device nodes")."""
    return len(list((root / "proc/driver/nvidia/capabilities").glob("gpu*/mig/gi*")))


def look(root: Path = Path("/"), environ: Optional[dict[str, str]] = None) -> dict[str, Any]:
    """All of it."""
    known = dict(os.environ) if environ is None else environ
    found: dict[str, Any] = {
        "python": sys.version.split()[0],
        "prefix": os.path.realpath(sys.prefix),
        "visible": known.get("CUDA_VISIBLE_DEVICES"),
        **on_the_bus(root / "sys"),
        "driver": driver_version(root),
        "nodes": sorted(path.name for path in (root / "dev").glob("nvidia[0-9]*")),
        "instances": instances(root),
        "container": any((root / place).exists() for place in _CONTAINER),
        "libcuda": ask_libcuda(),
        "torch": ask_torch(),
    }
    found["nccl_loaded"] = loaded("libnccl")
    return found


# ----- what is wrong -------------------------------------------------------------------------------------------------


def judge(found: dict[str, Any]) -> tuple[int, list[Problem]]:
    """The exit status and what is wrong. GPUs that are kept for virtual machines are not this system's."""
    gpus = [gpu for gpu in found["gpus"] if gpu["driver"] != "vfio-pci"]
    torch = found["torch"]
    if "missing" in torch:
        return BROKEN, [
            _problem("torch", f"torch cannot be imported: {torch['missing']}", "build the environment anew")
        ]
    if not gpus:
        return NO_GPU, []
    if not torch["available"]:
        return BROKEN, [_why_not(found, gpus)]
    problems = [
        _problem(
            "dead_gpu",
            f"GPU {index} ({one['name']}, compute capability {one['capability']}) computes nothing: {one['fails']}",
            "lock a build for its architecture (torch.cuda.get_arch_list() says which it has), or see dmesg for Xid",
        )
        for index, one in enumerate(torch["devices"])
        if one.get("fails")
    ]
    problems += _too_few(found, len(gpus), len(torch["devices"]))
    return (BROKEN if problems else GOOD), problems


def _too_few(found: dict[str, Any], gpus: int, seen: int) -> list[Problem]:
    """Whether CUDA sees less than it should: GPUs of the bus, of the container, or those that are named."""
    if found["visible"] is not None:
        named = _named(found["visible"])
        if seen >= len(named):
            return []
        why = f"CUDA_VISIBLE_DEVICES is {found['visible']!r}, and CUDA sees {seen}: the first that is not there ends it"
        return [_problem("hidden", why, "name GPUs that are there, each once")]
    if found.get("container") and found["nodes"]:
        gpus = min(gpus, len(found["nodes"]))
    if seen >= gpus:
        return []
    if found.get("instances"):
        why = (
            f"CUDA sees {seen} of the {gpus} GPUs on the bus: they are cut into {found['instances']} GPU instances, "
            "and one process sees one of them"
        )
        remedy = "nvidia-smi -mig 0 and a reset, or a self-test for each: CUDA_VISIBLE_DEVICES=MIG-UUID (nvidia-smi -L)"
        return [_problem("mig", why, remedy)]
    why = f"CUDA sees {seen} of the {gpus} GPUs on the bus"
    return [_problem("missing_gpu", why, "nvidia-smi -L and dmesg (Xid 79: fallen off the bus) say which")]


def _named(visible: str) -> list[str]:
    """What CUDA_VISIBLE_DEVICES names, up to the first -1, which ends it (CUDA programming guide, "Environment
    variables")."""
    words = [word.strip() for word in visible.split(",") if word.strip()]
    return words[: words.index("-1")] if "-1" in words else words


def _why_not(found: dict[str, Any], gpus: list[dict[str, Any]]) -> Problem:
    """The first cause that fits, from what is asked first to what is asked last when CUDA starts."""
    torch, libcuda, visible = found["torch"], found["libcuda"], found["visible"]
    there = f"{len(gpus)} GPU{'s are' if len(gpus) > 1 else ' is'} on the bus"
    if not torch["cuda"]:
        return _problem(
            "cpu_build", f"torch {torch['version']} is a CPU build, and {there}", "lock a CUDA build of torch"
        )
    if found["driver"] is None:
        held = sorted({str(gpu["driver"]) for gpu in gpus if gpu["driver"]})
        who = f" ({', '.join(held)} holds {'them' if len(gpus) > 1 else 'it'})" if held else ""
        return _problem(
            "no_driver",
            f"{there}{who}, and the module nvidia is not loaded",
            "install the driver; modprobe nvidia says why",
        )
    if visible is not None and (visible == "" or visible.split(",")[0].strip() in ("-1", "NoDevFiles")):
        return _problem("hidden", f"CUDA_VISIBLE_DEVICES is {visible!r}, which hides every GPU", "unset it")
    if "missing" in libcuda:
        return _problem(
            "no_libcuda",
            f"driver {found['driver']} is loaded, and libcuda.so.1 cannot be: {libcuda['missing']}",
            "install the driver's user space of the same version",
        )
    speaks = libcuda.get("cuda")
    if speaks and int(str(torch["cuda"]).split(".")[0]) > speaks[0]:
        return _problem(
            "old_driver",
            f"driver {found['driver']} speaks CUDA {speaks[0]}.{speaks[1]}, and torch {torch['version']} is built for "
            f"{torch['cuda']}: the driver is too old",
            f"install a driver for CUDA {str(torch['cuda']).split('.')[0]}, or lock a build for CUDA {speaks[0]}",
        )
    code = libcuda.get("init", 0)
    if code:
        name, remedy = _CU_ERRORS.get(code, ("an error", "see dmesg for NVRM and Xid"))
        switches = len(found["switches"])
        more = f"; {switches} NVSwitches are on the bus" if code == 802 and switches else ""
        return _problem("init", f"cuInit says {code}, {name}{more}", remedy)
    if not found["nodes"]:
        return _problem(
            "no_nodes", f"{there}, and /dev has no nvidia0", "nvidia-modprobe makes the device files"
        )
    if visible is not None:
        return _problem(
            "hidden",
            f"CUDA_VISIBLE_DEVICES is {visible!r}, and none of it is a GPU here",
            "unset it, or name GPUs that are there",
        )
    return _problem("unknown", f"torch says: {torch.get('says', 'nothing')}", "see dmesg for NVRM and Xid")


def _problem(code: str, why: str, remedy: str) -> Problem:
    return {"code": f"self_test.{code}", "why": why, "remedy": remedy}


# ----- how fast it is ------------------------------------------------------------------------------------------------


def measure() -> list[dict[str, Any]]:
    """Matrix products on each GPU by itself, then one all-reduce over all of them by NCCL. Needs CUDA."""
    torch: Any = importlib.import_module("torch")
    done = []
    for index in range(torch.cuda.device_count()):
        with torch.cuda.device(index):
            side = torch.randn(_MATMUL, _MATMUL, dtype=torch.bfloat16, device="cuda")
            (side @ side).sum().item()
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for _ in range(_REPEATS):
                side @ side
            end.record()
            torch.cuda.synchronize()
            rate = _REPEATS * 2 * _MATMUL**3 / (begin.elapsed_time(end) / 1000) / 1e12
        done.append(
            {"what": f"matmul bfloat16 {_MATMUL}, GPU {index}", "value": round(rate, 1), "unit": "TFLOP/s"}
        )
    if torch.cuda.device_count() > 1:
        (rate,) = {one["busbw"] for one in run_ranks("reduce", torch.cuda.device_count()) if one["rank"] == 0}
        done.append(
            {"what": "all-reduce 256 MiB over all GPUs, bus bandwidth", "value": rate, "unit": "GB/s"}
        )
    return done


def run_ranks(what: str, world: int) -> list[dict[str, Any]]:
    """Starts a process for each rank; what each said. Raises RuntimeError with the words of the first that failed."""
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder)
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(world):
                # Files: what NCCL says may be more than a pipe holds, and nobody reads while all run.
                with (top / f"out{rank}").open("wb") as out, (top / f"err{rank}").open("wb") as err:
                    program = [sys.executable, "-I", os.path.abspath(__file__), "--rank", what]
                    processes.append(
                        subprocess.Popen(
                            [*program, str(rank), str(world), folder],
                            stdout=out,
                            stderr=err,
                            stdin=subprocess.DEVNULL,
                        )
                    )
            _wait(what, processes, top)
        finally:
            for one in processes:
                one.kill()
                one.wait()
        said = [(_text(top / f"out{rank}") or "").splitlines() for rank in range(world)]
    return [json.loads(words[-1]) for words in said]


def _wait(what: str, processes: Sequence[subprocess.Popen[bytes]], top: Path) -> None:
    """Until all are done. Once one has failed the others would wait for it in vain."""
    deadline = time.monotonic() + _LIMIT_SECONDS
    while True:
        codes = [one.poll() for one in processes]
        for rank, code in enumerate(codes):
            if code:
                words = [line for line in (_text(top / f"err{rank}") or "").splitlines() if line.strip()]
                raise RuntimeError(f"rank {rank} of {what}: {words[-1][:300] if words else code}")
        if None not in codes:
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"{len(processes)} ranks of {what} did not come back in {_LIMIT_SECONDS} s")
        time.sleep(_LOOK_SECONDS)


def rank_main(what: str, rank: int, world: int, folder: str) -> dict[str, Any]:
    """One rank, in a process of its own."""
    torch: Any = importlib.import_module("torch")
    dist: Any = importlib.import_module("torch.distributed")
    if what == "ddp":
        # Loopback: what is asked is whether the pieces work together, not the network.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if what == "reduce":
        torch.cuda.set_device(rank)
    backend = "gloo" if what == "ddp" else "nccl"
    dist.init_process_group(backend, init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    try:
        return _train(rank, world) if what == "ddp" else _reduce(rank, world)
    finally:
        dist.destroy_process_group()


def _train(rank: int, world: int) -> dict[str, Any]:
    """One step of y = w x with x = rank + 1: the gradient of each rank is its x, and of all their mean."""
    torch: Any = importlib.import_module("torch")
    parallel: Any = importlib.import_module("torch.nn.parallel")
    model = torch.nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(float(rank))  # rank 0's is sent to all
    wrapped = parallel.DistributedDataParallel(model)
    start = float(model.weight.item())
    wrapped(torch.tensor([[float(rank + 1)]])).sum().backward()
    gradient = float(model.weight.grad.item())
    mean = sum(range(1, world + 1)) / world
    if start != 0.0 or abs(gradient - mean) > 1e-6:
        raise RuntimeError(
            f"the weight began as {start}, expected 0; the gradient is {gradient}, expected {mean}"
        )
    return {"rank": rank, "gradient": gradient}


def _reduce(rank: int, world: int) -> dict[str, Any]:
    """Bus bandwidth as nccl-tests counts it: bytes / time x 2 (n - 1) / n (nccl-tests doc/PERFORMANCE.md)."""
    torch: Any = importlib.import_module("torch")
    dist: Any = importlib.import_module("torch.distributed")
    data = torch.ones(_REDUCED_BYTES // 4, dtype=torch.float32, device="cuda")
    dist.all_reduce(data)
    if float(data[0]) != world or float(data[-1]) != world:
        raise RuntimeError(f"the sum of {world} ones is {float(data[0])}")
    torch.cuda.synchronize()
    begin = time.monotonic()
    for _ in range(_REPEATS):
        dist.all_reduce(data)
    torch.cuda.synchronize()
    seconds = (time.monotonic() - begin) / _REPEATS
    return {"rank": rank, "busbw": round(_REDUCED_BYTES / seconds * 2 * (world - 1) / world / 1e9, 1)}


# ----- as a program --------------------------------------------------------------------------------------------------


def report(asked: Sequence[str], root: Path = Path("/")) -> dict[str, Any]:
    """asked: of "measure" and "ddp". The page; `code` is the exit status."""
    found = look(root)
    code, problems = judge(found)
    measured: list[dict[str, Any]] = []
    for name, run in (("measure", _measured), ("ddp", _trained)):
        if name not in asked or "missing" in found["torch"] or (name == "measure" and code != GOOD):
            continue
        try:
            measured += run()
        except Exception as error:
            problems.append(
                _problem(name, str(error)[:500], "run the self-test by hand with this part alone")
            )
            code = BROKEN
    return {
        "schema": SCHEMA, "verdict": _VERDICTS[code], "code": code, "found": found, "measured": measured,
        "problems": problems,
    }  # fmt: skip


def _measured() -> list[dict[str, Any]]:
    return measure()


def _trained() -> list[dict[str, Any]]:
    gradients = [one["gradient"] for one in run_ranks("ddp", 2)]
    return [{"what": "DDP over gloo, two ranks: gradient of all", "value": gradients[0], "unit": ""}]


def lines(page: dict[str, Any]) -> list[str]:
    """The page for a person."""
    found = page["found"]
    torch = found["torch"]
    told = [f"python {found['python']} at {found['prefix']}"]
    if "version" in torch:
        built = f"built for CUDA {torch['cuda']}" if torch["cuda"] else "a CPU build"
        told.append(
            f"torch {torch['version']}, {built}" + (f", NCCL {torch['nccl']}" if "nccl" in torch else "")
        )
    told += [f"NCCL is loaded from {path}" for path in found["nccl_loaded"]]
    told.append(f"GPUs on the bus: {len(found['gpus'])}, driver: {found['driver'] or 'none'}")
    if found["visible"] is not None:
        told.append(f"CUDA_VISIBLE_DEVICES is {found['visible']!r}: no other GPU is tested")
    told += [
        f"GPU {index}: {one['name']}, {one['bytes'] >> 30} GiB, compute capability {one['capability']}"
        for index, one in enumerate(torch.get("devices", []))
    ]
    told += [f"{one['what']}: {one['value']} {one['unit']}".rstrip() for one in page["measured"]]
    told += [f"error: {one['why']}\n    {one['remedy']}" for one in page["problems"]]
    return [*told, f"verdict: {page['verdict']}"]


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--write", type=Path, metavar="FILE", help="keep the JSON there, too")
    parser.add_argument("--measure", action="store_true", help="measure every GPU, and NCCL over all of them")
    parser.add_argument("--ddp", action="store_true", help="train one step on two ranks over gloo")
    parser.add_argument(
        "--rank", nargs=4, metavar=("WHAT", "RANK", "WORLD", "FOLDER"), help=argparse.SUPPRESS
    )
    chosen = parser.parse_args(arguments)
    if chosen.rank:
        what, rank, world, folder = chosen.rank
        sys.stdout.write(json.dumps(rank_main(what, int(rank), int(world), folder)) + "\n")
        return GOOD
    if chosen.write is not None and chosen.write.exists():
        # A test that dies must not leave the word of an earlier one.
        chosen.write.unlink()
    page = report([name for name in ("measure", "ddp") if getattr(chosen, name)])
    text = json.dumps(page, indent=1) + "\n"
    if chosen.write is not None:
        chosen.write.parent.mkdir(parents=True, exist_ok=True)
        beside = chosen.write.with_name(f".{chosen.write.name}.new")
        beside.write_text(text, "utf-8")
        os.replace(beside, chosen.write)
    sys.stdout.write(text if chosen.json else "".join(f"{line}\n" for line in lines(page)))
    return int(page["code"])


def _text(path: Path) -> Optional[str]:
    try:
        return path.read_text("utf-8", "backslashreplace").strip()
    except OSError:
        return None


if __name__ == "__main__":
    sys.exit(main())
