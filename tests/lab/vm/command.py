"""The verbs of `python -m tests.lab vm`."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Callable

from ..errors import LabError
from . import saved
from .layout import LAYOUTS, layout
from .machine import Vm


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `vm` and its own verbs."""
    mine = verbs.add_parser("vm", help="the virtual machine").add_subparsers(dest="vm_verb", required=True)

    verb = mine.add_parser("up", help="bring a machine up: it goes on from its saved state")
    verb.add_argument("run")
    verb.add_argument("--layout", choices=LAYOUTS, default=next(iter(LAYOUTS)))
    verb.add_argument("--cold", action="store_true", help="boot it")
    verb.set_defaults(do=_up)

    verb = mine.add_parser("ssh", help="a command on it")
    verb.add_argument("run")
    verb.add_argument("command", nargs="+")
    verb.set_defaults(do=_ssh)

    verb = mine.add_parser("qmp", help="a command of QEMU's monitor, its arguments as one JSON object")
    verb.add_argument("run")
    verb.add_argument("command")
    verb.add_argument("arguments", nargs="?", default="{}")
    verb.set_defaults(do=_qmp)

    for name, help_, do in (
        ("reboot", "reboot it and wait for it", Vm.reboot),
        ("reset", "take its power away for a moment and wait for it", Vm.reset),
        ("halt", "press its power button and wait until it is off", Vm.halt),
        ("boot", "switch it on and wait for it", Vm.boot),
        ("down", "end it and take away all that was made for it", Vm.down),
    ):
        verb = mine.add_parser(name, help=help_)
        verb.add_argument("run")
        verb.set_defaults(do=_told(do))


def _told(do: Callable[[Vm], object]) -> Callable[[argparse.Namespace], int]:
    def act(arguments: argparse.Namespace) -> int:
        logging.basicConfig(format="%(message)s")
        do(Vm.find(arguments.run))
        return 0

    return act


def _up(arguments: argparse.Namespace) -> int:
    logging.basicConfig(format="%(message)s")
    started = time.monotonic()
    vm = saved.up(arguments.run, layout(arguments.layout), cold=arguments.cold)
    print(f"{vm.name} is up in {time.monotonic() - started:.1f} s; inventory: {vm.inventory}")
    return 0


def _ssh(arguments: argparse.Namespace) -> int:
    done = Vm.find(arguments.run).ssh(*arguments.command, timeout=3600)
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    return done.returncode


def _qmp(arguments: argparse.Namespace) -> int:
    try:
        words = json.loads(arguments.arguments)
    except json.JSONDecodeError as error:
        raise LabError(
            "arguments", f"are no JSON: {error}", 'expected one object, {"id": "gpu0"} say'
        ) from error
    print(json.dumps(Vm.find(arguments.run).qmp(arguments.command, **words), indent=1))
    return 0
