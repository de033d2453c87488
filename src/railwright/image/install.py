"""The second stage: the stack as the policy plans it, the program, the policy, the boot unit, and a menu to boot by."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from railwright.fleet import zipapp
from railwright.node.bake import install as install_in_root
from railwright.node.model import InputError, Policy, to_json
from railwright.plan.entries import HEADER

from . import seal, tarball
from .inside import Room
from .landing import landing, lay
from .recipe import Recipe
from .rootfs import TAR as ROOT_TAR

TAR, SAID, SEALED = "installed.tar", "install.json", "sealed.json"
# Where the program lies while it installs: /run is a memory of the run's own.
_PROGRAM = "/run/railwright-bake.pyz"
MOTD = "etc/motd.d/60-railwright"
# pam_motd reads /run/motd.d too, and a file of the same name in /etc comes first (pam_motd(8)): told once, not twice.
MOTD_TARGET = "/run/motd.d/60-railwright"
KEYS_UNIT = "railwright-host-keys.service"
# Without its keys sshd does not start, and the administrator is kept out; an image has none. A key whose bytes were not
# on the disk when the power went is an empty file; and two makers at once would mix the halves of their pairs.
_KEYS = f"""{HEADER}[Unit]
Description=Make this node's own SSH host keys where it has none
Documentation=man:ssh-keygen(1)
Before=sshd-keygen.service sshd-keygen.target sshd-keygen@rsa.service sshd-keygen@ecdsa.service
Before=sshd-keygen@ed25519.service ssh.service sshd.service
ConditionFileNotEmpty=|!/etc/ssh/ssh_host_ed25519_key
ConditionFileNotEmpty=|!/etc/ssh/ssh_host_rsa_key

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/ssh-keygen -A
ExecStartPost=/usr/bin/sync --file-system /etc/ssh

[Install]
WantedBy=multi-user.target
"""
_POLICY_RC = "usr/sbin/policy-rc.d"


def make(recipe: Recipe, policy: Policy, root_uuid: str, root: Path, place: Path, lock: int) -> None:
    """Fills the stage from the stage `root`. Raises InputError with what could not be planned or set."""
    tree = tarball.unpack(root / ROOT_TAR, place / "tree", lock)
    (place / "work").mkdir()
    room = Room(tree, place / "work", recipe.epoch, root_uuid, lock)
    menu = prepare_menu(recipe, room)
    said = _install(policy, room)
    (place / SAID).write_text(json.dumps(said, indent=1) + "\n", "utf-8")
    against = refused(said)
    if against:
        raise InputError(
            "the stack", " | ".join(against), "correct the policy or the recipe, then bake again"
        )
    lay_texts(tree)
    # The initramfs takes in what it finds: the names and keys of this root file system must be gone before.
    identity = seal.identity(tree)
    went = seal.seal(tree, recipe.sources)
    (place / SEALED).write_text(json.dumps(went, indent=1) + "\n", "utf-8")
    if room.has("update-initramfs") and room.kernels:
        room.run("update-initramfs", "-u", "-k", "all")
    if menu:
        # Once more: the driver and the policy may have said something of the command line.
        room.run(menu, "-o", "/boot/grub/grub.cfg")
    told = seal.holders(tree, (str(tree),))
    if told:
        raise InputError(
            "the root file system",
            f"tells of the folder that it was baked in: {', '.join(told[:6])}",
            "find out which program writes it; this is a fault of the bake: report it",
        )
    known = seal.holders(tree, (identity,)) if identity is not None else []
    if known:
        raise InputError(
            "the root file system",
            f"is still known by its machine-id after that went: {', '.join(known[:6])}",
            "take these files, or the id in them, out of the tree",
        )
    tarball.pack(tree, place / TAR, recipe.epoch, lock)
    for name in ("tree", "work"):
        shutil.rmtree(place / name)


def prepare_menu(recipe: Recipe, room: Room) -> str | None:
    """GRUB's words for every chassis, and its first menu. The program that makes menus; None where there is none."""
    maker = room.has("grub-mkconfig")
    if maker is None or not (room.tree / "etc/default").is_dir():
        return None
    landing(room.tree, "boot/grub/.").mkdir(parents=True, exist_ok=True)
    lay(
        room.tree,
        "etc/default/grub.d/50-railwright-image.cfg",
        f'{HEADER}GRUB_CMDLINE_LINUX="{recipe.command_line}"\nGRUB_CMDLINE_LINUX_DEFAULT=""\nGRUB_TIMEOUT=2\n'
        "GRUB_RECORDFAIL_TIMEOUT=2\nGRUB_DISABLE_OS_PROBER=true\n",
    )
    room.run(maker, "-o", "/boot/grub/grub.cfg")
    return maker


def _install(policy: Policy, room: Room) -> Any:
    """Plans and writes inside the root file system."""
    if not room.has("python3"):
        raise InputError(
            "the root file system", "has no python3", "give the recipe the package python3, or another tree"
        )
    (room.scratch / "program.pyz").write_bytes(zipapp.build())
    (room.scratch / "over/run").mkdir(parents=True, exist_ok=True)
    shutil.copyfile(room.scratch / "program.pyz", room.scratch / f"over{_PROGRAM}")
    _forbid_services(room.tree)
    asked = {"policy": to_json(policy), "blobs": {zipapp.digest(): zipapp.blob()}}
    try:
        out = room.run(
            "env", f"PYTHONPATH={_PROGRAM}", "python3", "-m", install_in_root.__module__,
            stdin=json.dumps(asked).encode(), network=True,
        )  # fmt: skip
    finally:
        landing(room.tree, _POLICY_RC).unlink(missing_ok=True)
    return json.loads(out)


def _forbid_services(tree: Path) -> None:
    """No package may start what it installs (invoke-rc.d(8)): there is no system that it could run in."""
    lay(tree, _POLICY_RC, "#!/bin/sh\nexit 101\n", 0o755)


def lay_texts(tree: Path) -> None:
    """What the image has besides a node that Ansible has tuned: keys of its own at the first boot, and the words."""
    for path, target in _links():
        link = landing(tree, path)
        link.parent.mkdir(parents=True, exist_ok=True)
        if not os.path.lexists(link):
            link.symlink_to(target)
    lay(tree, f"etc/systemd/system/{KEYS_UNIT}", _KEYS)


def _links() -> Iterator[tuple[str, str]]:
    yield MOTD, MOTD_TARGET
    yield f"etc/systemd/system/multi-user.target.wants/{KEYS_UNIT}", f"../{KEYS_UNIT}"


def refused(said: Any) -> list[str]:
    """What kept the stack from being installed, in sentences."""
    rows = [
        f"{row['where']}: {row['why']}. {row['remedy']}" for row in (*said["refusals"], *said["failures"])
    ]
    errors = _open(said, "error")
    return [*rows, *map(_sentence, errors)]


def warned(said: Any) -> list[str]:
    """What a person has to know of the stack: warnings, and what was not seen for want of a GPU."""
    blind = [row for row in _open(said, "info") if row["code"].endswith(".no_gpu")]
    return [_sentence(row) for row in (*_open(said, "warning"), *blind)]


def _open(said: Any, severity: str) -> list[Any]:
    return [row for row in said["findings"] if row["severity"] == severity and row["accepted"] is None]


def _sentence(row: Any) -> str:
    return f"{row['code']}: {row['where']}: {row['why']}. {row['remedy']}"
