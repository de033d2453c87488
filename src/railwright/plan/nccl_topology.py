"""A topology file for NCCL, where it would see no tree or a wrong one; everywhere else NCCL reads the machine itself.

Three cases: a virtual machine whose tree is flat, and whose policy says which rail belongs to which GPU; a bridge that
states 2.5 GT/s x1 whatever it carries; and GPUs whose links idle when NCCL starts, which since 2.30.7 counts with what
it sees then. The file holds PCI functions only: NCCL adds GPUs, NVLinks and NICs, and reads every attribute that is not
there (NCCL 2.30.7 src/graph/xml.cc). So a device's own link stands in the file only as it was read under load, and no
file hides a link that has lost lanes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Optional

from ..node.model import Facts, Finding, InputError, Link, PciDevice, Policy, normalise_address, sort_key
from . import nccl
from .graph import Graph
from .tree import Tree

PATH = "/etc/railwright/nccl-topology.xml"
VARIABLE = "NCCL_TOPO_FILE"

# src/graph/topo.h NCCL_TOPO_XML_MAX_NODES and xml.h MAX_SUBS.
MOST_ELEMENTS, MOST_CHILDREN = 256, 640
_GENERATIONS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
_LOADED = re.compile(r"gen([1-6]) x(1|2|4|8|12|16|32)")
_IDENTIFIER = re.compile(r"0x[0-9a-f]{1,8}")
_BRIDGE_CLASS = "0x060400"
# GT/s: no GPU with GPUDirect is slower than Gen3.
_IDLE = 5.0
# What a virtual bridge says of itself.
_NOTHING = (2.5, 1)

Rate = tuple[float, int]


@dataclass
class _Element:
    """One <pci>: address, the function where there is one, its link where the file has to state it."""

    address: str
    device: Optional[PciDevice] = None
    rate: Optional[Rate] = None
    children: list[_Element] = field(default_factory=list)


def check(policy: Policy) -> None:
    """Raises InputError for links under load that cannot be such."""
    for address, text in policy.nccl.loaded_links.items():
        where = f"policy.nccl.loaded_links.{address}"
        if normalise_address(address, where) != address:
            raise InputError(where, "not in the usual form", f"expected {normalise_address(address, where)}")
        match = _LOADED.fullmatch(text)
        if match is None:
            raise InputError(where, f"found {text!r}", 'expected a form like "gen5 x16"')
        if int(match[1]) < 3:
            raise InputError(
                where, f"{text} is how a GPU's link idles", "read it while a job runs on the GPU"
            )


def file_for(
    facts: Facts, tree: Tree, graph: Graph, pairs: Sequence[Sequence[int]], policy: Policy, hidden: bool
) -> tuple[Optional[str], list[Finding]]:
    """The file's text, None where none is needed or can be written, and what to know of it.

    pairs: for each GPU of the graph its cards. hidden: the machine does not show which NIC is near which GPU.
    """
    if policy.manage.get("nccl_conf") is False or VARIABLE in policy.nccl.env:
        return None, []
    loaded, findings = _loaded(facts, tree, policy)
    needed = _places(graph, sorted({card for cards in pairs for card in cards}))
    reason = _reason(tree, graph, needed, loaded, policy, hidden)
    if reason is None:
        return None, findings
    missing = [name for name, address in needed.items() if not _is_placed(tree, address, hidden)]
    missing += _unread(needed, tree, loaded, policy)
    if missing:
        return None, [*findings, _not_written(reason, missing)]
    if hidden:
        roots = _pairs(tree, graph, pairs, loaded)
    else:
        # NICs that are no rails keep their place beside them, as NCCL finds it by itself.
        known = _places(graph, range(len(graph.cards))).values()
        roots = _whole(tree, [address for address in known if _is_placed(tree, address, hidden)], loaded)
    lines = list(_lines(roots, reason))
    elements = sum(line.lstrip().startswith(("<system", "<cpu", "<pci")) for line in lines)
    if not _fits(elements, roots, facts):
        return None, [*findings, _too_large(reason, elements)]
    return "\n".join(lines) + "\n", [*findings, _written(reason)]


# ----- whether there must be one -------------------------------------------------------------------------------------


def _is_placed(tree: Tree, address: Optional[str], hidden: bool) -> bool:
    """Whether the witness shows the function, and its way up unless that is made up anyway."""
    if address is None:
        return False
    return tree.device(address) is not None if hidden else tree.ascent(address) is not None


def _reason(
    tree: Tree,
    graph: Graph,
    needed: Mapping[str, Optional[str]],
    loaded: Mapping[str, Rate],
    policy: Policy,
    hidden: bool,
) -> Optional[str]:
    if hidden:
        return "this machine does not show NCCL which NIC is near which GPU"
    lying = [
        device.address
        for address in needed.values()
        for device in (tree.chain(address)[1:] if address is not None else ())
        if _says_nothing(tree, device)
    ]
    if lying:
        return f"bridge {lying[0]} states 2.5 GT/s x1, which NCCL would believe"
    if nccl.reads_current_links(policy) and any(gpu.address in loaded for gpu in graph.gpus):
        return f"NCCL {policy.nccl.version} counts with a GPU's link as it idles when a job starts"
    return None


def _says_nothing(tree: Tree, device: PciDevice) -> bool:
    """Whether NCCL would read 2.5 GT/s x1 for this link: from the bridge, or from the port above it."""
    return _NOTHING in _ends(tree, device)


def _ends(tree: Tree, device: PciDevice) -> list[tuple[Optional[float], Optional[int]]]:
    port = tree.port(device.address)
    return [_able(device.link)] + ([] if port is None else [_able(port.link)])


def _able(link: Link) -> tuple[Optional[float], Optional[int]]:
    return (link.max_speed, link.max_width)


def _places(graph: Graph, cards: Iterable[int]) -> dict[str, Optional[str]]:
    """Address of each GPU and of each function of these cards, by a name for findings."""
    places: dict[str, Optional[str]] = {gpu.name: gpu.address for gpu in graph.gpus}
    for card in (graph.cards[index] for index in cards):
        if not card.functions:
            places[card.name] = None
        for function in card.functions:
            places[f"{card.name} {function}"] = function
    return places


# ----- links ---------------------------------------------------------------------------------------------------------


def _loaded(facts: Facts, tree: Tree, policy: Policy) -> tuple[dict[str, Rate], list[Finding]]:
    """Links under load that this machine can have, and findings for those that it cannot."""
    rates: dict[str, Rate] = {}
    findings = []
    endpoints = tree.gpus | {nic.address for nic in facts.nics}
    for address, text in sorted(policy.nccl.loaded_links.items()):
        match = _LOADED.fullmatch(text)
        speed, width = _GENERATIONS[int(match[1])] if match else 0.0, int(match[2]) if match else 0
        device = tree.device(address)
        if device is None or address not in endpoints:
            why = f"policy.nccl.loaded_links names {address}, and no GPU or NIC of this node has that address"
        elif _is_more(speed, width, device.link):
            able = f"{device.link.max_speed or 'unknown'} GT/s x{device.link.max_width or 'unknown'}"
            why = f"policy.nccl.loaded_links says {text}, and {address} is capable of {able}"
        else:
            rates[address] = (speed, width)
            continue
        remedy = "read the links again while a job runs, and correct policy.nccl.loaded_links"
        findings.append(Finding("nccl.loaded_links", "warning", address, why, remedy))
    return rates, findings


def _is_more(speed: float, width: int, link: Link) -> bool:
    """Whether this is more than the function can do. A GPU that says Gen1 or Gen2 of itself was read while it idled."""
    told = link.max_speed if link.max_speed is not None and link.max_speed > _IDLE else None
    return speed > (told or speed) or width > (link.max_width or width)


def _unread(
    places: Mapping[str, Optional[str]], tree: Tree, loaded: Mapping[str, Rate], policy: Policy
) -> list[str]:
    """Devices below a port that says nothing, of which nobody knows more: NCCL would take the port's word.

    Since 2.30.7 NCCL asks the driver for a GPU's link and no port.
    """
    names = []
    for name, address in places.items():
        device = tree.device(address or "")
        if device is None or not _says_nothing(tree, device):
            continue
        asks_driver = address in tree.gpus and nccl.reads_current_links(policy)
        if not asks_driver and _own_rate(tree, device, loaded) is None:
            names.append(name)
    return names


def _own_rate(
    tree: Tree, device: PciDevice, loaded: Mapping[str, Rate], made_up: bool = False
) -> Optional[Rate]:
    """What the file states for an endpoint; None leaves it to NCCL. made_up: the port above is the hypervisor's."""
    if device.address in tree.gpus or device.address in loaded:
        return loaded.get(device.address)
    # Links of NICs do not idle: as it runs now is as it runs under load.
    if (made_up or _says_nothing(tree, device)) and device.link.speed and device.link.width:
        return (device.link.speed, device.link.width)
    return None


