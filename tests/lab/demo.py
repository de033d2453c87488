"""python -m tests.lab.demo: the whole road over two real systemd hosts, with a reboot, without a GPU.

Debian 12 and 13 as lab nodes, each with a recorded H100 machine as its hardware: `railwright up` over SSH, a reboot of
both, `railwright up` again (nothing changes), what other tools on the nodes say, and the report.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from . import lab, racks, setup
from .errors import LabError
from .run import Run

PROJECT = Path(__file__).resolve().parents[2]
NAME = "demo"


def main(argv: list[str]) -> int:
    """0 all good, 1 something is not as it should be, 2 it cannot run here."""
    parser = argparse.ArgumentParser(prog="make lab-demo", description=__doc__)
    parser.add_argument(
        "--output",
        type=Path,
        default=PROJECT / ".demo/lab",
        help="where the report goes (default: .demo/lab)",
    )
    output = parser.parse_args(argv).output.resolve()
    try:
        if why := setup.unready():
            raise LabError("make lab-demo", why, "see tests/lab/README.md")
        return show(output)
    except LabError as error:
        print(error, file=sys.stderr)
        return 2


def show(output: Path) -> int:
    """The five steps. The nodes are gone afterwards, whatever happened."""
    if Run(NAME).folder.exists():
        Run(NAME).down()
    began = time.monotonic()
    rack = lab.up(NAME, racks.two("node1", "node2"))
    try:
        _say(
            f"Two nodes are up: {', '.join(f'{n.spec.name} (Debian {n.spec.suite})' for n in rack.nodes)}",
            began,
        )
        codes = [_up(rack, output)]
        if codes[0]:
            _say("The first run is not good, so the rest is left out", began)
            return 1
        _say("First run done", began)
        boots = {node: node.read("/proc/sys/kernel/random/boot_id") for node in rack.nodes}
        for node in rack.nodes:
            node.ssh("systemctl reboot")
        for node in rack.nodes:
            node.wait(not_boot=boots[node])
            node.must("systemctl is-active --quiet railwright.service")
        _say("Both nodes have rebooted, and their boot units have put back what a reboot forgets", began)
        codes.append(_up(rack, output))
        _say("Second run done", began)
        codes.append(_other_tools(rack, output))
        _say(f"{'Good' if not any(codes) else 'Not good'}. Report: {output / 'index.html'}", began)
        return 1 if any(codes) else 0
    finally:
        rack.down()


def _up(rack: lab.Lab, output: Path) -> int:
    return _run(rack, "-m", "railwright.cli", "up", str(rack.inventory), "--output", str(output))


def _other_tools(rack: lab.Lab, output: Path) -> int:
    hosts = ",".join(f"paramiko://{node.spec.name}" for node in rack.nodes)
    folder = rack.run.folder
    return _run(
        rack, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/node", f"--hosts={hosts}",
        f"--ssh-config={folder / 'ssh_config'}", f"--known-hosts={rack.run.known_hosts}", f"--node-output={output}",
    )  # fmt: skip


def _run(rack: lab.Lab, *words: str) -> int:
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
    argv = rack.controller(sys.executable, *words)
    return subprocess.run(argv, cwd=PROJECT, env={**os.environ, "PATH": path}, check=False).returncode


def _say(what: str, began: float) -> None:
    print(f"[{time.monotonic() - began:4.0f} s] {what}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
