"""Forms: machines that differ only in what is each one's own (serials, addresses, GUIDs) share one form.

A fleet has many nodes and few forms. The planner runs once for each form and policy; what is a node's own is then put
into the plan's text. The planner names such values and never computes with them, but for GIDs: of those it asks whether
they stand for an address, of which family, and in which range. `tests/unit/test_fleet_form.py` holds it to that, for
every recorded machine.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from railwright.node.model import Facts, Plan, Policy, to_json
from railwright.plan import plan as make_plan
from railwright.plan.policy_bytes import sha256 as policy_sha256

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
# Addresses for documentation (RFC 5737, RFC 3849): one of two is outside of any range that is not everything.
_OUTSIDE: dict[int, tuple[Address, ...]] = {
    4: (ipaddress.IPv4Address("192.0.2.1"), ipaddress.IPv4Address("203.0.113.1")),
    6: (ipaddress.IPv6Address("2001:db8::1"), ipaddress.IPv6Address("fd00::1")),
}
_TOKEN = re.compile(r"rw@(\d+)@rw")
_NAME = re.compile(r"[A-Za-z0-9_.:@+-]{1,64}")
# Of facts.software, what no plan depends on: what is free and locked just now, and boot entries with their disk's UUID.
_OF_THE_MOMENT = ("boot_free", "var_free", "locks", "boot_lines")
# What is a node's own: the field of each list's entries.
_OWN = {"gpus": ("uuid",), "nics": ("mac", "guid", "sys_image_guid"), "witnesses": ("source",)}


@dataclass(frozen=True)
class Form:
    """What equal machines have in common. facts: with tokens where a node's own values stand."""

    digest: str
    facts: Facts


@dataclass(frozen=True)
class Member:
    """One node: its form's digest and its own values, by the number of their token."""

    name: str
    form: str
    own: tuple[str, ...]

    def filled(self, text: str) -> str:
        """JSON text of the form with this node's values in it."""
        return _TOKEN.sub(lambda match: json.dumps(self.own[int(match[1])])[1:-1], text)

    def value(self, text: str | None) -> str | None:
        """A field of the form's facts as this node has it."""
        if text is None:
            return None
        return _TOKEN.sub(lambda match: self.own[int(match[1])], text)


class Forms:
    """The forms of a fleet, and their plans, each made once."""

    def __init__(self) -> None:
        self.forms: dict[str, Form] = {}
        self._plans: dict[tuple[str, str], tuple[Plan, str]] = {}
        # Many nodes share one policy object; it is kept beside its digest, so that its id stays its own.
        self._digests: dict[int, tuple[Policy, str]] = {}

    def add(self, name: str, facts: Any, addr_range: str | None = None) -> Member:
        """The node's member. facts: JSON. addr_range: the policy's. Raises InputError that names node and place."""
        masked, own = mask(facts, addr_range)
        digest = hashlib.sha256(json.dumps(masked, separators=(",", ":")).encode()).hexdigest()
        if digest not in self.forms:
            self.forms[digest] = Form(digest, Facts.read(masked, f"{name}: facts"))
        return Member(name, digest, own)

    def plan(self, form: str, policy: Policy) -> Plan:
        """The plan of a form, with tokens."""
        return self._planned(form, policy)[0]

    def plan_json(self, member: Member, policy: Policy) -> str:
        """The plan of a node as canonical JSON: keys in order, no blanks, ASCII."""
        return member.filled(self._planned(member.form, policy)[1])

    def plan_sha256(self, member: Member, policy: Policy) -> str:
        """Digest of the node's plan."""
        return hashlib.sha256(self.plan_json(member, policy).encode()).hexdigest()

    def policy_digest(self, policy: Policy) -> str:
        """Digest of a policy, worked out once for each object."""
        known = self._digests.get(id(policy))
        if known is None:
            known = self._digests[id(policy)] = (policy, policy_sha256(policy))
        return known[1]

    @property
    def plans_made(self) -> int:
        """How often the planner ran."""
        return len(self._plans)

    def _planned(self, form: str, policy: Policy) -> tuple[Plan, str]:
        key = (form, self.policy_digest(policy))
        if key not in self._plans:
            plan = make_plan(self.forms[form].facts, policy)
            self._plans[key] = (plan, canonical(to_json(plan)))
        return self._plans[key]


def canonical(plan: Any) -> str:
    """A plan's JSON as the text that its digest is taken of."""
    return json.dumps(plan, sort_keys=True, separators=(",", ":"))


