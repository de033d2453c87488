"""A switch as its configuration says it is: the same few things, whatever the system that said them.

Each value keeps the file and line it was read from, or the default that holds where the file says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from railwright.node.model import Finding

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class Seen(Generic[T_co]):
    """A value, where it stands ("leaf01.json:14"), the object that holds it, and whose default it is ("" is stated)."""

    value: T_co
    where: str
    name: str = ""
    default: str = ""


@dataclass(frozen=True)
class Marking:
    """ECN as a queue has it, bytes and %. None: stated in a unit that is not bytes, or left to the system."""

    min_bytes: int | None
    max_bytes: int | None
    probability_percent: int | None


@dataclass(frozen=True)
class PortState:
    """One port. Maps hold what is known: DSCP to traffic class, class to queue, class to priority group.

    trust: "dscp", "cos" or "none". pfc: priorities with PAUSE. pfc_to_queue, tc_to_pg: None where the system has no
    such map. ecn, strict: by queue; a queue that is missing has neither. pause: 802.3x. cable_m, xoff_bytes: what
    headroom is sized for, and headroom itself, where the file states it. pool: (bytes, dynamic_th) of the lossless
    ingress pool.
    """

    name: str
    where: str
    trust: Seen[str]
    dscp_to_tc: Mapping[int, Seen[int]]
    tc_to_queue: Mapping[int, Seen[int]]
    pfc: Seen[frozenset[int]]
    ecn: Mapping[int, Seen[Marking]]
    strict: Mapping[int, Seen[bool]]
    tc_to_pg: Mapping[int, Seen[int]] | None = None
    pfc_to_queue: Mapping[int, Seen[int]] | None = None
    watchdog: Seen[bool] | None = None
    mtu: Seen[int] | None = None
    pause: Seen[bool] | None = None
    cable_m: Seen[int] | None = None
    speed_gbps: Seen[int] | None = None
    xoff_bytes: Seen[int] | None = None
    pool: Seen[tuple[int, int]] | None = None


@dataclass(frozen=True)
class SwitchState:
    """A switch's configuration. name: the host name that it states, None when it states none.

    faults: what is wrong with the file whatever the contract says, a map that is named and not there say.
    """

    source: str
    system: str
    ports: Mapping[str, PortState]
    name: str | None = None
    faults: tuple[Finding, ...] = field(default=())
