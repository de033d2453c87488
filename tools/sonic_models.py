"""Validate rendered SONiC configuration against SONiC's own YANG models.

`python tools/sonic_models.py SONIC_BUILDIMAGE [FILE...]` takes a checkout of sonic-buildimage and parts of config_db
(default: the agreed ones of the tests). It needs yanglint (Debian: libyang-tools). No test runs it: the models are not
ours.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from jinja2 import Environment

MODELS = "src/sonic-yang-models/yang-models"
TEMPLATES = "src/sonic-yang-models/yang-templates"
AGREED = Path(__file__).resolve().parents[1] / "tests/unit/fabric_golden"
# Tables whose rows are maps: module, key and value of a row.
MAPS = {
    "DSCP_TO_TC_MAP": ("dscp-tc-map", "dscp", "tc"),
    "TC_TO_QUEUE_MAP": ("tc-queue-map", "tc", "qindex"),
    "TC_TO_PRIORITY_GROUP_MAP": ("tc-priority-group-map", "tc", "pg"),
    "MAP_PFC_PRIORITY_TO_QUEUE": ("pfc-priority-queue-map", "pfc_priority", "qindex"),
    "PFC_PRIORITY_TO_PRIORITY_GROUP_MAP": ("pfc-priority-priority-group-map", "pfc_priority", "pg"),
    "CABLE_LENGTH": ("cable-length", "port", "length"),
}
# Tables whose rows are leaves: module and the name of the key.
LISTS = {
    "WRED_PROFILE": ("wred-profile", "name"),
    "SCHEDULER": ("scheduler", "name"),
    "PORT_QOS_MAP": ("port-qos-map", "ifname"),
    "PFC_WD": ("pfcwd", "ifname"),
}


def main(arguments: list[str]) -> int:
    """Validate each file; 0 when the models take all of them."""
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 2
    files = [Path(name) for name in arguments[1:]] or sorted(AGREED.glob("*.json"))
    bad = 0
    with tempfile.TemporaryDirectory(prefix="sonic-models-") as folder:
        models = Path(folder)
        lay_out(Path(arguments[0]), models)
        for file in files:
            said = validate(json.loads(file.read_text("utf-8")), models)
            print(f"{file}: {said or 'valid'}")
            bad += bool(said)
    return 1 if bad else 0


def lay_out(checkout: Path, models: Path) -> None:
    """All models in one folder, those that are templates filled in as SONiC's build does."""
    for path in (checkout / MODELS).glob("*.yang"):
        (models / path.name).write_text(path.read_text("utf-8"), encoding="utf-8")
    engine = Environment(trim_blocks=True, lstrip_blocks=True)  # noqa: S701 (YANG, not HTML)
    for path in (checkout / TEMPLATES).glob("*.yang.j2"):
        text = engine.from_string(path.read_text("utf-8")).render(yang_model_type="py")
        (models / path.stem).write_text(text, encoding="utf-8")


def validate(tables: Mapping[str, Mapping[str, Any]], models: Path) -> str:
    """What yanglint says of the tables; "" when they are valid."""
    parts = dict(instance(tables, models))
    data = models / "instance.xml"
    data.write_text("\n".join(parts.values()), encoding="utf-8")
    modules = [str(models / f"sonic-{module}.yang") for module in parts]
    done = subprocess.run(
        ["yanglint", "-p", str(models), "-t", "config", *modules, str(data)],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = (done.stdout + done.stderr).splitlines()
    said = [line for line in lines if line.startswith(("libyang err", "YANGLINT[E]"))]
    return (
        ""
        if done.returncode == 0 and not said
        else " ".join(said) or f"yanglint ended with {done.returncode}"
    )


def instance(tables: Mapping[str, Mapping[str, Any]], models: Path) -> Iterable[tuple[str, str]]:
    """Module and its data as XML, which needs no types. Ports get the lanes and speed that their model demands."""
    known = {*MAPS, *LISTS, "PORT", "QUEUE"}
    if set(tables) - known:
        raise SystemExit(f"no model is named for {', '.join(sorted(set(tables) - known))}")
    yield (
        "device_metadata",
        wrap(
            models, "device_metadata", "DEVICE_METADATA", ["<localhost><hostname>leaf</hostname></localhost>"]
        ),
    )
    ports = [
        row(
            "PORT_LIST",
            {"name": name, "lanes": str(number), "speed": "400000", "alias": f"etp{number}", **leaves},
        )
        for number, (name, leaves) in enumerate(tables.get("PORT", {}).items())
    ]
    yield "port", wrap(models, "port", "PORT", ports)
    for table, (module, key, value) in MAPS.items():
        rows = []
        for name, mapping in tables.get(table, {}).items():
            inner = "".join(row(table, {key: one, value: other}) for one, other in mapping.items())
            rows.append(f"<{table}_LIST><name>{escape(name)}</name>{inner}</{table}_LIST>")
        yield module, wrap(models, module, table, rows)
    for table, (module, key) in LISTS.items():
        rows = [row(f"{table}_LIST", {key: name, **leaves}) for name, leaves in tables.get(table, {}).items()]
        yield module, wrap(models, module, table, rows)
    queues = [
        row("QUEUE_LIST", {"ifname": key.split("|")[0], "qindex": key.split("|")[1], **leaves})
        for key, leaves in tables.get("QUEUE", {}).items()
    ]
    yield "queue", wrap(models, "queue", "QUEUE", queues)


def row(tag: str, leaves: Mapping[str, str]) -> str:
    return (
        f"<{tag}>" + "".join(f"<{key}>{escape(value)}</{key}>" for key, value in leaves.items()) + f"</{tag}>"
    )


def wrap(models: Path, module: str, table: str, rows: Iterable[str]) -> str:
    text = (models / f"sonic-{module}.yang").read_text("utf-8")
    namespace = re.search(r'namespace\s+"?([^";\s]+)"?', text)
    if namespace is None:
        raise SystemExit(f"sonic-{module}.yang names no namespace")
    return f'<sonic-{module} xmlns="{namespace[1]}"><{table}>{"".join(rows)}</{table}></sonic-{module}>'


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
