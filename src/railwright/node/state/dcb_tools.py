"""The two programs that read and write a port's DCB: iproute2's `dcb`, and `mlnx_qos` where there is no other.

Which of them serves a node only asking tells. Both take and give the same values, by part; see `PARTS`.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable, Optional

from ..model import InputError, to_json
from ..qos import congestion, dcb, mlnx_qos
from . import dcbx
from .command import Said
from .item import Node
from .kernel_items import inside, read_value, write_value
from .outcome import Refused
from .port import ask

# dcbx: flags, sorted, in one text; trust: "dscp" or "pcp"; app: DSCP to priority; ets: prio_tc, tc_tsa, tc_bw; rate:
# bytes a second by traffic class; pfc: priorities; cable: metres; buffer: prio_buffer, size.
PARTS = ("dcbx", "trust", "app", "ets", "rate", "pfc", "cable", "buffer")
_NOT_HERE = (
    "a virtual function and the host's side of a BlueField in DPU mode have none; where the card has, its driver's "
    "firmware must grant it"
)
_UNSUPPORTED = ("Operation not supported", "EOPNOTSUPP")


class Backend(abc.ABC):
    """One port by one program."""

    def __init__(self, node: Node, netdev: str) -> None:
        self.node = node
        self.netdev = netdev

    @abc.abstractmethod
    def read(self, parts: Iterable[str]) -> dict[str, Any]:
        """These parts, as far as the port has them. Raises Refused."""

    @abc.abstractmethod
    def set(self, part: str, value: Any) -> None:
        """Sets one part. Raises Refused."""

    def _must(self, *argv: str) -> str:
        said = ask(self.node, *argv)
        if said.ok:
            return said.out
        raise self._refused(argv, said)

    def _refused(self, argv: Sequence[str], said: Said) -> Refused:
        told = " ".join(argv)
        if any(word in said.word for word in _UNSUPPORTED):
            return Refused(f"{self.netdev}: the driver has no such thing ({told}: {said.word})", _NOT_HERE)
        return Refused(f"{self.netdev}: {told}: {said.word}", "see the kernel's log: dmesg")


def backend(node: Node, netdev: str) -> Backend:
    """The program that serves this port. Raises Refused where there is none, or where there is no DCB."""
    said = ask(node, "dcb", "-j", "dcbx", "show", "dev", netdev)
    if said.ok:
        return Dcb(node, netdev)
    if said.code is not None and any(word in said.word for word in _UNSUPPORTED):
        raise Refused(f"{netdev}: its driver has no DCB ({said.word})", _NOT_HERE)
    if ask(node, "mlnx_qos", "-i", netdev).ok:
        return MlnxQos(node, netdev)
    why = "is not installed" if said.code is None else f"says: {said.word}"
    raise Refused(
        f"{netdev}: neither dcb nor mlnx_qos serves it; dcb {why}",
        "install iproute2 5.12 or later, with its dcb",
    )


class Dcb(Backend):
    """iproute2's dcb; trust by the driver's own file where it has one, as DOCA-OFED's has."""

    def read(self, parts: Iterable[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        asked = set(parts)
        if "trust" in asked:
            trust = read_value(self.node.at(congestion.trust_file(self.netdev)))
            found.update({} if trust is None else {"trust": trust})
        pfc = self._show("pfc") if asked & {"pfc", "cable"} else None
        if pfc is not None and "pfc" in asked:
            found["pfc"] = list(dcb.pfc(pfc, self._where("pfc")))
        if pfc is not None and "cable" in asked:
            metres = dcb.delay(pfc, self._where("pfc"))
            found.update({} if metres is None else {"cable": metres})
        for part, shown in _SHOWN.items():
            told = self._show(_NAMES[part]) if part in asked else None
            if told is not None:
                found[part] = shown(told, self._where(_NAMES[part]))
        return found

    def set(self, part: str, value: Any) -> None:
        if part == "dcbx" and "host" not in value.split():
            self._leave_to_firmware(value)
        elif part == "trust":
            write_value(inside(self.node, congestion.trust_file(self.netdev), ("/sys",)), value)
        elif part == "app":
            self._set_app(value)
        else:
            self._must("dcb", _NAMES[part], "set", "dev", self.netdev, *_words(part, value))

    def _set_app(self, value: Mapping[str, int]) -> None:
        """`replace` drops other priorities of the code points that it names, and leaves all other code points. The new
        ones come first: mlx5 trusts the VLAN tag again when the last entry goes."""
        if not value:
            self._must("dcb", "app", "flush", "dev", self.netdev, "dscp-prio")
            return
        argv = ("dcb", "app", "replace", "dev", self.netdev, "dscp-prio", *_map(value))
        said = ask(self.node, *argv)
        now = self.read(["app"])["app"]
        # mlx5 has dropped a former priority by itself, and dcb ends badly when it is not there any more.
        if not said.ok and any(now.get(point) != prio for point, prio in value.items()):
            raise self._refused(argv, said)
        gone = {point: prio for point, prio in now.items() if point not in value}
        if gone:
            self._must("dcb", "app", "del", "dev", self.netdev, "dscp-prio", *_map(gone))

    def _leave_to_firmware(self, flags: str) -> None:
        # dcb cannot say "none": the flags are set beside host's, which is then taken away.
        self._must("dcb", "dcbx", "set", "dev", self.netdev, "host", *(flags.split() or ["ieee"]))
        dcbx.release(self.node, self.netdev)

    def _show(self, part: str) -> Optional[Mapping[str, Any]]:
        argv = ("dcb", "-j", part, "show", "dev", self.netdev)
        said = ask(self.node, *argv)
        if part == "buffer" and not said.ok and any(word in said.word for word in _UNSUPPORTED):
            # ConnectX-4 and elder: the firmware alone deals out its buffers (mlx5 MLX5_BUFFER_SUPPORTED).
            return None
        if not said.ok:
            raise self._refused(argv, said)
        return dcb.one_device(said.out, self._where(part))

    def _where(self, part: str) -> str:
        return f"dcb {part} show dev {self.netdev}"


class MlnxQos(Backend):
    """mlnx_qos of DOCA-OFED: it prints text for people, and ends in a traceback where it fails."""

    def read(self, parts: Iterable[str]) -> dict[str, Any]:
        port = self._port()
        found = {
            "dcbx": None if port.dcbx is None else " ".join(sorted(port.dcbx)),
            "trust": port.trust,
            "app": port.dscp_prio,
            "ets": None if port.ets is None else to_json(port.ets),
            "rate": None if port.tc_rate is None else list(port.tc_rate),
            "pfc": None if port.pfc is None else list(port.pfc),
            "cable": port.cable_m,
            "buffer": None if port.buffers is None else _buffer(port.buffers),
        }
        return {part: found[part] for part in parts if found[part] is not None}

    def set(self, part: str, value: Any) -> None:
        for words in self._calls(part, value):
            self._must("mlnx_qos", "-i", self.netdev, *words)

    def _port(self) -> mlnx_qos.Port:
        return mlnx_qos.read(self._must("mlnx_qos", "-i", self.netdev), f"mlnx_qos -i {self.netdev}")

    def _calls(self, part: str, value: Any) -> Iterable[Sequence[str]]:
        if part == "dcbx":
            yield ("-d", "os" if "host" in value.split() else "fw")
        elif part == "trust":
            yield ("--trust", value)
        elif part == "app":
            yield from self._app(value)
        elif part == "ets":
            yield ("-p", _list(value["prio_tc"]), "-s", _list(value["tc_tsa"]), "-t", _list(value["tc_bw"]))
        elif part == "rate":
            yield ("-r", _list(_whole_gbps(rate) for rate in value))
        elif part == "pfc":
            yield ("--pfc", _list(int(prio in value) for prio in range(8)))
        elif part == "cable":
            yield (f"--cable_len={value}",)
        else:
            yield ("--prio2buffer", _list(value["prio_buffer"]), "--buffer_size", _list(value["size"]))

    def _app(self, value: Mapping[str, int]) -> Iterable[Sequence[str]]:
        """It keeps all 64 code points, so those that nobody names are told to be priority 0."""
        if not value:
            yield ("--trust", "pcp")
            return
        if self._port().trust != "dscp":
            # Trust and map cannot be combined in one call.
            yield ("--trust", "dscp")
        now = self._port().dscp_prio or {}
        for point in map(str, range(64)):
            prio = value.get(point, 0)
            if now.get(point) != prio:
                yield ("--dscp2prio", f"set,{point},{prio}")


def check_value(part: str, value: Any, where: str) -> None:
    """Refuses what no port has. Raises InputError."""
    if part in ("dcbx", "trust"):
        words = value.split() if isinstance(value, str) else [""]
        known = ("cee", "host", "ieee", "lld_managed", "static") if part == "dcbx" else ("dscp", "pcp")
        for word in words:
            if word not in known:
                raise InputError(where, f"found {str(value)[:40]!r}", f"expected of {', '.join(known)}")
        return
    whole: dict[str, type] = {
        "ets": dict,
        "app": dict,
        "buffer": dict,
        "rate": list,
        "pfc": list,
        "cable": int,
    }
    if type(value) is not whole[part]:
        raise InputError(where, f"found {str(value)[:40]}", f"expected {_FORMS[part]}")
    _check_form(part, value, where)


def _check_form(part: str, value: Any, where: str) -> None:
    if part == "app":
        for point, prio in value.items():
            dcb.number(point, 0, 63, f"{where}.{point}", "a DSCP")
            dcb.number(prio, 0, 7, f"{where}.{point}", "a priority")
    elif part == "ets":
        found = dcb.ets(value, where)
        if "ets" in found.tc_tsa and sum(found.tc_bw) != 100:
            raise InputError(where, f"the shares sum to {sum(found.tc_bw)} %", "expected 100")
    elif part == "rate":
        dcb.maxrate({"tc_maxrate": value}, where)
    elif part == "pfc":
        prios = [dcb.number(prio, 0, 7, where, "a priority") for prio in value]
        if prios != sorted(set(prios)):
            raise InputError(where, f"found {value}", "expected each priority once, upwards")
    elif part == "cable":
        dcb.number(value, 0, 2**32, where, "a length")
    else:
        dcb.buffers({"prio_buffer": value.get("prio_buffer"), "buffer_size": value.get("size")}, where)


_FORMS = {
    "app": 'code points and their priorities, {"26": 3}',
    "ets": "prio_tc, tc_tsa and tc_bw, eight of each",
    "buffer": "prio_buffer and size, eight of each",
    "rate": "eight rates, bytes a second",
    "pfc": "a list of priorities",
    "cable": "metres",
}
_NAMES = {
    "dcbx": "dcbx",
    "app": "app",
    "ets": "ets",
    "rate": "maxrate",
    "pfc": "pfc",
    "cable": "pfc",
    "buffer": "buffer",
}
_SHOWN: dict[str, Callable[[Mapping[str, Any], str], Any]] = {
    "dcbx": lambda data, where: " ".join(sorted(dcb.dcbx(data, where))),
    "app": lambda data, where: {
        str(point): prio for point, prio in sorted(dcb.dscp_prio(data, where).items())
    },
    "ets": lambda data, where: to_json(dcb.ets(data, where)),
    "rate": lambda data, where: list(dcb.maxrate(data, where)),
    "buffer": lambda data, where: _buffer(dcb.buffers(data, where)),
}


def _buffer(found: Any) -> dict[str, Any]:
    return {"prio_buffer": list(found.prio_buffer), "size": list(found.size)}


def _words(part: str, value: Any) -> list[str]:
    """The arguments of dcb's set for one part."""
    if part == "dcbx":
        return [word.replace("_", "-") for word in value.split()]
    if part == "ets":
        return [
            "prio-tc",
            *_pairs(value["prio_tc"]),
            "tc-tsa",
            *_pairs(value["tc_tsa"]),
            "tc-bw",
            *_pairs(value["tc_bw"]),
        ]
    if part == "rate":
        return ["tc-maxrate", *_pairs(f"{rate * 8}bit" for rate in value)]
    if part == "pfc":
        return ["prio-pfc", "all:off", *(f"{prio}:on" for prio in value)]
    if part == "cable":
        return ["delay", str(value)]
    return ["prio-buffer", *_pairs(value["prio_buffer"]), "buffer-size", *_pairs(value["size"])]


def _map(entries: Mapping[str, int]) -> list[str]:
    return [f"{point}:{prio}" for point, prio in entries.items()]


def _pairs(values: Iterable[Any]) -> list[str]:
    return [f"{n}:{value}" for n, value in enumerate(values)]


def _list(values: Iterable[Any]) -> str:
    return ",".join(map(str, values))


def _whole_gbps(rate: int) -> int:
    if rate % 125_000_000:
        raise Refused(
            f"{rate} bytes a second are no whole Gb/s", "mlnx_qos takes those only; install iproute2's dcb"
        )
    return rate // 125_000_000
