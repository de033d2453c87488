"""A run of the lab is a folder: what was started for it is recorded there, and found there by whoever cleans up."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from . import processes
from .cache import remove
from .errors import LabError
from .processes import Process
from .shell import ask, call

# Root's own folder: neither below a checkout nor in a /tmp that is cleared.
HOME = Path(os.environ.get("RAILWRIGHT_LAB", "/var/lib/railwright-lab"))
_NAME = re.compile(r"^[a-z][a-z0-9-]{0,15}$")
# A node halts in 1-3 s; systemd gives a stubborn service 10 s here.
GRACE_SECONDS = 20.0
# The cgroup file system may be mounted nowhere, so it is mounted for this one look.
_SWEEP = """
mount -t tmpfs tmpfs /mnt && mkdir /mnt/c && mount -t cgroup2 cgroup2 /mnt/c || exit 3
for top in "$@"; do
    [ ! -d "/mnt/c/$top" ] || find "/mnt/c/$top" -depth -type d -exec rmdir {} +
done
"""


@dataclass(frozen=True)
class Run:
    """name: lower-case letters, digits and dashes, 16 at most."""

    name: str

    @property
    def folder(self) -> Path:
        return HOME / self.name

    def node(self, name: str) -> Path:
        return self.folder / "nodes" / name

    def record(self, name: str) -> Path:
        return self.folder / "processes" / name

    def master(self, node: str) -> Path:
        """The socket of the SSH connection that this run's own commands share. (A socket's path may have 108 bytes.)"""
        return self.folder / f"{node}.ssh"

    def cgroup(self, node: str) -> str:
        """Its path below the root of the cgroup file system."""
        return f"railwright-lab-{self.name}-{node}"

    @property
    def key(self) -> Path:
        return self.folder / "key"

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    def begin(self) -> None:
        """Makes the folder. Raises LabError where the name is none or is taken."""
        if not _NAME.match(self.name):
            raise LabError(
                "run", f"{self.name!r} is no name", "use lower-case letters, digits and dashes, 16 at most"
            )
        HOME.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            self.folder.mkdir(mode=0o700)
        except FileExistsError as error:
            raise LabError(
                self.name, "is up already, or was left behind", f"python -m tests.lab down {self.name}"
            ) from error
        (self.folder / "boot_id").write_text(_boot_id(), encoding="ascii")

    def processes(self) -> dict[str, Process]:
        """What still runs, of what was recorded since this machine booted."""
        try:
            if (self.folder / "boot_id").read_text("ascii") != _boot_id():
                return {}
        except FileNotFoundError:
            return {}
        found = {}
        for record in sorted((self.folder / "processes").glob("*")):
            if record.suffix != ".new" and (process := processes.read(record)).alive:
                found[record.name] = process
        return found

    def process(self, name: str) -> Process:
        """Raises LabError where it does not run."""
        process = self.processes().get(name)
        if process is None:
            raise LabError(f"{self.name}/{name}", "does not run", f"see {self.folder}")
        return process

    def down(self, grace: float = GRACE_SECONDS) -> list[str]:
        """Ends what was started, takes away what was made, the folder last. Returns what had to be ended by force."""
        for socket in self.folder.glob("*.ssh"):
            ask(["ssh", "-F", "/dev/null", "-O", "exit", "-S", str(socket), "node"])
        running = self.processes()
        forced: list[str] = []
        nodes = {name: one for name, one in running.items() if name.endswith(".keeper")}
        if nodes and grace > 0:
            with ThreadPoolExecutor(len(nodes)) as pool:
                for name, ended in zip(
                    nodes, pool.map(lambda one: _ask_to_end(one, grace), nodes.values()), strict=True
                ):
                    if not ended:
                        forced.append(name.removesuffix(".keeper"))
        for one in running.values():
            processes.end(one, 0)
        names = [path.name for path in (self.folder / "nodes").glob("*")]
        if names:
            script = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _SWEEP, "sh"]
            call([*script, *(self.cgroup(name) for name in names)])
        remove(self.folder)
        return forced


def runs() -> Iterator[Run]:
    """Every run that has a folder."""
    if HOME.is_dir():
        for folder in sorted(HOME.iterdir()):
            if _NAME.match(folder.name) and folder.is_dir():
                yield Run(folder.name)


def _ask_to_end(process: Process, grace: float) -> bool:
    process.signal(signal.SIGTERM)
    return process.wait(grace)


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text("ascii")
