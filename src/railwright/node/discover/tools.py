"""What other tools on the node say, kept word for word, and systemd's units. Live machines only; never a shell."""

from __future__ import annotations

import os
import re
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Optional, cast

from ..model import InputError, Nic, Tool, Unit

OUTPUT_BYTES = 4 * 1024 * 1024
TIMEOUT_SECONDS = 20.0
RULES, ROUTES = "ip-rule", "ip-route"
# Each tool by the name under which check and report look for it.
TOOLS = (
    ("lspci", ("lspci", "-D", "-nn", "-vvv")),
    ("nvidia-smi-topo", ("nvidia-smi", "topo", "-m")),
    (
        "nvidia-smi-query",
        (
            "nvidia-smi",
            "--query-gpu=pci.bus_id,uuid,name,compute_cap",
            "--format=csv,noheader",
        ),
    ),
    # By itself: a driver that does not know one of these fields answers none of them.
    (
        "nvidia-smi-fabric",
        (
            "nvidia-smi",
            "--query-gpu=pci.bus_id,fabric.state,fabric.status,fabric.cliqueId,fabric.clusterUuid",
            "--format=csv,noheader",
        ),
    ),
    ("systemctl", ("systemctl", "--version")),
    ("ip-link", ("ip", "-j", "link")),
    # Numbers instead of names of tables: a name is what /etc/iproute2/rt_tables says.
    (RULES, ("ip", "-N", "-j", "-4", "rule")),
    (ROUTES, ("ip", "-N", "-j", "-4", "route", "show", "table", "all")),
)
# What the ports of the fabric say. A port answers in milliseconds; where a driver hangs, this is for all of them.
MOST_PORTS = 64
PORT_BYTES = 64 * 1024
PORT_SECONDS = 5.0
PORTS_SECONDS = 20.0
DCB = ("pfc", "app", "ets", "dcbx")
# What a host alone has to say: no switch is compared with it.
DCB_OF_HOST = ("buffer", "maxrate")
NEIGHBOURS = "lldpcli"
_UNIT = re.compile(
    r"[A-Za-z0-9:_.\\@-]+\.(?:service|socket|target|timer|path|mount|automount|swap|slice|scope|device)"
)
_PROPERTIES = (
    "LoadState,ActiveState,UnitFileState,NeedDaemonReload,Type,Result,InactiveEnterTimestampMonotonic"
)
# As timeout(1) and a shell end.
_STOPPED = 124
_NOT_RUNNABLE = 126


