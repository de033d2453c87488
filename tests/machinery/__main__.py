"""python -m tests.machinery MACHINE DEST: lays a recorded machine out as a file tree."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import yaml

from . import MachineError, build, build_from_nccl_xml

MACHINES = Path(__file__).resolve().parents[1] / "machines"


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0 built; 2 a description, a path or the usage is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.machinery", description=__doc__)
    parser.add_argument(
        "machine", help="a name under tests/machines, a folder, a machine.yml or an NCCL topology .xml"
    )
    parser.add_argument("dest", type=Path, help="where sys, proc and etc go: an absent or empty folder")
    parser.add_argument(
        "--patch", type=Path, action="append", default=[], help="YAML to merge over the description"
    )
    chosen = parser.parse_args(arguments)
    path = Path(chosen.machine) if Path(chosen.machine).exists() else MACHINES / chosen.machine
    try:
        if path.suffix == ".xml":
            build_from_nccl_xml(path, chosen.dest)
        else:
            build(
                path,
                chosen.dest,
                *(yaml.safe_load(patch.read_text(encoding="utf-8")) for patch in chosen.patch),
            )
    except (MachineError, OSError, yaml.YAMLError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
