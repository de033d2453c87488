"""Large values of a run as files of its record, and what is handed on in their place.

Ansible tags, copies and renders whatever tasks hand on, for each task anew, and a node's facts are some hundred KB. So
tasks hand on where such a value lies and the digest of its bytes, and who needs the value reads it there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from railwright import whole
from railwright.node.model import InputError

Json = dict[str, Any]
_KEYS = {"kept", "sha256"}
# What nobody reads line by line: encoding them with an indent takes ten times as long.
_DENSE = ("facts", "ports")


def as_json(value: Any, noun: str = "") -> bytes:
    """The bytes of a file of the record. Large nouns have one line a key."""
    if noun in _DENSE and isinstance(value, dict) and value:
        lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(entry)}" for key, entry in value.items())
        return f"{{\n{lines}\n}}\n".encode()
    return (json.dumps(value, indent=2) + "\n").encode()


def keep(folder: Path, values: Mapping[str, Any]) -> dict[str, Json]:
    """Write FOLDER/NOUN.json for each noun, all whole or none, and give what to hand on. Raises OSError."""
    files = {noun: as_json(value, noun) for noun, value in values.items()}
    whole.replace({folder / f"{noun}.json": content for noun, content in files.items()})
    return {
        noun: {"kept": str(folder / f"{noun}.json"), "sha256": hashlib.sha256(content).hexdigest()}
        for noun, content in files.items()
    }


def is_kept(value: Any) -> bool:
    """Whether this is what `keep` gives, and not a value itself."""
    return isinstance(value, dict) and value.keys() == _KEYS


def read(value: Any) -> Any:
    """The value that was kept; what was not kept is the value itself. Raises InputError."""
    if not is_kept(value):
        return value
    path = str(value["kept"])
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise InputError(
            path,
            f"cannot be read: {error.strerror}",
            "leave node_output alone while a run goes on, and run it again",
        ) from error
    if hashlib.sha256(content).hexdigest() != value["sha256"]:
        raise InputError(
            path,
            "is not what this run has kept there: another run has written it since",
            "let runs over the same nodes take turns, or give each a node_output of its own",
        )
    return json.loads(content)
