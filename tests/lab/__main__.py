"""python -m tests.lab: real systemd hosts with recorded hardware, and a virtual machine. See README.md beside it."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from . import lab, setup
from .errors import LabError
from .run import GRACE_SECONDS, Run, runs
from .vm import command as vm

DEFAULT_MACHINE = "2s_8xh100_10xcx7"


def main(argv: list[str]) -> int:
    """0 done, 2 it cannot be done, else the code of the command that was run."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("setup", help="install what the lab needs and build its root file systems").set_defaults(
        do=_setup
    )

    verb = verbs.add_parser("up", help="bring nodes up: NAME=SUITE[:MACHINE]")
    verb.add_argument("run")
    verb.add_argument("nodes", nargs="+", metavar="NODE")
    verb.set_defaults(do=_up)

    verb = verbs.add_parser("down", help="end a run and take away all that was made for it")
    verb.add_argument("run", nargs="?")
    verb.add_argument("--all", action="store_true", help="every run that left a record, whoever started it")
    verb.add_argument("--now", action="store_true", help="without an orderly halt")
    verb.set_defaults(do=_down)

    verbs.add_parser("list", help="the runs, and what of them is alive").set_defaults(do=_list)

    verb = verbs.add_parser("ssh", help="a command on a node")
    verb.add_argument("run")
    verb.add_argument("node")
    verb.add_argument("command", nargs="+")
    verb.set_defaults(do=_ssh)

    verb = verbs.add_parser("reboot", help="reboot nodes and wait for them")
    verb.add_argument("run")
    verb.add_argument("nodes", nargs="*")
    verb.set_defaults(do=_reboot)

    verb = verbs.add_parser("control", help="a command where the nodes can be reached")
    verb.add_argument("run")
    verb.add_argument("command", nargs="+")
    verb.set_defaults(do=_control)
    vm.add(verbs)
    arguments = parser.parse_args(argv)
    try:
        return int(arguments.do(arguments))
    except LabError as error:
        print(error, file=sys.stderr)
        return 2


def _setup(arguments: argparse.Namespace) -> int:
    return setup.setup()


def _up(arguments: argparse.Namespace) -> int:
    started = time.monotonic()
    up = lab.up(arguments.run, [_wanted(text) for text in arguments.nodes])
    print(f"{len(up.nodes)} nodes up in {time.monotonic() - started:.1f} s; inventory: {up.inventory}")
    return 0


def _wanted(text: str) -> lab.Wanted:
    name, _, rest = text.partition("=")
    suite, _, machine = rest.partition(":")
    return lab.Wanted(name, suite or "trixie", machine or DEFAULT_MACHINE)


def _down(arguments: argparse.Namespace) -> int:
    if arguments.all == (arguments.run is not None):
        raise LabError("down", "wants a run, or --all", "python -m tests.lab list")
    lab.must_be_root()
    for run in list(runs()) if arguments.all else [Run(arguments.run)]:
        if not run.folder.is_dir():
            raise LabError(run.name, "is no run", "python -m tests.lab list")
        forced = run.down(0 if arguments.now else GRACE_SECONDS)
        print(
            f"{run.name} is gone." + (f" Did not halt by themselves: {', '.join(forced)}." if forced else "")
        )
    return 0


def _list(arguments: argparse.Namespace) -> int:
    for run in runs():
        print(f"{run.name}: {', '.join(run.processes()) or 'nothing runs; its folder is left'}")
    return 0


def _ssh(arguments: argparse.Namespace) -> int:
    node = _nodes(arguments.run, [arguments.node])[0]
    done = node.ssh(*arguments.command)
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    return done.returncode


def _reboot(arguments: argparse.Namespace) -> int:
    nodes = _nodes(arguments.run, arguments.nodes)
    before = [node.read("/proc/sys/kernel/random/boot_id") for node in nodes]
    for node in nodes:
        node.ssh("systemctl reboot")
    for node, boot in zip(nodes, before, strict=True):
        node.wait(not_boot=boot)
    return 0


def _control(arguments: argparse.Namespace) -> int:
    import subprocess

    return subprocess.run(lab.find(arguments.run).controller(*arguments.command), check=False).returncode


def _nodes(run: str, names: list[str]) -> list[lab.Node]:
    known = {node.spec.name: node for node in lab.find(run).nodes}
    absent = [name for name in names if name not in known]
    if absent:
        raise LabError(run, f"has no node {absent[0]}", f"it has {', '.join(known)}")
    return [known[name] for name in names or known]


if __name__ == "__main__":
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    sys.exit(main(sys.argv[1:]))
