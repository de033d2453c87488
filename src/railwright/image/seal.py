"""The third stage: what a machine has of its own goes, so that no two nodes of an image share it.

Each row says what goes and why. `leftovers` asks a tree the same question without touching it.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from railwright.node.model import InputError

# Patterns below the root; a folder that fits goes with all it holds.
GOES: dict[str, tuple[str, ...]] = {
    "keys by which a host proves who it is": (
        "etc/ssh/ssh_host_*", "etc/krb5.keytab", "etc/ssl/private/ssl-cert-snakeoil.key",
        "etc/ssl/certs/ssl-cert-snakeoil.pem", "etc/munge/munge.key", "etc/salt/pki/*", "etc/puppetlabs/puppet/ssl",
        "etc/puppet/ssl", "etc/pki/consumer/*", "etc/pki/entitlement/*", "var/lib/ubuntu-advantage/private/*",
        "etc/kubernetes/*.conf", "etc/kubernetes/pki", "var/lib/kubelet/*", "etc/wireguard/*",
    ),
    "identities that daemons made for one machine": (
        "var/lib/dbus/machine-id", "var/lib/dhcp/*", "var/lib/dhclient/*", "var/lib/dhcpcd/*",
        "var/lib/NetworkManager/*", "var/lib/iscsi/*", "etc/iscsi/initiatorname.iscsi", "etc/nvme/hostid",
        "etc/nvme/hostnqn", "etc/multipath/wwids", "etc/multipath/bindings", "etc/lvm/devices/*", "etc/lvm/archive/*",
        "etc/lvm/backup/*", "var/lib/docker/*", "var/lib/containerd/*", "var/lib/cloud/*", "var/lib/chrony/*",
        "var/lib/ntpsec/*", "var/lib/fwupd/*", "var/lib/tpm2-tss/*", "var/lib/systemd/credential.secret",
        "var/lib/systemd/timesync/*", "var/lib/systemd/timers/*", "var/lib/systemd/rfkill/*",
        "var/lib/systemd/backlight/*", "var/lib/systemd/network/*", "var/lib/rhsm/*", "var/lib/lldpd/*",
        "etc/udev/rules.d/70-persistent-net.rules", "etc/udev/rules.d/70-persistent-cd.rules", "var/lib/private/*",
        "var/lib/nvidia-persistenced/*", "var/lib/opensm/*",
    ),
    "seeds of random numbers": ("var/lib/systemd/random-seed", "boot/efi/loader/random-seed", "var/lib/random-seed"),
    "the way of one network": (
        "etc/hostname", "etc/netplan/50-cloud-init.yaml", "etc/netplan/*installer*", "etc/resolv.conf",
        "etc/network/interfaces.d/50-cloud-init*", "etc/apt/apt.conf.d/*proxy*", "etc/environment.d/*proxy*",
        "etc/systemd/network/10-cloud-init*", "etc/cloud/cloud.cfg.d/*installer*", "etc/cloud/ds-identify.cfg",
    ),
    "what people left": (
        "root/.ssh", "root/.*_history", "root/.lesshst", "root/.viminfo", "root/.wget-hsts", "root/.cache",
        "root/.ansible", "root/.config", "root/.aws", "root/.docker", "root/.kube", "root/.netrc", "root/.gnupg",
        "root/.python_history", "home/*/.ssh", "home/*/.*_history", "home/*/.cache", "home/*/.ansible", "home/*/.netrc",
        "var/mail/*", "var/spool/mail/*", "var/spool/cron/crontabs/*", "var/spool/at/*", "var/lib/sudo/*",
    ),
    "logs and caches": (
        "var/cache/apt/*", "var/cache/dnf/*", "var/cache/yum/*", "var/cache/debconf/*-old", "var/cache/man/*",
        "var/cache/ldconfig/aux-cache", "var/cache/private/*", "var/lib/apt/lists/*", "var/lib/dpkg/*-old",
        "var/lib/apt/periodic/*", "var/lib/logrotate/*", "var/backups/*", "var/crash/*", "var/lib/systemd/coredump/*",
        "var/lib/ucf/*.[0-9]*", "var/tmp/*", "tmp/*", "run/*", "etc/.pwd.lock", "etc/passwd-", "etc/group-",
        "etc/shadow-", "etc/gshadow-", "etc/subuid-", "etc/subgid-", "root/.bash_logout-", "etc/ld.so.cache~",
        "usr/sbin/policy-rc.d",
    ),
    "the writer's record of the bake": ("var/lib/railwright",),
}  # fmt: skip
_LOGS = "var/log"
# The bake's own archives: those of the policy stay, with their keys.
_SOURCES = ("etc/apt/sources.list", "etc/apt/sources.list.d/*")
_OURS = re.compile(r"railwright-")
# With its bytes behind it: programs that read keys hold the line alone.
_PRIVATE_KEY = re.compile(
    rb"^-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY-----\s+(?:[A-Za-z-]+: .*\s+)*[A-Za-z0-9+/=]{40}", re.M
)
# Documentation and tests of packages hold keys that are nobody's.
_SAMPLES = re.compile(r"(?:^|/)(?:doc|docs|examples?|tests?|testdata|samples?)/")
_STUB = "../run/systemd/resolve/stub-resolv.conf"
_BLOCK = 1 << 20


def leftovers(tree: Path) -> list[tuple[str, str]]:
    """What of one machine is in a tree: (path below it, why it must not be in an image), in order."""
    found = [(path, why) for path, why in _going(tree) if not _kept(tree, path)]
    if _machine_id(tree) is not None:
        found.append(("etc/machine-id", f"identities that daemons made for one machine: {_machine_id(tree)}"))
    found += [(path, "logs and caches") for path in _logs(tree)]
    return sorted(found)


def seal(tree: Path, sources: str = "") -> list[tuple[str, str]]:
    """Takes all of that out. sources: what the image's apt shall read. What went, with the reason."""
    went = leftovers(tree)
    for path, _ in went:
        if path != "etc/machine-id":
            _remove(tree / path)
    if (tree / "etc").is_dir():
        _empty_identity(tree)
    resolved = (tree / "usr/lib/systemd/systemd-resolved").exists()
    if resolved and not os.path.lexists(tree / "etc/resolv.conf"):
        (tree / "etc/resolv.conf").symlink_to(_STUB)
    if (tree / "etc/apt").is_dir():
        for path in _matches(tree, _SOURCES):
            if not _OURS.match(path.rsplit("/", 1)[1]):
                _remove(tree / path)
                went.append((path, "the archives of the bake"))
        if sources:
            (tree / "etc/apt/sources.list").write_text(sources.rstrip("\n") + "\n", "utf-8")
    return sorted(went)


