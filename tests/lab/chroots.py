"""A root file system of the lab to be changed: real apt and dpkg in it, without a running systemd or a network."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from railwright.node.state import Said

from . import namespaces, rootfs
from .shell import call

_UNATTENDED = ("DEBIAN_FRONTEND=noninteractive", "LC_ALL=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin")


@dataclass(frozen=True)
class Chroot:
    """root: where it is to be seen."""

    root: Path

    def argv(self, *argv: str) -> list[str]:
        return ["chroot", str(self.root), "/usr/bin/env", "-i", *_UNATTENDED, *argv]

    def tools(self, argv: Sequence[str]) -> Said:
        """As the writer runs programs (`node.state.command`)."""
        done = subprocess.run(self.argv(*argv), capture_output=True, text=True, check=False, timeout=300)
        return Said(None if done.returncode == 127 else done.returncode, done.stdout, done.stderr)

    def must(self, words: str) -> str:
        """Runs words of a shell. Raises LabError."""
        return call(self.argv("sh", "-c", words), timeout=300)

    def read(self, path: str) -> str:
        return (self.root / path.lstrip("/")).read_text("utf-8")

    def write(self, path: str, text: str) -> None:
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, "utf-8")

    def versions(self, pattern: str = "*") -> dict[str, str]:
        """What dpkg-query says is installed: name to version, and "held" behind it where it is."""
        shown = "${Package}\t${Version}\t${db:Status-Want}\t${db:Status-Status}\n"
        done = subprocess.run(
            self.argv("dpkg-query", "-W", "-f", shown, pattern), capture_output=True, text=True, check=False
        )
        rows = [line.split("\t") for line in done.stdout.splitlines()]
        return {
            name: version
            + (" held" if want == "hold" else "")
            + ("" if status == "installed" else f" {status}")
            for name, version, want, status in rows
            if status not in ("not-installed", "config-files")
        }


@contextmanager
def entered(place: Path, suite: str = "bookworm") -> Iterator[Chroot]:
    """A root file system of this suite at `place`, for as long as the context lasts. Raises LabError."""
    merged = namespaces.overlay(rootfs.root(suite), place)
    chroot = Chroot(merged)
    try:
        for name in ("null", "zero", "urandom"):
            node = merged / "dev" / name
            if not node.exists():
                call(["cp", "-a", f"/dev/{name}", str(node)])
        yield chroot
    finally:
        call(["umount", str(merged)])
