"""ibdev2netdev [-v], ibstat, ibstatus and show_gids: names, ports, states, rates and GIDs of RDMA devices.

They show neither the PCI tree (except the address in `ibdev2netdev -v`) nor GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from railwright.node.model import Facts, Gid, InputError, Nic, normalise_address, sort_key

from .fields import facts_of, guid, lines_of, link_layer, name, port_state, rate, refuse_crowd, whole
from .source import Source
from .terminal import Line

_PLAIN = re.compile(r"^(\S+) port (\d+) ==> (\S+) \((\w+)\)$", re.ASCII)
_VERBOSE = re.compile(
    r"^(\S+) (\S+) \((\S+) - ([^()]{0,64})\) (.{0,200}?) ?fw (\S+) port (\d+) \((\w+) *\) ==> (\S+) \((\w+)\)$",
    re.ASCII,
)
_ARROW = re.compile(r" port \d+ .{0,200}==>", re.ASCII)
_INTERFACE = {"Up": "active", "Down": "down"}
_PORT = re.compile(r"^Infiniband device '([^']*)' port (\d+) status:$", re.ASCII)
_FIELD = re.compile(r"^\s+([A-Za-z_ ]{2,24}):\s+(\S.*)$", re.ASCII)
_NUMBERED = re.compile(r"^\d+: (.+)$", re.ASCII)
_CA = re.compile(r"^CA '([^']*)'$", re.ASCII)
_CA_PORT = re.compile(r"^\s+Port (\d+):$", re.ASCII)
_CA_FIELD = re.compile(r"^\s+([A-Za-z][A-Za-z ]{1,30}): ?(.*)$", re.ASCII)
_GID = re.compile(r"[0-9a-f]{4}(?::[0-9a-f]{4}){7}", re.ASCII)
_GID_ROW = re.compile(
    r"^(\S+)\s+(\d+)\s+(\d+)\s+([0-9a-f:]{39})\s+(?:(\d+(?:\.\d+){3})\s+)?(v[12])\s*(\S*)$", re.ASCII
)
_GIDS_FOUND = re.compile(r"^n_gids_found=(\d+)$", re.ASCII)
_INTERFACE_NOTE = (
    "ibdev2netdev shows the interface's state: an InfiniBand port may be active while its interface is down"
)


def read_ibdev2netdev(source: Source) -> Facts:
    """Ports with their netdevs. Raises InputError with file and line."""
    found: list[Nic] = []
    plain_down = False
    for line in lines_of(source):
        where, text = source.at(line.number), line.text.strip()
        refuse_crowd(len(found), "ports", where)
        if verbose := _VERBOSE.match(text):
            found.append(_verbose(verbose, where))
        elif plain := _PLAIN.match(text):
            device, port = name(plain[1], where), whole(plain[2], 1, 255, where)
            state = _interface_state(plain[4], where)
            plain_down |= state == "down"
            found.append(Nic(device, rdma=device, port=port, netdev=name(plain[3], where), state=state))
        elif _ARROW.search(text):
            raise InputError(where, f"found {text[:80]!r}", "expected a line like mlx5_0 port 1 ==> ib0 (Up)")
    nics = _unique(found, source)
    # The tool goes through the devices in the order of text, so mlx5_10 stands before mlx5_2.
    nics = tuple(sorted(nics, key=_order))
    return facts_of("ibdev2netdev", source, nics=nics, notes=(_INTERFACE_NOTE,) if plain_down else ())


def _verbose(match: re.Match[str], where: str) -> Nic:
    device = name(match[2], where)
    _interface_state(match[10], where)
    return Nic(
        name=device,
        address=normalise_address(match[1], where),
        rdma=device,
        port=whole(match[7], 1, 255, where),
        netdev=name(match[9], where),
        state=port_state(match[8], where),
        firmware=match[6],
    )


def _interface_state(text: str, where: str) -> str:
    if text not in _INTERFACE:
        raise InputError(where, f"found {text!r}", "expected Up or Down")
    return _INTERFACE[text]


def read_ibstatus(source: Source) -> Facts:
    """Ports with state, rate, link layer and their first GID. Raises InputError with file and line."""
    found: list[Nic] = []
    for line in lines_of(source):
        where = source.at(line.number)
        if begin := _PORT.match(line.text.strip()):
            device = name(begin[1], where)
            found.append(Nic(device, rdma=device, port=whole(begin[2], 1, 255, where)))
        elif "Infiniband device" in line.text:
            raise InputError(
                where,
                f"found {line.text[:80]!r}",
                "expected a line like Infiniband device 'mlx5_0' port 1 status:",
            )
        elif found and (match := _FIELD.match(line.text)):
            found[-1] = _with_status(found[-1], match[1], match[2], where)
    return facts_of("ibstatus", source, nics=_unique(_without_idle_rates(found), source))


def _with_status(nic: Nic, field: str, value: str, where: str) -> Nic:
    if field == "default gid":
        if not _GID.fullmatch(value):
            raise InputError(where, f"found {value[:40]!r}", "expected a GID of eight groups")
        return replace(nic, gids=(Gid(0, value),) if value.strip("0:") else ())
    if field == "state":
        numbered = _NUMBERED.match(value)
        return replace(nic, state=port_state(numbered[1] if numbered else value, where))
    if field == "rate":
        return replace(nic, rate=rate(value, where))
    if field == "link_layer":
        return replace(nic, link_layer=link_layer(value, where))
    return nic


def read_ibstat(source: Source) -> Facts:
    """Ports with state, rate, link layer, GUIDs and firmware. Raises InputError with file and line."""
    ports: list[Nic] = []
    device = Nic("")
    inside = False
    for line in lines_of(source):
        where = source.at(line.number)
        if begin := _CA.match(line.text.strip()):
            device, inside = Nic(name(begin[1], where), rdma=begin[1]), False
        elif line.text.startswith("CA "):
            raise InputError(where, f"found {line.text[:80]!r}", "expected a line like CA 'mlx5_0'")
        elif not device.name:
            continue
        elif port := _CA_PORT.match(line.text):
            ports.append(replace(device, port=whole(port[1], 1, 255, where)))
            inside = True
        elif match := _CA_FIELD.match(line.text):
            if inside:
                ports[-1] = _with_port_field(ports[-1], match[1], match[2].strip(), where)
            else:
                device = _with_device_field(device, match[1], match[2].strip(), where)
    return facts_of("ibstat", source, nics=_unique(_without_idle_rates(ports), source))


def _with_device_field(nic: Nic, field: str, value: str, where: str) -> Nic:
    if field == "Firmware version":
        return replace(nic, firmware=value or None)
    if field == "Node GUID":
        return replace(nic, guid=guid(value, where))
    if field == "System image GUID":
        return replace(nic, sys_image_guid=guid(value, where))
    return nic


def _with_port_field(nic: Nic, field: str, value: str, where: str) -> Nic:
    if field == "State":
        return replace(nic, state=port_state(value, where))
    if field == "Rate":
        return replace(nic, rate=rate(value, where))
    if field == "Link layer":
        return replace(nic, link_layer=link_layer(value, where))
    return nic


def read_show_gids(source: Source) -> Facts:
    """Ports with their GIDs, which are RoCE's where a version stands. Raises InputError with file and line."""
    ports: dict[tuple[str, int], list[Gid]] = {}
    stated: int | None = None
    header = False
    for line in lines_of(source):
        text = line.text.strip()
        if total := _GIDS_FOUND.match(text):
            stated = whole(total[1], 0, 10**6, source.at(line.number))
        elif text.startswith("DEV"):
            header = True
        elif header and text and not text.startswith("---"):
            key, gid = _gid_row(source, line, text)
            held = ports.setdefault(key, [])
            if any(other.index == gid.index for other in held):
                raise InputError(
                    source.at(line.number), f"{key[0]} port {key[1]} index {gid.index} stands twice"
                )
            held.append(gid)
            refuse_crowd(len(held), "GIDs of one port", source.at(line.number))
    count = sum(len(gids) for gids in ports.values())
    if not ports:
        raise InputError(source.name, "holds no GID", "give the whole output of show_gids")
    notes = []
    if stated is None:
        notes.append("show_gids: the last line, n_gids_found, is not there: the list may be cut")
    elif stated != count:
        notes.append(
            f"show_gids: {count} GIDs stand here where the last line counts {stated}: the list is cut"
        )
    nics = [
        Nic(device, rdma=device, port=port, netdev=_only(gid.netdev for gid in gids), gids=tuple(gids))
        for (device, port), gids in ports.items()
    ]
    return facts_of(
        "show_gids", source, nics=_unique(nics, source), complete=stated in {None, count}, notes=tuple(notes)
    )


