"""Railwright on one node, with nothing but Python: `python3 railwright.pyz VERB`, or `python -m railwright.node VERB`.

discover  read this node and print its facts
plan      plan it by its policy
check     compare it with its plan
boot      bring it to its plan, as the boot unit does
show      the table of GPUs, slots and rails, and what this program is
gid       the GID that each RoCE port uses now, for launchers and containers

Exit status: 0 good, 1 findings or drift, 2 bad input or usage, 3 refused.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Optional

from .. import __version__
from ..plan import plan as make_plan
from ..plan.boot_unit import POLICY_FILE
from ..plan.gid import range_of
from ..plan.nccl import version_of
from . import boot as booting
from . import boot_note, bytecode
from .check import check, is_open
from .discover import discover
from .durable import digest_of
from .gids import read_gids
from .model import Facts, Finding, InputError, Plan, Policy, to_json
from .readiness import written_rails

# How a line of the boot begins, and its syslog level: `journalctl -p err -u railwright` shows what has to be repaired.
_WEIGHTS = {"unreadable": 3, "refused": 3, "failed": 3, "error": 3, "not as planned": 4, "warning": 4}


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs one verb; the exit status."""
    parser = _parser()
    chosen = parser.parse_args(arguments)
    try:
        status: int = chosen.run(chosen)
        sys.stdout.flush()
        return status
    except InputError as error:
        print(error, file=sys.stderr)
        return booting.UNREADABLE
    except BrokenPipeError:
        # The reader of our output has gone; Python must not complain about it when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return booting.UNREADABLE


def archive() -> Optional[Path]:
    """The zipapp that this runs from; None from a folder."""
    return next((parent for parent in Path(__file__).resolve().parents if parent.is_file()), None)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="railwright.pyz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, run, words in (
        ("discover", _discover, "read this node"),
        ("plan", _plan, "plan this node"),
        ("check", _check, "compare this node with its plan"),
        ("boot", _boot, "bring this node to its plan"),
        ("show", _show, "GPUs, slots and rails"),
        ("gid", _gid, "the GID of each RoCE port"),
    ):
        verb = verbs.add_parser(name, help=words)
        verb.add_argument(
            "--root", type=_folder, default=Path("/"), help="a folder that holds a node's files"
        )
        if name != "boot":
            verb.add_argument("--json", action="store_true", help="print JSON")
        if name in {"plan", "check", "show", "gid"}:
            verb.add_argument("--policy", type=Path, help="a policy instead of the one that lies on the node")
        if name == "check":
            verb.add_argument(
                "--plan", type=Path, help="a plan instead of the one that follows from the policy"
            )
        if name == "gid":
            verb.add_argument(
                "--env", action="store_true", help="print NCCL's variables, for `export $(...)`"
            )
            verb.add_argument("--range", metavar="CIDR", help="the rails' addresses; else the policy's")
            verb.add_argument("devices", nargs="*", metavar="DEVICE", help="RDMA devices; else the rails")
        verb.set_defaults(run=run)
    return parser


def _folder(text: str) -> Path:
    path = Path(text).resolve()
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is no folder")
    return path


def _discover(chosen: argparse.Namespace) -> int:
    facts = discover(chosen.root, tools=chosen.root == Path("/"))
    if chosen.json:
        _dump(facts)
        return booting.GOOD
    for gpu in facts.gpus:
        print(f"{gpu.name}  {gpu.address}  NUMA {_or_unknown(gpu.numa)}  {_or_unknown(gpu.model)}")
    for nic in facts.nics:
        rate = "rate unknown" if nic.rate is None else f"{nic.rate / 1000:g} Gb/s"
        names = "  ".join(filter(None, (nic.rdma, nic.netdev)))
        print(f"{names}  {nic.address}  NUMA {_or_unknown(nic.numa)}  {_or_unknown(nic.state)}  {rate}")
    for note in facts.notes:
        print(f"note: {note}")
    return booting.GOOD


def _plan(chosen: argparse.Namespace) -> int:
    plan = _planned(chosen)[2]
    if chosen.json:
        _dump(plan)
    else:
        _print_plan(plan)
    return booting.REFUSED if plan.status == "refused" else booting.GOOD


def _print_plan(plan: Plan) -> None:
    for line in plan.summary:
        print(line)
    for finding in (*plan.refusals, *plan.findings):
        print(_finding(finding))


def _check(chosen: argparse.Namespace) -> int:
    if chosen.plan is None:
        policy, _, plan = _planned(chosen)
    else:
        policy, plan = _policy(chosen), Plan.read(_read_json(chosen.plan), str(chosen.plan))
    if plan.status == "refused":
        _print_findings(plan.refusals, chosen.json)
        return booting.REFUSED
    facts = discover(
        chosen.root,
        watch=plan.files(),
        units=plan.units(),
        sysctls=tuple(policy.sysctls),
        tools=chosen.root == Path("/"),
    )
    found = check(plan, facts, policy.accept)
    _print_findings(found, chosen.json)
    return booting.FINDINGS if any(is_open(finding) for finding in found) else booting.GOOD


def _boot(chosen: argparse.Namespace) -> int:
    root: Path = chosen.root
    note = boot_note.Note(time.time(), __version__, image=boot_note.read_image(root))
    kept = _keep(root, note)
    status = booting.boot(root, _say, archive=archive(), note=note)
    note.end(status, time.time(), time.process_time())
    if root == Path("/"):
        bytecode.keep()
    kept = _keep(root, note) and kept
    if status != booting.GOOD and root == Path("/"):
        _to_console(boot_note.headline(note.to_json()))
    # A state that nobody can read would be one of an earlier boot.
    return status if kept or status != booting.GOOD else booting.FINDINGS


