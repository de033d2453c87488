"""Reading a `machine.yml` with its bases, its patches and its parts into a Machine.

Everything a kernel derives from a description (bus ranges, negotiated links, CPU masks, GID tables, IRQ numbers) is
derived by the other modules of this package.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import IPv4Interface, IPv6Interface
from pathlib import Path
from typing import Any

import yaml

from .cpusets import parse_list
from .errors import MachineError
from .fields import Fields, merge
from .model import (
    _BUS,
    ACS_BITS,
    BRIDGES,
    LINK_LAYERS,
    NUMBERINGS,
    PHYSICAL_STATES,
    PORT_STATES,
    PORTS,
    Address,
    Bar,
    Cache,
    Cpus,
    Device,
    Link,
    Machine,
    Module,
    Nic,
    Nvidia,
    Part,
    Rdma,
    Vectors,
)

PARTS = Path(__file__).resolve().parents[1] / "machines" / "parts.yml"

_UNIT = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def load(path: Path, *patches: object) -> Machine:
    """The machine of a folder or a `machine.yml`, with its bases below it and `patches` (RFC 7386) on top, in order.

    Raises MachineError where the description is wrong, OSError where a file cannot be read.
    """
    folder = path if path.is_dir() else path.parent
    data = _with_bases(path, ())
    for patch in patches:
        data = merge(data, _spelt_out(patch, folder.name))
    return parse(data, _read(PARTS), folder.name)


def parse(data: object, parts: object, name: str) -> Machine:
    """The machine that `data` describes, with the kinds of devices of `parts`."""
    fields = Fields(data, name)
    fields.take("base", str, None)
    kinds = _parts(merge(parts, fields.take("parts", dict, {})))
    cpus = _cpus(fields.section("cpus"))
    hosts = _hosts(fields.section("hosts"))
    nvidia = _nvidia(fields.take("nvidia", dict, None), f"{name}.nvidia")
    devices = _devices(fields.section("devices"), kinds, hosts, nvidia is not None)
    nics = _nics(fields.section("nics"), {device.address: device for device in devices})
    kernel = fields.section("kernel")
    route = fields.section("default_route")
    irqs = fields.section("irqs")
    irq_default = irqs.take("default_cpus", str, None)
    machine = Machine(
        name=name,
        about=fields.take("about", str),
        source=fields.take("source", str),
        architecture=fields.take("architecture", str, "x86_64"),
        dmi=_texts(fields.section("dmi")),
        os_release=_texts(fields.section("os_release")),
        hostname=kernel.take("hostname", str, "node"),
        kernel=kernel.take("release", str),
        kernel_build=kernel.take("build", str),
        cmdline=kernel.take("cmdline", str),
        boot_id=kernel.take("boot_id", str),
        secure_boot=kernel.take("secure_boot", bool, None),
        lockdown=kernel.take("lockdown", str, "none"),
        transparent_hugepages=kernel.take("transparent_hugepages", str, "madvise"),
        sysctls={
            key: _scalar(value, f"{name}.sysctls.{key}") for key, value in fields.section("sysctls").items()
        },
        modules=_modules(fields.section("modules")),
        cpus=cpus,
        memory_gib=_by_node(fields.section("memory_gib")),
        distances={
            int(node): tuple(int(step) for step in str(row).split())
            for node, row in fields.section("numa_distance").items()
        },
        iommu=_choice(fields, "iommu", ("off", "passthrough", "translated"), "off"),
        hosts=hosts,
        devices=devices,
        nics=nics,
        default_nic=route.take("nic", str, None),
        default_gateway=route.take("via", str, None),
        default_metric=route.take("metric", int, 0),
        irq_first=irqs.take("first", int, 24),
        irq_chip=_choice(irqs, "chip", ("flat", "per-device"), "flat"),
        irq_default_cpus=None
        if irq_default is None
        else parse_list(irq_default, f"{name}.irqs.default_cpus"),
        nvidia=nvidia,
        files=_texts(fields.section("files")),
        symlinks=_texts(fields.section("symlinks")),
        cut={path: int(length) for path, length in fields.section("cut").items()},
        absent=fields.texts("absent"),
    )
    for section in (kernel, route, irqs, fields):
        section.done()
    _check(machine)
    return machine


def _read(path: Path) -> object:
    with path.open(encoding="utf-8") as stream:
        try:
            return yaml.safe_load(stream)
        except yaml.YAMLError as error:
            raise MachineError(str(path), f"is no YAML: {error}", "correct the file") from error


def _with_bases(path: Path, below: tuple[Path, ...]) -> object:
    file = (path / "machine.yml" if path.is_dir() else path).resolve()
    if file in below:
        raise MachineError(str(file), "is its own base", "let the chain of bases end")
    data = _read(file)
    base = data.get("base") if isinstance(data, Mapping) else None
    data = _spelt_out(data, file.parent.name)
    if base is None:
        return data
    return merge(_with_bases(file.parent / str(base), (*below, file)), data)


def _spelt_out(layer: object, where: str) -> object:
    """A layer with the addresses of its devices in full, so that 0c:00.0 and 0000:0c:00.0 merge as one."""
    if not isinstance(layer, Mapping) or not isinstance(layer.get("devices"), Mapping):
        return layer
    devices: dict[str, object] = {}
    for text, value in layer["devices"].items():
        address = str(Address.parse(str(text), f"{where}.devices.{text}"))
        if address in devices:
            raise MachineError(f"{where}.devices", f"{address} is described twice", "keep one of the two")
        devices[address] = value
    return {**layer, "devices": devices}


def _choice(fields: Fields, key: str, known: tuple[str, ...], default: str | None = None) -> str:
    value = fields.take(key, str) if default is None else fields.take(key, str, default)
    if value not in known:
        raise MachineError(
            f"{fields.where}.{key}", f"does not know '{value}'", f"write one of {', '.join(known)}"
        )
    return value


def _scalar(value: object, where: str) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise MachineError(where, f"expected a text or a number, found {value!r}", "quote the value")
    return str(value)


def _texts(fields: Fields) -> dict[str, str]:
    return {key: _scalar(value, f"{fields.where}.{key}") for key, value in fields.items()}


def _by_node(fields: Fields) -> dict[int, int]:
    return {int(node): int(value) for node, value in fields.items()}


def _size(text: str, where: str) -> int:
    number, unit = text[:-1], text[-1:]
    if unit not in _UNIT or not number.isdigit():
        raise MachineError(where, f"'{text}' is no size", "write a number with K, M, G or T")
    return int(number) * _UNIT[unit]


def _pair(text: str, where: str) -> tuple[int, int]:
    left, _, right = text.partition(":")
    try:
        return int(left, 16), int(right, 16)
    except ValueError as error:
        raise MachineError(where, f"'{text}' is no vendor:device", "write 15b3:1021, quoted") from error


def _acs(words: tuple[str, ...], where: str) -> tuple[str, ...]:
    for word in words:
        if word not in ACS_BITS:
            raise MachineError(where, f"'{word}' is no ACS bit", f"write of {', '.join(ACS_BITS)}")
    return words


def _parts(data: object) -> dict[str, Part]:
    return {
        name: _part(name, Fields(value, f"parts.{name}")) for name, value in Fields(data, "parts").items()
    }


def _part(name: str, fields: Fields) -> Part:
    where = fields.where
    fields.take("about", str, None)
    vendor, device = _pair(fields.take("id", str), f"{where}.id")
    subvendor, subdevice = _pair(fields.take("subsystem", str, "0000:0000"), f"{where}.subsystem")
    tags = fields.texts("ten_bit_tags")
    vpd = fields.take("vpd", dict, None)
    rdma = fields.take("rdma", dict, None)
    vectors = fields.take("vectors", dict, None)
    words = fields.take("acs", list, None)
    part = Part(
        name=name,
        vendor=vendor,
        device=device,
        subvendor=subvendor,
        subdevice=subdevice,
        class_code=int(fields.take("class", str), 16),
        revision=int(fields.take("revision", str, "00"), 16),
        port=_choice(fields, "port", PORTS),
        link=Link.parse(fields.take("link", str, "unknown"), f"{where}.link"),
        payload_supported=fields.take("payload_supported", int, 128),
        payload=fields.take("payload", int, 128),
        read_request=fields.take("read_request", int, 128),
        relaxed_ordering=fields.take("relaxed_ordering", bool, False),
        extended_tags=fields.take("extended_tags", bool, False),
        ten_bit_completer="completer" in tags,
        ten_bit_requester="requester" in tags,
        ten_bit_enabled="enabled" in tags,
        acs=None if words is None else _acs(tuple(words), f"{where}.acs"),
        aer=fields.take("aer", bool, False),
        ari=fields.take("ari", bool, False),
        ats=fields.take("ats", bool, None),
        functions_max=fields.take("virtual_functions", int, 0),
        bars={
            int(index): _bar(text, f"{where}.bars.{index}") for index, text in fields.section("bars").items()
        },
        msi=fields.take("msi", int, 0),
        msix=fields.take("msix", int, 0),
        driver=fields.take("driver", str, None),
        vectors=None if vectors is None else _vectors(Fields(vectors, f"{where}.vectors")),
        rdma=None if rdma is None else _rdma(Fields(rdma, f"{where}.rdma")),
        vpd_name=None if vpd is None else Fields(vpd, f"{where}.vpd").take("name", str),
        vpd_fields={} if vpd is None else _texts(Fields(vpd, f"{where}.vpd").section("fields")),
    )
    fields.done()
    return part


def _bar(text: str, where: str) -> Bar:
    size, _, kind = text.partition(" ")
    kinds = {"": (True, True), "wide": (False, True), "narrow": (False, False)}
    if kind not in kinds:
        raise MachineError(
            where, f"'{kind}' is no kind of BAR", "write wide or narrow, or nothing (prefetchable)"
        )
    prefetchable, wide = kinds[kind]
    return Bar(0 if size == "0" else _size(size, where), prefetchable, wide)


def _vectors(fields: Fields) -> Vectors:
    vectors = Vectors(
        fixed=fields.texts("fixed"),
        queues=fields.take("queues", str, ""),
        count=fields.take("count", int, 0),
        managed=fields.take("managed", bool, False),
    )
    fields.done()
    return vectors


def _rdma(fields: Fields) -> Rdma:
    rdma = Rdma(
        hca_type=fields.take("hca_type", str),
        board_id=fields.take("board_id", str),
        firmware=fields.take("firmware", str),
        gid_entries=fields.take("gid_entries", int, 16),
    )
    fields.done()
    return rdma


def _hosts(fields: Fields) -> dict[str, int]:
    hosts = {}
    for bus, value in fields.items():
        if _BUS.fullmatch(bus) is None:
            raise MachineError(
                f"{fields.where}.{bus}", "is no root bus", "write domain:bus such as 0000:15, quoted"
            )
        host = Fields(value, f"{fields.where}.{bus}")
        hosts[bus] = host.take("numa", int)
        host.done()
    return hosts


def _devices(
    fields: Fields, kinds: Mapping[str, Part], hosts: Mapping[str, int], nvidia: bool
) -> tuple[Device, ...]:
    entries: dict[Address, Fields] = {}
    for text, value in fields.items():
        address = Address.parse(text, f"{fields.where}.{text}")
        entries[address] = Fields(value, f"{fields.where}.{text}")
    parents: dict[Address, str] = {address: entry.take("under", str) for address, entry in entries.items()}
    devices = []
    for address, entry in sorted(entries.items()):
        host = _host_of(address, parents, hosts, entry.where)
        devices.append(_device(address, entry, parents[address], host, kinds, nvidia))
    return tuple(devices)


def _host_of(address: Address, parents: Mapping[Address, str], hosts: Mapping[str, int], where: str) -> str:
    seen = {address}
    at = parents[address]
    while at not in hosts:
        above = Address.parse(at, f"{where}.under")
        if above not in parents or above in seen:
            raise MachineError(
                f"{where}.under", f"'{at}' is no host and no device", "name what it is plugged into"
            )
        seen.add(above)
        at = parents[above]
    return at


def _device(
    address: Address, fields: Fields, under: str, host: str, kinds: Mapping[str, Part], nvidia: bool
) -> Device:
    kind = fields.take("part", str)
    if kind not in kinds:
        raise MachineError(f"{fields.where}.part", f"there is no part '{kind}'", "add it to parts.yml")
    part = kinds[kind]
    link = fields.take("link", str, None)
    now = fields.take("now", str, None)
    secondary = fields.take("secondary", str, None)
    acs = _acs(fields.texts("acs"), f"{fields.where}.acs")
    if not set(acs) <= set(part.acs or ()):
        raise MachineError(
            f"{fields.where}.acs", f"{kind} cannot do {', '.join(acs)}", "correct the part or the bits"
        )
    usual = part.driver if nvidia or not (part.driver or "").startswith("nvidia") else None
    driver = fields.take("driver", str, usual)
    device = Device(
        address=address,
        part=part,
        under=None if under == host else Address.parse(under, f"{fields.where}.under"),
        host=host,
        link=part.link if link is None else Link.parse(link, f"{fields.where}.link"),
        now=None if now is None else Link.parse(now, f"{fields.where}.now"),
        acs=acs,
        read_request=fields.take("read_request", int, part.read_request),
        relaxed_ordering=fields.take("relaxed_ordering", bool, part.relaxed_ordering),
        numa=fields.take("numa", int, None),
        slot=fields.take("slot", int, None),
        label=fields.take("label", str, None),
        secondary=None if secondary is None else int(secondary, 16),
        driver=None if driver == "none" else driver,
        serial=fields.take("serial", str, None),
    )
    fields.done()
    return device


def _nics(fields: Fields, devices: Mapping[Address, Device]) -> tuple[Nic, ...]:
    return tuple(
        _nic(label, Fields(value, f"{fields.where}.{label}"), devices) for label, value in fields.items()
    )


def _nic(label: str, fields: Fields, devices: Mapping[Address, Device]) -> Nic:
    where = fields.where
    at = Address.parse(fields.take("at", str), f"{where}.at")
    if at not in devices:
        raise MachineError(f"{where}.at", f"there is no device at {at}", "describe it under devices")
    mac = fields.take("mac", str)
    if re.fullmatch(r"(?:[0-9a-f]{2}:){5}[0-9a-f]{2}", mac) is None:
        raise MachineError(f"{where}.mac", f"'{mac}' is no MAC address", "write six lower-case bytes")
    guid = fields.take("guid", str, None)
    own = guid_of_mac(mac) if guid is None else _guid(guid, f"{where}.guid")
    image = fields.take("image_guid", str, None)
    state = _choice(fields, "state", tuple(PORT_STATES), "ACTIVE")
    irq_cpus = fields.take("irq_cpus", str, None)
    nic = Nic(
        label=label,
        at=at,
        rdma=fields.take("rdma", str, None),
        netdev=fields.take("netdev", str, None),
        via=fields.take("via", str, None),
        mac=mac,
        layer=_choice(fields, "layer", LINK_LAYERS, "Ethernet"),
        state=state,
        physical=_choice(
            fields, "physical", tuple(PHYSICAL_STATES), "LinkUp" if state == "ACTIVE" else "Disabled"
        ),
        gbps=fields.take("gbps", int),
        mtu=fields.take("mtu", int, 1500),
        ipv4=tuple(IPv4Interface(text) for text in fields.texts("ipv4")),
        ipv6=tuple(IPv6Interface(text) for text in fields.texts("ipv6")),
        node_guid=own,
        image_guid=own if image is None else _guid(image, f"{where}.image_guid"),
        lid=fields.take("lid", int, 0),
        channels=fields.take("channels", int, None),
        irq_cpus=None if irq_cpus is None else parse_list(irq_cpus, f"{where}.irq_cpus"),
        firmware=fields.take("firmware", str, None),
        board_id=fields.take("board_id", str, None),
    )
    fields.done()
    return nic


def guid_of_mac(mac: str) -> int:
    """The GUID that ConnectX firmware makes of a port's MAC: 03:00 between its halves."""
    octets = mac.split(":")
    return int("".join([*octets[:3], "0300", *octets[3:]]), 16)


