"""The border where a node's answers come in.

A node that others had root on answers what it likes, and Ansible acts on more of an answer than its module meant to
say. So each of our modules has an action of its own name on the controller: what its answer holds in the form that the
module has comes through, and nothing else does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from railwright.node.model import Facts, InputError, from_json, to_json
from railwright.node.state.outcome import Failure, ItemOutcome
from railwright.report.visible import shorten, visible

# The largest machine that was recorded (16 GPUs, 512 CPUs) takes less than a tenth of it.
MOST_CHARACTERS = 16 << 20
# Lines of a login's own talk that begin as an answer does.
MOST_BRACES = 50
# What a person is shown of words that a node chose.
MOST_WORDS = 2000
REMEDY = "find out who answers on this node before you trust it: its Python, its shell and its sshd"
# What a shell answers for a program that is not there, and a module for an interpreter that is not.
NOT_FOUND = 127
NO_PYTHON = (
    "Install Python 3.9 or later on this node (python3), or say where it is: ansible_python_interpreter."
)

Json = dict[str, Any]


@dataclass(frozen=True)
class SliceAnswer:
    """What became of one slice."""

    changed: bool
    items: tuple[ItemOutcome, ...]


@dataclass(frozen=True)
class StateAnswer:
    """What node_state answers when it looked at its items, some of which it may not have been able to set."""

    changed: bool
    slices: dict[str, SliceAnswer]
    failures: tuple[Failure, ...]
    reboot_needed: tuple[str, ...]
    diff: tuple[dict[str, str], ...] | None = None  # of a task without `diff`


WORDS = ("msg", "where", "why", "remedy")
KEYS = ("failed", "ansible_facts", *WORDS, *StateAnswer.__dataclass_fields__)


def facts(answer: Json) -> Json:
    """The result of a node_facts task. Raises InputError."""
    found = answer.get("ansible_facts")
    if not isinstance(found, dict) or "node" not in found:
        raise InputError("ansible_facts.node", "missing")
    return {"changed": False, "ansible_facts": {"node": to_json(Facts.read(found["node"]))}}


def state(answer: Json) -> Json:
    """The result of a node_state task. Raises InputError."""
    known = {key: answer[key] for key in StateAnswer.__dataclass_fields__ if key in answer}
    read = Json(_shown(to_json(from_json(StateAnswer, known, "answer"))))
    return {key: value for key, value in read.items() if value is not None}


def _shown(value: Any) -> Any:
    """All texts without what steers a terminal: Ansible shows a diff as it comes."""
    if isinstance(value, dict):
        return {_shown(key): _shown(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_shown(item) for item in value]
    return visible(value) if isinstance(value, str) else value


class AnswerAction(ActionBase):  # type: ignore[misc] # Ansible ships no types
    """Runs the module of the action's own name on the node and takes its answer as `read` reads it."""

    _supports_check_mode = True
    read: Callable[[Json], Json]

    def run(self, tmp: Any = None, task_vars: Json | None = None) -> Json:
        super().run(tmp, task_vars)
        try:
            return admitted(self._execute_module(task_vars=task_vars), type(self).read)
        except InputError as error:
            why = shorten(str(error), MOST_WORDS)
        except RecursionError:
            why = "it is nested deeper than any answer of ours"
        raise AnsibleActionFail(
            f"{self._task.action}: this node's answer cannot be used, and nothing was taken from it: {why}; {REMEDY}"
        )

    def _low_level_execute_command(self, *arguments: Any, **options: Any) -> Json:
        done: Json = super()._low_level_execute_command(*arguments, **options)
        length = max(len(done.get("stdout") or ""), len(done.get("stderr") or ""))
        if length > MOST_CHARACTERS:
            raise AnsibleActionFail(
                f"{self._task.action}: this node answered with {length} characters where {MOST_CHARACTERS} are enough "
                f"for any machine, and nothing was taken from it; {REMEDY}"
            )
        return {**done, **{stream: heard(done.get(stream) or "") for stream in ("stdout", "stderr")}}


def heard(text: str) -> str:
    """What Ansible is given to read: of JSON the keys that our modules have, anything else with nothing hidden in it.

    Ansible shows a module's warnings as they come, and those of a node can hold what steers a terminal.
    """
    for begin in islice(re.finditer(r"^\{", text, re.MULTILINE), MOST_BRACES):
        try:
            answer, _ = json.JSONDecoder().raw_decode(text, begin.start())
        except ValueError:
            continue
        kept = {key: answer[key] for key in KEYS if key in answer}
        # Some versions of Ansible look into the facts before an action gets to see them.
        if not isinstance(kept.get("ansible_facts", {}), dict):
            del kept["ansible_facts"]
        return json.dumps(kept)
    return visible(text)


def admitted(answer: Json, read: Callable[[Json], Json]) -> Json:
    """What of an answer the run goes on with. Raises InputError for an answer that is not in its module's form."""
    if not answer.get("failed"):
        return read(answer)
    words = {key: answer[key] for key in WORDS if isinstance(answer.get(key), str)}
    result: Json = {"failed": True, **{key: shorten(text, MOST_WORDS) for key, text in words.items()}}
    result.setdefault("msg", "the module failed and said nothing")
    if answer.get("rc") == NOT_FOUND:
        result["msg"] += f" {NO_PYTHON}"
    if not answer.get("_ansible_parsed", True) or "module_stdout" in answer:
        heard = "".join(str(answer.get(key) or "") for key in ("module_stdout", "module_stderr")).strip()
        result["msg"] += (
            f" The node said: {shorten(heard, MOST_WORDS)}" if heard else " The node said nothing."
        )
    elif "failures" in answer:
        result |= read(answer)
    return result
