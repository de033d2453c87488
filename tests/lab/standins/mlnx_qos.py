#!/usr/bin/python3
"""A stand-in for mlnx_qos: the QoS of a port, kept as a driver keeps it, until the next boot."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

STATE = "/run/mlnx_qos"
PORTS = "/sys/class/net"
FRESH: dict[str, Any] = {
    "trust": "pcp", "pfc": [0] * 8, "prio_tc": list(range(8)), "tsa": ["vendor"] * 8, "tcbw": [0] * 8, "pause": False,
    "cable_len": 7, "buffer_size": [20016, 156096, 0, 0, 0, 0, 0, 0], "prio2buffer": [0] * 8, "dcbx": "fw",
    "dscp2prio": [point >> 3 for point in range(64)], "ratelimit": [0] * 8,
}  # fmt: skip
OWNERS = {"os": "OS controlled", "fw": "Firmware controlled"}


def load(port: str) -> dict[str, Any]:
    try:
        with open(f"{STATE}/{port}.json", encoding="utf-8") as file:
            return {**FRESH, **json.load(file)}
    except OSError:
        return {name: list(value) if isinstance(value, list) else value for name, value in FRESH.items()}


def eight(text: str, kind: Callable[[str], Any] = int) -> list[Any]:
    values = [kind(part) for part in text.split(",")]
    if len(values) != 8:
        raise ValueError(f"expected 8 values, got {len(values)}")
    return values


def show(state: dict[str, Any]) -> None:
    print(f"DCBX mode: {OWNERS[state['dcbx']]}")
    print(f"Priority trust state: {state['trust']}")
    if state["trust"] == "dscp":
        print("dscp2prio mapping:")
        for priority in range(8):
            points = [point for point in range(63, -1, -1) if state["dscp2prio"][point] == priority]
            for start in range(0, len(points), 8):
                print(
                    f"\tprio:{priority} dscp:"
                    + "".join(f"{point:02}," for point in points[start : start + 8])
                )
    print("default priority:")
    print(f"Receive buffer size (bytes): {','.join(map(str, state['buffer_size']))},")
    print(f"Cable len: {state['cable_len']}")
    print("PFC configuration:")
    print("\tpriority    " + "   ".join(map(str, range(8))))
    print("\tenabled     " + "   ".join(map(str, state["pfc"])) + "   ")
    print("\tbuffer      " + "   ".join(map(str, state["prio2buffer"])) + "   ")
    for tc in range(8):
        share = f", bw: {state['tcbw'][tc]}%" if state["tsa"][tc] == "ets" else ""
        rate = f"{state['ratelimit'][tc]}.0 Gbps" if state["ratelimit"][tc] else "unlimited"
        print(f"tc: {tc} ratelimit: {rate}, tsa: {state['tsa'][tc]}{share}")
        for priority in (number for number in range(8) if state["prio_tc"][number] == tc):
            print(f"\t priority:  {priority}")


def map_points(state: dict[str, Any], text: str) -> None:
    """set,POINT,PRIORITY, del,POINT,PRIORITY or flush."""
    verb, *numbers = text.split(",")
    if verb == "flush":
        state["dscp2prio"] = list(FRESH["dscp2prio"])
        return
    point, priority = map(int, numbers)
    state["dscp2prio"][point] = priority if verb == "set" else 0


def refused(state: dict[str, Any]) -> str:
    """Why the driver does not take this state."""
    if any(state["pfc"]) and state["pause"]:
        return "set_ieee_pfc: Invalid argument"
    shares = [share for share, tsa in zip(state["tcbw"], state["tsa"]) if tsa == "ets"]  # noqa: B905 (Python 3.9)
    if shares and sum(shares) != 100:
        return "set_ieee_ets: the shares of the ets classes are not 100 together"
    if any(size == 0 for on, size in buffers_of(state) if on):
        return "set_dcb_buffer: Invalid argument"
    return ""


def buffers_of(state: dict[str, Any]) -> list[tuple[int, int]]:
    return [(on, state["buffer_size"][state["prio2buffer"][prio]]) for prio, on in enumerate(state["pfc"])]


def main(arguments: "Sequence[str] | None" = None) -> int:
    parser = argparse.ArgumentParser(prog="mlnx_qos")
    parser.add_argument("-i", "--interface", required=True)
    parser.add_argument("--trust", choices=["pcp", "dscp"])
    parser.add_argument("--dscp2prio")
    parser.add_argument("-d", "--dcbx", choices=["os", "fw", "get"])
    parser.add_argument("-f", "--pfc")
    parser.add_argument("-p", "--prio_tc")
    parser.add_argument("-s", "--tsa")
    parser.add_argument("-t", "--tcbw")
    parser.add_argument("-r", "--ratelimit")
    parser.add_argument("--cable_len", type=int)
    parser.add_argument("--buffer_size")
    parser.add_argument("--prio2buffer")
    asked = parser.parse_args(arguments)
    port = asked.interface
    if not os.path.isdir(f"{PORTS}/{port}/device/infiniband"):
        print(f"Netdev {port}: no such device, or it is none of this driver", file=sys.stderr)
        return 1
    if asked.trust and asked.dscp2prio:
        parser.error("--trust and --dscp2prio cannot be combined")
    state = load(port)
    before = json.dumps(state)
    try:
        for name in ("pfc", "prio_tc", "tcbw", "buffer_size", "prio2buffer", "ratelimit"):
            if getattr(asked, name):
                state[name] = eight(getattr(asked, name))
        if asked.tsa:
            state["tsa"] = eight(asked.tsa, str)
        if asked.dscp2prio:
            map_points(state, asked.dscp2prio)
    except (ValueError, IndexError) as error:
        print(error, file=sys.stderr)
        return 1
    state["trust"] = asked.trust or state["trust"]
    state["cable_len"] = state["cable_len"] if asked.cable_len is None else asked.cable_len
    state["dcbx"] = asked.dcbx if asked.dcbx in OWNERS else state["dcbx"]
    why = refused(state) if json.dumps(state) != before else ""
    if why:
        # Its own error path joins text and an OSError, and so ends in a traceback of another error.
        print(
            f'Traceback (most recent call last):\n  File "/usr/bin/mlnx_qos"\nTypeError: {why}',
            file=sys.stderr,
        )
        return 1
    if json.dumps(state) != before:
        if os.geteuid() != 0:
            print("Operation not permitted", file=sys.stderr)
            return 1
        os.makedirs(STATE, exist_ok=True)
        with open(f"{STATE}/{port}.json", "w", encoding="utf-8") as file:
            json.dump(state, file)
    show(state)
    return 0


if __name__ == "__main__":
    sys.exit(main())
