"""How long it takes to read captures, and how much memory: each file in a process of its own.

    python benchmarks/captures.py [--repeat N] [--top N] FILE...

CPU time of the reading alone, least of the repeats, without the start of Python; memory is the most that the process
held, with Python itself (some 30 MB). Prints the slowest files and a line for each kind of witness.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Asked for the captures one by one, so that the memory is that file's.
CHILD = """
import json, sys, time
from pathlib import Path
from railwright.captures import read
from railwright.node.model import InputError
kind, least = "", float("inf")
for _ in range(int(sys.argv[2])):
    began = time.process_time()
    try:
        kind = read([Path(sys.argv[1])]).witnesses[0].kind
    except InputError:
        kind = "refused"
    least = min(least, time.process_time() - began)
memory = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps([kind, least, int(memory.split()[1]) / 1000]))
"""


@dataclass(frozen=True)
class Reading:
    """One file: its size in bytes, seconds of CPU and MB of memory."""

    path: Path
    size: int
    kind: str
    seconds: float
    memory: float


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--top", type=int, default=10, help="how many of the slowest to print")
    chosen = parser.parse_args()
    readings = [_read(path, chosen.repeat) for path in chosen.files if path.is_file()]
    print(f"{len(readings)} files; seconds of CPU, least of {chosen.repeat}\n")
    for entry in sorted(readings, key=lambda entry: -entry.seconds)[: chosen.top]:
        print(_line(entry, entry.path.name))
    print()
    for kind in sorted({entry.kind for entry in readings}):
        of_kind = [entry for entry in readings if entry.kind == kind]
        slowest = max(of_kind, key=lambda entry: entry.seconds)
        print(_line(slowest, f"slowest of {len(of_kind)}"))


def _read(path: Path, repeat: int) -> Reading:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(path), str(repeat)],
        env={"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{path}: {done.stderr.strip()}")
    kind, seconds, memory = json.loads(done.stdout)
    return Reading(path, path.stat().st_size, kind, seconds, memory)


def _line(entry: Reading, what: str) -> str:
    words: Iterable[str] = (
        f"{entry.kind:13}",
        f"{entry.size / 1000:8.0f} kB",
        f"{entry.seconds:6.3f} s",
        f"{entry.memory:4.0f} MB",
        what,
    )
    return "  ".join(words)


if __name__ == "__main__":
    main()
