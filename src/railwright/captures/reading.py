"""From paths to Facts: which reader reads a capture, and several captures of one machine as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from railwright.node.discover import discover
from railwright.node.model import Facts, InputError

from .bundle import is_bundle, read_bundle
from .detect import detect
from .dmidecode import read_dmidecode
from .facts_json import read_facts_json
from .hwloc_xml import read_hwloc_xml
from .interrupts import read_interrupts
from .lscpu import read_lscpu
from .lspci import read_lspci
from .merge import Witnessed, merge
from .mlnx_qos import read_mlnx_qos
from .mlxconfig import read_mlxconfig
from .nccl_xml import read_nccl_xml
from .nvidia_query import read_nvidia_query
from .nvidia_smi import read_nvidia_smi
from .nvlink import nvlinks_up, read_nvlink
from .rdma_tools import read_ibdev2netdev, read_ibstat, read_ibstatus, read_show_gids
from .source import Source, load
from .sysfs_archive import is_archive, read_sysfs_archive

FORMATS = ("auto", "facts", "sysfs", "nccl-xml", "nvidia-smi", "hwloc", "lspci")
# 300 nodes' files in one call are a slip of the shell's wildcard.
MAX_CAPTURES = 64

_READERS: dict[str, Callable[[Source], Facts]] = {
    "facts": read_facts_json,
    "nccl-xml": read_nccl_xml,
    "nvidia-smi": read_nvidia_smi,
    "hwloc": read_hwloc_xml,
    "lspci": read_lspci,
    "nvidia-smi-q": read_nvidia_query,
    "nvlink": read_nvlink,
    "ibdev2netdev": read_ibdev2netdev,
    "ibstat": read_ibstat,
    "ibstatus": read_ibstatus,
    "show_gids": read_show_gids,
    "mlnx_qos": read_mlnx_qos,
    "mlxconfig": read_mlxconfig,
    "interrupts": read_interrupts,
    "lscpu": read_lscpu,
    "dmidecode": read_dmidecode,
}
# What nvidia-smi prints in other forms than its matrix.
_NVIDIA_SMI = ("nvidia-smi-q", "nvlink")


def read(paths: Sequence[Path], format: str = "auto") -> Facts:
    """Facts of one machine from its captures.

    paths: files ("-" is stdin), tar archives, or directories that hold the machine's sys and proc; several are
    witnesses of one machine. format: one of FORMATS; "auto" finds out from the content of each. Raises InputError that
    names the file, the line where there is one, what was expected and what to do.
    """
    if format not in FORMATS:
        raise InputError("format", f"unknown format {format!r}", f"one of {', '.join(FORMATS)}")
    if not paths:
        raise InputError("capture", "no file is given")
    if len(paths) > MAX_CAPTURES:
        raise InputError("capture", f"{len(paths)} files", f"give at most {MAX_CAPTURES}, all of one machine")
    if len(paths) == 1:
        return _read_one(Path(paths[0]), format).facts
    return merge([_read_one(Path(path), format) for path in paths])


def _read_one(path: Path, format: str) -> Witnessed:
    if str(path) != "-":
        if path.is_dir():
            if format not in {"auto", "sysfs"}:
                raise InputError(
                    str(path), f"is a directory; {format} is a file", "give the file, or --format sysfs"
                )
            return Witnessed(discover(path))
        if format == "auto" and is_bundle(path):
            return Witnessed(read_bundle(path))
        if format in {"auto", "sysfs"} and is_archive(_start(path)):
            return Witnessed(read_sysfs_archive(path))
    if format == "sysfs":
        raise InputError(
            str(path),
            "is no directory",
            "give the directory that holds the machine's sys and proc, or a tar archive of it",
        )
    source = load(path)
    kind = detect(source) if format == "auto" else _named(format, source)
    return Witnessed(_READERS[kind](source), nvlinks_up(source) if kind == "nvlink" else {})


def _named(format: str, source: Source) -> str:
    """The reader of a format that the user names: nvidia-smi prints several things."""
    if format == "nvidia-smi":
        try:
            kind = detect(source)
        except InputError:
            return format
        return kind if kind in _NVIDIA_SMI else format
    return format


def _start(path: Path) -> bytes:
    try:
        # Opening a FIFO would wait for a writer.
        if not path.is_file():
            return b""
        with path.open("rb") as file:
            return file.read(512)
    except OSError:
        return b""
