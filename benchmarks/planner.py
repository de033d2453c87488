"""How much CPU time a plan takes, stage by stage: a node of eight GPUs and ten NICs, as recorded in tests/machines.

    python benchmarks/planner.py [--machine NAME] [--repeat N]

CPU time of this process, not time on the wall. The least of the repeats is what the work itself costs; the median shows
how far the machine was busy with something else.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from railwright.node.discover import discover  # noqa: E402 (the checkout that holds this file is measured)
from railwright.node.model import Facts, Plan, Policy, to_json  # noqa: E402
from railwright.node.model.policy import WORKLOADS  # noqa: E402
from railwright.plan import plan  # noqa: E402
from tests.machinery import build  # noqa: E402

MACHINE = "2s_8xh100_10xcx7"
T = TypeVar("T")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--machine", default=MACHINE, help="a folder of tests/machines")
    parser.add_argument("--repeat", type=int, default=50)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        build(ROOT / "tests" / "machines" / chosen.machine, Path(folder) / "tree")
        facts = discover(Path(folder) / "tree")
    print(
        f"{chosen.machine}: {len(facts.gpus)} GPUs, {len(facts.nics)} NIC ports, {len(facts.pci)} PCI functions"
    )
    text = json.dumps(to_json(facts))
    loaded = {gpu.address: "gen5 x16" for gpu in facts.gpus if gpu.address is not None}
    idle = Policy.read(
        {"schema": "railwright.policy/1", "nccl": {"version": "2.30.7", "loaded_links": loaded}}
    )
    made = _show("plan", chosen.repeat, lambda: plan(facts, Policy()))
    for workload in WORKLOADS[1:]:
        policy = Policy(workload=workload)
        _show(f"plan, {workload}", chosen.repeat, lambda policy=policy: plan(facts, policy))  # type: ignore[misc]
    _show("plan with a topology file", chosen.repeat, lambda: plan(facts, idle))
    _show("facts from JSON", chosen.repeat, lambda: Facts.read(json.loads(text)))
    written = _show("plan to JSON", chosen.repeat, lambda: json.dumps(to_json(made)))
    _show("plan from JSON", chosen.repeat, lambda: Plan.read(json.loads(written)))


def _show(name: str, repeat: int, work: Callable[[], T]) -> T:
    result = work()
    times = []
    for _ in range(repeat):
        start = time.process_time()
        work()
        times.append((time.process_time() - start) * 1e3)
    print(f"  {name:<28}{min(times):7.2f} ms least {statistics.median(times):7.2f} ms median")
    return result


if __name__ == "__main__":
    main()
