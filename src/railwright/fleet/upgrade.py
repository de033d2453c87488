"""An upgrade of the driver: what it comes to, what is kept for the way back, and the way back. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from railwright.node.check import check
from railwright.node.check.gate import driver_set, planned_version
from railwright.node.model import Facts, Finding, InputError, Plan, to_json
from railwright.node.model.driver_packages import is_driver, upstream
from railwright.plan.nvidia_driver import PIN, pin

Json = dict[str, Any]
SLICES = ("nvidia_driver", "fabric_manager")
# What a driver that works must not be found to have.
_CODES = ("nvidia_driver.", "fabric_manager.")
_VERSIONS = (
    "nvidia_driver.versions",
    "fabric_manager.version",
    "fabric_manager.state",
    "nvidia_driver.rival",
)


def installed(facts: Facts, named: Collection[str] = ()) -> dict[str, str]:
    """The driver's packages that stand on the node, with their whole versions: the set to which one can go back.

    named: packages that belong to the set though their names are none of the driver's (nvlsm, prebuilt modules).
    """
    software = facts.software
    if software is None:
        raise InputError("facts.software", "is not known", "read the node again, as root")
    return {
        row.name: row.version
        for row in software.packages
        if row.status == "installed" and (is_driver(row.name) or row.name in named)
    }


def outlook(facts: Facts, plan: Plan) -> Json:
    """What an upgrade to this plan does, before it does anything: {"needed", "from", "to", "reboot", "loaded", "says"}.

    needed: a package of the set, or the loaded module, is of another version. from: the recorded set. reboot: the
    loaded module has to be replaced. Raises InputError where the plan has no driver.
    """
    wanted = planned_version(plan)
    if wanted is None:
        said = "; ".join(f"{finding.where}: {finding.why}" for finding in plan.findings if _is_ours(finding))
        raise InputError("policy.driver", said or "the policy names no driver", "state policy.driver.version")
    versions = driver_set(plan)
    have = installed(facts, versions)
    packages = any(have.get(name) != version for name, version in versions.items())
    loaded = facts.host.driver
    reboot = loaded is not None and loaded != wanted
    needed = packages or reboot
    olds = sorted({upstream(version) or version for name, version in have.items() if is_driver(name)})
    says = (
        f"driver {', '.join(olds) or 'none'} -> {wanted} in one transaction, all of the set; "
        + ("one reboot, then CUDA on every GPU" if reboot or loaded is None else "no reboot")
        if needed
        else f"driver {wanted} is there, loaded and whole: nothing to do"
    )
    return {
        "needed": needed,
        "from": have,
        "to": wanted,
        "reboot": reboot or (packages and loaded is not None),
        "loaded": loaded,
        "says": says,
    }


def way_back(plan: Plan, recorded: Mapping[str, str]) -> Json:
    """The slices with the recorded set in the place of the planned one: one transaction, pinned and held like it.

    A node that had no driver goes back to none.
    """
    slices: Json = {name: to_json(plan.slices[name].entries) for name in SLICES if name in plan.slices}
    kept = []
    for entry in slices.get("nvidia_driver", ()):
        if entry["kind"] == "packages":
            names = {*entry["versions"], *recorded}
            entry = {**entry, "versions": {name: recorded.get(name) for name in sorted(names)}}
        elif entry["kind"] == "file" and entry["path"] == PIN:
            entry = {**entry, "content": _pins(recorded)}
        kept.append(entry)
    return {**slices, "nvidia_driver": kept}


def _pins(recorded: Mapping[str, str]) -> str:
    """One version for all patterns where the set was whole; else none: each name would need its own."""
    versions = {version for name, version in recorded.items() if is_driver(name)}
    if len(versions) == 1:
        return pin(versions.pop())
    return (
        "# Written by Railwright; changes made here are lost.\n# What was put back was of several versions.\n"
    )


def verdict(facts: Facts, plan: Plan, cuda: Json | None, wanted: str | None = None) -> Json:
    """Whether the driver works: {"ok", "says", "problems"}. cuda: what a use of CUDA said, None where nobody tried.

    wanted: the version that should be loaded, where it is not the plan's. Where CUDA was not used, the module and the
    libraries are compared, and that this is less is said.
    """
    found = [finding for finding in check(plan, facts) if _is_ours(finding) and finding.severity == "error"]
    # After a way back the node is not as planned, and should not be.
    back = wanted is not None and wanted != planned_version(plan)
    problems = [
        f"{finding.where}: {finding.why}" for finding in found if not back or finding.code in _VERSIONS
    ]
    wanted = wanted or planned_version(plan)
    if facts.gpus and facts.host.driver != wanted:
        problems.append(f"the loaded module is {facts.host.driver or 'none'}, wanted {wanted}")
    if cuda is not None and facts.gpus and not cuda["ok"]:
        problems.append(f"CUDA: {cuda['why']}")
    if problems:
        return {"ok": False, "says": "the driver does not work", "problems": problems}
    if cuda is not None and facts.gpus:
        return {"ok": True, "says": f"CUDA: {cuda['why']}", "problems": []}
    says = "CUDA was not used: module and libraries agree, and that a GPU computes is not shown"
    return {"ok": True, "says": says, "problems": []}


def _is_ours(finding: Finding) -> bool:
    return finding.code.startswith(_CODES)
