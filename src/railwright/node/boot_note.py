"""What a boot saw, did and found: for a machine to read, for whoever logs in, and for the console.

/run/railwright/boot.json, schema "railwright.boot/1", on a node that was made from an image, written when the boot
begins and when it ends:

    {"schema", "phase": "begun" | "ended", "result": null | "good" | "findings" | "refused" | "unreadable",
     "began", "ended": UTC, "cpu_seconds", "version", "boot_id", "policy_sha256", "workload", "shape", "tuned": {...},
     "refusals", "findings": [...], "failures": int, "slices": {name: {"items", "changed"}}, "reboot": [item, ...],
     "checks": [{"name", "ok", "detail", "skipped"}], "image": {...} | null, "words": [sentence, ...]}

shape is the machine as it was read, tuned the one that what lies on it was written for. The page is kept in
/var/lib/railwright/boot.json besides, so that the next boot knows whether this is the machine that was tuned. A phase
"begun" after a boot is a boot whose power went.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Optional

from .model import Facts, Finding, InputError, Plan, to_json
from .state import files
from .state.outcome import Outcome, Refused
from .state.place import FOLDER, RECORD

SCHEMA = "railwright.boot/1"
RUN = "/run/railwright/boot.json"
KEPT = f"{FOLDER}/boot.json"
# pam_motd(8) shows each file of /run/motd.d; an image has a link to it in /etc/motd.d.
MOTD = "/run/motd.d/60-railwright"
# The image that a node was made from, laid down by the bake.
IMAGE = "/etc/railwright/image.json"
# A report of measurements, where somebody has laid one down: {"ok", "when", "checks": [...]}.
ACCEPTANCE = f"{FOLDER}/acceptance.json"
_MOST_BYTES = 8 * 1024 * 1024
# In the place of a shape's digest while things are written. A boot that finds it comes after one that was cut off, or
# that could not put all back, and does not take what lies there for this machine's.
BETWEEN = "between"
RESULTS = {0: "good", 1: "findings", 2: "unreadable", 3: "refused"}


@dataclass
class Note:
    """One boot, as it goes on. began, ended: seconds since 1970."""

    began: float
    version: str = ""
    phase: str = "begun"
    result: Optional[str] = None
    ended: Optional[float] = None
    cpu_seconds: Optional[float] = None
    boot_id: Optional[str] = None
    policy_sha256: Optional[str] = None
    workload: Optional[str] = None
    shape: dict[str, Any] = field(default_factory=dict)
    tuned: dict[str, Any] = field(default_factory=dict)
    refusals: tuple[Finding, ...] = ()
    findings: tuple[Finding, ...] = ()
    failures: int = 0
    slices: dict[str, dict[str, int]] = field(default_factory=dict)
    reboot: tuple[str, ...] = ()
    checks: list[dict[str, Any]] = field(default_factory=list)
    image: Optional[Mapping[str, Any]] = None
    words: list[str] = field(default_factory=list)
    # Whether things of another machine lie on the node while this boot writes; no part of the page.
    mixed: bool = False

    def saw(self, facts: Facts, plan: Plan) -> None:
        """The node as it was read and planned."""
        self.boot_id = facts.host.boot_id
        self.policy_sha256 = plan.policy_sha256
        self.workload = plan.workload
        self.shape = shape(facts, plan)
        self.refusals = plan.refusals

    def writing(self) -> None:
        """From now on it is not known which machine the things on this node are for, until all of them are written;
        unless they were this machine's before."""
        self.mixed = is_other(self.tuned, self.shape)
        if self.mixed or not self.tuned:
            self.tuned = {**self.tuned, "sha256": BETWEEN}

    def wrote(self, outcome: Outcome) -> None:
        """What the writer did: what lies on the node now was written for this machine; but what could not be put back
        may still be another's, and the next boot tries again."""
        self.tuned = self.tuned if self.mixed and outcome.failures else self.shape
        self.slices = {
            name: {"items": len(items), "changed": sum(item.changed for item in items)}
            for name, items in outcome.slices.items()
        }
        self.failures = len(outcome.failures)
        self.reboot = tuple(outcome.reboot_needed)

    def end(self, status: int, ended: float, cpu_seconds: float) -> None:
        """The boot has come to its end."""
        self.phase, self.result = "ended", RESULTS[status]
        self.ended, self.cpu_seconds = ended, cpu_seconds

    def to_json(self) -> dict[str, Any]:
        """The page."""
        return {
            "schema": SCHEMA,
            "phase": self.phase,
            "result": self.result,
            "began": utc(self.began),
            "ended": None if self.ended is None else utc(self.ended),
            "cpu_seconds": None if self.cpu_seconds is None else round(self.cpu_seconds, 3),
            "version": self.version,
            "boot_id": self.boot_id,
            "policy_sha256": self.policy_sha256,
            "workload": self.workload,
            "shape": self.shape,
            "tuned": self.tuned,
            "refusals": to_json(self.refusals),
            "findings": to_json(self.findings),
            "failures": self.failures,
            "slices": self.slices,
            "reboot": list(self.reboot),
            "checks": list(self.checks),
            "image": None if self.image is None else dict(self.image),
            "words": list(self.words),
        }


