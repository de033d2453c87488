"""Programs of a root file system that is there, run in it as on a machine of its own that has no device and no past.

What makes one out of packages (`rootfs`, by `apart`) is not of them, and sees this controller.

The namespaces begin and end with the program: its mounts are seen nowhere else and are gone when it, or the bake that
started it, is. /dev holds the few devices that every program wants and no disk, /sys and what /proc tells of hardware
are those of a machine with one CPU and nothing else, so that no fact of this controller gets into an image.

What runs there is root's by its number and by few of its rights: the root file system is all that it can reach, this
kernel's settings are read only, and no program has rights that speak to a kernel, to devices or to other roots. One
that makes a user namespace of its own has all of them there, over nothing that lies outside of it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from railwright.node.model import InputError

from .landing import landing

_APART = (
    "setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--propagation", "private", "--pid", "--ipc", "--uts",
    "--fork", "--kill-child",
)  # fmt: skip
# What installing packages takes, as linux/capability.h numbers it: CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID,
# SETUID, SETPCAP, NET_BIND_SERVICE, SYS_CHROOT (ldconfig -r), AUDIT_WRITE, SETFCAP. Without DAC_READ_SEARCH, which
# opens any file of the disk below by its handle, and without MKNOD, which makes that disk.
_RIGHTS = (0, 1, 3, 4, 5, 6, 7, 8, 10, 18, 29, 31)
# Of linux/prctl.h and linux/mount.h.
_CAPBSET_DROP, _DETACH = 24, 2
_RESOLVER = Path("/etc/resolv.conf")
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
# The last step of the way in: nothing but the root is left to be reached, and no right that nobody needs there. Dropped
# from the bounding set, a right is lost at the next program and no program's file gives it back (capabilities(7)); a
# new user namespace does, for what belongs to it (user_namespaces(7)). No descriptor of this machine's goes along, for
# /proc/self/fd opens its file anew, to write too: the lock is held by `unshare`, which waits outside.
_CLOSE = f"""
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def must(what, done):
    if done != 0:
        sys.exit(what + ": " + os.strerror(ctypes.get_errno()))
last = int(open("/proc/sys/kernel/cap_last_cap").read())
os.chdir(sys.argv[1])
must("pivot_root, which a bake inside a chroot cannot do", libc.pivot_root(b".", b"."))
must("umount of this machine's root", libc.umount2(b".", {_DETACH}))
os.chdir("/")
name = b"localhost"
must("sethostname", libc.sethostname(name, len(name)))
for right in set(range(last + 1)) - {{*{_RIGHTS}}}:
    must("prctl", libc.prctl({_CAPBSET_DROP}, right, 0, 0, 0))
for number in map(int, os.listdir("/proc/self/fd")):
    if number > 2:
        os.closerange(number, number + 1)
name, fault = sys.argv[2], "not found"
# No os.execvp: it imports, and this machine's files are gone.
for folder in [""] if "/" in name else os.environ["PATH"].split(":"):
    try:
        os.execv(folder and folder + "/" + name or name, sys.argv[2:])
    except FileNotFoundError:
        pass
    except OSError as error:
        fault = error.strerror
sys.exit(name + ": " + fault)
"""
# What grub-mkrelpath would say there. The real one tells of this machine's folders, as the kernel does of every mount.
_RELATIVE = """\
#!/bin/sh
for last; do :; done
readlink -f -- "$last"
"""
# $1: the root; $2: what is laid over it; then the last step and the program. Every mount is in this shell's own
# namespace.
_ENTER = r"""
set -eu
root=$1 over=$2
shift 2
mount --bind "$root" "$root"
mount -o remount,bind,nodev "$root"
mkdir -p "$root/dev" "$root/proc" "$root/sys" "$root/run" "$root/tmp"
mount -t tmpfs -o mode=755,size=16m tmpfs "$root/dev"
for name in null zero full random urandom; do
    : > "$root/dev/$name"
    mount --bind "/dev/$name" "$root/dev/$name"
    # They are this machine's own: read only they can be written to, but their owner and mode stay.
    mount -o remount,bind,ro,nosuid,noexec "$root/dev/$name"
done
mkdir "$root/dev/shm" "$root/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
ln -s /proc/self/fd "$root/dev/fd"
ln -s /proc/self/fd/0 "$root/dev/stdin"
ln -s /proc/self/fd/1 "$root/dev/stdout"
ln -s /proc/self/fd/2 "$root/dev/stderr"
mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
# A number of root's may write this kernel's settings, without any right.
for name in sys sysrq-trigger irq bus fs acpi scsi; do
    test -e "$root/proc/$name" || continue
    mount --bind "$root/proc/$name" "$root/proc/$name"
    mount -o remount,bind,ro,nosuid,nodev,noexec "$root/proc/$name"
done
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
exec "$@"
"""


@dataclass(frozen=True)
class Room:
    """A root file system to work in. scratch: a folder of the caller's for what is laid over it; epoch: the time that
    files get; root_uuid: of the file system that it will lie on; lock: kept open until what runs has ended."""

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
        network: bool = False,
    ) -> bytes:
        """What the program printed. folders: (of this machine, in the root below /run, "ro" or "rw"). binds: files of
        this machine over files of the root. network: this machine's, and a copy of its resolver; else it has none.
        Raises InputError where it fails."""
        over = self.scratch / "over"
        self._lay(over, folders, binds or {}, network)
        more = ("--cgroup",) if network else ("--cgroup", "--net")
        last = (sys.executable, "-I", "-S", "-c", _CLOSE, str(self.tree))
        return run(
            [*_APART, *more, "--", "sh", "-c", _ENTER, "sh", str(self.tree), str(over), *last, *argv],
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

    def _lay(
        self, over: Path, folders: Sequence[tuple[Path, str, str]], binds: Mapping[str, Path], network: bool
    ) -> None:
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
            "grub-mkrelpath": _RELATIVE,
        }
        for name, text in texts.items():
            (over / name).write_text(text, "utf-8")
        for name in ("grub-probe", "grub-mkrelpath"):
            (over / name).chmod(0o755)
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
            "/usr/bin/grub-mkrelpath": over / "grub-mkrelpath",
            "/usr/bin/grub2-mkrelpath": over / "grub-mkrelpath",
            **binds,
        }
        _lay_names(self.tree, over, files, network and _RESOLVER.exists())
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
    return [*_APART, "--", *argv]


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


def _lay_names(tree: Path, over: Path, files: dict[str, Path], wanted: bool) -> None:
    """A copy of this machine's resolver for the time of the run, or none: over a file of the root, or where its link
    into /run leads."""
    there = landing(tree, "etc/resolv.conf")
    place = over / "resolv.conf"
    if there.is_symlink():
        target = os.path.normpath(os.path.join("/etc", os.readlink(there)))
        if not target.startswith("/run/"):
            return
        place = over / target[1:]
    elif wanted:
        if not there.exists() and there.parent.is_dir():
            there.touch()
        files["/etc/resolv.conf"] = place
    if wanted:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(_RESOLVER.read_bytes())
    else:
        place.unlink(missing_ok=True)


def _cpuinfo() -> str:
    if os.uname().machine == "aarch64":
        return "processor\t: 0\nCPU implementer\t: 0x41\nCPU architecture: 8\n"
    return "processor\t: 0\nflags\t\t: lm\n"