def _keep(root: Path, note: boot_note.Note) -> bool:
    """Writes what the boot has come to, on a node that was made from an image: any other has its controller's report,
    and a revert would leave the page behind. What cannot be written is said, and is no reason not to tune."""
    if note.image is None:
        return True
    if note.phase == "begun":
        # Which machine was tuned last is known from there, and must outlive this boot's end, whatever that is.
        note.tuned = boot_note.tuned_before(root)
    try:
        boot_note.save(root, note.to_json())
    except InputError as error:
        _say(f"failed: {error}")
        return False
    return True


def _to_console(line: str) -> None:
    """A sentence for whoever stands before the machine, or looks at it through its BMC."""
    if "JOURNAL_STREAM" not in os.environ:
        return
    with suppress(OSError):
        console = os.open("/dev/console", os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
        try:
            os.write(console, f"\r\n{line}\r\n".encode())
        finally:
            os.close(console)


def _say(line: str) -> None:
    # The journal gets each line when it is said, not when the program ends, and with its weight (sd-daemon(3)).
    first = line.partition(":")[0]
    weight = f"<{_WEIGHTS[first]}>" if first in _WEIGHTS and "JOURNAL_STREAM" in os.environ else ""
    print(f"{weight}{line}", flush=True)


def _show(chosen: argparse.Namespace) -> int:
    policy, facts, plan = _planned(chosen)
    last = boot_note.read_boot(chosen.root, boot_note.RUN) or boot_note.read_boot(chosen.root, boot_note.KEPT)
    acceptance = boot_note.read_page(chosen.root, boot_note.ACCEPTANCE)
    program = archive()
    digest = None if program is None else digest_of(program)
    if chosen.json:
        shown = {
            "version": __version__,
            "sha256": digest,
            "policy_sha256": plan.policy_sha256,
            "status": plan.status,
            "gpus": to_json(plan.gpus),
            "nics": to_json(plan.nics),
            "boot": last,
            "acceptance": acceptance,
        }
        print(json.dumps(shown, indent=2))
        return booting.GOOD
    print(f"railwright {__version__}" + (f", sha256 {digest}" if digest else ""))
    print(f"{facts.host.name or 'this node'}, {plan.status}, workload {policy.workload}")
    for line in boot_note.told(last, acceptance, facts, plan):
        print(line)
    rows = [("slot", "GPU", "PCI", "rail", "NICs", "CPUs")]
    rows += [
        (
            _dash(gpu.slot),
            str(gpu.index),
            _dash(gpu.pci),
            _dash(gpu.rail),
            ",".join(gpu.nics) or "-",
            _dash(gpu.cpus),
        )
        for gpu in plan.gpus
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    return booting.GOOD


def _gid(chosen: argparse.Namespace) -> int:
    policy = _policy(chosen)
    text, where = (
        (chosen.range, "--range") if chosen.range else (policy.nccl.addr_range, "policy.nccl.addr_range")
    )
    wanted = None if text is None else range_of(text, where)
    gids = read_gids(discover(chosen.root), chosen.devices, wanted, written_rails(chosen.root))
    if not gids.picks:
        raise InputError("gid", "no RoCE port can be seen from here", "is /sys/class/infiniband there?")
    if chosen.json:
        print(json.dumps({"ports": gids.to_json()}, indent=2))
    elif chosen.env:
        for problem in gids.problems:
            print(problem, file=sys.stderr)
        if not gids.problems:
            for name, value in gids.variables(version_of(policy)).items():
                print(f"{name}={value}")
    else:
        for line in gids.lines():
            print(line)
    return booting.FINDINGS if gids.problems else booting.GOOD


def _planned(chosen: argparse.Namespace) -> tuple[Policy, Facts, Plan]:
    policy = _policy(chosen)
    facts = discover(chosen.root, sysctls=tuple(policy.sysctls), tools=chosen.root == Path("/"))
    return policy, facts, make_plan(facts, policy)


def _policy(chosen: argparse.Namespace) -> Policy:
    if chosen.policy is not None:
        return Policy.read(_read_json(chosen.policy), str(chosen.policy))
    # A machine that nobody has set up yet is planned by the defaults.
    path = chosen.root / POLICY_FILE.lstrip("/")
    return booting.read_policy(chosen.root) if path.exists() else Policy()


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(str(path), f"cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(str(path), f"is no JSON: {error}") from None


def _print_findings(findings: Sequence[Finding], as_json: bool) -> None:
    if as_json:
        print(json.dumps({"findings": to_json(tuple(findings))}, indent=2))
        return
    for finding in findings:
        print(_finding(finding))
    if not findings:
        print("good: the node is as planned")


def _finding(finding: Finding) -> str:
    line = f"{finding.severity}: {finding.code}: {finding.where}: {finding.why}"
    if finding.accepted is not None:
        return f"{line} [accepted: {finding.accepted}]"
    return line + (f"\n    {finding.remedy}" if finding.remedy else "")


def _dump(value: Any) -> None:
    print(json.dumps(to_json(value), indent=2))


def _dash(value: object) -> str:
    return "-" if value is None or value == "" else str(value)


def _or_unknown(value: object) -> str:
    return "unknown" if value is None else str(value)


if __name__ == "__main__":
    sys.exit(main())
