"""What the driver on this node is doing: who uses it, and whether CUDA works on every GPU. Changes nothing."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

from .model import CudaTried, DriverUse

# Files of GPUs and the control device; those of nvidia-uvm and the switches hold other modules.
_DEVICE = re.compile(r"/dev/(?:nvidia\d+|nvidiactl)(?: \(deleted\))?")
# They belong to the driver's own side: they are stopped and started with it.
DAEMONS = ("nvidia-persiste", "nv-fabricmanage", "nv-hostengine", "nvidia-imex", "nvlsm")
_MOST_PROCESSES = 64
_BYTES, _WORD = 1 << 20, 0x5AA5C33C
# CUresult (cuda.h): what a person meets most after an upgrade.
_ERRORS = {
    3: "the driver is not initialised",
    34: "only stubs of libcuda are there",
    100: "no GPU is there",
    802: "the NVLink fabric is not ready (is the fabric manager of the driver's version?)",
    803: "library and loaded module are of different versions",
    999: "unknown error, see dmesg",
}


def driver_use(root: Path = Path("/"), cuda: bool = False) -> DriverUse:
    """cuda: whether to use every GPU, which takes a client's place for some seconds. Only on the node itself."""
    users, own = _users(root)
    return DriverUse(
        refcount=_number(root / "sys/module/nvidia/refcnt"),
        dependents=_dependents(root),
        daemon_files=own,
        users=tuple(users[:_MOST_PROCESSES]),
        cuda=try_cuda() if cuda else None,
    )


def _number(path: Path) -> Optional[int]:
    try:
        return int(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None


def _dependents(root: Path) -> Optional[int]:
    """Modules that hold the module nvidia: each counts once in its reference count."""
    try:
        return len(os.listdir(root / "sys/module/nvidia/holders"))
    except OSError:
        return None


def _users(root: Path) -> tuple[list[str], int]:
    """Processes that have a GPU's file open, without the driver's own daemons; and how many files those have."""
    users: list[str] = []
    own = 0
    for name in sorted(filter(str.isdigit, os.listdir(root / "proc")), key=int):
        count = sum(_DEVICE.fullmatch(target) is not None for target in _targets(root / "proc" / name / "fd"))
        if not count:
            continue
        comm = _text(root / "proc" / name / "comm") or "?"
        if comm in DAEMONS:
            own += count
        else:
            users.append(f"{comm} (process {name})")
    return users, own


def _targets(folder: Path) -> Iterator[str]:
    try:
        names = os.listdir(folder)
    except OSError:
        return  # it has ended, or is not ours to look into
    for name in names:
        try:
            yield os.readlink(folder / name)
        except OSError:
            continue


def _text(path: Path) -> Optional[str]:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return None


def try_cuda(library: str = "libcuda.so.1") -> CudaTried:
    """Allocates, fills and reads back memory on every GPU, through the driver's own library."""
    try:
        cuda = ctypes.CDLL(library)
    except OSError as error:
        return CudaTried(None, (), f"{library} cannot be loaded: {error}")
    return use_all(cuda)


def use_all(cuda: Any) -> CudaTried:
    """The same with a library that is loaded."""
    good: list[int] = []
    try:
        _must(cuda.cuInit(0), "cuInit")
        count = ctypes.c_int()
        _must(cuda.cuDeviceGetCount(ctypes.byref(count)), "cuDeviceGetCount")
        for index in range(count.value):
            _use(cuda, index)
            good.append(index)
    except _CudaError as error:
        return CudaTried(False, tuple(good), str(error))
    if not good:
        return CudaTried(False, (), "CUDA finds no GPU")
    return CudaTried(True, tuple(good), f"{len(good)} GPUs allocate, fill and read back memory")


class _CudaError(Exception):
    pass


def _must(code: int, call: str) -> None:
    if code != 0:
        known = _ERRORS.get(code)
        raise _CudaError(f"{call} answers {code}" + (f": {known}" if known else ""))


def _use(cuda: Any, index: int) -> None:
    device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    _must(cuda.cuDeviceGet(ctypes.byref(device), index), f"GPU {index}: cuDeviceGet")
    _must(
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), f"GPU {index}: cuDevicePrimaryCtxRetain"
    )
    try:
        _must(cuda.cuCtxSetCurrent(context), f"GPU {index}: cuCtxSetCurrent")
        size = ctypes.c_size_t(_BYTES)
        _must(cuda.cuMemAlloc_v2(ctypes.byref(memory), size), f"GPU {index}: cuMemAlloc")
        try:
            words = _BYTES // 4
            _must(
                cuda.cuMemsetD32_v2(memory, ctypes.c_uint(_WORD), ctypes.c_size_t(words)),
                f"GPU {index}: cuMemset",
            )
            back = (ctypes.c_uint32 * words)()
            _must(cuda.cuMemcpyDtoH_v2(back, memory, size), f"GPU {index}: cuMemcpyDtoH")
            if any(word != _WORD for word in back):
                raise _CudaError(f"GPU {index}: memory does not hold what was written")
        finally:
            cuda.cuMemFree_v2(memory)
    finally:
        cuda.cuDevicePrimaryCtxRelease_v2(device)
