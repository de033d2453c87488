#!/usr/bin/python3
"""A stand-in for mlnx_qos: the QoS of a port, kept as a driver keeps it, until the next boot."""

import argparse
import json
import os
import sys
from collections.abc import Callable
from typing import Any

STATE = "/run/mlnx_qos"
FRESH: dict[str, Any] = {
    "trust": "pcp", "pfc": [0] * 8, "prio_tc": list(range(8)), "tsa": ["vendor"] * 8, "tcbw": [0] * 8, "pause": False,
    "cable_len": 7, "buffer_size": [262016, 0, 0, 0, 0, 0, 0, 0], "prio2buffer": [0] * 8,
}  # fmt: skip


def load(port: str) -> dict[str, Any]:
    try:
        with open(f"{STATE}/{port}.json", encoding="utf-8") as file:
            return {**FRESH, **json.load(file)}
    except OSError:
        return dict(FRESH)


def eight(text: str, kind: Callable[[str], Any] = int) -> list[Any]:
    values = [kind(part) for part in text.split(",")]
    if len(values) != 8:
        raise ValueError(f"expected 8 values, got {len(values)}")
    return values


def show(state: dict[str, Any]) -> None:
    print("DCBX mode: OS controlled")
    print(f"Priority trust state: {state['trust']}")
    print(f"Receive buffer size (bytes): {','.join(map(str, state['buffer_size']))},")
    print(f"Cable len: {state['cable_len']}")
    print("PFC configuration:")
    print("\tpriority    " + "   ".join(map(str, range(8))))
    print("\tenabled     " + "   ".join(map(str, state["pfc"])) + "   ")
    print("\tbuffer      " + "   ".join(map(str, state["prio2buffer"])) + "   ")
    for tc in range(8):
        rate = f", bw: {state['tcbw'][tc]}%" if state["tsa"][tc] == "ets" else ""
        print(f"tc: {tc} ratelimit: unlimited, tsa: {state['tsa'][tc]}{rate}")
        for priority in (number for number in range(8) if state["prio_tc"][number] == tc):
            print(f"\t priority:  {priority}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="mlnx_qos")
    parser.add_argument("-i", "--interface", required=True)
    parser.add_argument("--trust", choices=["pcp", "dscp"])
    parser.add_argument("-f", "--pfc")
    parser.add_argument("-p", "--prio_tc")
    parser.add_argument("-s", "--tsa")
    parser.add_argument("-t", "--tcbw")
    parser.add_argument("--cable_len", type=int)
    parser.add_argument("--buffer_size")
    parser.add_argument("--prio2buffer")
    asked = parser.parse_args()
    port = asked.interface
    if not os.path.isdir(f"/sys/class/net/{port}/device/infiniband"):
        print(f"Netdev {port}: no such device, or it is none of this driver", file=sys.stderr)
        return 1
    state = load(port)
    before = dict(state)
    try:
        for name in ("pfc", "prio_tc", "tcbw", "buffer_size", "prio2buffer"):
            if getattr(asked, name):
                state[name] = eight(getattr(asked, name))
        if asked.tsa:
            state["tsa"] = eight(asked.tsa, str)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    state["trust"] = asked.trust or state["trust"]
    state["cable_len"] = state["cable_len"] if asked.cable_len is None else asked.cable_len
    if any(state["pfc"]) and state["pause"]:
        print("Set PFC failed: Invalid argument (global pause is on)", file=sys.stderr)
        return 1
    shares = [share for share, tsa in zip(state["tcbw"], state["tsa"], strict=True) if tsa == "ets"]
    if shares and sum(shares) != 100:
        print("Set ETS failed: the shares of the ets classes are not 100 together", file=sys.stderr)
        return 1
    if state != before:
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
