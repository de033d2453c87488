"""How long the lossless contract takes at size: render every leaf switch, read each file back, lint all of it.

`python benchmarks/fabric.py [--ports 1000] [--repeat 5]` prints one line for each system and step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

from railwright.captures.source import Source
from railwright.fabric import Contract, Found, document, lint, render
from railwright.fabric.read import read_source

PORTS = {
    "sonic": lambda number: f"Ethernet{number * 8}",
    "nvue": lambda number: f"swp{number + 1}",
    "eos": lambda number: f"Ethernet{number + 1}/1",
    "nxos": lambda number: f"Ethernet1/{number + 1}",
}
_A_SWITCH = 64


def contract_data(system: str, ports: int) -> dict[str, Any]:
    """A fabric of leaf switches with 64 ports each, cables of four lengths."""
    switches: dict[str, Any] = {}
    for port in range(ports):
        leaf, number = divmod(port, _A_SWITCH)
        switch = switches.setdefault(f"leaf{leaf:03}", {"os": system, "platform": "sn5600", "ports": {}})
        plug: dict[str, Any] = {"host": f"gpu{port:04}", "nic": "rail0"}
        if system != "nvue":
            plug["cable_m"] = (3, 10, 30, 100)[port % 4]
        switch["ports"][PORTS[system](number)] = plug
    return {"speed_gbps": 400, "cable_m": 30, "switches": switches}


def measure(system: str, ports: int) -> dict[str, float]:
    """Seconds of each step, once."""
    seconds: dict[str, float] = {}

    def timed(name: str, step: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        value = step()
        seconds[name] = time.perf_counter() - started
        return value

    data = contract_data(system, ports)
    contract = timed("contract", lambda: Contract.read(data))
    texts = timed("render", lambda: {name: render(contract, name).content for name in contract.switches})
    states = timed(
        "read",
        lambda: {
            name: read_source(Source(name, text), system, contract.switches[name].ports)
            for name, text in texts.items()
        },
    )
    found = Found(contract, "benchmark", None, policy_seen=False)
    result = timed("lint", lambda: lint(found, states))
    timed("document", lambda: json.dumps(document(result)))
    if not result.ok:
        raise SystemExit(f"what was rendered does not lint clean: {result.findings}")
    return seconds | {"all": sum(seconds.values())}


def main() -> None:
    """Print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ports", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    for system in PORTS:
        runs = [measure(system, arguments.ports) for _ in range(arguments.repeat)]
        steps = "  ".join(f"{step} {statistics.median(run[step] for run in runs):.2f}" for step in runs[0])
        print(f"{system:5}  {arguments.ports} ports, s:  {steps}")


if __name__ == "__main__":
    main()
