"""What hwloc, a witness that shares nothing with ours, makes of a machine's tree."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def xml_of(root: Path, *options: str) -> bytes:
    """hwloc's XML of the machine below `root`. options: of lstopo, "--whole-io" for every device."""
    run = subprocess.run(
        ["lstopo-no-graphics", *options, "--of", "xml", "-"],
        env={
            "PATH": os.environ["PATH"],
            "HWLOC_FSROOT": str(root),
            "HWLOC_THISSYSTEM": "0",
            "HWLOC_COMPONENTS": "linux,stop",
        },
        capture_output=True,
        check=True,
        timeout=120,
    )
    return run.stdout
