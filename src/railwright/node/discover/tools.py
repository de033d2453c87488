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

from ..model import InputError, Tool, Unit

OUTPUT_BYTES = 4 * 1024 * 1024
TIMEOUT_SECONDS = 20.0
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
    ("systemctl", ("systemctl", "--version")),
    ("ip-link", ("ip", "-j", "link")),
)
_UNIT = re.compile(
    r"^[A-Za-z0-9:_.\\@-]+\.(?:service|socket|target|timer|path|mount|automount|swap|slice|scope|device)$"
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


def run_tools() -> tuple[Tool, ...]:
    """All of TOOLS, one after the other."""
    return tuple(run_tool(name, argv) for name, argv in TOOLS)


def read_units(names: Sequence[str]) -> tuple[Unit, ...]:
    """Units by `systemctl show`; () where systemd does not run here. Raises InputError for what is no unit name."""
    for name in names:
        if not _UNIT.match(name):
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


def tool_named(tools: Sequence[Tool], name: str) -> Optional[Tool]:
    """The output of a tool that ran well, or None."""
    return next((tool for tool in tools if tool.name == name and tool.code == 0), None)
