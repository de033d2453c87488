"""systemctl of a fake node: the units of the node's tree, with the answers and exit codes of the real one.

Stands in for systemd in a node that nobody booted. What is enabled lies in the tree as links, as systemd keeps it;
what is active is remembered below /run, which a boot empties. Each call that may change something is logged as one line
of JSON. Starting a oneshot unit really runs its commands; any other service is only said to run. Python 3.9.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

MEMORY = Path("/run/systemd/stand-in")
SEARCH = (Path("/etc/systemd/system"), Path("/run/systemd/system"), Path("/usr/local/lib/systemd/system"))
SUFFIXES = (".service", ".timer", ".socket", ".target", ".path", ".mount", ".device", ".slice")


class Refused(Exception):
    """What the real one prints on stderr, and its exit code."""

    def __init__(self, message: str, code: int = 1) -> None:
        self.code = code
        super().__init__(message)


class Units:
    """The units of this node: files from the tree, the rest from memory."""

    def __init__(self) -> None:
        path = MEMORY / "state.json"
        self.state: dict[str, dict[str, Any]] = json.loads(path.read_text("utf-8")) if path.exists() else {}

    def save(self) -> None:
        MEMORY.mkdir(parents=True, exist_ok=True)
        (MEMORY / "state.json").write_text(json.dumps(self.state, indent=1, sort_keys=True), encoding="utf-8")

    def of(self, name: str) -> dict[str, Any]:
        return self.state.get(name, {})

    def set(self, name: str, **values: Any) -> None:
        self.state.setdefault(name, {}).update(values)

    def active(self, name: str) -> str:
        return str(self.of(name).get("active", "inactive"))

    def fragment(self, name: str) -> Path | None:
        """The unit's file, or None. A link to /dev/null is a file too: the unit is masked."""
        names = [name]
        if "@" in name:
            stem, _, rest = name.partition("@")
            names.append(f"{stem}@.{rest.rpartition('.')[2]}")
        for folder in SEARCH:
            for candidate in names:
                if os.path.lexists(folder / candidate):
                    return folder / candidate
        return None

    def masked(self, name: str) -> bool:
        path = self.fragment(name)
        return path is not None and path.is_symlink() and os.readlink(path) == "/dev/null"

    def on_disk(self, name: str) -> dict[str, Any] | None:
        """The unit as a reload would read it: its file's text, and what tells one version from another."""
        path = self.fragment(name)
        if path is None or self.masked(name):
            return None
        return {"path": str(path), "mtime": path.stat().st_mtime_ns, "text": path.read_text("utf-8")}

    def loaded(self, name: str) -> dict[str, Any] | None:
        """The unit as systemd holds it: what it read last while the unit is in use, else the file of today."""
        kept: dict[str, Any] | None = self.of(name).get("loaded")
        return kept if kept is not None else self.on_disk(name)

    def stale(self, name: str) -> bool:
        kept = self.of(name).get("loaded")
        return kept is not None and kept != self.on_disk(name)

    def links(self, name: str) -> list[Path]:
        """The links that enable the unit."""
        folders = [f for base in SEARCH[:2] for f in (*base.glob("*.wants"), *base.glob("*.requires"))]
        return sorted(f / name for f in folders if (f / name).is_symlink())

    def reload(self) -> None:
        names = {
            p.name for base in SEARCH if base.is_dir() for p in base.iterdir() if p.name.endswith(SUFFIXES)
        }
        for name in sorted(names | set(self.state)):
            in_use = self.active(name) != "inactive" or bool(self.links(name))
            self.set(name, loaded=self.on_disk(name) if in_use else None)

    def file_state(self, name: str) -> str:
        path = self.fragment(name)
        if path is None:
            return ""
        if self.masked(name):
            return "masked"
        if self.links(name):
            return "enabled"
        install = sections(path.read_text("utf-8")).get("Install", {})
        return "disabled" if install.get("WantedBy") or install.get("RequiredBy") else "static"


