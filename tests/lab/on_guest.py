"""The one writer run on a host of the lab by hand, so that a test sees what it did and nothing around it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from railwright.fleet import zipapp
from tests.lab.host import Host

_PLACE = "/run/railwright-test.pyz"
_CALL = f"""\
import json, sys
sys.path.insert(0, "{_PLACE}")
from railwright.node import state
from railwright.node.model import InputError
asked = json.load(sys.stdin)
try:
    done = getattr(state, asked["verb"])(asked["slices"], check=asked["check"], **asked["more"]).to_json()
except (InputError, state.StateError) as error:
    done = {{"refused": str(error)}}
json.dump(done, sys.stdout)
"""


def converge(
    host: Host, slices: Mapping[str, Any], *, check: bool = False, timeout: float | None = None, **more: Any
) -> dict[str, Any]:
    """The outcome of bringing the host to these slices, as JSON; {"refused": why} where nothing was done.

    timeout: seconds, where it may take longer than any other command of this host.
    """
    return _call(host, "apply", dict(slices), check, more, timeout)


def revert(host: Host, *names: str, check: bool = False, timeout: float | None = None) -> dict[str, Any]:
    """The outcome of putting these slices back, or all on record where none is named."""
    return _call(host, "revert", list(names) or None, check, {}, timeout)


def changed(outcome: Mapping[str, Any]) -> set[str]:
    """The ids of the items that were changed."""
    return {item["id"] for part in outcome["slices"].values() for item in part["items"] if item["changed"]}


def program(host: Host, *arguments: str) -> Any:
    """What the program of the node prints as JSON."""
    _install(host)
    return json.loads(host.must(f"python3 {_PLACE} {' '.join(arguments)} --json"))


def _install(host: Host) -> None:
    host.must(f"test -s {_PLACE} || base64 -d > {_PLACE}", stdin=zipapp.blob())


def _call(
    host: Host, verb: str, slices: Any, check: bool, more: Mapping[str, Any], timeout: float | None
) -> dict[str, Any]:
    _install(host)
    asked = json.dumps({"verb": verb, "slices": slices, "check": check, "more": dict(more)})
    done: dict[str, Any] = json.loads(host.must(f"python3 -c '{_CALL}'", stdin=asked, timeout=timeout))
    return done
