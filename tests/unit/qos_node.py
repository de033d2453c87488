"""A node with NIC ports for tests of QoS: a folder with its files, and programs that answer as those of a driver do.

`dcb`, `ethtool` and `rdma` are modelled after what a kernel's driver does (its refusals too); `mlnx_qos` is the lab's
stand-in.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from railwright.node.state import Said
from tests.lab.standins import mlnx_qos
from tests.unit.state_support import make_node, plant

UNSUPPORTED = Said(1, "", "Attribute read: Operation not supported\n")
INVALID = Said(1, "", "Attribute write: Invalid argument\n")
NO_MEMORY = Said(1, "", "Attribute write: Cannot allocate memory\n")
CELL = 144


class Port:
    """One port as its driver starts it."""

    def __init__(self, netdev: str, rdma: str | None) -> None:
        self.netdev = netdev
        self.rdma = rdma
        self.has_dcb = True
        self.pause = {"rx": True, "tx": True}
        self.pfc = [False] * 8
        self.cable = 7
        self.app: dict[int, int] = {}
        self.ets: dict[str, list[Any]] = {
            "tc_tsa": ["vendor"] * 8,
            "tc_bw": [100] * 8,
            "prio_tc": [1, 0, 2, 3, 4, 5, 6, 7],
        }
        self.rate = [0] * 8
        self.buffer: dict[str, list[int]] = {
            "prio_buffer": [0] * 8,
            "buffer_size": [20016, 156096, 0, 0, 0, 0, 0, 0],
        }
        self.dcbx = {"cee": True, "ieee": True}
        self.flaps = 0
        self.users: list[dict[str, Any]] = []
        self.by_hand = False
        self.has_buffers = True

    def short(self, owner: list[int], new: bool = False) -> bool:
        """Whether a lossless buffer is too small for the cable at 400 Gb/s; new: one that becomes lossless only."""
        least = (301 + 216 * self.cable // 100) * 400 + 272 * 1500 // 100 + 9978 + CELL
        lossless = {owner[prio] for prio in range(8) if self.pfc[prio]}
        before = {self.buffer["prio_buffer"][prio] for prio in range(8) if self.pfc[prio]}
        if new and lossless == before:
            return False
        return any(self.buffer["buffer_size"][number] < least for number in lossless)


class Rack:
    """A node's ports and programs. wrote: command lines that changed something. dark: ports whose link stays away."""

    def __init__(self, folder: Path, ports: dict[str, Port]) -> None:
        self.root = make_node(folder)
        self.ports = ports
        self.installed = {"dcb", "ethtool", "rdma"}
        self.wrote: list[str] = []
        self.dark: set[str] = set()
        for device, port in ports.items():
            place = f"/sys/bus/pci/devices/{device}"
            plant(self.root, f"{place}/net/{port.netdev}/dev_port", "0\n")
            plant(self.root, f"/sys/class/net/{port.netdev}/carrier", "1\n")
            if port.rdma:
                plant(self.root, f"{place}/infiniband/{port.rdma}/node_guid", "x\n")
                plant(self.root, f"/sys/class/net/{port.netdev}/device/infiniband/{port.rdma}", "x\n")
        (self.root / "sys/kernel/config/rdma_cm").mkdir(parents=True)

    def __call__(self, argv: Sequence[str]) -> Said:
        program, *rest = argv
        if program not in self.installed:
            return Said(None)
        return {"dcb": self._dcb, "ethtool": self._ethtool, "rdma": self._rdma, "mlnx_qos": self._mlnx_qos}[
            program
        ](list(rest))

    def knob(self, device: str, name: str, value: int) -> Path:
        """A file of the kernel's own driver that steers congestion control."""
        return plant(self.root, f"/sys/kernel/debug/mlx5/{device}/cc_params/{name}", f"{value}\n")

    def vendor(self, netdev: str, path: str, value: str) -> Path:
        """A file of DOCA-OFED's driver."""
        return plant(self.root, f"/sys/class/net/{netdev}/{path}", f"{value}\n")

    def snapshot(self) -> str:
        """All that the ports hold."""
        kept = [
            {name: value for name, value in vars(port).items() if name not in ("flaps", "by_hand")}
            for port in self.ports.values()
        ]
        return json.dumps(kept, sort_keys=True)

    def _port(self, netdev: str) -> Port | None:
        return next((port for port in self.ports.values() if port.netdev == netdev), None)

    def _flap(self, port: Port) -> None:
        port.flaps += 1
        if port.netdev in self.dark:
            (self.root / f"sys/class/net/{port.netdev}/carrier").write_text("0\n")

    def _rdma(self, words: list[str]) -> Said:
        assert words == ["-j", "resource", "show", "qp"]
        rows: list[dict[str, Any]] = []
        for port in self.ports.values():
            own = {
                "ifname": port.rdma,
                "port": 1,
                "lqpn": 1,
                "type": "GSI",
                "state": "RTS",
                "comm": "ib_core",
            }
            rows += [own, *({"ifname": port.rdma, **user} for user in port.users)] if port.rdma else []
        return Said(0, json.dumps(rows))

    def _ethtool(self, words: list[str]) -> Said:
        verb, netdev, *rest = words
        port = self._port(netdev)
        if port is None:
            return Said(1, "", "netlink error: No such device\n")
        if verb == "-a":
            lines = [f"{way.upper()}:\t\t{'on' if port.pause[way] else 'off'}" for way in ("rx", "tx")]
            return Said(
                0, f"Pause parameters for {netdev}:\nAutonegotiate:\toff\n" + "\n".join(lines) + "\n\n"
            )
        assert verb == "-A"
        asked = {way: on == "on" for way, on in zip(rest[::2], rest[1::2], strict=True)}
        if any(asked.values()) and any(port.pfc):
            return Said(76, "", "netlink error: Invalid argument\n")
        port.pause.update(asked)
        self.wrote.append(" ".join(("ethtool", *words)))
        # As where autonegotiation of pause cannot be set: it was applied, and it fails.
        return Said(76, "", "netlink error: Operation not supported\n")

    def _mlnx_qos(self, words: list[str]) -> Said:
        out, err = io.StringIO(), io.StringIO()
        before = mlnx_qos.load(words[1])
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = mlnx_qos.main(words)
            except SystemExit as error:
                code = int(error.code or 0)
        after = mlnx_qos.load(words[1])
        port = self._port(words[1])
        if after != before:
            self.wrote.append(" ".join(("mlnx_qos", *words)))
            if port is not None and after["pfc"] != before["pfc"]:
                self._flap(port)
        return Said(code, out.getvalue(), err.getvalue())

    def _dcb(self, words: list[str]) -> Said:
        words = [word for word in words if word != "-j"]
        part, verb, _, netdev, *rest = words
        port = self._port(netdev)
        if port is None:
            return Said(1, "", "Attribute read: No such device\n")
        if not port.has_dcb:
            return UNSUPPORTED
        if part == "buffer" and not port.has_buffers:
            return UNSUPPORTED
        if verb == "show":
            return Said(0, json.dumps(_shown(port, part)) + "\n")
        before = json.dumps(_shown(port, part))
        said: Said = getattr(self, f"_set_{part}")(port, {**_arguments(verb, rest), "verb": [verb]})
        if said.ok and json.dumps(_shown(port, part)) != before:
            self.wrote.append(" ".join(("dcb", *words)))
        return said

    def _set_pfc(self, port: Port, words: dict[str, list[str]]) -> Said:
        flags = list(port.pfc)
        for prio, on in _indexed(words.get("prio-pfc", [])):
            flags[prio] = on == "on"
        if any(flags) and any(port.pause.values()):
            return INVALID
        changed = flags != port.pfc
        if changed:
            port.pfc = flags
            self._flap(port)
        former = port.cable
        port.cable = int(words["delay"][0]) if "delay" in words else port.cable
        if port.by_hand and port.short(port.buffer["prio_buffer"]):
            # PFC stays as it was set, and the link was toggled.
            port.cable = former
            return NO_MEMORY
        if changed and not port.by_hand:
            port.buffer["prio_buffer"] = [int(on) for on in flags]
        return Said(0)

    def _set_app(self, port: Port, words: dict[str, list[str]]) -> Said:
        """One priority a code point, as mlx5: a former one is gone when dcb wants to remove it."""
        (verb,) = words["verb"]
        pairs = {int(one): int(other) for one, other in (pair.split(":") for pair in words["dscp-prio"])}
        if verb == "flush":
            port.app = {}
        elif verb == "del":
            assert pairs.items() <= port.app.items()
            port.app = {point: prio for point, prio in port.app.items() if point not in pairs}
        else:
            assert verb == "replace"
            moved = any(port.app.get(point, prio) != prio for point, prio in pairs.items())
            port.app.update(pairs)
            if moved:
                return Said(1, "", "Could not remove replaced APP entries\n")
        return Said(0)

    def _set_ets(self, port: Port, words: dict[str, list[str]]) -> Said:
        new = {key: list(value) for key, value in port.ets.items()}
        for key, name in (("prio-tc", "prio_tc"), ("tc-tsa", "tc_tsa"), ("tc-bw", "tc_bw")):
            for index, value in _indexed(words.get(key, [])):
                new[name][index] = value if name == "tc_tsa" else int(value)
        shares = [bw for bw, tsa in zip(new["tc_bw"], new["tc_tsa"], strict=True) if tsa == "ets"]
        if shares and sum(int(share) for share in shares) != 100:
            return INVALID
        new["tc_bw"] = [
            bw if tsa == "ets" else 100 for bw, tsa in zip(new["tc_bw"], new["tc_tsa"], strict=True)
        ]
        port.ets = new
        return Said(0)

    def _set_maxrate(self, port: Port, words: dict[str, list[str]]) -> Said:
        for index, value in _indexed(words["tc-maxrate"]):
            assert value.endswith("bit")
            port.rate[index] = int(value[:-3]) // 8
        return Said(0)

    def _set_buffer(self, port: Port, words: dict[str, list[str]]) -> Said:
        """A new map is held against the old sizes first, as mlx5 does it."""
        owner = [int(value) for _, value in _indexed(words["prio-buffer"])]
        if owner != port.buffer["prio_buffer"] and port.short(owner, new=True):
            return NO_MEMORY
        sizes = [int(value) // CELL * CELL for _, value in _indexed(words["buffer-size"])]
        former, port.buffer["buffer_size"] = port.buffer["buffer_size"], sizes
        if port.short(owner):
            port.buffer["buffer_size"] = former
            return NO_MEMORY
        port.buffer["prio_buffer"], port.by_hand = owner, True
        return Said(0)

    def _set_dcbx(self, port: Port, words: dict[str, list[str]]) -> Said:
        if "host" not in words[""]:
            return Said(1, "", "Attribute write: Unknown error -1\n")
        port.dcbx = dict.fromkeys(sorted(words[""]), True)
        return Said(0)


def _shown(port: Port, part: str) -> Any:
    return {
        "pfc": {"pfc_cap": 8, "delay": port.cable, "prio_pfc": port.pfc},
        "app": {"dscp_prio": [[point, prio, " "] for point, prio in sorted(port.app.items())]}
        if port.app
        else {},
        "ets": {"willing": False, "ets_cap": 8, **port.ets},
        "maxrate": {"tc_maxrate": port.rate},
        "buffer": {**port.buffer, "total_size": 1027728},
        "dcbx": port.dcbx,
    }[part]


def _arguments(verb: str, rest: list[str]) -> dict[str, list[str]]:
    if verb == "flush":
        return {"dscp-prio": []}
    words: dict[str, list[str]] = {"": []}
    key = ""
    for word in rest:
        if word in (
            "prio-pfc",
            "delay",
            "dscp-prio",
            "prio-tc",
            "tc-tsa",
            "tc-bw",
            "tc-maxrate",
            "prio-buffer",
            "buffer-size",
        ):
            key = word
            words[key] = []
        else:
            words[key].append(word)
    return words


def _indexed(words: Sequence[str]) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    for word in words:
        index, _, value = word.partition(":")
        found += [(n, value) for n in range(8)] if index == "all" else [(int(index), value)]
    return found


def mlnx_tools(rack: Rack, monkeypatch: pytest.MonkeyPatch) -> None:
    """mlnx_qos instead of dcb, with its state in the node's folder."""
    rack.installed = {"ethtool", "rdma", "mlnx_qos"}
    monkeypatch.setattr(mlnx_qos, "STATE", str(rack.root / "run/mlnx_qos"))
    monkeypatch.setattr(mlnx_qos, "PORTS", str(rack.root / "sys/class/net"))