def _widest(children: Sequence[_Element]) -> Optional[Rate]:
    """A made-up or lying bridge limits nothing below it: it is as fast as the fastest device there.

    That hides no fault, since every device states its own link.
    """
    rates = [
        child.rate or _able(child.device.link if child.device is not None else Link()) for child in children
    ]
    speeds = [speed for speed, width in rates if speed is not None and (speed, width) != _NOTHING]
    widths = [width for speed, width in rates if width is not None and (speed, width) != _NOTHING]
    return (max(speeds), max(widths)) if speeds and widths else None


# ----- the tree ------------------------------------------------------------------------------------------------------

_Roots = dict[str, list[_Element]]


def _whole(tree: Tree, addresses: Iterable[Optional[str]], loaded: Mapping[str, Rate]) -> _Roots:
    """The machine's own tree, with other links where the machine's are not true."""
    made: dict[str, _Element] = {}
    roots: _Roots = {}
    ordered = sorted({address for address in addresses if address is not None}, key=sort_key)
    for address in ordered:
        below: Optional[_Element] = None
        for device in tree.chain(address):
            here = made.get(device.address)
            if here is not None:
                if below is not None:
                    here.children.append(below)
                below = None
                break
            here = made[device.address] = _Element(device.address, device)
            if below is None:
                here.rate = _own_rate(tree, device, loaded)
            else:
                here.children.append(below)
            below = here
        if below is not None:
            roots.setdefault(_numa(tree, address), []).append(below)
    for element in [element for top in roots.values() for element in top]:
        _correct(tree, element)
    return roots


