"""From paths to Facts: which reader reads a capture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from railwright.node.discover import discover
from railwright.node.model import Facts, InputError

from .detect import detect
from .facts_json import read_facts_json
from .nccl_xml import read_nccl_xml
from .nvidia_smi import read_nvidia_smi
from .source import Source, load

FORMATS = ("auto", "facts", "sysfs", "nccl-xml", "nvidia-smi", "hwloc", "lspci")

_READERS: dict[str, Callable[[Source], Facts]] = {
    "facts": read_facts_json,
    "nccl-xml": read_nccl_xml,
    "nvidia-smi": read_nvidia_smi,
}


def read(paths: Sequence[Path], format: str = "auto") -> Facts:
    """Facts of one machine from its capture.

    paths: one file ("-" is stdin), or a directory that holds the machine's sys and proc. format: one of FORMATS; "auto"
    finds out from the content. Raises InputError that names the file, the line where there is one, what was expected
    and what to do.
    """
    if format not in FORMATS:
        raise InputError("format", f"unknown format {format!r}", f"one of {', '.join(FORMATS)}")
    if format in {"hwloc", "lspci"}:
        raise InputError(
            "format",
            f"this version does not read {format}",
            f"one of {', '.join(('auto', 'sysfs', *_READERS))}",
        )
    if not paths:
        raise InputError("capture", "no file is given")
    if len(paths) > 1:
        raise InputError(
            ", ".join(str(path) for path in paths),
            f"{len(paths)} captures; this version cannot show that they are of one machine, so it does not merge them",
            "give the one that shows most: a sys tree or facts, else NCCL's XML, else the matrix",
        )
    return _read_one(Path(paths[0]), format)


def _read_one(path: Path, format: str) -> Facts:
    folder = str(path) != "-" and path.is_dir()
    if folder and format in {"auto", "sysfs"}:
        return discover(path)
    if folder:
        raise InputError(str(path), f"is a directory; {format} is a file", "give the file, or --format sysfs")
    if format == "sysfs":
        raise InputError(
            str(path), "is no directory", "give the directory that holds the machine's sys and proc, unpacked"
        )
    source = load(path)
    return _READERS[detect(source) if format == "auto" else format](source)
