"""Programs of a root file system, run in it as on a machine of its own that has no device and no past.

The namespaces begin and end with the program: its mounts are seen nowhere else and are gone when it, or the bake that
started it, is. /dev holds the few devices that every program wants and no disk, /sys and what /proc tells of hardware
are those of a machine with one CPU and nothing else, so that no fact of this controller gets into an image.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from railwright.node.model import InputError

from .landing import landing

_APART = (
    "setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--propagation", "private", "--pid", "--ipc", "--uts",
    "--fork", "--kill-child", "--",
)  # fmt: skip
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PROBE = """\
#!/bin/sh
# What grub-probe would say on the disk that this root file system is going to lie on.
for word; do
    case $word in
    --target=*) target=${{word#--target=}} ;;
    -t) next=1 ;;
    *) test -z "$next" || {{ target=$word; next=; }} ;;
    esac
done
case $target in
fs) echo ext2 ;;
fs_uuid) echo {root} ;;
partmap) echo gpt ;;
device|disk) echo /dev/disk/by-uuid/{root} ;;
drive) echo '(hd0,gpt3)' ;;
abstraction|hints_string|compatibility_hint|cryptodisk_uuid|partuuid|fs_label) ;;
*) exit 1 ;;
esac
"""
# $1: the root; $2: what is laid over it; then the program. Every mount is in this shell's own namespace.
_ENTER = r"""
set -eu
root=$1 over=$2
shift 2
mkdir -p "$root/dev" "$root/proc" "$root/sys" "$root/run" "$root/tmp"
mount -t tmpfs -o mode=755,size=16m tmpfs "$root/dev"
for name in null zero full random urandom; do
    : > "$root/dev/$name"
    mount --bind "/dev/$name" "$root/dev/$name"
done
mkdir "$root/dev/shm" "$root/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
ln -s /proc/self/fd "$root/dev/fd"
ln -s /proc/self/fd/0 "$root/dev/stdin"
ln -s /proc/self/fd/1 "$root/dev/stdout"
ln -s /proc/self/fd/2 "$root/dev/stderr"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=755 tmpfs "$root/sys"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
cp -a "$over/sys/." "$root/sys"
cp -a "$over/dev/." "$root/dev"
cp -a "$over/run/." "$root/run"
while read -r source target; do
    test -e "$root$target" || continue
    mount --bind "$source" "$root$target"
done < "$over/binds"
while read -r source target mode; do
    mkdir -p "$root$target"
    mount --bind "$source" "$root$target"
    test "$mode" != ro || mount -o remount,bind,ro "$root$target"
