"""NVLink: which GPUs reach each other over it, where its switches reduce (NVLS), and whether it reaches over nodes.

NVLinks are read, never inferred from a product's name: a driver that was not asked leaves all of this unknown.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from typing import Optional

from ..node.model import Facts, Finding, Gpu, NvLink, NvlinkDomain, NvlinkPlan, Policy
from .constants import gbytes, nvlink_mbps
from .joined import joined
from .tree import Tree

# H100, H200, B200 and B300 have 18 links, earlier GPUs fewer (NVIDIA's architecture white papers).
MOST_LINKS = 18
# "NVLink SHARP is available in third-generation NVSwitch systems with Hopper and later" (NCCL 2.30.7
# docs/userguide/source/env.rst, NCCL_NVLS_ENABLE); Hopper is 9.0.
_NVLS_SM = 90
_COMPLETED = "Completed"
_AMD = "0x1002"
# A clique: its cluster ("" where the fabric ends at the node) and its number.
_Clique = tuple[Optional[str], Optional[int]]


def link_count(links: Sequence[NvLink]) -> int:
    """Links of a GPU. Behind NVSwitches a matrix tells all of them for each peer, so more than a GPU has is no sum."""
    total = sum(link.count for link in links)
    return total if total <= MOST_LINKS else max(link.count for link in links)


def nvlinks(gpu: Gpu) -> Optional[int]:
    """NVLinks of a GPU; None when the witness cannot see them."""
    return None if gpu.nvlinks is None else link_count(gpu.nvlinks)


def survey(facts: Facts, tree: Tree, policy: Policy) -> tuple[NvlinkPlan, tuple[Finding, ...]]:
    """The node's NVLink domains in GPU order, what IMEX is told, and what is wrong with them."""
    domains = _domains(facts, tree)
    several = _reaches_over_nodes(facts.gpus, domains)
    cliques = sorted({clique for gpu in facts.gpus if (clique := _clique(gpu)) is not None}, key=str)
    findings = [*_unregistered(facts.gpus), *_torn(facts.gpus, cliques)]
    nodes, said = _imex_nodes(facts, policy, several, cliques)
    findings += [*said, *_misled(policy, domains, several)]
    because = _over_nodes(several)
    hidden = [gpu.name for gpu in facts.gpus if gpu.nvlinks is None and not _registered(gpu)]
    if domains is not None and hidden:
        because += f"; the links of {', '.join(hidden)} the witness does not show"
    return NvlinkPlan(domains, several, nodes, because), tuple(findings)


def told(nvlink: NvlinkPlan) -> tuple[str, ...]:
    """NVLink in lines for a person; none where there is nothing to tell."""
    if nvlink.domains is None:
        return ()
    lines = []
    for domain in nvlink.domains:
        many = "" if domain.links is None else f", {domain.links} link{'s' if domain.links > 1 else ''} each"
        rate = "" if domain.per_gpu_gbytes is None else f" ({domain.per_gpu_gbytes:.4g} GB/s)"
        lines.append(f"{', '.join(domain.gpus)}: {domain.because.replace(';', many + rate + ';', 1)}")
    lines.append(nvlink.because if lines else "no NVLink between the GPUs")
    if nvlink.imex_nodes:
        lines.append(f"IMEX is told: {', '.join(nvlink.imex_nodes)}")
    return tuple(lines)


# -- domains --


def _domains(facts: Facts, tree: Tree) -> Optional[tuple[NvlinkDomain, ...]]:
    """None where no GPU's links are known."""
    seen = [gpu for gpu in facts.gpus if gpu.nvlinks is not None or _registered(gpu)]
    if not seen:
        return None
    place = {name: index for index, gpu in enumerate(seen) for name in (gpu.name, gpu.address) if name}
    apart = len({_clique(gpu) for gpu in seen} - {None}) > 1
    groups = _groups(seen, place, apart)
    return tuple(_domain([seen[index] for index in group], tree) for group in groups if len(group) > 1)


def _groups(gpus: Sequence[Gpu], place: dict[str, int], apart: bool) -> list[list[int]]:
    """GPUs that reach each other. apart: they are of several cliques, between which nothing passes."""
    switched: dict[Optional[_Clique], int] = {}
    pairs = []
    for index, gpu in enumerate(gpus):
        if _switched(gpu, place):
            pairs.append((switched.setdefault(_clique(gpu) if apart else None, index), index))
        pairs += [(index, place[link.target]) for link in gpu.nvlinks or () if link.target in place]
    passing = [(a, b) for a, b in pairs if not apart or _clique(gpus[a]) == _clique(gpus[b])]
    return joined(len(gpus), passing)


