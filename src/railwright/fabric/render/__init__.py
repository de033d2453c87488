"""Renderers: what each leaf switch of the contract has to hold, as a fragment that can be loaded twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from railwright.node.model import InputError

from ..contract import Contract
from . import eos, h3c, nvue, nxos, sonic


@dataclass(frozen=True)
class Fragment:
    """One switch's part of the contract.

    content: the file. load: how it goes onto the switch. verify: commands that read it back there. missing: what of the
    contract is not in it and has to be done by hand.
    """

    switch: str
    os: str
    file: str
    content: str
    load: tuple[str, ...]
    verify: tuple[str, ...]
    missing: tuple[str, ...] = ()

    @property
    def commands(self) -> str:
        """What to type on the switch, as a text to lie beside the file."""
        parts = [("Load", self.load), ("Read back", self.verify), ("Not in the file, by hand", self.missing)]
        return "\n".join(
            "\n".join([f"{title} ({self.switch}, {self.os}):", *(f"  {line}" for line in lines), ""])
            for title, lines in parts
            if lines
        )


@dataclass(frozen=True)
class _System:
    suffix: str
    render: Callable[[Contract, str], str]
    load: tuple[str, ...]
    verify: tuple[str, ...]
    missing: Callable[[Contract, str], tuple[str, ...]]


_SYSTEMS = {
    "sonic": _System("json", sonic.render, sonic.LOAD, sonic.VERIFY, sonic.missing),
    "nvue": _System("yaml", nvue.render, nvue.LOAD, nvue.VERIFY, nvue.missing),
    "eos": _System("cfg", eos.render, eos.LOAD, eos.VERIFY, eos.missing),
    "nxos": _System("cfg", nxos.render, nxos.LOAD, nxos.VERIFY, nxos.missing),
    "h3c": _System("cfg", h3c.render, h3c.LOAD, h3c.VERIFY, h3c.missing),
}


def render(contract: Contract, name: str) -> Fragment:
    """The fragment of one switch. Same contract, same bytes.

    Raises InputError for a system that is not rendered: half a configuration would look like a whole one.
    """
    switch = contract.switches[name]
    system = _SYSTEMS.get(switch.os)
    if system is None:
        marking = ", ".join(
            f"{speed}G {ecn.min_bytes // 1000} to {ecn.max_bytes // 1000} KB, {ecn.probability_percent} %"
            for speed, ecn in ((speed, contract.marking(speed)) for speed in speeds(contract, name))
        )
        raise InputError(
            f"fabric.switches.{name}.os",
            f"configuration for {switch.os} is not rendered: its commands for PFC are not certain",
            f"configure by hand what lint-fabric lists as the contract; ECN thresholds: {marking}",
        )
    return Fragment(
        name,
        switch.os,
        f"{name}.{system.suffix}",
        system.render(contract, name),
        tuple(line.format(file=f"{name}.{system.suffix}") for line in system.load),
        tuple(line.format(port=next(iter(switch.ports))) for line in system.verify),
        (*system.missing(contract, name), *_spraying(contract)),
    )


def _spraying(contract: Contract) -> tuple[str, ...]:
    return ("adaptive routing (packet spraying) of the fabric",) if contract.adaptive_routing.fabric else ()


def speeds(contract: Contract, name: str) -> tuple[int, ...]:
    """The speeds of a switch's leaf ports, Gb/s, upwards."""
    return tuple(sorted({contract.speed(plug) for plug in contract.switches[name].ports.values()}))