def private_keys(tree: Path) -> list[str]:
    """Files with a private key in them that no package's documentation or tests account for."""
    return [
        path
        for path, file in _files(tree)
        if not _SAMPLES.search(path) and _PRIVATE_KEY.search(file.read_bytes())
    ]


def holders(tree: Path, texts: tuple[str, ...]) -> list[str]:
    """Files that hold one of these texts."""
    wanted = [text.encode() for text in texts]
    return [path for path, file in _files(tree) if wanted and _holds(file, wanted)]


def must_not_hold(file: Path, texts: tuple[str, ...]) -> None:
    """Searches the whole of a file, a disk's free blocks among it. Raises InputError with the place of the first."""
    wanted = [text.encode() for text in texts]
    if wanted and _holds(file, wanted):
        raise InputError(
            file.name, "holds a text that the recipe forbids", "find out which package or file brings it"
        )


def _holds(file: Path, wanted: list[bytes]) -> bool:
    longest = max(map(len, wanted))
    with file.open("rb") as data:
        tail = b""
        for block in _blocks(data.fileno()):
            seen = tail + block
            if any(text in seen for text in wanted):
                return True
            tail = seen[-longest:]
    return False


def _blocks(handle: int) -> Iterator[bytes]:
    """The bytes of a file, holes left out: they are zeros."""
    size = os.fstat(handle).st_size
    place = 0
    while place < size:
        try:
            place = os.lseek(handle, place, os.SEEK_DATA)
        except OSError:  # nothing but a hole until its end
            return
        end = os.lseek(handle, place, os.SEEK_HOLE)
        while place < end:
            block = os.pread(handle, min(_BLOCK, end - place), place)
            yield block
            place += len(block)
        yield b"\0"


def _going(tree: Path) -> Iterator[tuple[str, str]]:
    for why, patterns in GOES.items():
        for path in _matches(tree, patterns):
            yield path, why


def _kept(tree: Path, path: str) -> bool:
    """What a sealed image has in the place of what went."""
    place = tree / path
    if path == "etc/resolv.conf":
        return place.is_symlink() and os.readlink(place).endswith("resolve/stub-resolv.conf")
    if path == "var/lib/dbus/machine-id":
        return place.is_symlink()
    return False


def _machine_id(tree: Path) -> str | None:
    """What is wrong with it; None for a sealed one: there, and empty (machine-id(5): the first boot fills it)."""
    place = tree / "etc/machine-id"
    if not (tree / "etc").is_dir():
        return None
    if place.is_symlink() or not place.is_file():
        return "absent, so that a read-only boot has no place for it"
    return None if place.stat().st_size == 0 else "not empty"


def _empty_identity(tree: Path) -> None:
    place = tree / "etc/machine-id"
    place.unlink(missing_ok=True)
    place.touch(mode=0o444)
    place.chmod(0o444)
    dbus = tree / "var/lib/dbus"
    if dbus.is_dir() and not os.path.lexists(dbus / "machine-id"):
        (dbus / "machine-id").symlink_to("/etc/machine-id")


def _logs(tree: Path) -> list[str]:
    """Files of logs; folders stay, with the owners that daemons want, but the journal's are named by the machine."""
    folder = tree / _LOGS
    if not folder.is_dir() or folder.is_symlink():
        return []
    found = []
    for where, folders, names in os.walk(folder):
        found += [os.path.relpath(os.path.join(where, name), tree) for name in names if name != "README"]
        if os.path.basename(where) == "journal":
            found += [os.path.relpath(os.path.join(where, name), tree) for name in folders]
            folders.clear()
    return found


def _matches(tree: Path, patterns: tuple[str, ...]) -> Iterator[str]:
    """Paths below the tree that fit. No link is followed on the way: an absolute one leads to this machine."""
    for pattern in patterns:
        for place in sorted(tree.glob(pattern)):
            path = place.relative_to(tree)
            on_the_way = [tree / parent for parent in path.parents if str(parent) != "."]
            if not any(parent.is_symlink() for parent in on_the_way):
                yield str(path)


def _remove(place: Path) -> None:
    if place.is_symlink() or not place.is_dir():
        place.unlink(missing_ok=True)
    else:
        shutil.rmtree(place)


def _files(tree: Path) -> Iterator[tuple[str, Path]]:
    for where, folders, names in os.walk(tree):
        folders.sort()
        for name in sorted(names):
            file = Path(where, name)
            if stat.S_ISREG(file.lstat().st_mode):
                yield str(file.relative_to(tree)), file
