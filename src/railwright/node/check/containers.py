"""Containers: whether they keep their GPUs when systemd reads its units again, and whether their CDI file is true."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..discover.containers import DOCKER_KEYS
from ..model import Containers, Facts, Finding, Plan
from ..state import jsontext
from .answer import Answer, elsewhere, listed, unseen

Entry = dict[str, Any]
_READ_AGAIN = "read the node itself: railwright check PLAN"
_GPUS = "nvidia.com/gpu"
_LINKS, _TRUE = "container_runtime.dev_char", "container_runtime.cdi"
_JSON = "container_runtime.daemon_json"
# What has the CDI file written: whoever it is, and our own unit.
_WANTED = "/etc/systemd/system/multi-user.target.d/60-railwright-cdi.conf"
_UNIT = "/etc/systemd/system/railwright-cdi.service"
_MOST_SHOWN = 120
_INSTALL = "run `ansible-playbook -i INVENTORY playbooks/install.yml -l NODE`"


def answers(plan: Plan, facts: Facts) -> Iterator[Answer]:
    """Nothing where the plan sets no runtime up."""
    if "container_runtime" not in plan.slices:
        return
    known = facts.containers
    if known is None:
        yield unseen(_LINKS, "containers", "the facts do not tell of containers", _READ_AGAIN)
        return
    if known.unlinked:
        why = "nothing below /dev/char leads to them: a reload of systemd takes them from containers that run"
        remedy = "nvidia-ctk system create-dev-char-symlinks --create-all"
        yield Answer(_LINKS, Finding(_LINKS, "error", listed(known.unlinked), why, remedy))
    elif known.devices:
        yield Answer(_LINKS)
    for entry in plan.slices["container_runtime"].entries:
        if entry.get("kind") == "json_keys":
            yield from _keys(known, entry)
    driver = facts.host.driver
    yield from _described(plan, facts, known)
    for one in known.cdi:
        if one.kind != _GPUS or driver is None or not one.drivers:
            continue
        if driver in one.drivers:
            yield Answer(_TRUE)
        else:
            why = f"names libraries of {', '.join(one.drivers)}, and {driver} is loaded: no container starts"
            remedy = f"nvidia-ctk cdi generate --output={one.path}"
            yield Answer(_TRUE, Finding(_TRUE, "error", one.path, why, remedy))


def _described(plan: Plan, facts: Facts, known: Containers) -> Iterator[Answer]:
    """Where the plan has somebody write the CDI file and the driver is loaded, there is one."""
    paths = {entry.get("path") for entry in plan.slices["container_runtime"].entries}
    if _WANTED not in paths or not facts.gpus or facts.host.driver is None:
        return
    if not any(one.kind == _GPUS for one in known.cdi):
        unit = "railwright-cdi.service" if _UNIT in paths else "nvidia-cdi-refresh.service"
        why = f"no file describes {_GPUS}, so no container can ask for a GPU; {unit} writes it at boot"
        yield Answer(_TRUE, Finding(_TRUE, "error", "/var/run/cdi", why, f"systemctl start {unit}"))


def _keys(known: Containers, entry: Entry) -> Iterator[Answer]:
    """Of daemon.json the keys that are read; what others keep in it no fact holds."""
    config = known.docker
    if config is None or config.why:
        why = "is not there" if config is None else config.why
        yield Answer(_JSON, Finding(_JSON, "error", entry["path"], why, _INSTALL))
        return
    for pointer, wanted in entry["keys"].items():
        names = jsontext.tokens(pointer) or ()
        if not names or names[0] not in DOCKER_KEYS:
            continue
        now = jsontext.get(config.values, names)
        if jsontext.same(now, {"value": wanted}):
            yield Answer(_JSON)
        else:
            shown = str(now.get("value", "not there"))[:_MOST_SHOWN]
            why = f"{pointer} is {shown}, planned {wanted}"
            yield Answer(_JSON, Finding(_JSON, "error", entry["path"], why, _INSTALL))


# Whether a daemon is older than its configuration only the writer tells, which looks at both at once.
KINDS = {"container_daemon": elsewhere}
