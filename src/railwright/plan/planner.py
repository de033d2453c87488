"""`plan`: facts and policy in, plan out. Pure: same inputs, same bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Optional

from ..node.model import Facts, Finding, Plan, PlannedGpu, PlannedNic, Policy, Setting, sort_key
from ..node.model.plan import SCHEMA
from . import (
    effects,
    lossless,
    nccl,
    nccl_topology,
    network,
    nic_firmware,
    nvlink,
    pcie,
    queues,
    rail_names,
    rail_network,
    rail_ports,
    refuse,
    summary,
)
from . import findings as checks
from .binding import Binding, bind, by_number
from .bound import bound_of, loaded_links
from .cards import Card, group, port_key
from .closeness import Judged
from .cores import Cores, allot
from .distance import LEVELS, Distances
from .gpus import display_gpus
from .gpus import findings_of as gpu_findings
from .graph import Graph, build, nccl_order
from .launch import rank_table
from .order import natural
from .policy_bytes import sha256
from .roles import Roles, judge
from .slices import Decided, slices_of
from .slices import check as check_slices
from .tree import Tree
from .workloads import EXPECTED

# NCCL's word for nvidia-smi's NODE, which it does not know.
_IN_NCCL = {"NODE": "PHB"}


def plan(facts: Facts, policy: Policy) -> Plan:
    """The plan of one node.

    A machine that cannot be planned gives a plan with status "refused" and no slices. Raises InputError when the
    policy contradicts itself.
    """
    effects.check(policy)
    nccl.check(policy)
    nccl_topology.check(policy)
    check_slices(policy)
    settings = effects.settings_of(policy)
    facts = _ordered(facts)
    tree = Tree(facts)
    distances = Distances(facts, tree)
    roles = judge(facts, policy, distances)
    display = display_gpus(facts, tree)
    gpus = [gpu for gpu in facts.gpus if not gpu.partial and gpu.name not in display]
    cards = _all_cards(roles)
    rails = tuple(index for index, card in enumerate(cards) if card in roles.rails)
    found_wrong = [
        *checks.of_facts(facts, tree, policy),
        *gpu_findings(display, facts.gpus),
        *roles.findings,
        *refuse.gaps(facts, policy, roles, tree, distances),
        *_without_rails(facts, roles, effects.followed(settings, "rails") == EXPECTED),
    ]
    refusals = [
        *refuse.before_roles(facts, policy),
        *refuse.missing(facts, policy, roles, tree, distances),
        *refuse.unplannable(roles, policy, roles.rails),
        *rail_network.refusals(facts, policy),
    ]
    if not refusals:
        graph = build(facts, gpus, cards, tree)
        if by_number(graph, rails, roles) is None:
            refusals += refuse.hidden_tree(facts, graph, rails, distances)
    if refusals:
        return _refused(facts, policy, roles, refusals, found_wrong)
    binding = bind(facts, tree, distances, graph, rails, roles, effects.followed(settings, "assignment"))
    hidden = any(refuse.hidden_tree(facts, graph, rails, distances))
    pairs = [[card for card, _ in ways] for ways in binding.ways]
    topology, said = nccl_topology.file_for(facts, tree, graph, pairs, policy, hidden)
    found_wrong += [*checks.of_plan(binding), *said]
    return _planned(facts, policy, tree, roles, binding, settings, topology, found_wrong)


def _ordered(facts: Facts) -> Facts:
    """The same facts in one order, so that no witness's order shows anywhere."""
    return replace(
        facts,
        numa=tuple(sorted(facts.numa, key=lambda node: node.id)),
        roots=tuple(sorted(facts.roots, key=lambda root: natural(root.name))),
        pci=tuple(sorted(facts.pci, key=lambda device: sort_key(device.address))),
        gpus=tuple(sorted(facts.gpus, key=lambda gpu: (gpu.index, natural(gpu.name)))),
        nics=tuple(sorted(facts.nics, key=port_key)),
    )


def _all_cards(roles: Roles) -> list[Card]:
    """Rail cards and every other card that NCCL would find on its own, in PCI order."""
    taken = {port.name for card in roles.rails for port in card.ports}
    others = [port.nic for port in roles.ports if port.visible and port.nic.name not in taken]
    return sorted([*roles.rails, *group(others)], key=lambda card: card.key)


def _without_rails(facts: Facts, roles: Roles, expected: bool) -> list[Finding]:
    if roles.rails or not facts.gpus:
        return []
    seen = ", ".join(f"{port.nic.name} is {port.role} ({port.because})" for port in roles.ports)
    return [
        Finding(
            "nics.none",
            "warning" if expected else "info",
            "nics",
            "no NIC can be a rail, so this node is planned for work inside it only"
            + (f": {seen}" if seen else ": the witness shows no NIC"),
            "if the node should have rails, check that RDMA NICs are seated, driven (mlx5_core) and up; "
            "set policy.expect.rails to have such a node refused",
        )
    ]


