"""What a capture is, by its content: which reader reads it, or which kind it is that nobody reads."""

from __future__ import annotations

import re

from railwright.node.model import InputError

from .source import MAX_CHARACTERS, Source

_GIVE = "give facts JSON, a copy of the machine's /sys and /proc, NCCL's topology XML or `nvidia-smi topo -m`"
_NOT_READ = "this version does not read it"

_MATRIX = re.compile(r"\bGPU\d+\b.*(?:\bGPU\d+\b|CPU Affinity)|^\W*GPU\d+\s+X\b", re.MULTILINE | re.ASCII)
_NCCL_XML = re.compile(r"<system[\s>]")
_PROLOGUE = re.compile(r"\s+|<\?.*?\?>|<!--.*?-->", re.DOTALL)
_ROOT = re.compile(r"<(?:!DOCTYPE\s+)?([A-Za-z_][\w:.-]*)", re.ASCII)
_XML = {
    "topology": ("hwloc's XML (lstopo)", _GIVE),
    "graphs": (
        "NCCL's graph file, which says what NCCL chose",
        "give its topology: run with NCCL_TOPO_DUMP_FILE=topo.xml",
    ),
    "nvidia_smi_log": ("`nvidia-smi -q -x`, which shows no NICs", "give `nvidia-smi topo -m`"),
}
# What an output is shows on its first page.
_FIRST = 65_536
# The first that fits names the text.
_TEXT = tuple(
    (re.compile(pattern, re.MULTILINE | re.ASCII), what)
    for pattern, what in (
        (r"port \d+ .{0,200}==> \S", "ibdev2netdev"),
        (r"^(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[01][0-9a-f]\.[0-7] \S", "lspci"),
        (r"-\[[0-9a-f]{4}:[0-9a-f]{2}|[+\\]-[01][0-9a-f]\.[0-7]-", "lspci -t"),
        (r"^(?:Architecture|CPU op-mode\(s\)):[ \t]+\S", "lscpu"),
        (r"^GPU \d+: .*UUID:", "a list of GPUs (nvidia-smi -L, or nvlink -s)"),
        (r"^Infiniband device '", "ibstatus"),
        (r"^CA '", "ibstat"),
        (r"^ *\d+:(?: +\d+)+ +\S", "/proc/interrupts"),
    )
)


def detect(source: Source) -> str:
    """The format: "facts", "nccl-xml" or "nvidia-smi".

    Raises InputError that says what the text looks like and what to give instead.
    """
    text = source.text.lstrip("\ufeff \t\r\n")
    head = text[:MAX_CHARACTERS]
    if text.startswith(("{", "[{", "[\n")):
        return "facts"
    if text.startswith("<"):
        return _detect_xml(source, text)
    if _MATRIX.search(head):
        return "nvidia-smi"
    if _NCCL_XML.search(head):
        return "nccl-xml"
    for pattern, what in _TEXT:
        if pattern.search(head[:_FIRST]):
            raise InputError(source.name, f"looks like {what}; {_NOT_READ}", _GIVE)
    raise InputError(source.name, "looks like no capture of a machine", _GIVE)


def _detect_xml(source: Source, text: str) -> str:
    at = 0
    while match := _PROLOGUE.match(text, at):
        at = match.end()
    root = _ROOT.match(text, at)
    name = root[1] if root else ""
    if name in _XML:
        what, remedy = _XML[name]
        raise InputError(source.name, f"looks like {what}; {_NOT_READ}", remedy)
    if name == "system":
        return "nccl-xml"
    raise InputError(source.name, "is XML, but no topology of NCCL", _GIVE)