def _registered(gpu: Gpu) -> bool:
    """Whether the driver says that the GPU has a fabric: only GPUs behind NVSwitches have one."""
    return gpu.fabric is not None and gpu.fabric.state != ""


def _switched(gpu: Gpu, place: dict[str, int]) -> bool:
    links = gpu.nvlinks or ()
    foreign = any(link.target not in place for link in links)
    return _registered(gpu) or foreign or sum(link.count for link in links) > MOST_LINKS


def _domain(gpus: Sequence[Gpu], tree: Tree) -> NvlinkDomain:
    place = {name: index for index, gpu in enumerate(gpus) for name in (gpu.name, gpu.address) if name}
    kind = "switch" if any(_switched(gpu, place) for gpu in gpus) else _direct(gpus, place)
    counts = [link_count(gpu.nvlinks) for gpu in gpus if gpu.nvlinks]
    links = max(counts, default=None)
    each = {nvlink_mbps(gpu.sm) for gpu in gpus}
    rate = each.pop() if len(each) == 1 else None
    cliques = {_clique(gpu) for gpu in gpus}
    cluster, clique = (cliques.pop() if len(cliques) == 1 else None) or (None, None)
    amd = any(_vendor(gpu, tree) == _AMD for gpu in gpus)
    nvls, why = _nvls(gpus, kind, amd)
    way = {
        "pair": "linked to each other",
        "mesh": "each linked to each other one",
        "partial-mesh": "linked to each other, some only by way of others",
        "switch": "linked by NVSwitches",
    }[kind]
    return NvlinkDomain(
        gpus=tuple(gpu.name for gpu in gpus),
        kind=kind,
        links=links,
        per_gpu_gbytes=None if links is None or rate is None else gbytes(links * rate),
        cluster=cluster,
        clique=clique,
        nvls=nvls,
        because=f"{way}; {why}",
    )


def _direct(gpus: Sequence[Gpu], place: dict[str, int]) -> str:
    if len(gpus) == 2:
        return "pair"
    peers = [{place[link.target] for link in gpu.nvlinks or ()} for gpu in gpus]
    whole = all(len(own - {index}) == len(gpus) - 1 for index, own in enumerate(peers))
    return "mesh" if whole else "partial-mesh"


def _vendor(gpu: Gpu, tree: Tree) -> Optional[str]:
    device = tree.device(gpu.address) if gpu.address is not None else None
    return None if device is None else device.vendor


def _nvls(gpus: Sequence[Gpu], kind: str, amd: bool) -> tuple[Optional[bool], str]:
    """Whether NVSwitches reduce for these GPUs, and why."""
    if amd or kind != "switch":
        return False, "no NVLS without NVSwitches"
    capabilities = {gpu.sm for gpu in gpus}
    if any(sm is not None and sm < _NVLS_SM for sm in capabilities):
        return False, "NVLS needs Hopper or later GPUs"
    states = {None if gpu.fabric is None else gpu.fabric.state for gpu in gpus}
    if states - {None, _COMPLETED}:
        return False, "no NVLS before the fabric is Completed"
    if None in capabilities:
        return None, "whether they are Hopper or later, which NVLS needs, the witness does not tell"
    if None in states:
        return None, "the state of their fabric, on which NVLS depends, only the driver tells"
    return True, "NVLS: Hopper or later behind NVSwitches, the fabric Completed"


# -- over nodes --


def _clique(gpu: Gpu) -> Optional[_Clique]:
    fabric = gpu.fabric
    return None if fabric is None or fabric.state != _COMPLETED else (fabric.cluster, fabric.clique)


def _reaches_over_nodes(gpus: Sequence[Gpu], domains: Optional[Sequence[NvlinkDomain]]) -> Optional[bool]:
    """NCCL takes a cluster UUID of zeros for a fabric that ends at the node (src/mnnvl.cc ncclMnnvlCheck)."""
    if any(gpu.fabric is not None and gpu.fabric.cluster for gpu in gpus):
        return True
    ends_here = [
        gpu.fabric is not None and (gpu.fabric.state == "" or gpu.fabric.cluster == "") for gpu in gpus
    ]
    linked_here = domains is not None and all(domain.kind != "switch" for domain in domains)
    if gpus and (all(ends_here) or (linked_here and all(gpu.nvlinks is not None for gpu in gpus))):
        return False
    return None


def _over_nodes(several: Optional[bool]) -> str:
    if several is None:
        return "whether NVLink reaches over nodes only the driver tells"
    return "NVLink reaches over nodes" if several else "NVLink ends at the node"