# -- the plan's parts --


def _refused(
    facts: Facts, policy: Policy, roles: Roles, refusals: Sequence[Finding], findings: Sequence[Finding]
) -> Plan:
    because = "the plan is refused"
    return Plan(
        schema=SCHEMA,
        status="refused",
        refusals=tuple(dict.fromkeys(refusals)),
        findings=checks.accepted(findings, policy),
        summary=summary.refused(refusals),
        workload=policy.workload,
        gpus=tuple(
            PlannedGpu(
                gpu.index, gpu.name, gpu.address, gpu.numa, None, (), None, None, because, uuid=gpu.uuid
            )
            for gpu in facts.gpus
        ),
        nics=tuple(_planned_nic(_undecided(port), None, None, ()) for port in roles.ports),
        policy_sha256=sha256(policy),
    )


def _planned(
    facts: Facts,
    policy: Policy,
    tree: Tree,
    roles: Roles,
    binding: Binding,
    settings: tuple[Setting, ...],
    topology: Optional[str],
    findings: list[Finding],
) -> Plan:
    graph = binding.graph
    rail_cards = sorted((graph.cards[card] for card in binding.used), key=lambda card: card.key)
    cores = allot(facts, policy.cores, graph.gpus, {card.name: card for card in rail_cards})
    gpus = _planned_gpus(facts, tree, binding, cores)
    nics = tuple(_placed_nic(port, binding, cores) for port in roles.ports)
    ports = _rail_ports(binding)
    more = {} if topology is None else {nccl_topology.VARIABLE: nccl_topology.PATH}
    rail_nics = [port.nic for port in ports]
    outside, said_of_network = network.agree(policy, rail_nics)
    outside = replace(outside, nic_firmware=nic_firmware.wanted(policy, outside.nic_firmware))
    more.update(network.variables(policy, outside))
    links_of_gpus, said_of_nvlink = nvlink.survey(facts, tree, policy)
    values, untold = nccl.variables(policy, ports, _front_interfaces(facts), settings, more)
    seen = nccl_order(facts, graph.gpus, graph.cards, tree)
    bound = bound_of(binding, seen, effects.followed(settings, "assignment"))
    links = loaded_links(binding)
    digest = sha256(policy)
    places = rail_ports.places(facts, nics)
    names = rail_names.named(facts, policy, places)
    addressed = rail_network.networked(facts, policy, places, names.names)
    on_bus = [gpu.pci for gpu in gpus if gpu.pci is not None]
    registers = pcie.survey(facts, policy, tree, on_bus, rail_nics)
    qos = lossless.survey(facts, policy, nics, roles.lost)
    decided = Decided(
        gpus,
        ports,
        cores,
        settings,
        values,
        digest,
        topology,
        links_of_gpus.imex_nodes,
        outside.nic_firmware,
        names,
        addressed,
        qos.slice,
        links_of_gpus.domains or (),
        registers,
    )
    slices, said = slices_of(facts, policy, decided)
    findings = [*findings, *cores.findings, *untold, *said, *_without_bootstrap(facts, values)]
    findings += [*nccl.replaced(facts.host, values, policy), *said_of_network, *said_of_nvlink]
    findings += [*names.findings, *addressed.findings, *qos.findings]
    findings += registers.findings
    findings += queues.findings(facts, policy, rail_nics, dict(cores.vectors))
    findings += nic_firmware.findings(facts, policy, rail_nics)
    marked = checks.accepted(findings, policy)
    rates = [card.mbps if card.rate_known else None for card in rail_cards]
    placed = {gpu.name for gpu in graph.gpus}
    return Plan(
        schema=SCHEMA,
        status="planned",
        findings=marked,
        summary=summary.summarise(gpus, nics, rates, bound, links, marked),
        workload=policy.workload,
        gpus=gpus,
        nics=nics,
        bound=bound,
        links=links,
        nvlink=links_of_gpus,
        network=outside,
        nccl=values,
        ranks=rank_table([gpu for gpu in gpus if gpu.name in placed], facts.cpus),
        housekeeping_cpus=cores.housekeeping,
        settings=settings,
        slices=slices,
        policy_sha256=digest,
    )


