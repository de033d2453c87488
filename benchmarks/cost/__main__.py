"""CPU seconds that a node costs its controller and itself, for Railwright and three other ways to the same state.

    python -m benchmarks.cost [--nodes 1 8 32] [--rounds 2] [--alone 128] [--recorded 32 128 512] [--pyinfra PROGRAM]

Wall times on a busy machine mean little, so all figures are CPU seconds a node, split where ssh splits them: what the
started command and its children took, and what ended behind sshd. Each is divided by what a fixed loop took right
before and right after it, relative to that loop's best time of the whole run; the ways take turns within a round.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .rack import Rack, rack
from .recorded import answers, listen, recorded
from .ways import Way, environment, inventory, items, railwright, ways

PR_SET_CHILD_SUBREAPER = 36
# Where nodes write; a disk would be measured otherwise.
MEMORY = (Path("/dev") / "shm",)


@dataclass(frozen=True)
class Cost:
    """CPU seconds a node; slow: how much slower the machine was than at its best."""

    controller: float
    node: float
    slow: float

    @property
    def normal(self) -> tuple[float, float]:
        return self.controller / self.slow, self.node / self.slow


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cost", description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--alone", type=int, nargs="*", default=[128])
    parser.add_argument(
        "--recorded",
        type=int,
        nargs="*",
        default=[32, 128, 512],
        help="nodes that answer as one was heard to",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=["railwright", "stock", "pyinfra", "ssh"],
        help="these ways and no others",
    )
    parser.add_argument("--pyinfra", type=Path, help="the program, in an environment of its own")
    parser.add_argument("--python", type=Path, default=Path("/usr/bin/python3"), help="the nodes' Python")
    asked = parser.parse_args(argv)
    if os.geteuid() != 0:
        print("benchmarks/cost: run as root, it mounts the nodes' trees", file=sys.stderr)
        return 2
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    memory = next((folder for folder in MEMORY if os.access(folder, os.W_OK)), None)
    most = max([1, *asked.nodes, *asked.alone])
    with (
        tempfile.TemporaryDirectory(prefix="rwb-") as place,
        tempfile.TemporaryDirectory(prefix="rwb-", dir=memory) as layers,
        rack(Path(place), Path(layers), asked.python, most) as found,
    ):
        print(f"calibration: {calibrate():.3f} s for the loop", flush=True)
        ours = railwright(found)
        (found.folder / "cp").mkdir()
        inventory(found.folder, found.nodes)
        measure(found, ours, 1)
        state = items(found.nodes[0])
        print(
            f"{len(state)} items: {sum(not item.is_kernels for item in state)} files, the rest the kernel's",
            flush=True,
        )
        if asked.rounds:
            compare(found, ways(found, state, asked.pyinfra), asked.nodes, asked.rounds, asked.only)
        if asked.alone:
            grow(found, ours, [count for count in (*asked.nodes, *asked.alone) if count >= 8])
        if asked.recorded:
            heard = listen(found.nodes[0])
            measure(found, ours, 1)
            many(found.folder / "recorded", answers(heard), asked.recorded)
    return 0


def compare(
    found: Rack, each: Sequence[Way], counts: Sequence[int], rounds: int, only: Sequence[str] | None
) -> None:
    costs: dict[tuple[str, int, str], list[Cost]] = defaultdict(list)
    for turn in range(rounds):
        for count in counts:
            order = [way for way in each if only is None or way.name in only]
            for way in order[turn % len(order) :] + order[: turn % len(order)]:
                found.renew(count)
                for kind in ("first", "no change"):
                    cost = measure(found, way, count)
                    costs[way.name, count, kind].append(cost)
                    print(
                        f"  {way.name} {count} {kind}: {cost.controller:.3f} + {cost.node:.3f} s, x{cost.slow:.2f}",
                        flush=True,
                    )
    print("\nCPU seconds a node, normalised (controller + node), median")
    names = list(dict.fromkeys(name for name, _, _ in costs))
    print(f"{'':24}" + "".join(f"{name:>18}" for name in names))
    for count in counts:
        for kind in ("first", "no change"):
            pairs = [median(costs[name, count, kind]) for name in names]
            print(f"{count:>4} nodes, {kind:<11}" + "".join(f"{a:>9.3f} + {b:<6.3f}" for a, b in pairs))


def median(costs: Sequence[Cost]) -> tuple[float, float]:
    controller, node = zip(*(cost.normal for cost in costs), strict=True)
    return statistics.median(controller), statistics.median(node)


def grow(found: Rack, ours: Way, counts: Sequence[int]) -> None:
    """A run without a change over more and more nodes, and the straight line through the controller's whole CPU."""
    points = []
    for count in dict.fromkeys(counts):
        found.renew(count)
        measure(found, ours, count)
        cost = measure(found, ours, count)
        points.append((count, cost.normal[0] * count))
        print(
            f"alone, {count} nodes, no change: {cost.normal[0]:.3f} + {cost.normal[1]:.3f} s a node",
            flush=True,
        )
    fit(points)


def many(folder: Path, kept: dict[str, str], counts: Sequence[int]) -> None:
    """What the controller spends on more nodes than this machine can be: they answer from a recording."""
    points = []
    with recorded(folder, kept, max(counts)) as found:
        (folder / "cp").mkdir()
        inventory(folder, found.nodes)
        for count in counts:
            cost = measure(found, railwright(found), count)
            points.append((count, cost.normal[0] * count))
            print(f"recorded, {count} nodes: {cost.normal[0]:.3f} s of controller a node", flush=True)
    fit(points)


def fit(points: Sequence[tuple[int, float]]) -> None:
    """The straight line through the controller's whole CPU."""
    if len(points) > 1:
        slope, constant = statistics.linear_regression(*zip(*points, strict=True))
        r = statistics.correlation(*zip(*points, strict=True))
        print(f"controller CPU = {constant:.1f} s + {slope:.3f} s x nodes (r = {r:.4f})")


def measure(found: Rack, way: Way, count: int) -> Cost:
    """One run. Raises SystemExit where it fails."""
    loop = calibrate()
    before, behind = spent(), found.node_seconds()
    done = subprocess.run(
        way.command(count),
        env=environment(way),
        cwd=found.folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"benchmarks/cost: {way.name} failed:\n{done.stdout[-3000:]}\n{done.stderr[-2000:]}")
    for socket in (found.folder / "cp").glob("*"):
        subprocess.run(["ssh", "-O", "exit", "-S", str(socket), "x"], capture_output=True, check=False)
    reap(len(found.sshds))
    time.sleep(0.5)
    controller, node = (spent() - before) / count, (found.node_seconds() - behind) / count
    return Cost(controller, node, (loop + calibrate()) / 2 / BEST[0])


def reap(others: int) -> None:
    """Waits for the ssh masters, which this process got when their parents ended. others: children that stay."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                children = Path(f"/proc/self/task/{os.getpid()}/children").read_text("utf-8").split()
                if len(children) <= others:
                    return
                time.sleep(0.1)
        except ChildProcessError:
            return


def spent() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


BEST = [float("inf")]


def calibrate() -> float:
    """CPU seconds of a fixed loop now; BEST keeps the least."""
    began = time.process_time()
    total = 0
    for number in range(2_000_000):
        total += number % 7
    took = time.process_time() - began
    BEST[0] = min(BEST[0], took)
    return took


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