def mask(facts: Any, addr_range: str | None = None) -> tuple[Any, tuple[str, ...]]:
    """The facts with a token for each value that is the node's own, and those values.

    Equal values get equal tokens. What is not of the type that it should be is left for `Facts.read` to refuse. What no
    plan depends on (where interrupts are now, answers of tools, files that were looked at, the network's own facts) is
    left out.
    """
    if not isinstance(facts, dict) or "rw@" in str(facts.get("host")):
        return facts, ()
    tokens = _Tokens()
    masked = dict(facts)
    for key, fields in _OWN.items():
        masked[key] = [_masked(entry, fields, tokens) for entry in _entries(facts, key)]
        if not isinstance(facts.get(key, []), (list, tuple)):
            masked[key] = facts[key]
    if _is_list(masked["nics"]):
        network = _network(addr_range)
        masked["nics"] = [_masked_nic(nic, tokens, network) for nic in masked["nics"]]
    masked["host"] = _masked_host(facts.get("host", {}), tokens)
    masked["irqs"] = (
        [_masked_irq(number, irq) for number, irq in enumerate(facts.get("irqs", ()))]
        if _is_list(facts.get("irqs", []))
        else facts["irqs"]
    )
    for key in ("files", "units", "tools", "pcie_errors"):
        if _is_list(facts.get(key, [])):
            masked[key] = []
    if isinstance(facts.get("network"), dict):
        del masked["network"]
    if isinstance(facts.get("software"), dict):
        masked["software"] = {
            key: value for key, value in facts["software"].items() if key not in _OF_THE_MOMENT
        }
    return masked, tuple(tokens.values)


class _Tokens:
    def __init__(self) -> None:
        self.values: list[str] = []
        self._of: dict[str, str] = {}

    def of(self, value: Any) -> Any:
        # A GUID of zeros says that there is none, which is no node's own.
        return self.token(value) if isinstance(value, str) and value.strip("0x:") else value

    def token(self, value: str) -> str:
        """The token of this text."""
        token = self._of.get(value)
        if token is None:
            token = self._of[value] = f"rw@{len(self.values)}@rw"
            self.values.append(value)
        return token


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _entries(facts: Mapping[str, Any], key: str) -> Sequence[Any]:
    found = facts.get(key, ())
    return found if _is_list(found) else ()


def _masked(entry: Any, fields: Sequence[str], tokens: _Tokens) -> Any:
    if not isinstance(entry, dict):
        return entry
    return {key: tokens.of(value) if key in fields else value for key, value in entry.items()}


def _network(text: str | None) -> Network | None:
    try:
        return None if text is None else ipaddress.ip_network(text)
    except ValueError:
        # The planner says what is wrong with it.
        return None


def _masked_nic(nic: Any, tokens: _Tokens, network: Network | None) -> Any:
    if not isinstance(nic, dict):
        return nic
    changed = dict(nic)
    if _is_list(nic.get("addresses")):
        changed["addresses"] = [tokens.of(address) for address in nic["addresses"]]
    if _is_list(nic.get("gids")):
        changed["gids"] = [_masked_gid(gid, tokens, network) for gid in nic["gids"]]
    return changed


def _masked_gid(entry: Any, tokens: _Tokens, network: Network | None) -> Any:
    """A GID as one of its kind: link-local, or an address of its family, inside or outside of the policy's range."""
    gid = entry.get("gid") if isinstance(entry, dict) else None
    if not isinstance(gid, str):
        return entry
    if gid.startswith("fe80:"):
        return {**entry, "gid": f"fe80:{tokens.token(gid[5:])}"}
    try:
        whole = ipaddress.IPv6Address(gid)
    except ValueError:
        return entry
    if whole.is_unspecified or whole.is_link_local:
        return entry
    address: Address = whole.ipv4_mapped or whole
    if network is not None and address.version == network.version and address in network:
        usual: Address = network.network_address + (1 if network.num_addresses > 1 else 0)
    else:
        usual = next(one for one in _OUTSIDE[address.version] if network is None or one not in network)
    return {**entry, "gid": f"::ffff:{usual}" if address.version == 4 else str(usual)}


def _masked_host(host: Any, tokens: _Tokens) -> Any:
    if not isinstance(host, dict):
        return host
    changed = dict(host)
    name = host.get("name")
    if isinstance(name, str) and _NAME.fullmatch(name):
        changed["name"] = tokens.of(name)
    if isinstance(host.get("boot_id"), str):
        changed["boot_id"] = None
    return changed


def _masked_irq(number: int, irq: Any) -> Any:
    if not isinstance(irq, dict) or not isinstance(irq.get("number"), int):
        return irq
    changed = {**irq, "number": number}
    for field in ("affinity", "effective"):
        if isinstance(irq.get(field), str):
            changed[field] = None
    return changed
