"""How long a fleet takes to be planned: `python -m benchmarks.fleet [NODES ...]`.

Nodes are of five builds, each with names, MACs, GUIDs, addresses, serials and interrupts of its own; one in a hundred
has a fault. They are read from text as a run's folder would give it, one after the other. CPU seconds are told beside a
loop that measures this machine, for wall times mean little where others use it too.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Iterator

from railwright.fleet.members import Asked
from railwright.fleet.planning import plan_fleet
from railwright.node.model import Policy
from tests.unit.fleet_support import FAULTS, SHAPES, node

# A number that no other text of a node holds: it is replaced by each node's own.
_MARK = 0xABCDE


def texts() -> dict[str, list[str]]:
    """For each build the text of a node, and for the first one that of a node with each fault."""
    made = {kind: [json.dumps(node(kind, _MARK))] for kind in SHAPES}
    for plant, _, _ in FAULTS.values():
        facts = node(SHAPES[0], _MARK)
        plant(facts)
        made[SHAPES[0]].append(json.dumps(facts))
    return made


def own(text: str, number: int) -> str:
    """The text with a number of its own in name, serials, MACs, GUIDs and addresses."""
    high, middle, low = number >> 16 & 255, number >> 8 & 255, number & 255
    for old, new in (
        (f"node{_MARK}", f"node{number}"),
        (f"{_MARK:08x}", f"{number:08x}"),
        ("02:00:0a:bc:de", f"02:00:{high:02x}:{middle:02x}:{low:02x}"),
        ("000a:bcde", f"00{high:02x}:{number & 0xFFFF:04x}"),
        (".188.222/", f".{middle}.{low}/"),
        ("fe80::abcde", f"fe80::{number:x}"),
    ):
        text = text.replace(old, new)
    return text


def fleet(count: int, made: dict[str, list[str]]) -> Iterator[Asked]:
    """Nodes, faults on every hundredth."""
    policy = Policy()
    faults = made[SHAPES[0]][1:]
    for number in range(count):
        faulty = number % 100 == 0
        text = faults[number // 100 % len(faults)] if faulty else made[SHAPES[number % len(SHAPES)]][0]
        yield Asked(f"node{number}", json.loads(own(text, number)), policy)


def calibration() -> float:
    """CPU seconds of a fixed loop: what this machine is worth now."""
    started = time.process_time()
    total = 0
    for number in range(3_000_000):
        total += number & 3
    return time.process_time() - started


def main() -> int:
    """One line for each size."""
    counts = [int(word) for word in sys.argv[1:]] or [100, 1000, 10_000]
    made = texts()
    print("nodes  CPU s  CPU/loop  wall s  MiB  plans made  odd nodes")
    for count in counts:
        loop = calibration()
        cpu, wall = time.process_time(), time.monotonic()
        planned = plan_fleet(fleet(count, made))
        cpu, wall = time.process_time() - cpu, time.monotonic() - wall
        odd = sum(bool(one.findings) for one in planned.nodes.values())
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        made_plans = planned.forms.plans_made
        print(
            f"{count:5} {cpu:6.2f} {cpu / loop:9.1f} {wall:7.2f} {peak:4} {made_plans:11} {odd:10}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
