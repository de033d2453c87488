"""One port's numbers against the contract: ECN thresholds, frame sizes, headroom."""

from __future__ import annotations

from collections.abc import Iterator

from .headroom import bound, xoff_point
from .mend import LARGEST_MTU
from .platforms import PLATFORMS
from .rules import FRAME_OVERHEAD
from .said import Said, Subject, by, said
from .state import Marking, Seen


def check_amounts(subject: Subject) -> Iterator[Said]:
    """What differs in thresholds, sizes and lengths."""
    return _Amounts(subject).all()


class _Amounts:
    def __init__(self, it: Subject) -> None:
        self._it = it

    def all(self) -> Iterator[Said]:
        for one in self._it.contract.lossless.values():
            queue = self._it.here.tc_to_queue.get(one.prio)
            if queue is not None:
                yield from self._ecn(queue.value)
        yield from self._frames()
        yield from self._headroom()

    def _ecn(self, queue: int) -> Iterator[Said]:
        wanted = self._it.contract.marking(self._it.speed)
        low_kb, high_kb = wanted.min_bytes // 1000, wanted.max_bytes // 1000
        values = {
            "queue": queue,
            "low": wanted.min_bytes,
            "high": wanted.max_bytes,
            "low_kb": low_kb,
            "high_kb": high_kb,
            "chance": wanted.probability_percent,
            "speed": self._it.speed,
        }
        seen = self._it.here.ecn.get(queue)
        if seen is None:
            yield said(
                "ecn",
                "error",
                Seen(None, self._it.here.where),
                f"queue {queue} of the lossless class marks no ECN: nothing slows the hosts down and PFC does all",
                "ecn",
                **values,
            )
            return
        differs = _differs(
            seen.value, Marking(wanted.min_bytes, wanted.max_bytes, wanted.probability_percent)
        )
        # NX-OS is rendered in whole kbytes.
        rounded = Marking(low_kb * 1000, high_kb * 1000, wanted.probability_percent)
        if differs and not (self._it.system == "nxos" and not _differs(seen.value, rounded)):
            yield said(
                "ecn_thresholds",
                "warning",
                seen,
                f"ECN of queue {queue} is not the contract's for {self._it.speed}G: {differs}{by(seen)}",
                "thresholds",
                **values,
            )
        if None in (seen.value.min_bytes, seen.value.max_bytes, seen.value.probability_percent):
            yield Said(
                "fabric.ecn_thresholds",
                "info",
                seen.where,
                f"not verified: ECN of queue {queue} is left to the chip, or in a unit that depends on it",
                "",
            )
        yield from self._ecn_before_pfc(queue, seen)

    def _ecn_before_pfc(self, queue: int, seen: Seen[Marking]) -> Iterator[Said]:
        pool = self._it.here.pool
        if pool is None or seen.value.max_bytes is None:
            return
        size, dynamic_th = pool.value
        senders = self._it.switch.fan_in
        point = xoff_point(size, dynamic_th, senders)
        if seen.value.max_bytes >= point * senders:
            yield said(
                "ecn_before_pfc",
                "error",
                seen,
                f"ECN of queue {queue} marks fully at {seen.value.max_bytes} bytes, PFC pauses {senders} senders at "
                f"{senders} x {point}: PFC acts first and congestion spreads",
                "thresholds",
                queue=queue,
                low=min(seen.value.min_bytes or point // 4, point // 4),
                high=point,
                low_kb=point // 4000,
                high_kb=point // 1000,
                chance=seen.value.probability_percent or 100,
            )

    def _frames(self) -> Iterator[Said]:
        mtu = self._it.here.mtu
        least = self._it.contract.host_mtu + FRAME_OVERHEAD
        if mtu is not None and mtu.value < least:
            yield said(
                "mtu",
                "error",
                mtu,
                f"MTU {mtu.value} is below the hosts' {self._it.contract.host_mtu} + {FRAME_OVERHEAD}{by(mtu)}: full "
                "frames are dropped as oversized while small ones pass",
                "mtu",
                mtu=max(least, min(self._it.contract.switch_mtu, LARGEST_MTU[self._it.system])),
            )
        pause = self._it.here.pause
        if pause is not None and pause.value:
            yield said(
                "pause",
                "error",
                pause,
                "802.3x pause is on: it stops every class, and a port does either that or PFC",
                "pause",
            )

    def _headroom(self) -> Iterator[Said]:
        cable, wanted = self._it.here.cable_m, self._it.contract.cable(self._it.plug)
        platform = PLATFORMS.get(self._it.switch.platform or "")
        row = platform.row(self._it.speed, wanted) if platform is not None else None
        if cable is not None and cable.value < wanted:
            yield said(
                "cable",
                "error",
                cable,
                f"headroom is for {cable.value} m, the cable has {wanted} m: what is in flight at a PAUSE is dropped",
                "cable",
                cable=row.cable_m if row is not None else wanted,
            )
        speed = self._it.here.speed_gbps
        if speed is not None and speed.value != self._it.speed:
            yield said(
                "speed",
                "warning",
                speed,
                f"the port has {speed.value}G, the contract {self._it.speed}G: headroom and ECN are for another speed",
                "speed",
                speed=self._it.speed,
            )
        xoff = self._it.here.xoff_bytes
        least = bound(
            self._it.speed, wanted, self._it.contract.switch_mtu, self._it.contract.switch_mtu
        ).bytes
        if xoff is not None and xoff.value < least:
            yield said(
                "headroom",
                "error",
                xoff,
                f"the port's profile keeps {xoff.value} bytes of headroom, the bound for {self._it.speed}G and "
                f"{wanted} m is {least} (F1)",
                "xoff",
                high=row.xoff if row is not None else least,
            )


def _differs(found: Marking, wanted: Marking) -> str:
    """What of the marking is another than wanted; what the file does not state in bytes is not judged here."""
    parts = [
        f"{what} {have} instead of {want}{unit}"
        for what, have, want, unit in (
            ("from", found.min_bytes, wanted.min_bytes, " bytes"),
            ("to", found.max_bytes, wanted.max_bytes, " bytes"),
            ("with", found.probability_percent, wanted.probability_percent, " %"),
        )
        if have is not None and have != want
    ]
    return ", ".join(parts)