def _imex_nodes(
    facts: Facts, policy: Policy, several: Optional[bool], cliques: Sequence[_Clique]
) -> tuple[tuple[str, ...], list[Finding]]:
    """The nodes of this node's clique as the policy lists them; () where IMEX has nothing to do or cannot be told."""
    wanted = policy.nvlink.imex_nodes
    if not several:
        if not wanted:
            return (), []
        why = "no NVLink fabric reaches over this node" if several is False else _over_nodes(None)
        return (), [
            Finding(
                "nvlink.imex",
                "info" if several is None else "warning",
                "policy.nvlink.imex_nodes",
                f"the policy lists nodes for IMEX, and {why}: no list is written",
                "load the driver and plan again"
                if several is None
                else "leave the list out for this node, or find out at the switch trays why it is not in the fabric",
            )
        ]
    if len(cliques) != 1 or None in cliques[0]:
        return (), []
    key = f"{cliques[0][0]}.{cliques[0][1]}"
    nodes = wanted.get(key)
    if nodes is None:
        return (), [
            Finding(
                "nvlink.imex",
                "warning",
                f"clique {key}",
                "NVLink reaches over nodes here, and the policy does not list this clique's nodes: IMEX has no list",
                f"list the addresses of all its nodes, this one among them: policy.nvlink.imex_nodes: {{{key}: [...]}}",
            )
        ]
    if not _names_this_node(facts, nodes):
        return (), [
            Finding(
                "nvlink.imex",
                "error",
                f"policy.nvlink.imex_nodes.{key}",
                "none of these addresses is this node's, and IMEX must find its own in the list: no list is written",
                "correct the list; it is the same on all nodes of the clique",
            )
        ]
    return nodes, []


def _names_this_node(facts: Facts, nodes: Sequence[str]) -> bool:
    """False only where it is certain: every entry is an address, and none is an interface's."""
    own = {_address(address.partition("/")[0]) for nic in facts.nics for address in nic.addresses} - {None}
    listed = [_address(node) for node in nodes]
    return not own or None in listed or bool(own & set(listed))


def _address(text: str) -> Optional[str]:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return None


# -- what is wrong --


def _unregistered(gpus: Sequence[Gpu]) -> Iterator[Finding]:
    for gpu in gpus:
        fabric = gpu.fabric
        if fabric is None or fabric.state == "":
            continue
        failed = fabric.status not in (None, "Success")
        if fabric.state != _COMPLETED or failed:
            said = fabric.state + (f", status {fabric.status}" if failed else "")
            yield Finding(
                "nvlink.fabric",
                "error",
                gpu.name,
                f"the NVLink fabric of {gpu.name} is not ready ({said}): CUDA cannot start there (error 802)",
                "look at `systemctl status nvidia-fabricmanager` (with NVLink 5 at nvlsm too, in a rack with switch "
                "trays at their controller) and at `nvidia-smi -q`: the state has to become Completed",
            )


def _torn(gpus: Sequence[Gpu], cliques: Sequence[_Clique]) -> Iterator[Finding]:
    if len(cliques) < 2:
        return
    parts = "; ".join(
        f"{', '.join(gpu.name for gpu in gpus if _clique(gpu) == clique)} in {clique[0] or 'this node'}.{clique[1]}"
        for clique in cliques
    )
    yield Finding(
        "nvlink.cliques",
        "warning",
        ", ".join(gpu.name for gpu in gpus if _clique(gpu) is not None),
        f"the GPUs of this node are in {len(cliques)} cliques, between which NVLink carries nothing: {parts}",
        "if nobody asked for these partitions, look at those of the fabric manager",
    )


def _misled(
    policy: Policy, domains: Optional[Sequence[NvlinkDomain]], several: Optional[bool]
) -> Iterator[Finding]:
    """NCCL settings of the policy that ask for what is not there. NCCL finds both by itself (default 2)."""
    nowhere = domains is not None and all(domain.nvls is False for domain in domains)
    if policy.nccl.env.get("NCCL_NVLS_ENABLE") == "1" and nowhere:
        why = domains[0].because if domains else "no NVLink"
        yield Finding(
            "nccl.nvls",
            "warning",
            "policy.nccl.env.NCCL_NVLS_ENABLE",
            # src/transport/nvls.cc ncclNvlsInit
            f"it is 1, with which NCCL does not ask the GPU, and there is no NVLS here ({why})",
            "leave it out: NCCL uses NVLS where it is",
        )
    if policy.nccl.env.get("NCCL_MNNVL_ENABLE") == "1" and several is False:
        yield Finding(
            "nccl.mnnvl",
            "warning",
            "policy.nccl.env.NCCL_MNNVL_ENABLE",
            "it is 1, with which NCCL fails where NVLink ends at the node, as it does here",
            "leave it out: NCCL uses NVLink over nodes where it is",
        )
