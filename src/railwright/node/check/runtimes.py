"""Environments against the facts: the version that is meant, and what the self-test found since the last boot."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from ..model import Facts, Finding
from ..model.runtime_facts import Runtime
from ..model.wheel_lock import read_lock
from .answer import Answer, unseen

Entry = dict[str, Any]
_INSTALL = "run `ansible-playbook -i INVENTORY playbooks/install.yml -l NODE`"


def environment(facts: Facts, name: str, entry: Entry) -> Iterator[Answer]:
    """Of one environment."""
    where = f"/opt/railwright/{entry['name']}"
    code, tested = f"{name}.environment", f"{name}.self_test"
    if facts.runtimes is None:
        yield unseen(
            code, where, "the facts hold no environments", "read the node itself (railwright discover)"
        )
        return
    found = next((one for one in facts.runtimes if one.name == entry["name"]), Runtime(entry["name"]))
    meant = read_lock(entry["lock"], f"{name}.lock").digest[:12]
    if found.version is None:
        yield Answer(code, Finding(code, "error", where, "is not built", _INSTALL))
        return
    if os.path.basename(found.version).partition("-")[0] == meant:
        yield Answer(code)
    else:
        why = f"its link leads to {found.version[:80]}, and the lock's version is {meant}"
        yield Answer(code, Finding(code, "error", where, why, _INSTALL))
    yield from _self_test(tested, where, found)


def _self_test(code: str, where: str, found: Runtime) -> Iterator[Answer]:
    page = found.self_test
    if page is None:
        why = "no self-test was run since the boot"
        yield unseen(
            code,
            where,
            why,
            "run `ansible-playbook -i INVENTORY playbooks/verify.yml -e verify_self_test=true`",
        )
        return
    if page.version != os.path.basename(found.version or ""):
        why = f"the last self-test was of {page.version or 'another version'}"
        yield unseen(code, where, why, "run it again")
        return
    if page.problems or page.verdict == "broken":
        for problem in page.problems or ("the self-test says that it is broken",):
            yield Answer(
                code, Finding(code, "error", where, problem, "run the self-test again when that is mended")
            )
        return
    if page.verdict == "no GPU":
        yield unseen(
            code, where, "the self-test found no GPU, so CUDA was not used", "nothing, on a node without one"
        )
        return
    if page.verdict != "good":
        yield unseen(code, where, f"the self-test says {page.verdict[:80]!r}", "run it again")
        return
    yield Answer(
        code, why="; ".join([f"torch {page.torch}, CUDA {page.cuda}, NCCL {page.nccl}", *page.measured])
    )


KINDS = {"python_environment": environment}