def _planned_gpus(facts: Facts, tree: Tree, binding: Binding, cores: Cores) -> tuple[PlannedGpu, ...]:
    place = {gpu.name: index for index, gpu in enumerate(binding.graph.gpus)}
    planned = []
    for gpu in facts.gpus:
        index = place.get(gpu.name)
        slot = None if gpu.address is None else tree.slot(gpu.address)
        if index is None:
            because = (
                "its row is cut: where its NICs are is not known"
                if gpu.partial
                else "it only drives a screen"
            )
            planned.append(
                PlannedGpu(
                    gpu.index,
                    gpu.name,
                    gpu.address,
                    gpu.numa,
                    None,
                    (),
                    None,
                    None,
                    because,
                    slot,
                    gpu.uuid,
                    gpu.minor,
                )
            )
            continue
        cards = [card for card, _ in binding.ways[index]]
        word = binding.graph.level(index, cards[0]) if cards else None
        planned.append(
            PlannedGpu(
                index=gpu.index,
                name=gpu.name,
                pci=gpu.address,
                numa=gpu.numa,
                rail=binding.number[cards[0]] if cards else None,
                nics=tuple(port.name for card in cards for port in binding.graph.cards[card].ports),
                path=None if word is None else _IN_NCCL.get(word, word),
                cpus=cores.rank[gpu.name],
                because=f"{_why_this_card(binding, index)}; {cores.because[gpu.name]}",
                slot=slot,
                uuid=gpu.uuid,
                minor=gpu.minor,
            )
        )
    return tuple(planned)


def _why_this_card(binding: Binding, gpu: int) -> str:
    graph, cards = binding.graph, [card for card, _ in binding.ways[gpu]]
    if not cards:
        return "no NIC can be its rail"
    name, word = graph.cards[cards[0]].name, graph.level(gpu, cards[0])
    mates = [graph.gpus[other].name for other in binding.users(cards[0]) if other != gpu]
    shared = f", shared with {', '.join(mates)}" if mates else ""
    if word is None:
        return f"{name} by the policy's rail numbers{shared}"
    equal = [card for card in binding.rails if graph.level(gpu, card) == word]
    if any(_nearer(graph, gpu, card, word) for card in binding.rails):
        why = f"{word} to {name}: nearer NICs are full at the guaranteed rate"
    elif len(equal) == 1:
        why = f"{name} is the only NIC at {word}"
    else:
        why = f"{word} to {name}, first in order among {len(equal)} as near"
    if len(cards) > 1:
        why += f", and {', '.join(graph.cards[card].name for card in cards[1:])} besides, as near"
    return why + shared


def _nearer(graph: Graph, gpu: int, card: int, word: str) -> bool:
    return LEVELS.index(graph.level(gpu, card) or word) < LEVELS.index(word)


def _undecided(port: Judged) -> Judged:
    """A port of a refused plan: what was only presumed is not said to be so."""
    if not port.presumed:
        return port
    return replace(port, role="unknown", because=f"perhaps a rail ({port.because}); the plan is refused")


def _planned_nic(port: Judged, rail: Optional[int], irq: Optional[str], gpus: tuple[str, ...]) -> PlannedNic:
    nic = port.nic
    return PlannedNic(
        name=nic.name,
        pci=nic.address,
        role=port.role,
        rail=rail,
        irq_cpus=irq,
        because=port.because,
        rdma=nic.rdma,
        netdev=nic.netdev,
        port=nic.port,
        numa=nic.numa,
        gpus=gpus,
    )


def _placed_nic(port: Judged, binding: Binding, cores: Cores) -> PlannedNic:
    graph = binding.graph
    card = next((card for card in binding.rails if port.nic in graph.cards[card].ports), None)
    if card is None:
        rail = binding.waiting.get(port.nic.name)
        if rail is not None:
            role = port.role if port.role == "down" else "spare"
            port = replace(port, role=role, because=f"{port.because}; its place is rail {rail}")
        return _planned_nic(port, rail, None, ())
    users = tuple(graph.gpus[gpu].name for gpu in binding.users(card))
    if not users:
        spare = replace(port, role="spare", because=f"{port.because}; every GPU has a NIC at least as near")
        return _planned_nic(spare, None, None, ())
    return _planned_nic(port, binding.number[card], cores.irq.get(port.nic.name), users)


def _rail_ports(binding: Binding) -> list[nccl.RailPort]:
    return [
        nccl.RailPort(port, binding.number[card] or 0)
        for card in binding.used
        for port in binding.graph.cards[card].ports
    ]


def _front_interfaces(facts: Facts) -> tuple[str, ...]:
    """Interfaces with an address that hold the default route: the bond where the port belongs to one.

    Where a VLAN or a bridge over the port holds route and address, the port has none, and NCCL cannot start on it.
    """
    held = [nic.master or nic.netdev for nic in facts.nics if nic.default_route and nic.addresses]
    return tuple(dict.fromkeys(name for name in held if name is not None))


def _without_bootstrap(facts: Facts, values: Mapping[str, str]) -> list[Finding]:
    ways = [nic.master or nic.netdev or nic.name for nic in facts.nics if nic.default_route]
    if not ways or "NCCL_SOCKET_IFNAME" in values:
        return []
    names = ", ".join(dict.fromkeys(ways))
    return [
        Finding(
            "nccl.bootstrap",
            "warning",
            names,
            f"which interface holds both the default route and an address cannot be told (it leaves by {names}), "
            "so NCCL_SOCKET_IFNAME is not written and NCCL takes the first interface that it finds",
            "name the interface, a VLAN or bridge it may be, in policy.nccl.socket_ifname",
        )
    ]