def run_tool(
    name: str, argv: Sequence[str], timeout: float = TIMEOUT_SECONDS, limit: int = OUTPUT_BYTES
) -> Tool:
    """Runs a tool with a fixed language and no input; its output is stdout and stderr together.

    code: None where it is not installed, 124 where it was stopped for its time or its output (what came until then is
    kept), 126 where it cannot be started.
    """
    # The tools of an administrator are often missing from the PATH of a service.
    path = os.pathsep.join(filter(None, (os.environ.get("PATH"), "/usr/sbin", "/usr/bin", "/sbin", "/bin")))
    program = shutil.which(argv[0], path=path)
    if program is None:
        return Tool(name, tuple(argv), None, "")
    try:
        process = subprocess.Popen(
            [program, *argv[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "LC_ALL": "C", "PATH": path},
            start_new_session=True,
        )
    except OSError as error:
        return Tool(name, tuple(argv), _NOT_RUNNABLE, str(error))
    deadline = time.monotonic() + timeout
    output, whole = _collect(cast("IO[bytes]", process.stdout), deadline, limit)
    code = _STOPPED
    with suppress(subprocess.TimeoutExpired):
        code = process.wait(max(0.0, deadline - time.monotonic())) if whole else _STOPPED
    if code == _STOPPED:
        # Its children too: a hanging tool may have started others.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return Tool(name, tuple(argv), code, output.decode("utf-8", "backslashreplace"))


def _collect(pipe: IO[bytes], deadline: float, limit: int) -> tuple[bytes, bool]:
    """Output until its end, the deadline or the limit; False where the end was not reached."""
    chunks: list[bytes] = []
    size = 0
    with pipe, selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while size <= limit and selector.select(max(0.0, deadline - time.monotonic())):
            chunk = os.read(pipe.fileno(), 65536)
            if not chunk:
                return b"".join(chunks), True
            chunks.append(chunk[: max(0, limit - size)])
            size += len(chunk)
    return b"".join(chunks), False


def run_tools(nics: Sequence[Nic] = ()) -> tuple[Tool, ...]:
    """All of TOOLS, one after the other, then what these NICs' ports are asked."""
    return (*(run_tool(name, argv) for name, argv in TOOLS), *run_port_tools(nics))


def run_port_tools(nics: Sequence[Nic]) -> tuple[Tool, ...]:
    """What these NICs' ports are asked. Once PORTS_SECONDS are spent, the rest is not started (code 124, no output)."""
    outputs: list[Tool] = []
    deadline = time.monotonic() + PORTS_SECONDS
    for name, argv in port_tools(nics):
        outputs.append(_in_time(name, argv, deadline))
    without = {tool.argv[-1] for tool in outputs if tool.argv[0] == "dcb" and tool.code is None}
    for netdev in (name for name in fabric_netdevs(nics)[:MOST_PORTS] if name in without):
        outputs.append(_in_time(mlnx_tool(netdev), ("mlnx_qos", "-i", netdev), deadline))
    return tuple(outputs)


def _in_time(name: str, argv: tuple[str, ...], deadline: float) -> Tool:
    left = min(PORT_SECONDS, deadline - time.monotonic())
    size = OUTPUT_BYTES if name == NEIGHBOURS else PORT_BYTES
    return run_tool(name, argv, left, size) if left > 0 else Tool(name, argv, _STOPPED, "")


def port_tools(nics: Sequence[Nic]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """What is asked of the ports: the neighbours of all, then DCB and 802.3x pause of each by its netdev."""
    netdevs = fabric_netdevs(nics)
    asked: list[tuple[str, tuple[str, ...]]] = []
    if netdevs:
        asked.append((NEIGHBOURS, ("lldpcli", "-f", "json", "show", "neighbors", "details")))
    for netdev in netdevs[:MOST_PORTS]:
        parts = (*DCB, *DCB_OF_HOST)
        asked += [(dcb_tool(part, netdev), ("dcb", "-j", part, "show", "dev", netdev)) for part in parts]
        asked.append((pause_tool(netdev), ("ethtool", "-a", netdev)))
    return tuple(asked)


def fabric_netdevs(nics: Sequence[Nic]) -> tuple[str, ...]:
    """Netdevs that may be a rail of an Ethernet fabric: RDMA-capable ones, then others that no default route needs.

    A virtual function has neither PFC nor a neighbour of its own. A name that begins like an option is never asked for.
    """
    ports = [
        nic
        for nic in nics
        if nic.link_layer == "Ethernet"
        and not nic.physical_function
        and not nic.management
        and (nic.rdma is not None or nic.default_route is False)
    ]
    ports.sort(key=lambda nic: nic.rdma is None)
    names = dict.fromkeys(nic.netdev or "" for nic in ports)
    return tuple(name for name in names if name and not name.startswith("-"))


def dcb_tool(part: str, netdev: str) -> str:
    """The name under which `dcb -j PART show dev IF` is kept."""
    return f"dcb-{part}-{netdev}"


def pause_tool(netdev: str) -> str:
    """The name under which `ethtool -a IF` is kept."""
    return f"ethtool-pause-{netdev}"


def mlnx_tool(netdev: str) -> str:
    """The name under which `mlnx_qos -i IF` is kept, which is asked where there is no dcb."""
    return f"mlnx-qos-{netdev}"


def read_units(names: Sequence[str]) -> tuple[Unit, ...]:
    """Units by `systemctl show`; () where systemd does not run here. Raises InputError for what is no unit name."""
    for name in names:
        if not _UNIT.fullmatch(name):
            raise InputError(f"units.{name}", "is no unit name", "expected a name like irqbalance.service")
    tool = run_tool(
        "systemctl", ("systemctl", "show", "--no-pager", f"--property={_PROPERTIES}", "--", *names)
    )
    return parse_units(tool, tuple(names)) if tool.code == 0 else ()


def parse_units(tool: Tool, names: tuple[str, ...]) -> tuple[Unit, ...]:
    """Units from one block of properties for each name, in the order asked. Raises InputError."""
    blocks = [
        dict(_property(line) for line in block.splitlines()) for block in tool.output.strip().split("\n\n")
    ]
    if len(blocks) != len(names) or not all("LoadState" in block for block in blocks):
        raise InputError(
            " ".join(tool.argv), f"{len(blocks)} answers", f"expected {len(names)} blocks of properties"
        )
    return tuple(_unit(name, block) for name, block in zip(names, blocks))


def _unit(name: str, block: dict[str, str]) -> Unit:
    active = block.get("ActiveState") or None
    ended = block.get("InactiveEnterTimestampMonotonic", "0") != "0"
    return Unit(
        name=name,
        load=block["LoadState"],
        active=active,
        enabled=block.get("UnitFileState") or None,
        needs_reload={"yes": True, "no": False}.get(block.get("NeedDaemonReload", "")),
        done=block.get("Type") == "oneshot"
        and active == "inactive"
        and ended
        and block.get("Result") == "success",
    )


def _property(line: str) -> tuple[str, str]:
    name, _, value = line.partition("=")
    return name, value


def silence(tool: Tool) -> Optional[str]:
    """Why a tool's word is not to be had; None where it ran well."""
    if tool.code is None:
        return f"{tool.argv[0]} is not on the node"
    if tool.code != 0:
        first = next(iter(tool.output.strip().splitlines()), "without a word")
        return f"{tool.argv[0]} ended with {tool.code}: {first[:200]}"
    return None


def tool_named(tools: Sequence[Tool], name: str) -> Optional[Tool]:
    """The output of a tool that ran well, or None."""
    return next((tool for tool in tools if tool.name == name and tool.code == 0), None)