def _guid(text: str, where: str) -> int:
    if re.fullmatch(r"[0-9a-f]{4}(?::[0-9a-f]{4}){3}", text) is None:
        raise MachineError(where, f"'{text}' is no GUID", "write b83f:d203:0000:0010, quoted")
    return int(text.replace(":", ""), 16)


def _cpus(fields: Fields) -> Cpus:
    explicit = fields.take("nodes", dict, None)
    nodes = (
        None
        if explicit is None
        else {
            int(node): parse_list(str(text), f"{fields.where}.nodes.{node}")
            for node, text in explicit.items()
        }
    )
    cpus = Cpus(
        vendor=fields.take("vendor", str),
        family=fields.take("family", int),
        model=fields.take("model", int),
        stepping=fields.take("stepping", int, 0),
        name=fields.take("name", str),
        flags=fields.take("flags", str, "fpu tsc msr pae apic ht syscall nx lm constant_tsc nonstop_tsc"),
        mhz=fields.take("mhz", int, 2000),
        sockets=fields.take("sockets", int, 1 if nodes is None else len(nodes)),
        cores=fields.take("cores", int) if nodes is None else 0,
        threads=fields.take("threads", int, 1),
        numbering=_choice(fields, "numbering", NUMBERINGS, "half-split"),
        nodes_per_socket=fields.take("nodes_per_socket", int, 1),
        nodes=nodes,
        sibling_distance=fields.take("sibling_distance", int, None),
        possible=fields.take("possible", int, None),
        offline=parse_list(fields.take("offline", str, ""), f"{fields.where}.offline"),
        caches=tuple(
            _cache(name, Fields(value, f"{fields.where}.caches.{name}"))
            for name, value in fields.section("caches").items()
        ),
        governor=fields.take("governor", str, None),
        scaling_driver=fields.take("scaling_driver", str, None),
    )
    fields.done()
    return cpus