def sections(text: str) -> dict[str, dict[str, list[str]]]:
    """A unit file's sections: each key with all its values, a trailing backslash continuing the line."""
    found: dict[str, dict[str, list[str]]] = {}
    section: dict[str, list[str]] = {}
    for line in text.replace("\\\n", " ").splitlines():
        line = line.strip()
        if not line or line[0] in "#;":
            continue
        if line.startswith("["):
            section = found.setdefault(line.strip("[]"), {})
            continue
        key, separator, value = line.partition("=")
        if not separator:
            raise Refused(f"the stand-in reads no line like this in a unit: {line}")
        if value.strip():
            section.setdefault(key.strip(), []).append(value.strip())
        else:
            section[key.strip()] = []
    return found


def need(units: Units, name: str, verb: str) -> dict[str, Any]:
    """The loaded unit. Raises Refused as `systemctl <verb>` does for a unit that it cannot use."""
    if units.masked(name):
        raise Refused(f"Failed to {verb} {name}: Unit {name} is masked.")
    unit = units.loaded(name)
    if unit is None:
        raise Refused(f"Failed to {verb} {name}: Unit {name} not found.", 5)
    return unit


def start(units: Units, name: str, verb: str = "start", again: bool = False) -> None:
    unit = need(units, name, verb)
    if units.stale(name):
        warn(
            f"Warning: The unit file, source configuration file or drop-ins of {name} changed on disk. "
            "Run 'systemctl daemon-reload' to reload units."
        )
    if units.active(name) == "active" and not again:
        return
    service = sections(unit["text"]).get("Service", {})
    now = {"since": time.time(), "loaded": unit}
    if service.get("Type", ["simple"])[-1] != "oneshot":
        units.set(name, active="active", sub="running" if service else "active", result="success", **now)
        return
    units.set(name, active="activating", sub="start", **now)
    units.save()
    code = run(service)
    units = fresh(units)
    if code != 0:
        units.set(name, active="failed", sub="failed", result="exit-code", status=code, **now)
        raise Refused(
            f"Job for {name} failed because the control process exited with error code.\n"
            f'See "systemctl status {name}" and "journalctl -xeu {name}" for details.'
        )
    ended = {"active": "active", "sub": "exited"} if stays(service) else {"active": "inactive", "sub": "dead"}
    units.set(name, result="success", status=0, **ended, **now)


def stays(service: dict[str, list[str]]) -> bool:
    """Whether a oneshot stays active when its commands have ended."""
    return service.get("RemainAfterExit", ["no"])[-1] in ("yes", "true", "on", "1")


def fresh(units: Units) -> Units:
    """Memory as it is now: what was run may have called systemctl itself."""
    units.state = Units().state
    return units


def run(service: dict[str, list[str]]) -> int:
    environment = dict(os.environ)
    for assignment in (part for line in service.get("Environment", []) for part in shlex.split(line)):
        key, _, value = assignment.partition("=")
        environment[key] = value
    for line in (*service.get("ExecStartPre", []), *service.get("ExecStart", [])):
        prefix = line[: len(line) - len(line.lstrip("-@:+!"))]
        argv = shlex.split(line[len(prefix) :])
        try:
            done = subprocess.run(argv, env=environment, check=False, capture_output=True, text=True)
            code, said = done.returncode, done.stdout + done.stderr
        except OSError as error:
            code, said = 203, f"{argv[0]}: {error.strerror}\n"
        log("journal", {"argv": argv, "code": code, "output": said})
        if code != 0 and "-" not in prefix:
            return code
    return 0


def stop(units: Units, name: str) -> None:
    if units.fragment(name) is None and name not in units.state:
        raise Refused(f"Failed to stop {name}: Unit {name} not loaded.", 5)
    units.set(name, active="inactive", sub="dead", since=time.time())


def restart(units: Units, name: str) -> None:
    start(units, name, "restart", again=True)


def try_restart(units: Units, name: str) -> None:
    if units.active(name) == "active":
        restart(units, name)


def reload_unit(units: Units, name: str) -> None:
    unit = need(units, name, "reload")
    if units.active(name) != "active":
        raise Refused(f"{name} is not active, cannot reload.")
    if not sections(unit["text"]).get("Service", {}).get("ExecReload"):
        raise Refused(f"Failed to reload {name}: Job type reload is not applicable for unit {name}.")


