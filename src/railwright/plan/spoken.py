"""The policy's word on NICs: which ports an entry means, and whose word counts first."""

from __future__ import annotations

import re
from typing import Optional

from ..node.model import Facts, InputError, Nic, NicPolicy, Policy, normalise_address

# What all NICs of a kind share: PCI vendor and device, or mlx5's board_id.
_KIND = re.compile(r"[0-9a-f]{4}:[0-9a-f]{4}|MT_[0-9]{10}", re.IGNORECASE | re.ASCII)


def unmatched(facts: Facts, policy: Policy) -> tuple[NicPolicy, ...]:
    """Entries of the policy that no NIC answers to and that should have one: single NICs, and rails of a kind."""
    models = _models(facts)
    return tuple(
        entry
        for entry in policy.nics
        if (entry.role == "rail" or not _KIND.fullmatch(entry.match))
        and not any(answers(nic, entry.match, models.get(nic.address)) for nic in facts.nics)
    )


def _models(facts: Facts) -> dict[Optional[str], str]:
    """PCI vendor and device by address, as "15b3:a2dc"."""
    return {
        device.address: f"{device.vendor[2:]}:{device.device[2:]}"
        for device in facts.pci
        if device.vendor is not None and device.device is not None
    }


def word_on_ports(facts: Facts, policy: Policy) -> dict[str, NicPolicy]:
    """The policy's word on each port: the user's before a preset's, one for this NIC before one for all of a kind."""
    _must_be_expanded(policy)
    models = _models(facts)
    spoken: dict[str, NicPolicy] = {}
    weak = {number: _weakness(entry) for number, entry in enumerate(policy.nics)}
    # The sort keeps the order of equals.
    for number, entry in sorted(enumerate(policy.nics), key=lambda item: weak[item[0]]):
        if entry.rail is not None and entry.role not in (None, "rail"):
            raise InputError(
                f"policy.nics[{number}]",
                f"role {entry.role} with rail {entry.rail}",
                "only a rail has a rail number",
            )
        if entry.rail is not None and entry.rail < 0:
            raise InputError(f"policy.nics[{number}].rail", f"found {entry.rail}", "rails count from 0")
        for nic in facts.nics:
            if not answers(nic, entry.match, models.get(nic.address)):
                continue
            if nic.name in spoken and weak[number] > _weakness(spoken[nic.name]):
                continue
            if nic.name in spoken:
                raise InputError(
                    f"policy.nics[{number}].match",
                    f"{entry.match} and {spoken[nic.name].match} name the same port {nic.name}",
                    "name each NIC once",
                )
            spoken[nic.name] = entry
    return spoken


def _weakness(entry: NicPolicy) -> tuple[bool, bool]:
    return (entry.source is not None, _KIND.fullmatch(entry.match) is not None)


def _must_be_expanded(policy: Policy) -> None:
    """The planner reads no file: what a preset says has to stand in the policy."""
    said = {entry.source for entry in policy.nics}
    for number, name in enumerate(policy.presets):
        if f"preset {name}" not in said:
            raise InputError(
                f"policy.presets[{number}]",
                f"what {name} says does not stand in policy.nics",
                "read the policy with `railwright plan --policy` or the filter node_policy, which put it there",
            )


def answers(nic: Nic, match: str, model: Optional[str] = None) -> bool:
    """Whether the policy's word for NICs means this port.

    match: RDMA device, netdev, PCI address, board, or PCI vendor and device. model: the port's, as "15b3:a2dc".
    """
    if match in (nic.name, nic.rdma, nic.netdev) or (model is not None and match.lower() == model):
        return True
    if nic.board is not None and match.lower() == nic.board.lower():
        return True
    try:
        return nic.address is not None and nic.address == normalise_address(match, "policy.nics")
    except InputError:
        return False