def _correct(tree: Tree, element: _Element) -> None:
    """Gives bridges that say nothing a link, from the lowest up."""
    for child in element.children:
        _correct(tree, child)
    if element.children and element.device is not None and _says_nothing(tree, element.device):
        element.rate = _widest(element.children)


def _pairs(tree: Tree, graph: Graph, pairs: Sequence[Sequence[int]], loaded: Mapping[str, Rate]) -> _Roots:
    """One made-up bridge for GPUs that share cards, with these cards, below the GPU's NUMA node."""
    spare = _spare_addresses(tree)
    roots: _Roots = {}
    for gpus, cards in _groups(pairs):
        addresses = [graph.gpus[gpu].address or "" for gpu in gpus]
        first = addresses[0]
        addresses += [function for card in cards for function in graph.cards[card].functions]
        devices = [tree.device(address) for address in addresses]
        children = [
            _Element(device.address, device, _own_rate(tree, device, loaded, made_up=True))
            for device in devices
            if device is not None
        ]
        bridge = _Element(next(spare), None, _widest(children), children)
        roots.setdefault(_numa(tree, first), []).append(bridge)
    return roots


def _groups(pairs: Sequence[Sequence[int]]) -> list[tuple[list[int], list[int]]]:
    """GPUs and cards that belong together, in the order of the GPUs."""
    groups: list[tuple[list[int], list[int]]] = []
    for gpu, cards in enumerate(pairs):
        joined = [group for group in groups if set(group[1]) & set(cards)]
        merged = ([gpu], list(cards))
        for group in joined:
            groups.remove(group)
            merged = (group[0] + merged[0], list(dict.fromkeys(group[1] + merged[1])))
        groups.append((sorted(merged[0]), merged[1]))
    return sorted(groups)


def _spare_addresses(tree: Tree) -> Iterator[str]:
    """Addresses of the last bus of the last PCI domain, where no machine has devices."""
    names = (f"ffff:ff:{slot:02x}.0" for slot in range(1, 32))
    return (name for name in names if tree.device(name) is None)