def shape(facts: Facts, plan: Plan) -> dict[str, Any]:
    """The machine as far as a plan depends on it, and its digest: another machine, or a part of it gone, differs."""
    numa = [[node.id, node.cpus] for node in facts.numa]
    gpus = [[gpu.address, gpu.numa] for gpu in facts.gpus]
    nics = sorted({(nic.address or "", -1 if nic.numa is None else nic.numa) for nic in facts.nics})
    seen = json.dumps([facts.host.product, numa, gpus, nics])
    return {
        "sha256": hashlib.sha256(seen.encode("utf-8", "surrogatepass")).hexdigest(),
        "product": facts.host.product,
        "cpu": facts.cpus.model_name,
        "numa": len(facts.numa),
        "gpus": len(facts.gpus),
        "models": sorted({gpu.model for gpu in facts.gpus if gpu.model is not None}),
        "nics": len(facts.nics),
        "rails": sum(nic.role == "rail" for nic in plan.nics) if plan.status != "refused" else None,
    }


def save(root: Path, page: Mapping[str, Any]) -> None:
    """Writes the page whole, and what a login shows. Raises InputError where the node cannot keep it."""
    data = (json.dumps(page, indent=1) + "\n").encode("utf-8", "surrogatepass")
    _replace(root, RUN, data)
    _replace(root, KEPT, data)
    _replace(root, MOTD, ("\n".join(lines(page, read_page(root, ACCEPTANCE))) + "\n").encode())


def read_image(root: Path) -> Optional[Mapping[str, Any]]:
    """The image that the node was made from; an empty one where the file that names it is damaged; None without it."""
    page = read_page(root, IMAGE)
    return {} if page is None and os.path.lexists(root / IMAGE.lstrip("/")) else page


def read_boot(root: Path, path: str) -> Optional[dict[str, Any]]:
    """A page of a boot; None where there is none, or it is damaged or of another program."""
    page = read_page(root, path)
    return page if page is not None and _is_whole(page) else None


def tuned_before(root: Path) -> dict[str, Any]:
    """The shape that what lies on a node of an image was written for; {} where nothing was written yet.

    Where the page is damaged or gone and the writer has a record, something was, and nobody knows for which machine.
    """
    page = read_boot(root, KEPT)
    if page is not None:
        return dict(page["tuned"])
    return {"sha256": BETWEEN} if (root / RECORD.lstrip("/")).exists() else {}


def _is_whole(page: Mapping[str, Any]) -> bool:
    kinds: dict[str, Any] = {
        "shape": dict, "tuned": dict, "refusals": list, "findings": list, "checks": list, "reboot": list, "words": list,
    }  # fmt: skip
    fields = {
        "refusals": ("where", "why"), "findings": ("severity", "accepted", "where", "why"),
        "checks": ("name", "ok", "skipped"),
    }  # fmt: skip
    return (
        page.get("schema") == SCHEMA
        and Note(0.0).to_json().keys() <= page.keys()
        and all(isinstance(page[key], kind) for key, kind in kinds.items())
        and all(
            isinstance(row, dict) and row.keys() >= set(needed)
            for key, needed in fields.items()
            for row in page[key]
        )
        and all(isinstance(word, str) for key in ("reboot", "words") for word in page[key])
    )


def read_page(root: Path, path: str) -> Optional[dict[str, Any]]:
    """A JSON object of the node's; None where there is none that can be read."""
    try:
        with open(root / path.lstrip("/"), "rb") as file:
            data = file.read(_MOST_BYTES)
        page = json.loads(data)
    except (OSError, ValueError, RecursionError):
        return None
    return page if isinstance(page, dict) else None


def lines(page: Mapping[str, Any], acceptance: Optional[Mapping[str, Any]]) -> list[str]:
    """The page in a few lines: what this machine is, how it is tuned, what was proved and when."""
    told = [f"Railwright: {_machine(page)}"]
    told += [f"  {_tuned(page)}"]
    told += [f"  {word}" for word in page["words"]]
    told += [f"  {_proved(page)}", f"  {_measured(acceptance)}"]
    if page["reboot"]:
        told.append(f"  in force after the next boot: {', '.join(page['reboot'])}")
    told.append("  more: python3 /usr/local/lib/railwright/railwright.pyz show")
    return [_visible(line) for line in told]