def _gid_row(source: Source, line: Line, text: str) -> tuple[tuple[str, int], Gid]:
    where = source.at(line.number)
    match = _GID_ROW.match(text)
    if match is None or not _GID.fullmatch(match[4]):
        raise InputError(
            where,
            f"found {text[:80]!r}",
            "expected DEV, PORT, INDEX, GID, IPv4, VER and DEV, as show_gids prints them",
        )
    netdev = name(match[7], where) if match[7] else None
    address = match[5]
    mapped = match[4].startswith("0000:0000:0000:0000:0000:ffff:")
    if mapped and address is not None and _dotted(match[4]) != address:
        raise InputError(
            where, f"GID {match[4]} is not {address}", "expected the IPv4 address that the GID maps"
        )
    return (name(match[1], where), whole(match[2], 1, 255, where)), Gid(
        whole(match[3], 0, 65535, where), match[4], match[6], netdev
    )


def _dotted(gid: str) -> str:
    digits = gid[-9:].replace(":", "")
    return ".".join(str(int(digits[n : n + 2], 16)) for n in range(0, 8, 2))


def _only(values: Iterable[str | None]) -> str | None:
    """The one value; VLAN interfaces own GIDs of the same port, and then no single netdev is the port's."""
    several = set(values) - {None}
    return several.pop() if len(several) == 1 else None


def _without_idle_rates(nics: Iterable[Nic]) -> list[Nic]:
    """A port that is down states the rate it falls back to, which is no rate."""
    return [replace(nic, rate=None) if nic.state == "down" else nic for nic in nics]


def _unique(nics: Iterable[Nic], source: Source) -> tuple[Nic, ...]:
    """Ports by name; those of one device with several ports are called device:port, as NCCL_IB_HCA does."""
    listed = list(nics)
    if not listed:
        raise InputError(source.name, "names no port", "give the whole output")
    refuse_crowd(len(listed), "ports", source.name)
    shared: dict[str, int] = {}
    seen: set[tuple[str, int | None]] = set()
    for nic in listed:
        if (nic.name, nic.port) in seen:
            raise InputError(
                source.name, f"{nic.name} port {nic.port} stands twice", "give one machine at a time"
            )
        seen.add((nic.name, nic.port))
        shared[nic.name] = shared.get(nic.name, 0) + 1
    return tuple(
        replace(nic, name=f"{nic.name}:{nic.port}") if shared[nic.name] > 1 else nic for nic in listed
    )


def _order(nic: Nic) -> tuple[bool, tuple[int, ...], list[tuple[int, str]]]:
    parts = re.findall(r"[0-9]+|[^0-9]+", nic.name)
    words = [(int(part), "") if part[0] in "0123456789" else (-1, part) for part in parts]
    return nic.address is None, sort_key(nic.address) if nic.address else (), words
