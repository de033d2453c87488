"""Tools that say more than /sys: which are asked, within what time, and what of their words stays."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..node.discover.tools import NEIGHBOURS, OUTPUT_BYTES, ROUTES, RULES, TIMEOUT_SECONDS, TOOLS, run_tool
from ..node.model import Facts, Tool
from .text import TextRedactor

# For all of them together: with the reading of /sys the whole stays below 30 seconds.
BUDGET_SECONDS = 22.0
# And this much of what they say: lspci and nvidia-smi -q of a large machine have 1 MB each.
BUDGET_BYTES = 16 * 1024 * 1024
_STOPPED = 124
_MORE = (
    ("ibdev2netdev", ("ibdev2netdev",)),
    ("show_gids", ("show_gids",)),
    ("nvidia-smi-full", ("nvidia-smi", "-q")),
)

# Vital product data: part number, engineering changes, checksum, free space stay (PCI Local Bus Specification 3.0,
# appendix I). The others are serial numbers, or whatever the vendor likes.
_VPD = re.compile(r"^(\s*\[(?!PN|EC|RV|RW)[A-Z0-9]{2}\] [^:\n]+: )(.+)$", re.MULTILINE)
# Where functions lie in memory: as long as a MAC address or a GUID, and nobody's identity.
_PLACE = re.compile(
    r"\s+(?:Region [0-5]:|(?:\[virtual\] )?Expansion ROM at|(?:I/O|(?:Prefetchable m|M)emory) behind bridge:"
    r"|Address: [0-9a-f]{8,16}  Data:) [][\w (),:=/<>-]*$",
    re.ASCII,
)

_LINK_KEYS_WORDS = """
    address altnames broadcast flags group ifindex ifname link link_index link_netnsid link_type linkmode
    master mtu operstate permaddr qdisc txqlen
"""
_LINK_KEYS = frozenset(_LINK_KEYS_WORDS.split())

_WAY_KEYS_WORDS = """
    action dev dst flags gateway iif iifname metric nexthops oif oifname prefsrc priority protocol scope src srclen
    table type via weight
"""
_WAY_KEYS = frozenset(_WAY_KEYS_WORDS.split())

_SMI_LINE = re.compile(r"^(\s*)([^:\n]+?)(\s*):[ ](.*)$")
_SMI_HEADING = re.compile(
    r"\s*(?:[A-Za-z][\w /().,-]{0,60})?|=+NVSMI LOG=+|GPU [0-9A-F]{8}:[0-9A-F]{2}:[0-9A-F]{2}\.[0-7]"
)
_SMI_KEPT = frozenset(
    {
        "Product Name",
        "Product Brand",
        "Product Architecture",
        "Driver Version",
        "CUDA Version",
        "VBIOS Version",
        "GPU Part Number",
        "Board Part Number",
        "Image Version",
        "GSP Firmware Version",
        "Bus Id",
        "Device Id",
        "Sub System Id",
        "Virtualization Mode",
    }
)
_SMI_HIDDEN = re.compile(r"serial|uuid|pdi|process|timestamp|name$", re.IGNORECASE)
_SMI_PLAIN = re.compile(
    r"""
      -?\d{1,9}(?:\.\d{1,6})?x?(?:[ ]?[A-Za-z/%]{1,6})? | 0x[0-9A-F]{1,8} | (?:[0-9A-F]{2}\.){1,5}[0-9A-F]{2}
    | \[?N/A\]? | None | Yes | No | On | Off | Enabled | Disabled | Active | Not[ ]Active | Default | P\d{1,2}
    | Supported | Not[ ]Supported | Unsupported | Success | Completed | In[ ]Progress | Insufficient[ ]Permissions
    | Unknown[ ]Error | Requested[ ]functionality[ ]has[ ]been[ ]deprecated | Pass | Fail | Normal | Full | Degraded
    | Pending | Idle | Exclusive_Process | Prohibited
    """,
    re.VERBOSE,
)


def ask(facts: Facts, budget: float = BUDGET_SECONDS, room: int = BUDGET_BYTES) -> tuple[Tool, ...]:
    """What the tools of this machine say, one after the other. None of them changes anything.

    nvidia-smi is asked only where the driver is loaded: it would load it. Once `budget` seconds or `room` bytes are
    spent, the tools that are left are not started (code 124, no output).
    """
    deadline = time.monotonic() + budget
    answers = []
    for name, argv in (*TOOLS, *_MORE, *_qos(facts)):
        if argv[0] == "nvidia-smi" and facts.host.driver is None:
            continue
        left = min(TIMEOUT_SECONDS, deadline - time.monotonic())
        size = min(OUTPUT_BYTES, room)
        started = left > 0 and size > 0
        answers.append(run_tool(name, argv, left, size) if started else Tool(name, tuple(argv), _STOPPED, ""))
        room -= len(answers[-1].output.encode("utf-8", "backslashreplace"))
    return tuple(answers)


def _qos(facts: Facts) -> tuple[tuple[str, tuple[str, ...]], ...]:
    netdevs = [nic.netdev for nic in facts.nics if nic.rdma and nic.netdev and nic.link_layer == "Ethernet"]
    return tuple((f"mlnx_qos-{netdev}", ("mlnx_qos", "-i", netdev)) for netdev in dict.fromkeys(netdevs))


def redact_output(name: str, output: str, redactor: TextRedactor) -> str:
    """A tool's output with pseudonyms; what is no output of this tool as far as the forms of text go."""
    return _OUTPUTS.get(name, _any)(output, redactor)


