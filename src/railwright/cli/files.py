"""Files that the verbs read and write: JSON with its place in errors, text written whole or not at all."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import yaml

from railwright import presets, whole
from railwright.node.model import InputError, Policy

# The fleet's plan with the policies of ten thousand nodes is the largest file that is read.
_MOST_BYTES = 512 << 20
# Not {{.Name}}: that is Go's, which Docker's own log options have.
_TEMPLATE = re.compile(r"\{%|\{\{-?\s*[A-Za-z_]")


class _OneOfEach(yaml.SafeLoader):
    """YAML in which no key stands twice: PyYAML takes the last one, and the first is lost unseen."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        if isinstance(node, yaml.MappingNode):
            seen: set[tuple[str, str]] = set()
            for key, _ in node.value:
                if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                    continue
                if (key.tag, key.value) in seen:
                    raise yaml.constructor.ConstructorError(
                        "while reading a mapping",
                        node.start_mark,
                        f"the key {key.value!r} stands twice",
                        key.start_mark,
                    )
                seen.add((key.tag, key.value))
        made: dict[Any, Any] = super().construct_mapping(node, deep)
        return made


def read_text(path: Path) -> str:
    """The file's text, without the byte order mark of a spreadsheet. Raises InputError naming the file."""
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise InputError(
                str(path), f"is larger than {_MOST_BYTES >> 20} MiB", "name the file that is meant"
            )
        # Line breaks of Windows and of old Macs count as one each, as a file that is opened as text has them.
        return data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except OSError as error:
        raise InputError(str(path), f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(str(path), f"is not UTF-8 text: byte {error.start}") from error


def read_json(path: Path) -> Any:
    """The JSON value of a file. Raises InputError with line and column."""
    try:
        return json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{error.lineno}:{error.colno}", f"is not JSON: {error.msg}") from error
    except RecursionError as error:
        raise InputError(str(path), "is nested too deeply to be a plan or facts") from error


def read_yaml(path: Path) -> Any:
    """The value of a YAML or JSON file in which no key stands twice. Raises InputError naming the file."""
    text = read_text(path)
    try:
        return yaml.load(text, Loader=_OneOfEach)  # noqa: S506 # a safe loader, made stricter
    except yaml.YAMLError as error:
        raise InputError(str(path), f"is not YAML: {' '.join(str(error).split())}") from error
    except (ValueError, OverflowError) as error:
        # A day that no month has, a number of too many digits: what looks like one to YAML and is none.
        raise InputError(
            str(path), f"has a value that YAML cannot read: {error}", "put it in quotes"
        ) from error
    except RecursionError as error:
        raise InputError(str(path), "is nested too deeply to be a policy or a recipe") from error


def _must_not_be_template(data: Any, where: str) -> None:
    """Raises InputError for a text that only Ansible fills in."""
    left: list[tuple[Any, str]] = [(data, where)]
    seen: set[int] = set()
    while left:
        value, place = left.pop()
        if isinstance(value, str) and _TEMPLATE.search(value):
            raise InputError(
                place,
                "is a template, which Ansible fills in and this command does not",
                "write the value itself, or plan by playbooks/plan.yml",
            )
        if isinstance(value, (dict, list)) and id(value) not in seen:
            seen.add(id(value))
            rows = value.items() if isinstance(value, dict) else enumerate(value)
            left += [
                (one, f"{place}.{key}" if isinstance(value, dict) else f"{place}[{key}]") for key, one in rows
            ]


def read_policy(path: Path | None) -> Policy:
    """The policy of a YAML or JSON file, or the defaults without one.

    A file of inventory variables works as it is: its `node_policy` key is taken when there is one.
    """
    if path is None:
        return Policy()
    data = read_yaml(path)
    if isinstance(data, dict) and "node_policy" in data:
        data, where = data["node_policy"], f"{path}: node_policy"
    else:
        where = str(path)
    return policy_of(data if data is not None else {}, where)


def policy_of(data: Any, where: str) -> Policy:
    """The policy of what YAML holds. Raises InputError with the place."""
    _must_not_be_template(data, where)
    return Policy.read(presets.expanded(data, where), where)


def write_text(path: Path, text: str) -> None:
    """Write the whole file or leave what was there. Raises InputError naming the file."""
    # What is renamed onto a device, or onto /dev/stdout, takes its place: root would lose it for the whole machine.
    special = path.is_symlink() and os.readlink(path).startswith("/proc/")
    if special or (path.exists() and not path.is_file()):
        raise InputError(str(path), "cannot be written: it is no regular file", "name a file")
    try:
        whole.replace({path: text.encode("utf-8")})
    except OSError as error:
        raise InputError(str(path), f"cannot be written: {error.strerror}") from error


def dump_json(value: Any) -> str:
    """JSON as people diff it: two spaces, field order, one closing line break."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
