"""JSON files of the writer's own in /run, mode 0600: a boot empties it, and what they say is over then."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from . import files
from .fields import mapping
from .item import Node
from .outcome import Refused, StateError


def read(node: Node, path: str) -> dict[str, Mapping[str, Any]]:
    """`{name: {key: value}}`, empty where there is no file. Raises StateError for one that is none of ours."""
    found = files.read_ours(node.root, path)
    if found is None:
        return {}
    try:
        data: Any = json.loads(found.data)
        return {name: mapping(values, name) for name, values in mapping(data, path).items()}
    except (RecursionError, ValueError) as error:
        raise StateError(
            path, f"this is none of ours: {error}", "reboot, or look at it and remove it"
        ) from None


def save(node: Node, path: str, content: Mapping[str, Mapping[str, Any]]) -> None:
    """Replaces the file, or removes it when there is nothing to keep. Raises StateError."""
    try:
        seen = files.read(node.root, path)
        if content:
            data = json.dumps(content).encode("utf-8", "surrogatepass")
            files.replace(node.root, path, files.Content(data, "0600", os.geteuid(), os.getegid()), seen)
        elif seen is not None:
            files.remove(node.root, path, seen)
    except Refused as error:
        raise StateError(path, error.why, error.remedy) from None
    except OSError as error:
        raise StateError(
            path, f"cannot be kept: {error.strerror}", "free space on /run, or make it writable"
        ) from error
