"""One port's classes against the contract: trust, maps, PFC, queues and buffer groups."""

from __future__ import annotations

from collections.abc import Iterator

from railwright.node.words import some_of

from .mend import strict_class
from .said import Said, Subject, by, said
from .state import Seen


def check_classes(subject: Subject) -> Iterator[Said]:
    """What differs in how traffic is classed, queued and paused."""
    return _Classes(subject).all()


class _Classes:
    def __init__(self, it: Subject) -> None:
        self._it = it

    def all(self) -> Iterator[Said]:
        yield from self._trust()
        if self._it.here.trust.value == "dscp":
            yield from self._classes()
        yield from self._pfc()
        yield from self._lossless()

    def _trust(self) -> Iterator[Said]:
        trust = self._it.here.trust
        if trust.value == "dscp":
            return
        name = next((seen.name for seen in self._it.here.dscp_to_tc.values() if seen.name), "RAILWRIGHT_ROCE")
        what = "the port trusts the VLAN tag" if trust.value == "cos" else "the port trusts no marking"
        yield said(
            "trust",
            "error",
            trust,
            f"{what}{by(trust)}: DSCP is not looked at, so RoCE goes to a lossy queue",
            "trust",
            name=name,
        )

    def _classes(self) -> Iterator[Said]:
        lossless = {one.prio for one in self._it.contract.lossless.values()}
        for name, one in self._it.contract.classes.items():
            for point in one.dscp:
                seen = self._it.here.dscp_to_tc.get(point)
                if seen is None:
                    missing: Seen[object] = Seen(None, self._it.here.trust.where, self._it.here.trust.name)
                    stated = next(iter(self._it.here.dscp_to_tc.values()), None)
                    missing = Seen(None, stated.where, stated.name) if stated is not None else missing
                    yield said(
                        "dscp_map",
                        "error" if one.lossless else "warning",
                        missing,
                        f"DSCP {point} ({name}) is in no map, so it goes to class 0",
                        "dscp",
                        dscp=point,
                        prio=one.prio,
                    )
                elif one.lossless and seen.value != one.prio:
                    into = "another lossless" if seen.value in self._it.here.pfc.value else "a lossy"
                    yield said(
                        "dscp_map",
                        "error",
                        seen,
                        f"DSCP {point} ({name}) goes to {into} queue, traffic class {seen.value} instead of {one.prio}"
                        f"{by(seen)}",
                        "dscp",
                        dscp=point,
                        prio=one.prio,
                    )
                elif not one.lossless and seen.value in lossless:
                    yield said(
                        "dscp_map",
                        "error",
                        seen,
                        f"DSCP {point} ({name}) goes to the lossless traffic class {seen.value}{by(seen)}: it is "
                        "paused together with the data",
                        "dscp",
                        dscp=point,
                        prio=one.prio,
                    )
                elif one.strict:
                    yield from self._strict(name, point, seen.value, one.prio)
        yield from self._strays(lossless)

    def _strict(self, name: str, point: int, traffic_class: int, prio: int) -> Iterator[Said]:
        queue = self._it.here.tc_to_queue.get(traffic_class)
        if queue is None or self._is_strict(queue.value):
            return
        wanted = next(
            (one for one, seen in self._it.here.tc_to_queue.items() if self._stated_strict(seen.value)),
            strict_class(self._it.system, prio),
        )
        if traffic_class != wanted:
            seen = self._it.here.dscp_to_tc[point]
            yield said(
                "dscp_map",
                "warning",
                seen,
                f"DSCP {point} ({name}) goes to traffic class {traffic_class}, whose queue is not strict{by(seen)}: "
                "notifications wait behind the data that they are to slow down",
                "dscp",
                dscp=point,
                prio=wanted,
            )
            return
        yield said(
            "cnp_strict",
            "warning",
            self._it.here.strict.get(queue.value) or Seen(None, self._it.here.where),
            f"queue {queue.value} of DSCP {point} ({name}) is not strict: notifications wait behind the data that they "
            "are to slow down",
            "strict",
            queue=queue.value,
        )

    def _stated_strict(self, queue: int) -> bool:
        """Whether somebody meant it to be: a default is no place to send notifications to."""
        seen = self._it.here.strict.get(queue)
        return seen is not None and seen.value and not seen.default

    def _is_strict(self, queue: int) -> bool:
        seen = self._it.here.strict.get(queue)
        return seen is not None and seen.value

    def _strays(self, lossless: set[int]) -> Iterator[Said]:
        strict = {
            n for n, queue in self._it.here.tc_to_queue.items() if self._is_strict(queue.value)
        } - lossless
        yield from self._straying(lossless, "the lossless class")
        yield from self._straying(strict, "a strict queue, which is served before the data,")

    def _straying(self, into: set[int], what: str) -> Iterator[Said]:
        wanted = self._it.contract.prio_of
        strays = [
            point
            for point, seen in self._it.here.dscp_to_tc.items()
            if seen.value in into and point not in wanted
        ]
        if strays:
            first = self._it.here.dscp_to_tc[strays[0]]
            shown = some_of(map(str, strays), 4)
            yield Said(
                "fabric.dscp_strays",
                "info",
                first.where,
                f"DSCP {shown} reach {what} too{by(first)}; no class of the contract selects them",
                "",
            )

    def _pfc(self) -> Iterator[Said]:
        wanted = {one.prio for one in self._it.contract.lossless.values()}
        seen = self._it.here.pfc
        for prio in sorted(wanted - seen.value):
            yield said(
                "pfc",
                "error",
                seen,
                f"PFC is off for priority {prio}{by(seen)}: the switch drops where it should pause the host",
                "pfc",
            )
        for prio in sorted(seen.value - wanted):
            yield said(
                "pfc_extra",
                "warning",
                seen,
                f"PFC is on for priority {prio} too, which no lossless class has{by(seen)}: it takes headroom on every "
                "port, and a storm there pauses traffic that nobody protects",
                "pfc",
            )
        dog = self._it.here.watchdog
        if self._it.contract.watchdog.enabled and dog is not None and not dog.value:
            yield said(
                "watchdog",
                "warning",
                dog,
                f"the PFC watchdog is off{by(dog)}: one host that pauses for ever stops the fabric behind it",
                "watchdog",
            )

    def _lossless(self) -> Iterator[Said]:
        for one in self._it.contract.lossless.values():
            queue = self._it.here.tc_to_queue.get(one.prio)
            if queue is None:
                yield said(
                    "queue_map",
                    "error",
                    Seen(None, self._it.here.where),
                    f"traffic class {one.prio} has no queue in the port's map",
                    "queue",
                    prio=one.prio,
                    name=next((seen.name for seen in self._it.here.tc_to_queue.values()), ""),
                )
                continue
            yield from self._queue(one.prio, queue)
            yield from self._group(one.prio)

    def _queue(self, prio: int, queue: Seen[int]) -> Iterator[Said]:
        if self._it.here.pfc_to_queue is not None:
            paused = self._it.here.pfc_to_queue.get(prio)
            if paused is None or paused.value != queue.value:
                stops = "no queue" if paused is None else f"queue {paused.value}"
                name = next((seen.name for seen in self._it.here.pfc_to_queue.values() if seen.name), "")
                yield said(
                    "pfc_queue_map",
                    "error",
                    paused or Seen(None, self._it.here.where, name),
                    f"a PAUSE for priority {prio} stops {stops}, and its traffic waits in queue {queue.value}: the "
                    "switch does not obey",
                    "pfc_queue",
                    prio=prio,
                    queue=queue.value,
                )
        sharing = [
            other
            for other, seen in self._it.here.tc_to_queue.items()
            if other != prio and seen.value == queue.value and other in self._used()
        ]
        for other in sharing:
            yield said(
                "queue_shared",
                "error",
                self._it.here.tc_to_queue[other],
                f"traffic class {other} shares queue {queue.value} with the lossless class {prio}: a PAUSE stops both",
                "share",
                other=other,
                prio=prio,
            )

    def _used(self) -> set[int]:
        """Traffic classes that some DSCP leads to."""
        return {seen.value for seen in self._it.here.dscp_to_tc.values()}

    def _group(self, prio: int) -> Iterator[Said]:
        if self._it.here.tc_to_pg is None:
            return
        group = self._it.here.tc_to_pg.get(prio)
        if group is None or group.value != prio:
            lies = "no priority group" if group is None else f"priority group {group.value}"
            name = next((seen.name for seen in self._it.here.tc_to_pg.values()), "")
            yield said(
                "group_map",
                "error",
                group or Seen(None, self._it.here.where, name),
                f"traffic class {prio} lies in {lies} instead of {prio}: no headroom, and no PAUSE before it drops",
                "group",
                prio=prio,
            )
            return
        for other, seen in self._it.here.tc_to_pg.items():
            if other != prio and seen.value == group.value and other in self._used():
                yield said(
                    "group_shared",
                    "error",
                    seen,
                    f"traffic class {other} shares the priority group {group.value} of the lossless class {prio}: "
                    "lossy traffic fills its headroom",
                    "group_share",
                    other=other,
                )