def enable(units: Units, name: str) -> None:
    path = units.fragment(name)
    if path is None:
        raise Refused(f"Failed to enable unit: Unit file {name} does not exist.")
    if units.masked(name):
        raise Refused(f"Failed to enable unit: Unit file {path} is masked.")
    install = sections(path.read_text("utf-8")).get("Install", {})
    wanted = [
        SEARCH[0] / f"{target}.{kind}" / name
        for key, kind in (("WantedBy", "wants"), ("RequiredBy", "requires"))
        for line in install.get(key, [])
        for target in line.split()
    ]
    if not wanted:
        warn(
            "The unit files have no installation config (WantedBy=, RequiredBy=, UpheldBy=, Also=, or Alias= ..."
        )
    for link in wanted:
        if link.is_symlink() and os.readlink(link) == str(path):
            continue
        link.parent.mkdir(parents=True, exist_ok=True)
        if link.is_symlink():
            link.unlink()
        link.symlink_to(path)
        warn(f"Created symlink {link} → {path}.")


def disable(units: Units, name: str) -> None:
    links = units.links(name)
    if units.fragment(name) is None and not links:
        raise Refused(f"Failed to disable unit: Unit file {name} does not exist.")
    for link in links:
        link.unlink()
        warn(f"Removed {link}.")
        if not any(link.parent.iterdir()):
            link.parent.rmdir()


def mask(units: Units, name: str) -> None:
    link = SEARCH[0] / name
    if units.masked(name):
        return
    if os.path.lexists(link):
        raise Refused(f"Failed to mask unit: File '{link}' already exists.")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to("/dev/null")
    warn(f"Created symlink {link} → /dev/null.")


def unmask(units: Units, name: str) -> None:
    link = SEARCH[0] / name
    if link.is_symlink() and os.readlink(link) == "/dev/null":
        link.unlink()
        warn(f"Removed {link}.")


def reset_failed(units: Units, name: str) -> None:
    if units.active(name) == "failed":
        units.set(name, active="inactive", sub="dead")


CHANGING: dict[str, Callable[[Units, str], None]] = {
    "start": start,
    "stop": stop,
    "restart": restart,
    "try-restart": try_restart,
    "reload": reload_unit,
    "enable": enable,
    "disable": disable,
    "mask": mask,
    "unmask": unmask,
    "reset-failed": reset_failed,
}


def properties(units: Units, name: str, form: str) -> dict[str, str]:
    unit, path = units.loaded(name), units.fragment(name)
    masked = units.masked(name)
    service = sections(unit["text"]).get("Service", {}) if unit else {}
    of, active = units.of(name), units.active(name)
    since = of.get("since")
    return {
        "Id": name,
        "Names": name,
        "LoadState": "masked" if masked else "loaded" if unit else "not-found",
        "ActiveState": active,
        "SubState": str(of.get("sub", "dead")),
        "UnitFileState": units.file_state(name),
        "FragmentPath": "" if masked or path is None else str(path),
        "DropInPaths": "",
        "NeedDaemonReload": "yes" if units.stale(name) else "no",
        "RemainAfterExit": "yes" if stays(service) else "no",
        "Type": service.get("Type", ["simple"])[-1] if service else "",
        "Result": str(of.get("result", "success")),
        "ExecMainStatus": str(of.get("status", 0)),
        "ActiveEnterTimestamp": stamp(since if active == "active" else None, form),
        "InactiveEnterTimestamp": stamp(since if active in ("inactive", "failed") else None, form),
        "StateChangeTimestamp": stamp(since, form),
        "ActiveEnterTimestampMonotonic": monotonic(since if active == "active" else None),
        "StateChangeTimestampMonotonic": monotonic(since),
        "ExecMainStartTimestamp": stamp(since, form),
        "ExecMainStartTimestampMonotonic": monotonic(since),
    }


def stamp(when: float | None, form: str) -> str:
    if when is None:
        return ""
    if form == "unix":
        return f"@{int(when)}"
    fraction = f".{int(when * 1_000_000) % 1_000_000:06d}" if form.startswith("us") else ""
    moment = time.gmtime(when)
    return time.strftime("%a %Y-%m-%d %H:%M:%S", moment) + fraction + " UTC"


