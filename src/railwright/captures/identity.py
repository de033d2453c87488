"""Whether two witnesses are of one machine: what they share, and what no one machine can show both of.

A GPU's UUID, a GUID, a MAC or a host name stands on one machine only. PCI addresses, RDMA names and CPU lists are the
same on every machine of a kind: they join witnesses where nothing better is shown, and that is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from railwright.node.model import Facts, Gpu, parse_cpulist


def strangers(first: Facts, second: Facts) -> str | None:
    """Why these two cannot be one machine; None where nothing speaks against it."""
    return next(_against(first, second), None)


def _against(first: Facts, second: Facts) -> Iterator[str]:
    names = [facts.host.name.split(".")[0] for facts in (first, second) if facts.host.name]
    if len(set(names)) == 2:
        yield f"one is of {names[0]} and one of {names[1]}"
    for what, field in (("vendor", "vendor"), ("family", "family"), ("model", "model")):
        values = [getattr(facts.cpus, field) for facts in (first, second)]
        # ARM's implementer is a number to some and a name to others.
        if None not in values and values[0] != values[1] and not any("0x" in str(value) for value in values):
            yield f"the processors differ: {what} {values[0]} and {values[1]}"
    addresses = [{gpu.address for gpu in facts.gpus if gpu.address} for facts in (first, second)]
    if all(addresses) and not addresses[0] & addresses[1]:
        yield f"they have no GPU address in common: {min(addresses[0])} ... and {min(addresses[1])} ..."
    if all(facts.gpus for facts in (first, second)) and not all(addresses) and not _by_uuid(first, second):
        counts = [len(facts.gpus) for facts in (first, second)]
        if counts[0] != counts[1]:
            yield f"one shows {counts[0]} GPUs and one {counts[1]}, so which is which cannot be told"
    pairs = [(a.uuid, b.uuid) for a, b in paired(first.gpus, second.gpus) if a.uuid and b.uuid]
    if pairs and all(a != b for a, b in pairs):
        yield f"no GPU has the same UUID in both ({pairs[0][0]} and {pairs[0][1]})"
    known = {nic.rdma: nic.guid for nic in first.nics if nic.rdma and nic.guid}
    guids = [(known[nic.rdma], nic.guid) for nic in second.nics if nic.guid and nic.rdma in known]
    if guids and all(plain_guid(a) != plain_guid(b) for a, b in guids):
        yield f"no RDMA device has the same GUID in both ({guids[0][0]} and {guids[0][1]})"
    under = {nic.rdma: nic.netdev for nic in first.nics if nic.rdma and nic.netdev}
    netdevs = [(under[nic.rdma], nic.netdev) for nic in second.nics if nic.netdev and nic.rdma in under]
    # One interface may have been renamed between two readings.
    if len(netdevs) > 1 and all(a != b for a, b in netdevs):
        yield f"no RDMA device has the same interface in both ({netdevs[0][0]} and {netdevs[0][1]})"


def bonds(first: Facts, second: Facts) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What says that both are one machine: what only one machine has, then what machines of a kind share."""
    strong = [
        word
        for word, shared in (
            ("host name", first.host.name is not None and first.host.name == second.host.name),
            ("GPU UUIDs", _common((gpu.uuid for gpu in facts.gpus) for facts in (first, second))),
            ("GUIDs", _common((plain_guid(nic.guid) for nic in facts.nics) for facts in (first, second))),
            ("MACs", _common((nic.mac for nic in facts.nics) for facts in (first, second))),
        )
        if shared
    ]
    weak = [
        word
        for word, shared in (
            ("PCI addresses", _common(_addresses(facts) for facts in (first, second))),
            ("RDMA devices' names", _common((nic.rdma for nic in facts.nics) for facts in (first, second))),
            (
                "network interfaces' names",
                _common((nic.netdev for nic in facts.nics) for facts in (first, second)),
            ),
            ("number of GPUs", _same_count(first, second)),
            ("CPUs of NUMA nodes", _common(_node_cpus(facts) for facts in (first, second))),
            ("numbers of NUMA nodes", _node_numbers(first, second) or _node_numbers(second, first)),
            ("online CPUs", first.cpus.online is not None and first.cpus.online == second.cpus.online),
            (
                "processor",
                first.cpus.model_name is not None and first.cpus.model_name == second.cpus.model_name,
            ),
        )
        if shared
    ]
    return tuple(strong), tuple(weak)


def _common(values: Iterable[Iterable[object]]) -> bool:
    first, second = (set(part) - {None} for part in values)
    return bool(first & second)


def _addresses(facts: Facts) -> Iterator[str | None]:
    yield from (device.address for device in facts.pci)
    yield from (gpu.address for gpu in facts.gpus)
    yield from (nic.address for nic in facts.nics)
    yield from (irq.device for irq in facts.irqs)


def _node_cpus(facts: Facts) -> Iterator[tuple[int, frozenset[int]]]:
    for node in facts.numa:
        if node.cpus:
            yield node.id, frozenset(parse_cpulist(node.cpus, f"numa[{node.id}].cpus"))


def _node_numbers(listed: Facts, used: Facts) -> bool:
    """Whether one lists several nodes, and devices of the other, which lists none, are on these."""
    nodes = {node.id for node in listed.numa}
    numbers = (
        {device.numa for device in used.pci}
        | {gpu.numa for gpu in used.gpus}
        | {nic.numa for nic in used.nics}
    )
    numbers.discard(None)
    return len(nodes) > 1 and len(numbers) > 1 and not used.numa and numbers <= nodes


def _same_count(first: Facts, second: Facts) -> bool:
    """GPUs in the driver's order, which follows PCI: that joins where the numbers agree and one has no addresses."""
    addressless = any(facts.gpus and not any(gpu.address for gpu in facts.gpus) for facts in (first, second))
    return addressless and len(first.gpus) == len(second.gpus)


def _by_uuid(first: Facts, second: Facts) -> bool:
    return _common((gpu.uuid for gpu in facts.gpus) for facts in (first, second))


def plain_guid(text: str | None) -> str | None:
    """A GUID's digits: witnesses write it with 0x, with colons or bare."""
    return None if text is None else text.lower().removeprefix("0x").replace(":", "").zfill(16)


def paired(first: tuple[Gpu, ...], second: tuple[Gpu, ...]) -> list[tuple[Gpu, Gpu]]:
    """GPUs of two witnesses that are one: by address, else by UUID, else by order where the numbers agree."""
    by_address = {gpu.address: gpu for gpu in first if gpu.address is not None}
    if by_address and any(gpu.address is not None for gpu in second):
        return [(by_address[gpu.address], gpu) for gpu in second if gpu.address in by_address]
    by_uuid = {gpu.uuid: gpu for gpu in first if gpu.uuid is not None}
    if any(gpu.uuid in by_uuid for gpu in second):
        return [(by_uuid[gpu.uuid], gpu) for gpu in second if gpu.uuid in by_uuid]
    if len(first) != len(second):
        return []
    order = (sorted(gpus, key=lambda gpu: gpu.index) for gpus in (first, second))
    return list(zip(*order, strict=True))
