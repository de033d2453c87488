"""The border between Ansible's values and ours: what every filter of filter_plugins passes. Needs ansible-core."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable
from typing import Any

from ansible.errors import AnsibleTemplatePluginError

from railwright.fleet import kept
from railwright.node.model import InputError
from railwright.report.visible import visible


def filters(functions: Iterable[Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """The filters of a plugin by name, each behind the border."""
    return {function.__name__: _border(function) for function in functions}


def line(text: str) -> str:
    """One line that can go to a terminal, whatever a node has put into it."""
    return visible(" ".join(text.split()))


def _border(function: Callable[..., Any]) -> Callable[..., Any]:
    """Ansible's lazy, tagged containers in, plain ones out, and what a run has kept in place of where it lies.

    Bad input is told with the place it came from.
    """

    @functools.wraps(function)
    def border(*values: Any, **options: Any) -> Any:
        # JSON there and back renders what is lazy and drops the tags.
        values_, options_ = json.loads(json.dumps([values, options]))
        try:
            return function(
                *map(kept.read, values_), **{name: kept.read(value) for name, value in options_.items()}
            )
        except InputError as error:
            raise AnsibleTemplatePluginError(str(error), obj=values[0]) from error

    return border
