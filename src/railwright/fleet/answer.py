"""The border where a node's answers come in.

A node that others had root on answers what it likes, and Ansible acts on more of an answer than its module meant to
say. So each of our modules has an action of its own name on the controller: what its answer holds in the form that the
module has comes through, and nothing else does.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import socket
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.plugins.connection import ConnectionBase

from railwright.node.builder import Built
from railwright.node.libraries import Audit
from railwright.node.model import DriverUse, Facts, InputError, Probe, from_json, to_json
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

# Ansible loads an action, and this with it, once before it forks the processes that run it: so all calls of one run
# bear one name.
RUN = uuid.uuid4().hex[:12]

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
FACTS = "ansible_facts"
KEYS = ("failed", *WORDS, *StateAnswer.__dataclass_fields__)


def facts(answer: Json) -> Json:
    """The result of a node_facts task. Raises InputError."""
    return {"changed": False, "ansible_facts": {"node": to_json(facts_read(answer)["facts"])}}


def facts_read(answer: Json) -> Json:
    """What an action goes on with that hands no facts on. Raises InputError."""
    return {"facts": Facts.read(_fact(answer, "node"))}


def _fact(answer: Json, name: str) -> Any:
    found = answer.get(FACTS)
    if not isinstance(found, dict) or name not in found:
        raise InputError(f"{FACTS}.{name}", "missing")
    return found[name]


def probe(answer: Json) -> Json:
    """The result of a node_preflight task. Raises InputError."""
    read = from_json(Probe, _fact(answer, "preflight"), "preflight")
    return {"changed": False, "ansible_facts": {"preflight": _shown(to_json(read))}}


def driver(answer: Json) -> Json:
    """The result of a node_driver task. Raises InputError."""
    return {
        "changed": False,
        "ansible_facts": {"driver": to_json(from_json(DriverUse, _fact(answer, "driver"), "driver"))},
    }


def built(answer: Json) -> Json:
    """The result of a node_build task. Raises InputError."""
    read = from_json(Built, _fact(answer, "built"), "built")
    return {"changed": bool(read.made), "ansible_facts": {"built": to_json(read)}}


def libraries(answer: Json) -> Json:
    """The result of a node_libraries task. Raises InputError."""
    read = from_json(Audit, _fact(answer, "libraries"), "libraries")
    return {"changed": False, "ansible_facts": {"libraries": to_json(read)}}


def archive(answer: Json) -> Json:
    """The result of a node_archive task. Raises InputError."""
    found = _fact(answer, "archive")
    there = found.get("whole") if isinstance(found, dict) else None
    if not isinstance(there, bool):
        raise InputError("archive.whole", "missing", "expected true or false")
    return {"changed": bool(answer.get("changed")), "ansible_facts": {"archive": {"whole": there}}}


def state(answer: Json) -> Json:
    """The result of a node_state task. Raises InputError."""
    known = {key: answer[key] for key in StateAnswer.__dataclass_fields__ if key in answer}
    read = Json(_shown(to_json(from_json(StateAnswer, known, "answer"))))
    return {key: value for key, value in read.items() if value is not None}


def state_and_facts(answer: Json) -> Json:
    """The result of a node_state task that looks at the node afterwards, which it does not where an item failed. Raises
    InputError."""
    return state(answer) if answer.get("failed") else {**state(answer), **facts_read(answer)}


def _shown(value: Any) -> Any:
    """All texts without what steers a terminal: Ansible shows a diff as it comes."""
    if isinstance(value, dict):
        return {_shown(key): _shown(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_shown(item) for item in value]
    return visible(value) if isinstance(value, str) else value


class AnswerAction(ActionBase):  # type: ignore[misc] # Ansible ships no types
    """Runs one of our modules on the node and takes its answer as `read` reads it.

    module: None is the one of the action's own name.
    """

    _supports_check_mode = True
    _aside: Json
    module: str | None = None
    read: Callable[[Json], Json]

    def run(self, tmp: Any = None, task_vars: Json | None = None) -> Json:
        super().run(tmp, task_vars)
        return self.asked(dict(self._task.args), task_vars)

    def asked(self, arguments: Json, task_vars: Json | None) -> Json:
        """What the module answers to these arguments. Raises AnsibleActionFail for what is no answer of ours."""
        self._aside = {}
        try:
            answered = self._execute_module(
                module_name=self.module, module_args=arguments, task_vars=task_vars
            )
            return admitted({**answered, **self._aside}, type(self).read)
        except InputError as error:
            why = shorten(str(error), MOST_WORDS)
        except RecursionError:
            why = "it is nested deeper than any answer of ours"
        raise AnsibleActionFail(
            f"{self.module or self._task.action}: this node's answer cannot be used, and nothing was taken from it: "
            f"{why}; {REMEDY}"
        )

    def come_back(self, answered: Json, task_vars: Json | None) -> None:
        """Confirms a change of the rails' network, which the node undoes otherwise. By a connection of its own: the one
        that was open goes on where no new one would come through, as with a neighbour that is still remembered.

        At once: the other nodes of the play may take longer over their part than this one waits.
        """
        changed = answered.get("slices", {}).get("rail_network", {}).get("changed")
        if changed and not self._task.check_mode:
            self.reconnect()
            self.asked({**caller(), "state": "confirmed"}, task_vars)

    def reconnect(self) -> None:
        """The next question opens a connection anew, where the kind of connection keeps one."""
        if type(self._connection).reset is not ConnectionBase.reset:
            self._connection.reset()

    def _low_level_execute_command(self, *arguments: Any, **options: Any) -> Json:
        done: Json = super()._low_level_execute_command(*arguments, **options)
        length = max(len(done.get("stdout") or ""), len(done.get("stderr") or ""))
        if length > MOST_CHARACTERS:
            raise AnsibleActionFail(
                f"{self.module or self._task.action}: this node answered with {length} characters where "
                f"{MOST_CHARACTERS} are enough for any machine, and nothing was taken from it; {REMEDY}"
            )
        aside, stdout = heard(done.get("stdout") or "")
        # Without pipelining others follow the command that answers.
        self._aside = aside or self._aside
        return {**done, "stdout": stdout, "stderr": heard(done.get("stderr") or "")[1]}


def heard(text: str) -> tuple[Json, str]:
    """Facts, which are laid aside, and what Ansible is given to read: of JSON the other keys that our modules have,
    anything else with nothing hidden in it.

    Ansible shows a module's warnings as they come, and those of a node can hold what steers a terminal. Facts are
    large, and it would tag and copy each value of them.
    """
    for begin in islice(re.finditer(r"^\{", text, re.MULTILINE), MOST_BRACES):
        try:
            answer, _ = json.JSONDecoder().raw_decode(text, begin.start())
        except ValueError:
            continue
        aside = {FACTS: answer[FACTS]} if FACTS in answer else {}
        return aside, json.dumps({key: answer[key] for key in KEYS if key in answer})
    return {}, visible(text)


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


def caller() -> Json:
    """What node_state is told of who calls it, as another run is told that finds the node held."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"user {os.getuid()}"  # a container's user that no list knows
    return {"owner": f"{user}@{socket.gethostname()}", "run": RUN}
