"""Add up what the test runs of one `make test` counted, from their JUnit files.

    python tools/test_totals.py FILE...

Prints `N passed, N failed, N skipped`. Exit 1 when a test failed or none ran, so that an empty run is not a green one.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from defusedxml.ElementTree import parse


def totals(junit_file: Path) -> Counter[str]:
    """Outcomes of the test cases of one file. An expected failure counts as passed, an error as failed."""
    counts: Counter[str] = Counter()
    for case in parse(junit_file).iter("testcase"):
        skip = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            counts["failed"] += 1
        elif skip is not None and skip.get("type") != "pytest.xfail":
            counts["skipped"] += 1
        else:
            counts["passed"] += 1
    return counts


def main(names: list[str]) -> int:
    """Print the sum over the files; 0 when tests ran and none failed."""
    counts = sum((totals(Path(name)) for name in names), Counter())
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return 1 if counts["failed"] or not counts["passed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
