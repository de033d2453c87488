"""The slice `nic_firmware`: lasting settings of the rail NICs' firmware, and the versions that are allowed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Optional

from ..node.model import Facts, Finding, Nic, Policy, Slice
from ..node.model.pci import MELLANOX
from .cards import slot


def wanted(policy: Policy, network: Mapping[str, str]) -> dict[str, str]:
    """Settings by name. network: what NIC and network have to agree on; the policy's own word comes first."""
    return {**network, **policy.nic_firmware.settings}


def slice_of(
    facts: Facts, policy: Policy, settings: Mapping[str, str], rails: Sequence[Nic]
) -> Optional[Slice]:
    """None unless the policy has them written. A card is set once, by its first function."""
    if not policy.nic_firmware.write or not settings:
        return None
    ways_out = {slot(nic.address) for nic in facts.nics if nic.address is not None and nic.default_route}
    entries = [
        {
            "kind": "nvconfig",
            "device": address,
            "settings": dict(sorted(settings.items())),
            "reset": slot(address) not in ways_out,
            "reboot": True,
        }
        for address in _cards(facts, rails)
    ]
    if not entries:
        return None
    return Slice(
        "persistent",
        tuple(entries),
        "what a card's firmware keeps: in force after a reset of the card or a reboot, and nothing here resets one",
    )


def findings(facts: Facts, policy: Policy, rails: Sequence[Nic]) -> Iterator[Finding]:
    """Versions that are not allowed, and cards whose settings are not the host's."""
    yield from _versions(facts, policy, rails)
    inside = [nic.name for nic in rails if nic.bluefield == "dpu"]
    if inside and policy.nic_firmware.settings:
        yield Finding(
            "nic_firmware.dpu",
            "warning",
            ", ".join(inside),
            "a BlueField in DPU mode keeps its settings to itself: the host cannot set them",
            "set INTERNAL_CPU_OFFLOAD_ENGINE=1 on the card and cut its power once, or set them on its own system",
        )
    others = [nic.name for nic in rails if _vendor(facts, nic) not in (MELLANOX, None)]
    if others and policy.nic_firmware.settings:
        yield Finding(
            "nic_firmware.vendor",
            "info",
            ", ".join(others),
            "NVCONFIG is NVIDIA's: nothing is set on NICs of another vendor",
            "set their firmware by their vendor's tool",
        )


def _cards(facts: Facts, rails: Sequence[Nic]) -> tuple[str, ...]:
    first: dict[str, str] = {}
    for nic in rails:
        if nic.address is not None and nic.bluefield != "dpu" and _vendor(facts, nic) == MELLANOX:
            first.setdefault(slot(nic.address), nic.address)
    return tuple(first.values())


def _vendor(facts: Facts, nic: Nic) -> Optional[str]:
    return next((device.vendor for device in facts.pci if device.address == nic.address), None)


def _versions(facts: Facts, policy: Policy, rails: Sequence[Nic]) -> Iterator[Finding]:
    """A NIC is judged by the list of its board, else of its PCI id; one whose version is not told is said to be so."""
    wrong: dict[tuple[str, ...], list[str]] = {}
    dark = []
    for nic in rails:
        allowed = _allowed(facts, policy, nic)
        if allowed is None:
            continue
        if nic.firmware is None:
            dark.append(nic.name)
        elif nic.firmware not in allowed:
            wrong.setdefault(allowed, []).append(f"{nic.name} has {nic.firmware}")
    for allowed, names in wrong.items():
        yield Finding(
            "nic_firmware.version",
            "warning",
            ", ".join(name.partition(" ")[0] for name in names),
            f"{'; '.join(names)}; allowed: {', '.join(allowed)}",
            "burn an allowed version on a drained node (mstflint -d ADDRESS -i IMAGE burn), then reset the card; or "
            "correct policy.nic_firmware.versions",
        )
    if dark:
        yield Finding(
            "nic_firmware.version",
            "info",
            ", ".join(dark),
            "not looked at: the witness does not tell the firmware's version",
            "read the node itself: railwright look",
        )
    told: dict[str, set[str]] = {}
    for nic in rails:
        if nic.board and nic.firmware and _allowed(facts, policy, nic) is None:
            told.setdefault(nic.board, set()).add(nic.firmware)
    for board, versions in told.items():
        if len(versions) > 1:
            yield Finding(
                "nic_firmware.mixed",
                "warning",
                board,
                f"rail NICs of one kind have firmware {', '.join(sorted(versions))}",
                "burn one version on all; name it in policy.nic_firmware.versions",
            )


def _allowed(facts: Facts, policy: Policy, nic: Nic) -> Optional[tuple[str, ...]]:
    lists = policy.nic_firmware.versions
    device = next((device for device in facts.pci if device.address == nic.address), None)
    pci = "" if device is None else f"{(device.vendor or '')[2:]}:{(device.device or '')[2:]}"
    return lists.get(nic.board or "") or lists.get(pci)