def _numa(tree: Tree, address: str) -> str:
    """NCCL calls a node that the kernel does not tell -1, as sysfs does."""
    ascent = tree.ascent(address)
    return "-1" if ascent is None or ascent.numa is None else str(ascent.numa)


# ----- the text ------------------------------------------------------------------------------------------------------


def _lines(roots: _Roots, reason: str) -> Iterator[str]:
    """NCCL's parser knows no declaration, no tabs, no blank before "/>", and takes at most 16 attributes (xml.cc)."""
    yield '<system version="1">'
    # NCCL skips comments inside elements, and old versions trip over one before <system>.
    yield f"  <!-- Written by Railwright; changes made here are lost. {reason[0].upper()}{reason[1:]}. -->"
    for numa in sorted(roots, key=int):
        yield f'  <cpu numaid="{numa}">'
        for element in roots[numa]:
            yield from _element(element, 4)
        yield "  </cpu>"
    yield "</system>"


def _element(element: _Element, indent: int) -> Iterator[str]:
    text = " ".join(f'{name}="{value}"' for name, value in _attributes(element))
    if not element.children:
        yield f"{' ' * indent}<pci {text}/>"
        return
    yield f"{' ' * indent}<pci {text}>"
    for child in sorted(element.children, key=lambda child: sort_key(child.address)):
        yield from _element(child, indent + 2)
    yield f"{' ' * indent}</pci>"


def _attributes(element: _Element) -> Iterator[tuple[str, str]]:
    yield "busid", element.address
    device = element.device
    known = (
        (("class", _BRIDGE_CLASS),)
        if device is None
        else (
            ("class", device.class_code),
            ("vendor", device.vendor),
            ("device", device.device),
            ("subsystem_vendor", device.subsystem_vendor),
            ("subsystem_device", device.subsystem_device),
        )
    )
    for name, value in known:
        if value is not None and _IDENTIFIER.fullmatch(value):
            yield name, value
    if element.rate is not None:
        yield "link_speed", f"{element.rate[0]:.1f} GT/s PCIe"
        yield "link_width", str(element.rate[1])


def _fits(elements: int, roots: _Roots, facts: Facts) -> bool:
    """Whether there is room for what NCCL adds: each process its own GPU with its links, and every NIC with its net."""
    links = max((len(gpu.nvlinks or ()) for gpu in facts.gpus), default=0)
    nics = min(nccl.MAX_HCAS, sum(nic.rdma is not None for nic in facts.nics))
    added = 1 + links + 1 + 2 * nics
    tops = [element for top in roots.values() for element in top]
    widest = max([len(top) for top in roots.values()] + [_most_children(element) for element in tops])
    return elements + added <= MOST_ELEMENTS and widest <= MOST_CHILDREN


def _most_children(element: _Element) -> int:
    return max([len(element.children)] + [_most_children(child) for child in element.children])


def _written(reason: str) -> Finding:
    return Finding(
        "nccl.topology_file",
        "info",
        PATH,
        f"NCCL gets a topology file: {reason}",
        "see what NCCL makes of it: NCCL_TOPO_DUMP_FILE=/tmp/topo.xml; to do without it, set "
        f'policy.nccl.env.{VARIABLE} to ""',
    )


def _not_written(reason: str, missing: Sequence[str]) -> Finding:
    return Finding(
        "nccl.topology_file",
        "warning",
        ", ".join(missing) or PATH,
        f"NCCL needs a topology file, for {reason}, and it cannot be written: place or link under load are not known",
        "give the node's facts, and read GPU links while a job runs (`nvidia-smi "
        "--query-gpu=pci.bus_id,pcie.link.gen.current,pcie.link.width.current --format=csv`) into "
        'policy.nccl.loaded_links, such as {"0000:18:00.0": "gen5 x16"}',
    )


def _too_large(reason: str, elements: int) -> Finding:
    return Finding(
        "nccl.topology_file",
        "warning",
        PATH,
        f"NCCL needs a topology file, for {reason}, and it would have {elements} elements besides NICs and NVLinks: "
        f"NCCL reads {MOST_ELEMENTS} in all",
        "give roles to NICs that are no rails in policy.nics, or take them out of the machine",
    )