done < "$over/folders"
exec chroot "$root" "$@"
"""


@dataclass(frozen=True)
class Room:
    """A root file system to work in. scratch: a folder of the caller's for what is laid over it; epoch: the time that
    files get; root_uuid: of the file system that it will lie on; lock: kept open by what runs."""

    tree: Path
    scratch: Path
    epoch: int
    root_uuid: str = ""
    lock: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def kernels(self) -> list[str]:
        """Releases of the kernels in it."""
        places = (self.tree / "usr/lib/modules", self.tree / "lib/modules")
        folder = next((place for place in places if place.is_dir() and not place.is_symlink()), None)
        return [] if folder is None else sorted(path.name for path in folder.iterdir() if path.is_dir())

    def run(
        self,
        *argv: str,
        stdin: bytes | None = None,
        folders: Sequence[tuple[Path, str, str]] = (),
        binds: Mapping[str, Path] | None = None,
    ) -> bytes:
        """What the program printed. folders: (of this machine, in the root below /run, "ro" or "rw"). binds: files of
        this machine over files of the root. Raises InputError where it fails."""
        over = self.scratch / "over"
        self._lay(over, folders, binds or {})
        return run(
            [*_APART, "sh", "-c", _ENTER, "sh", str(self.tree), str(over), *argv],
            stdin=stdin,
            lock=self.lock,
            env={**_environment(self.epoch), **self.env},
            named=f"in the image: {' '.join(argv)[:120]}",
        )

    def has(self, *names: str) -> str | None:
        """The first of these programs that it has, as a path in it."""
        places = ("usr/sbin", "usr/bin", "sbin", "bin")
        found = (
            f"/{place}/{name}" for name in names for place in places if (self.tree / place / name).is_file()
        )
        return next(found, None)

    def _lay(self, over: Path, folders: Sequence[tuple[Path, str, str]], binds: Mapping[str, Path]) -> None:
        release = (self.kernels or ["0"])[-1]
        for name in (
            "sys/devices/system/cpu/cpu0/topology",
            "sys/bus/pci/devices",
            "dev/disk/by-uuid",
            "run",
        ):
            (over / name).mkdir(parents=True, exist_ok=True)
        topology = "sys/devices/system/cpu/cpu0/topology"
        texts = {
            "sys/devices/system/cpu/online": "0\n",
            f"{topology}/core_cpus_list": "0\n",
            f"{topology}/thread_siblings_list": "0\n",
            f"{topology}/physical_package_id": "0\n",
            f"{topology}/core_id": "0\n",
            "cpuinfo": _cpuinfo(),
            "nothing": "",
            "release": f"{release}\n",
            "version": f"Linux version {release}\n",
            "grub-probe": _PROBE.format(root=self.root_uuid),
        }
        for name, text in texts.items():
            (over / name).write_text(text, "utf-8")
        (over / "grub-probe").chmod(0o755)
        if self.root_uuid:
            (over / "dev/disk/by-uuid" / self.root_uuid).touch()
        files = {
            "/proc/cpuinfo": over / "cpuinfo",
            "/proc/cmdline": over / "nothing",
            "/proc/modules": over / "nothing",
            "/proc/interrupts": over / "nothing",
            "/proc/swaps": over / "nothing",
            "/proc/sys/kernel/osrelease": over / "release",
            "/proc/version": over / "version",
            **({"/usr/sbin/grub-probe": over / "grub-probe"} if self.root_uuid else {}),
            **binds,
        }
        _lay_names(self.tree, over, files)
        (over / "binds").write_text(
            "".join(f"{source} {target}\n" for target, source in files.items()), "utf-8"
        )
        rows = "".join(f"{source} {target} {mode}\n" for source, target, mode in folders)
        (over / "folders").write_text(rows, "utf-8")


def run(
    argv: Sequence[str],
    *,
    stdin: bytes | None = None,
    lock: int | None = None,
    env: Mapping[str, str] | None = None,
    named: str = "",
) -> bytes:
    """A program's output. Raises InputError with its last words where it fails or is not there."""
    try:
        done = subprocess.run(
            argv,
            input=b"" if stdin is None else stdin,
            capture_output=True,
            check=False,
            env=None if env is None else dict(env),
            pass_fds=() if lock is None else (lock,),
        )
    except FileNotFoundError:
        raise InputError(
            argv[0], "is not installed here", f"install the package that has {argv[0]}"
        ) from None
    if done.returncode != 0:
        said = (done.stderr or done.stdout).decode("utf-8", "replace").strip().splitlines()[-6:]
        raise InputError(named or " ".join(argv)[:120], f"ended with {done.returncode}: {' | '.join(said)}")
    return done.stdout


def apart(argv: Sequence[str]) -> list[str]:
    """The command line of a program in namespaces of its own, which ends with this process."""
    return [*_APART, *argv]


def _environment(epoch: int) -> dict[str, str]:
    return {
        "PATH": _PATH,
        "HOME": "/root",
        "LC_ALL": "C.UTF-8",
        "DEBIAN_FRONTEND": "noninteractive",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "SOURCE_DATE_EPOCH": str(epoch),
        **{
            key: value
            for key, value in os.environ.items()
            if key.lower() in ("http_proxy", "https_proxy", "no_proxy")
        },
    }


def _lay_names(tree: Path, over: Path, files: dict[str, Path]) -> None:
    """This machine's resolver for the time of the run: over a file of the root, or where its link into /run leads."""
    there = landing(tree, "etc/resolv.conf")
    own = Path("/etc/resolv.conf")
    if not own.exists():
        return
    if there.is_symlink():
        target = os.path.normpath(os.path.join("/etc", os.readlink(there)))
        if target.startswith("/run/"):
            place = over / target[1:]
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(own.read_bytes())
    else:
        if not there.exists() and there.parent.is_dir():
            there.touch()
        files["/etc/resolv.conf"] = own.resolve()


def _cpuinfo() -> str:
    if os.uname().machine == "aarch64":
        return "processor\t: 0\nCPU implementer\t: 0x41\nCPU architecture: 8\n"
    return "processor\t: 0\nflags\t\t: lm\n"