def monotonic(when: float | None) -> str:
    if when is None:
        return "0"
    return str(int((when - time.time() + time.clock_gettime(time.CLOCK_MONOTONIC)) * 1_000_000))


def show(units: Units, names: list[str], wanted: list[str], value_only: bool, form: str) -> None:
    blocks = []
    for name in names:
        known = properties(units, name, form)
        picked = {key: known[key] for key in (wanted or known) if key in known}
        blocks.append("\n".join(text if value_only else f"{key}={text}" for key, text in picked.items()))
    print("\n\n".join(blocks))


def query(units: Units, verb: str, names: list[str]) -> int:
    """is-active, is-enabled, is-failed: a word for each unit, and the real one's exit code."""
    if verb == "is-active":
        words = [units.active(name) for name in names]
        known = any(units.fragment(name) is not None for name in names)
        code = 0 if "active" in words else 3 if known else 4
    elif verb == "is-failed":
        words = [units.active(name) for name in names]
        code = 0 if "failed" in words else 1
    else:
        words = [units.file_state(name) or "not-found" for name in names]
        code = 0 if any(word in ("enabled", "static") for word in words) else 4 if "not-found" in words else 1
    print("\n".join(words))
    return code


def log(file: str, entry: dict[str, Any]) -> None:
    MEMORY.mkdir(parents=True, exist_ok=True)
    with (MEMORY / file).open("a", encoding="utf-8") as out:
        out.write(json.dumps(entry) + "\n")


def warn(message: str) -> None:
    print(message, file=sys.stderr)


def usage(message: str) -> NoReturn:
    warn(message)
    raise SystemExit(1)


def arguments(argv: list[str]) -> tuple[list[str], dict[str, Any]]:
    words: list[str] = []
    options: dict[str, Any] = {
        "properties": [],
        "value": False,
        "timestamp": "pretty",
        "now": False,
        "reload": True,
    }
    rest = iter(argv)
    for word in rest:
        name, equals, value = word.partition("=")
        if word.startswith("-p") and not word.startswith("--"):
            options["properties"] += (word[2:] or next(rest)).split(",")
        elif name == "--property":
            options["properties"] += (value if equals else next(rest)).split(",")
        elif name == "--timestamp":
            options["timestamp"] = value if equals else next(rest)
        elif word == "--value":
            options["value"] = True
        elif word == "--now":
            options["now"] = True
        elif word == "--no-reload":
            options["reload"] = False
        elif word in (
            "--no-pager",
            "--no-block",
            "--quiet",
            "-q",
            "--system",
            "--no-ask-password",
            "--full",
            "-l",
        ):
            continue
        elif word == "--":
            words += rest
        elif word.startswith("-"):
            usage(f"systemctl: unrecognized option '{word}'")
        else:
            words.append(word)
    return words, options


def main(argv: list[str]) -> int:
    words, options = arguments(argv)
    if not words:
        usage("systemctl: the stand-in lists no units; name a verb")
    verb = words[0]
    names = [name if name.endswith(SUFFIXES) else f"{name}.service" for name in words[1:]]
    units = Units()
    if verb == "show":
        show(units, names, options["properties"], options["value"], options["timestamp"])
        return 0
    if verb in ("is-active", "is-enabled", "is-failed"):
        return query(units, verb, names)
    if verb == "is-system-running":
        print("running")
        return 0
    if verb == "daemon-reload":
        log("calls", {"argv": argv})
        units.reload()
        units.save()
        return 0
    if verb not in CHANGING:
        usage(f"Unknown command verb {verb}.")
    log("calls", {"argv": argv})
    try:
        for name in names:
            CHANGING[verb](units, name)
        if verb in ("enable", "disable", "mask", "unmask") and options["reload"]:
            units.reload()
        if options["now"] and verb in ("enable", "disable"):
            for name in names:
                (start if verb == "enable" else stop)(units, name)
    except Refused as refused:
        warn(str(refused))
        return refused.code
    finally:
        units.save()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
