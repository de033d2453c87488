"""What a capture is, by its content: which reader reads it, or which kind it is that nobody reads."""

from __future__ import annotations

import re

from railwright.node.model import InputError

from .source import MAX_CHARACTERS, Source

_GIVE = (
    "give facts JSON, a copy of the machine's /sys and /proc, NCCL's or hwloc's XML, `lspci -nnvvv` or "
    "`nvidia-smi topo -m`"
)
_NOT_READ = "this version does not read it"

_MATRIX = re.compile(
    r"\bGPU\d+\b.*(?:\bGPU\d+\b|CPU Affinity)|^[^\w\n]*GPU\d+[ \t]+X\b", re.MULTILINE | re.ASCII
)
_PROLOGUE = re.compile(r"\s+|<\?.*?\?>|<!--.*?-->", re.DOTALL)
_ROOT = re.compile(r"<(?:!DOCTYPE\s+)?([A-Za-z_][\w:.-]*)", re.ASCII)
_XML = {"system": "nccl-xml", "topology": "hwloc", "nvidia_smi_log": "nvidia-smi-q"}
_XML_NOT_READ = {
    "graphs": (
        "NCCL's graph file, which says what NCCL chose",
        "give its topology: run with NCCL_TOPO_DUMP_FILE=topo.xml",
    ),
}
# What an output is shows on its first page.
_FIRST = 65_536
# The first that fits names the text.
_TEXT = tuple(
    (re.compile(pattern, re.MULTILINE | re.ASCII), kind)
    for pattern, kind in (
        (r"^=+NVSMI LOG=+[ \t]*$", "nvidia-smi-q"),
        (r"port \d+ .{0,200}==> \S", "ibdev2netdev"),
        (r"^(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[01][0-9a-f]\.[0-7] \S", "lspci"),
        (r"-\[[0-9a-f]{4,8}:[0-9a-f]{2}|[+\\]-[01][0-9a-f]\.[0-7]-", "lspci"),
        (r"^#? ?dmidecode \d|^Handle 0x[0-9A-Fa-f]{4}, DMI type \d", "dmidecode"),
        (r"^ *(?:Architecture|CPU op-mode\(s\)|On-line CPU\(s\) list):[ \t]+\S|^# ?CPU,Core,", "lscpu"),
        (r"^GPU \d+: .*UUID:", "nvlink"),
        (r"^Infiniband device '", "ibstatus"),
        (r"^CA '", "ibstat"),
        (r"^DEV\s+PORT\s+INDEX\s+GID\b", "show_gids"),
        (r"^(?:DCBX mode|Priority trust state):", "mlnx_qos"),
        (r"^Device type:\s+(?:ConnectX|BlueField)|^Configurations:[ \t].*\bNext Boot[ \t]*$", "mlxconfig"),
        (r"^[ \t]*CPU\d+(?:[ \t]+CPU\d+)*[ \t]*$|^ *\d+:(?: +\d+)+ +\S", "interrupts"),
    )
)
_DRAWN_BY_HWLOC = re.compile(r"^Machine (?:L#0 )?\(", re.MULTILINE | re.ASCII)


def detect(source: Source) -> str:
    """The kind of witness, as `Witness.kind` has it; "facts" for facts JSON.

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
    for root, kind in _XML.items():
        if re.search(rf"<{root}[\s>]", head):
            return kind
    for pattern, kind in _TEXT:
        if pattern.search(head[:_FIRST]):
            return kind
    if _DRAWN_BY_HWLOC.search(head[:_FIRST]):
        raise InputError(
            source.name,
            f"looks like the text of lstopo; {_NOT_READ}",
            "give its XML: lstopo --of xml node.xml",
        )
    raise InputError(source.name, "looks like no capture of a machine", _GIVE)


def _detect_xml(source: Source, text: str) -> str:
    at = 0
    while match := _PROLOGUE.match(text, at):
        at = match.end()
    root = _ROOT.match(text, at)
    name = root[1] if root else ""
    if name in _XML_NOT_READ:
        what, remedy = _XML_NOT_READ[name]
        raise InputError(source.name, f"looks like {what}; {_NOT_READ}", remedy)
    if name in _XML:
        return _XML[name]
    raise InputError(source.name, "is XML, but no topology of NCCL or hwloc", _GIVE)
