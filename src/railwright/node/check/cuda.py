"""CUDA as planned: where /usr/local/cuda leads, and whether the linker's cache knows of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..model import Facts, Finding
from .answer import Answer, unseen

Entry = dict[str, Any]
_INSTALL = "run `ansible-playbook -i INVENTORY playbooks/install.yml -l NODE`"
_READ_AGAIN = "read the node again: railwright check PLAN"


def alternative(facts: Facts, name: str, entry: Entry) -> Iterator[Answer]:
    """Of CUDA alone; what others lead to no witness tells."""
    code = f"{name}.alternative"
    if facts.cuda is None or entry["name"] != "cuda":
        yield unseen(code, entry["link"], f"the facts do not tell where {entry['link']} leads", _READ_AGAIN)
        return
    leads, how = facts.cuda.default, facts.cuda.alternative
    if leads == entry["path"] and how == "manual":
        yield Answer(code)
        return
    why = f"{entry['link']} leads to {leads or 'nothing'} ({how or 'no alternative'}), planned {entry['path']} (manual)"
    yield Answer(code, Finding(code, "error", entry["link"], why, _INSTALL))


def linker_cache(facts: Facts, name: str, entry: Entry) -> Iterator[Answer]:
    """Whether ldconfig has run since its files were written."""
    code = f"{name}.linker_cache"
    older = None if facts.cuda is None else facts.cuda.stale_cache
    if older is None:
        yield unseen(code, "/etc/ld.so.cache", "the facts do not tell when it was made", _READ_AGAIN)
    elif older:
        why = "older than what is in /etc/ld.so.conf.d, so libraries there are not found"
        yield Answer(code, Finding(code, "error", "/etc/ld.so.cache", why, _INSTALL))
    else:
        yield Answer(code)


KINDS = {"alternative": alternative, "linker_cache": linker_cache}