def told(
    page: Optional[Mapping[str, Any]], acceptance: Optional[Mapping[str, Any]], facts: Facts, plan: Plan
) -> list[str]:
    """The lines for `show`: of the last boot, if it left a page that can be read."""
    seen = {"shape": shape(facts, plan), "image": None}
    if page is None:
        return [
            _visible(_machine(seen)),
            "no boot of Railwright has left a word here: whether it is tuned, ask `check`",
        ]
    return lines({**page, "shape": seen["shape"]}, acceptance)[:-1]


def headline(page: Mapping[str, Any]) -> str:
    """The sentence for the console."""
    return _visible(f"railwright: {_tuned(page)}")


def utc(seconds: float) -> str:
    """ISO 8601, in whole seconds."""
    return datetime.fromtimestamp(int(seconds), timezone.utc).isoformat().replace("+00:00", "Z")


def _machine(page: Mapping[str, Any]) -> str:
    seen, image = page["shape"], page["image"]
    made = f", made from image {image.get('name')} ({str(image.get('key'))[:12]})" if image else ""
    if not seen:
        return f"this machine has not been read yet{made}"
    gpus = f"{seen['gpus']} GPUs" + (f" ({', '.join(seen['models'])})" if seen["models"] else "")
    rails = "rails not planned" if seen["rails"] is None else f"{seen['rails']} rails"
    return f"{seen['product'] or 'product unknown'}, {seen['numa']} NUMA nodes, {gpus}, {rails}{made}"


def _tuned(page: Mapping[str, Any]) -> str:
    if page["phase"] == "begun":
        return f"being tuned since {page['began']}; not done"
    when = page["ended"]
    if page["result"] == "good":
        return f"tuned for {page['workload']}, as planned, at {when}"
    if page["result"] == "refused":
        first = page["refusals"][0] if page["refusals"] else None
        why = (
            f"{first['where']}: {first['why']}" if first else "another run holds it, or it cannot be written"
        )
        return f"NOT TUNED at {when}, refused: {why}"
    if page["result"] == "unreadable":
        return f"NOT TUNED at {when}: the node or its policy cannot be read; see journalctl -u railwright"
    wrong = [row for row in page["findings"] if row["severity"] == "error" and row["accepted"] is None]
    wrong = wrong or [row for row in page["findings"] if row["accepted"] is None]
    first = f": {wrong[0]['where']}: {wrong[0]['why']}" if wrong else ""
    return f"NOT AS PLANNED at {when}{first}"


def _proved(page: Mapping[str, Any]) -> str:
    rows = page["checks"]
    if not rows:
        return "settings: nothing was checked at this boot"
    asked = [row for row in rows if not row["skipped"]]
    bad = [row["name"] for row in asked if not row["ok"]]
    skipped = len(rows) - len(asked)
    return (
        f"settings, checked at {page['ended'] or page['began']}: {len(asked) - len(bad)} of {len(asked)} questions "
        f"answered well"
        + (f", not {', '.join(bad)}" if bad else "")
        + (f"; {skipped} not asked" if skipped else "")
    )


def _measured(acceptance: Optional[Mapping[str, Any]]) -> str:
    rows = None if acceptance is None else acceptance.get("checks")
    if acceptance is None or not isinstance(rows, list):
        return "rates: no measurement lies on this node, so none is claimed"
    good = sum(1 for row in rows if isinstance(row, dict) and row.get("ok") and not row.get("skipped"))
    word = "passed" if acceptance.get("ok") else "NOT PASSED"
    return f"rates, measured at {acceptance.get('when') or 'an unknown time'}: {word}, {good} of {len(rows)} good"


def _visible(line: str) -> str:
    """What a device or a policy says may hold anything; a terminal must not obey it."""
    return "".join(letter if letter.isprintable() else "?" for letter in line)


def _replace(root: Path, path: str, data: bytes) -> None:
    try:
        files.make_parents(str(root), path)
        seen = files.read(str(root), path)
        files.replace(str(root), path, files.Content(data, "0644", os.geteuid(), os.getegid()), seen)
    except Refused as error:
        raise InputError(path, error.why, error.remedy) from None
    except OSError as error:
        raise InputError(
            path, f"cannot be kept: {error.strerror}", "free space, or make it writable"
        ) from None


def is_other(tuned: Mapping[str, Any], seen: Mapping[str, Any]) -> bool:
    """Whether this root file system was tuned for another machine, or for one with more or less in it."""
    return tuned.get("sha256") not in (None, seen.get("sha256"))


def spoken(seen: Mapping[str, Any]) -> str:
    """A shape in a few words."""
    return (
        f"{seen.get('product') or 'product unknown'}, {seen.get('numa')} NUMA nodes, {seen.get('gpus')} GPUs, "
        f"{seen.get('nics')} NIC ports"
    )
