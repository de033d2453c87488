"""The contract as it stands in an inventory, read without Ansible and without any host.

The variable `fabric` stands in one file: in a `group_vars` folder, in the `vars` of an inventory file, or as a file of
its own. Ansible hands the same value to the playbooks, so nothing here needs templating: a template is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from railwright.captures.source import load
from railwright.node.model import InputError, Policy

from .contract import Contract
from .policy import FILTER, host_policy

VARIABLE = "fabric"
_SUFFIXES = (".yml", ".yaml", ".json")
_DEEPEST = 20
_MOST = 200_000


class _Loader(yaml.SafeLoader):
    """YAML as inventories have it: what is encrypted or marked for Ansible alone is no value for us."""


_Loader.add_multi_constructor("!", lambda _loader, _suffix, _node: None)


@dataclass(frozen=True)
class Found:
    """The contract, where it stands, and the NCCL traffic class that the nodes' policy states, if any."""

    contract: Contract
    where: str
    traffic_class: int | None
    policy_seen: bool


def read_inventory(path: Path) -> Found:
    """The contract of an inventory: a folder, an inventory file, or a file that holds `fabric` or is it.

    Raises InputError when there is none or more than one, or when it cannot be used; it says where.
    """
    if not path.exists():
        raise InputError(str(path), "is not there", "expected an inventory folder or file")
    files = _files(path)
    seen = [(file, _data(file)) for file in files]
    if path.is_file() and isinstance(seen[0][1], dict) and "switches" in seen[0][1]:
        found = [(path, str(path), seen[0][1])]
    else:
        found = [(file, *place) for file, data in seen for place in _variables(file, data, VARIABLE)]
    if not found:
        raise InputError(
            str(path),
            f"holds no variable `{VARIABLE}`",
            "state the contract in group_vars/all.yml; inventories/example shows one",
        )
    if len(found) > 1:
        raise InputError(
            found[1][1],
            f"states `{VARIABLE}`, and so does {found[0][1]}",
            "keep one: a fabric has one contract",
        )
    file, where, value = found[0]
    _refuse_templates(value, where)
    _refuse_doubles(file, whole=where == str(file))
    contract = Contract.read(value, where)
    policies = [policy for file, data in seen for _, policy in _variables(file, data, "node_policy")]
    stated, policy_seen = _traffic_class(policies)
    return Found(contract, where, _of_lossless(policies, contract) if stated is None else stated, policy_seen)


def _files(path: Path) -> list[Path]:
    if path.is_file():
        folder = path.parent / "group_vars"
        return [path, *_below(folder)]
    try:
        here = [file for file in sorted(path.iterdir()) if file.is_file() and file.suffix in _SUFFIXES]
    except OSError as error:
        raise InputError(str(path), f"cannot be listed: {error.strerror}") from error
    return [*here, *_below(path / "group_vars")]


def _below(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    # Ansible reads a file of group_vars without a suffix too.
    return sorted(
        file
        for file in folder.rglob("*")
        if file.is_file() and (file.suffix in _SUFFIXES or not file.suffix) and not file.name.startswith(".")
    )


def _data(file: Path) -> Any:
    try:
        text = load(file).text
    except InputError as error:
        # An empty file of variables is Ansible's way of none.
        if file.exists() and file.stat().st_size < 2:
            return None
        raise error
    if text.startswith("$ANSIBLE_VAULT;"):
        return None
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark is not None else 1
        raise InputError(f"{file}:{line}", f"is not YAML: {error.problem}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(str(file), f"is not usable YAML: {' '.join(str(error).split())[:200]}") from error


def _variables(
    file: Path, data: Any, name: str, depth: int = 0, place: str = ""
) -> Iterator[tuple[str, Any]]:
    """Each place in a file where the variable stands: at the top of a group_vars file, or in `vars` of a group."""
    if not isinstance(data, dict) or depth > _DEEPEST:
        return
    if depth == 0 and name in data and not ("hosts" in data or "children" in data):
        yield f"{file}: {name}", data[name]
        return
    for group, body in data.items():
        if not isinstance(body, dict):
            continue
        if group == "vars" and name in body:
            yield f"{file}: {place}vars.{name}", body[name]
        elif group != "hosts":
            yield from _variables(file, body, name, depth + 1, f"{place}{group}.")


def _refuse_templates(value: Any, where: str) -> None:
    """Refuses templates, and what YAML's anchors have put into itself or multiplied beyond any fabric."""
    waiting = [(value, where, 0)]
    looked = 0
    while waiting:
        part, place, depth = waiting.pop()
        looked += 1
        if depth > _DEEPEST or looked > _MOST:
            raise InputError(where, "is nested too deeply or too large for a contract", "write it out")
        if isinstance(part, dict):
            waiting += [(item, f"{place}.{key}", depth + 1) for key, item in part.items()]
        elif isinstance(part, list):
            waiting += [(item, f"{place}[{number}]", depth + 1) for number, item in enumerate(part)]
        elif isinstance(part, str) and "{{" in part:
            raise InputError(
                place, "holds a template", "state the value: the contract is read without Ansible"
            )


def _refuse_doubles(file: Path, whole: bool) -> None:
    """Refuses a contract that states a key twice: YAML keeps the last one silently, and a port would be lost.

    whole: the file is the contract; else it is what stands under `fabric` in it.
    """
    root = yaml.compose(load(file).text, Loader=yaml.SafeLoader)
    waiting = [(root, whole)] if root is not None else []
    looked: set[tuple[int, bool]] = set()
    while waiting:
        node, inside = waiting.pop()
        if (id(node), inside) in looked:
            continue
        looked.add((id(node), inside))
        if isinstance(node, yaml.SequenceNode):
            waiting += [(item, inside) for item in node.value]
        elif isinstance(node, yaml.MappingNode):
            stated: set[str] = set()
            for key, item in node.value:
                name = key.value if isinstance(key, yaml.ScalarNode) else None
                if inside and name in stated:
                    line = key.start_mark.line + 1
                    raise InputError(f"{file}:{line}", f"states {name!r} twice", "keep the one that is meant")
                if name is not None:
                    stated.add(name)
                waiting.append((item, inside or name == VARIABLE))


def _of_lossless(policies: list[Any], contract: Contract) -> int | None:
    """What NCCL is told where the policy states lossless classes and no class of NCCL's own."""
    for policy in policies:
        lossless = policy.get("lossless") if isinstance(policy, dict) else None
        if isinstance(lossless, str) and FILTER in lossless and VARIABLE in lossless:
            lossless = host_policy(contract, "")
        if isinstance(lossless, dict):
            read = Policy.read({"lossless": lossless}, "node_policy").lossless
            return None if read is None else read.tos
    return None


def _traffic_class(policies: list[Any]) -> tuple[int | None, bool]:
    for policy in policies:
        nccl = policy.get("nccl") if isinstance(policy, dict) else None
        if not isinstance(nccl, dict):
            continue
        env = nccl.get("env")
        stated = env.get("NCCL_IB_TC") if isinstance(env, dict) else None
        stated = nccl.get("traffic_class") if stated is None else stated
        if isinstance(stated, int) and not isinstance(stated, bool):
            return stated, True
        if isinstance(stated, str) and stated.isdecimal():
            return int(stated), True
    return None, bool(policies)
