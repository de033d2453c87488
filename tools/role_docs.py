"""Write the part of each role's README that its argument spec decides, or check that it is up to date.

    python tools/role_docs.py            write
    python tools/role_docs.py --check    write nothing; exit 1 and name each README that would change

The part stands between two marks, which a new README must have (aar-doc puts it there):

    <!-- BEGIN_ANSIBLE_DOCS -->
    <!-- END_ANSIBLE_DOCS -->
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TEMPLATE = ROOT / "tools" / "role_readme.md.j2"
MARKS = ("<!-- BEGIN_ANSIBLE_DOCS -->", "<!-- END_ANSIBLE_DOCS -->")


class RoleDocsError(Exception):
    """A role whose README cannot be written; the message says why and what to do."""


def readme_of(role: Path) -> str:
    """The README that the role's spec asks for. The role itself is only read."""
    readme = role / "README.md"
    if not readme.is_file():
        raise RoleDocsError(f"{readme}: missing; write it with the two marks {' and '.join(MARKS)}")
    lines = readme.read_text(encoding="utf-8").splitlines()
    if any(lines.count(mark) != 1 for mark in MARKS):
        raise RoleDocsError(f"{readme}: expected each of these lines once: {' and '.join(MARKS)}")
    with tempfile.TemporaryDirectory() as folder:
        # aar-doc takes the role's name from its folder and writes the README beside meta/.
        copy = Path(folder) / role.name
        shutil.copytree(role / "meta", copy / "meta")
        shutil.copy(readme, copy)
        command = [
            sys.executable,
            "-m",
            "aar_doc.cli",
            "--output-template",
            str(TEMPLATE),
            str(copy),
            "markdown",
        ]
        run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if run.returncode != 0:
            said = (run.stdout + run.stderr).strip().splitlines()
            raise RoleDocsError(
                f"{role}: aar-doc could not read meta/ ({said[-1] if said else 'it said nothing'}); each description "
                "is one text (quote it when it holds a colon), and meta/main.yml needs galaxy_info with author, "
                "description, license and platforms"
            )
        return (copy / "README.md").read_text(encoding="utf-8")


def main(arguments: list[str]) -> int:
    """0: all written, or up to date; 1: a README is stale, or a role cannot be documented."""
    parser = argparse.ArgumentParser(description="Write the generated part of each role's README.")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 when a README would change"
    )
    parser.add_argument("--roles", type=Path, default=ROOT / "roles", help="the folder of the roles")
    options = parser.parse_args(arguments)
    failed = False
    for spec in sorted(options.roles.glob("*/meta/argument_specs.yml")):
        role = spec.parents[1]
        readme = role / "README.md"
        try:
            wanted = readme_of(role)
        except RoleDocsError as error:
            print(error, file=sys.stderr)
            failed = True
            continue
        if wanted == readme.read_text(encoding="utf-8"):
            continue
        if options.check:
            print(
                f"{readme}: does not say what meta/argument_specs.yml says; run `make docs`", file=sys.stderr
            )
            failed = True
        else:
            readme.write_text(wanted, encoding="utf-8")
            print(f"wrote {readme}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