def _any(output: str, redactor: TextRedactor) -> str:
    return redactor.text(output)


def _lspci(output: str, redactor: TextRedactor) -> str:
    told = _VPD.sub(lambda match: match[1] + redactor.pseudonyms.serial(match[2].strip()), output)
    lines = told.splitlines(keepends=True)
    return "".join(line if _PLACE.match(line) else redactor.text(line) for line in lines)


def _links(output: str, redactor: TextRedactor) -> str:
    """`ip -j link`: the keys that are known. An alias is free text of an administrator."""
    return _rows(output, redactor, _LINK_KEYS)


def _ways(output: str, redactor: TextRedactor) -> str:
    """`ip -j rule` and `ip -j route`: the keys that are known."""
    return _rows(output, redactor, _WAY_KEYS)


def _rows(output: str, redactor: TextRedactor, keys: frozenset[str]) -> str:
    try:
        rows = json.loads(output)
        kept = [{key: row[key] for key in row if key in keys} for row in rows]
    except (ValueError, TypeError, RecursionError):
        return ""
    return json.dumps(_texts(kept, redactor)) + "\n"


def _texts(value: Any, redactor: TextRedactor) -> Any:
    if isinstance(value, dict):
        return {key: _texts(item, redactor) for key, item in value.items()}
    if isinstance(value, list):
        return [_texts(item, redactor) for item in value]
    return redactor.text(value) if isinstance(value, str) else value


def _smi(output: str, redactor: TextRedactor) -> str:
    """`nvidia-smi -q`: values that are known or have the form of a number, a state or a version."""
    return "".join(_smi_line(line, redactor) + "\n" for line in output.splitlines())


def _smi_line(line: str, redactor: TextRedactor) -> str:
    match = _SMI_LINE.match(line)
    if match is None:
        return redactor.text(line) if _SMI_HEADING.fullmatch(line) else ""
    key, value = match[2].strip(), match[4].strip()
    plain = _SMI_PLAIN.fullmatch(value) and not _SMI_HIDDEN.search(key)
    if key in _SMI_KEPT or value in {"N/A", "None"} or plain:
        return redactor.text(line)
    said = redactor.text(value) if value.startswith("GPU-") else redactor.pseudonyms.serial(value)
    return f"{match[1]}{redactor.text(match[2])}{match[3]}: {said}"


def _neighbours(_output: str, _redactor: TextRedactor) -> str:
    """`lldpcli`: names, places and descriptions that people gave to their switches. Nothing of it may leave."""
    return ""


_OUTPUTS: dict[str, Callable[[str, TextRedactor], str]] = {
    "lspci": _lspci,
    "ip-link": _links,
    ROUTES: _ways,
    RULES: _ways,
    NEIGHBOURS: _neighbours,
    "nvidia-smi-full": _smi,
}


def unanswered(tools: Sequence[Tool]) -> tuple[str, ...]:
    """Tools that did not answer well, each with the reason."""
    reasons = {
        None: "not installed",
        _STOPPED: "stopped, or not started, for its time or the size of its output",
    }
    return tuple(
        f"{tool.name}: {reasons.get(tool.code, f'ended with code {tool.code}')}"
        for tool in tools
        if tool.code != 0
    )