def _cache(name: str, fields: Fields) -> Cache:
    kinds = {"l1d": (1, "Data"), "l1i": (1, "Instruction"), "l2": (2, "Unified"), "l3": (3, "Unified")}
    if name not in kinds:
        raise MachineError(fields.where, "is no cache", f"write of {', '.join(kinds)}")
    cache = Cache(
        name=name,
        level=kinds[name][0],
        kind=kinds[name][1],
        size=_size(fields.take("size", str), f"{fields.where}.size"),
        ways=fields.take("ways", int),
        cores=fields.take("cores", int, 0 if name == "l3" else 1),
    )
    fields.done()
    return cache


def _modules(fields: Fields) -> tuple[Module, ...]:
    modules = []
    for name, value in fields.items():
        entry = Fields(value, f"{fields.where}.{name}")
        users = entry.texts("used_by")
        modules.append(
            Module(
                name=name,
                size=entry.take("size", int, 16384),
                users=users,
                references=entry.take("references", int, len(users)),
                version=entry.take("version", str, None),
                taint=entry.take("taint", str, ""),
                parameters=_texts(entry.section("parameters")),
            )
        )
        entry.done()
    return tuple(modules)


def _nvidia(data: dict[str, Any] | None, where: str) -> Nvidia | None:
    if data is None:
        return None
    fields = Fields(data, where)
    nvidia = Nvidia(
        version=fields.take("version", str),
        open_modules=fields.take("open", bool),
        build=fields.take("build", str),
        compiler=fields.take("compiler", str),
        model=fields.take("model", str),
        vbios=fields.take("vbios", str),
        uuids={
            Address.parse(address, f"{where}.uuids.{address}"): _scalar(uuid, f"{where}.uuids.{address}")
            for address, uuid in fields.section("uuids").items()
        },
    )
    fields.done()
    return nvidia


