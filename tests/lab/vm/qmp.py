"""QEMU's monitor: one command a connection, over a socket in the run's folder (QEMU's docs/interop/qmp-spec)."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from ..errors import LabError

# A monitor answers at once; one that saves a machine's memory works on in the background.
_SECONDS = 60.0


class Silent(LabError):
    """The monitor does not answer: not yet, or no more."""


def ask(where: Path, command: str, **arguments: Any) -> Any:
    """What the command returned. An argument's `_` is sent as `-`. Raises LabError where it is refused."""
    words = {name.replace("_", "-"): value for name, value in arguments.items()}
    try:
        # QEMU serves one at a time: whoever holds a connection open keeps all others out.
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_SECONDS)
            connection.connect(str(where))
            with connection.makefile("rw", encoding="utf-8") as stream:
                _answer(stream)
                _send(stream, {"execute": "qmp_capabilities"})
                answer = _send(stream, {"execute": command, "arguments": words})
    except (OSError, EOFError) as error:
        raise Silent(
            f"{where}: {command}", f"the emulator does not answer: {error}", "see emulator.log"
        ) from error
    if "error" in answer:
        raise LabError(f"{where}: {command}", str(answer["error"].get("desc")), "see QEMU's QMP reference")
    return answer["return"]


def _send(stream: Any, request: dict[str, Any]) -> dict[str, Any]:
    stream.write(json.dumps(request) + "\n")
    stream.flush()
    return _answer(stream)


def _answer(stream: Any) -> dict[str, Any]:
    """The next answer; what happened meanwhile is passed over."""
    for line in stream:
        page: dict[str, Any] = json.loads(line)
        if "event" not in page:
            return page
    raise EOFError("it closed the connection")
