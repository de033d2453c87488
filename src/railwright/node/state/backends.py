"""What tells a network back-end of files that have changed: all that is new to it, and no link that is not."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Collection, Sequence
from contextlib import suppress

from . import confirm
from .command import Said
from .item import Node
from .outcome import Refused
from .program import tools_of

NETWORKD, NETPLAN, NETWORK_MANAGER = "networkd", "netplan", "networkmanager"
BACKENDS = (NETWORKD, NETPLAN, NETWORK_MANAGER)
# Where each keeps what is ours there, and how such a file ends.
FILES = {
    NETWORKD: ("/etc/systemd/network/", ".network"),
    NETPLAN: ("/etc/netplan/", ".yaml"),
    NETWORK_MANAGER: ("/etc/NetworkManager/system-connections/", ".nmconnection"),
}
# It sets the rails' MTU when their devices come, whatever the back-end.
UDEV = "/etc/udev/rules.d/90-railwright-rails.rules"
_MADE = "/run/systemd/network"
_OURS = "netplan-railwright-"
# Where netplan reads what it is told (netplan(5)), in no order.
_TOLD = ("etc/netplan", "run/netplan", "lib/netplan", "usr/lib/netplan")


def reload(node: Node, backend: str, files: Sequence[str], dark: Collection[str] = ()) -> None:
    """Tells the back-end of these files, which were written or removed. Raises Refused.

    dark: profiles of links without a carrier. Nothing is waited for there: a few dead cables would take all the time
    in which a change has to be confirmed.
    """
    if backend == NETPLAN:
        _generate(node)
    if backend in (NETWORKD, NETPLAN):
        # A link whose file is the same as before is left alone (networkctl(1)).
        _must(node, ["networkctl", "reload"], "see systemctl status systemd-networkd on the node")
        return
    _must(node, ["nmcli", "connection", "reload"], "see systemctl status NetworkManager on the node")
    for path in files:
        if os.path.exists(node.at(path)):
            profile = os.path.basename(path)[: -len(".nmconnection")]
            bring_up(node, profile, 0 if profile in dark else 20)


def bring_up(node: Node, profile: str, seconds: int = 20) -> Said:
    """Activates one of our profiles. Where the link has no carrier it stays down, which is no failure of ours."""
    return _told(node, ["nmcli", "--wait", str(seconds), "connection", "up", "id", profile])


def configure_again(node: Node, backend: str, netdev: str, profile: str) -> None:
    """Lets the back-end give a device again what its file says, for somebody took it away. Raises Refused."""
    if backend == NETWORK_MANAGER:
        bring_up(node, profile)
    else:
        _must(node, ["networkctl", "reconfigure", netdev], f"see networkctl status {netdev} on the node")


def undoing(backend: str, profiles: Sequence[str], first: Sequence[Sequence[str]]) -> confirm.Telling:
    """The commands that tell the back-end of files that were put back. first: what comes before them."""
    if backend == NETWORKD:
        return confirm.Telling([*first, ["networkctl", "reload"]])
    if backend == NETPLAN:
        generate = ["netplan", "generate"]
        # At a boot netplan has told networkd already, from the file that is put back only now.
        return confirm.Telling([*first, generate, ["networkctl", "reload"]], [generate])
    up = [["nmcli", "--wait", "20", "connection", "up", "id", profile] for profile in profiles]
    return confirm.Telling([*first, ["nmcli", "connection", "reload"], *up])


def _generate(node: Node) -> None:
    """Lets netplan write what networkd reads, and takes over what is ours.

    In a folder of its own: in /run it writes all files anew, and networkd would configure all links again.
    """
    folder = tempfile.mkdtemp(prefix="railwright-netplan-", dir=node.at("/run"))
    try:
        for place in _TOLD:
            source = node.at(f"/{place}")
            if os.path.isdir(source) and not os.path.islink(os.path.dirname(source)):
                shutil.copytree(source, f"{folder}/{place}", symlinks=True, ignore=_not_yaml)
        said = _told(node, ["netplan", "generate", "--root-dir", folder])
        if not said.ok:
            raise Refused(
                f"netplan generate: {said.word}", "mend what it names in /etc/netplan, then run again"
            )
        _take_over(node, f"{folder}{_MADE}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _not_yaml(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if not name.endswith(".yaml")]


def _take_over(node: Node, made: str) -> None:
    target = node.at(_MADE)
    os.makedirs(target, exist_ok=True)
    new = {name for name in _listed(made) if _OURS in name}
    for name in {name for name in _listed(target) if _OURS in name} - new:
        with suppress(FileNotFoundError):
            os.unlink(f"{target}/{name}")
    for name in sorted(new):
        if _bytes(f"{target}/{name}") == _bytes(f"{made}/{name}"):
            continue
        beside = f"{target}/.{name}.railwright"
        shutil.copy2(f"{made}/{name}", beside)
        status = os.stat(f"{made}/{name}")
        os.chown(beside, status.st_uid, status.st_gid)
        os.rename(beside, f"{target}/{name}")


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _bytes(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""


def _must(node: Node, argv: Sequence[str], remedy: str) -> None:
    said = _told(node, argv)
    if not said.ok:
        raise Refused(f"{' '.join(argv)}: {said.word}", remedy, changed=True)


def _told(node: Node, argv: Sequence[str]) -> Said:
    said = tools_of(node)(argv)
    if said.code is None:
        raise Refused(f"the node has no {argv[0]}", "say in policy.rails.backend what configures its network")
    return said