def _check(machine: Machine) -> None:
    """Relations that no single field can show."""
    by_address = machine.by_address
    names = [nic.rdma for nic in machine.nics if nic.rdma] + [
        nic.netdev for nic in machine.nics if nic.netdev
    ]
    for name in names:
        if names.count(name) > 1:
            raise MachineError(f"{machine.name}.nics", f"two are named {name}", "give each its own name")
    for device in machine.devices:
        where = f"{machine.name}.devices.{device.address}"
        if device.under is None:
            if device.address.bus_name != device.host:
                raise MachineError(where, f"is not on bus {device.host}", "correct the address or its parent")
        elif by_address[device.under].part.port not in BRIDGES:
            raise MachineError(where, f"{device.under} is no bridge", "name the port above it")
    for nic in machine.nics:
        if nic.rdma and by_address[nic.at].part.rdma is None:
            raise MachineError(
                f"{machine.name}.nics.{nic.label}", f"{nic.at} is no RDMA device", "drop its rdma name"
            )
    if machine.nvidia is not None and "nvidia" not in {module.name for module in machine.modules}:
        raise MachineError(f"{machine.name}.nvidia", "its module is not loaded", "add nvidia under modules")
    if machine.default_nic is not None and machine.default_nic not in {nic.label for nic in machine.nics}:
        raise MachineError(
            f"{machine.name}.default_route.nic", "there is no such NIC", "name a label under nics"
        )
