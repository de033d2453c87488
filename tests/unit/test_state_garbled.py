"""What the kernel's files and `ip` say is read as it stands or refused with its place: 32 outputs that are wrong for
each reader of the lossless, PCIe and rails' slices, and none of them is ever followed by a write."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from railwright.node.state import apply, network_item
from railwright.node.state.command import Said
from tests.unit.kind_nodes import KINDS, KNOBS, MARKS, REGISTER
from tests.unit.state_support import DEVICE, fingerprint, make_node
from tests.unit.test_qos_reading import garbled
from tests.unit.test_state_network import TWO, Network, lay_rails
from tests.unit.wired_kinds import QUEUES, WIRED, Driver

# The file that is garbled, and the one value in it that the writer would change.
FILES = {
    "congestion": KNOBS["np_cnp_dscp"],
    "rdma_marking": MARKS["traffic_class"],
    "queue_cpus": QUEUES["tx-0"],
    "irq_affinity": "/proc/interrupts",
    "pci_register": REGISTER,
}
TEXTS = {
    "congestion": "46\n",
    "rdma_marking": "Global tclass=104\n",
    "queue_cpus": "00000000,0000000f\n",
}
# Texts that are values, as the kernel and the driver write them.
SOUND = {
    "congestion": re.compile(r"[0-9]{1,20}"),
    # Beside rules for single addresses, which are nobody's business here.
    "rdma_marking": re.compile(r"(?ms)|(.*\n)?(Global tclass=)?(-1|[0-9]{1,3})$.*"),
    "queue_cpus": re.compile(r"[0-9a-f]{1,8}(,[0-9a-f]{8})*"),
}


def kept(node: Path) -> dict[str, Any]:
    """All but what a run keeps for itself."""
    return {path: state for path, state in fingerprint(node).items() if not path.startswith(("var", "run"))}


def read(value: str, number: int) -> str:
    return garbled(value)[number].replace("\0", "\x01")


@pytest.mark.parametrize("number", range(32))
@pytest.mark.parametrize("kind", FILES)
def test_a_file_of_the_kernels_that_makes_no_sense_is_named_and_nothing_is_written(
    tmp_path: Path, kind: str, number: int
) -> None:
    made = {**KINDS, **WIRED}[kind]
    node, systemd = made.node(tmp_path / "node")
    place = node / FILES[kind][1:]
    whole = place.read_bytes()
    if kind == "pci_register":
        place.write_bytes(damaged(whole, number))
    else:
        place.write_text(read(TEXTS.get(kind, whole.decode()), number))
    before, text = kept(node), place.read_text(errors="replace")
    entries = [entry for entry in made.entries if DEVICE in str(entry) or kind != "irq_affinity"][:1]
    outcome = apply({"part": entries}, root=str(node), runner=systemd, tools=Driver(node), check=False)
    for failure in outcome.failures:
        assert failure.why
        assert failure.remedy or "expected" in failure.why or "no " in failure.why
        assert "Traceback" not in failure.why
    if kind in SOUND and SOUND[kind].fullmatch(text.strip()) is None:
        assert len(outcome.failures) == 1
    if outcome.failures:
        assert not outcome.changed
        assert kept(node) == before
    else:
        # It was read as another value that can be: then it is a value like any other, and the entry's stands there now.
        assert apply({"part": entries}, root=str(node), runner=systemd, tools=Driver(node)).changed is False


def damaged(space: bytes, number: int) -> bytes:
    """Configuration space that is cut, or whose list of capabilities leads astray."""
    if number < 16:
        return space[: 16 * number]
    data = bytearray(space)
    data[(0x34, 0x61, 0x06, 0x60)[number % 4]] = (0x00, 0x03, 0x60, 0xFF)[number // 4 % 4]
    return bytes(data)


ANSWERS: dict[str, Callable[[Network], str]] = {
    f"ip -N -j -4 {what}": lambda network, what=what: network(["ip", "-N", "-j", "-4", *what.split()]).out  # type: ignore[misc]
    for what in ("address", "rule", "route show table all")
}


@pytest.mark.parametrize("number", range(32))
@pytest.mark.parametrize("asked", ANSWERS)
def test_an_answer_of_ip_that_makes_no_sense_tells_no_back_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str, number: int
) -> None:
    monkeypatch.setattr(network_item, "_SECONDS", 0.0)
    node = make_node(tmp_path / "node")
    lay_rails(node)
    network = Network(node)
    whole = ANSWERS[asked](network)
    text = garbled(whole)[number]
    network.answers[asked] = Said(0, text)
    outcome = apply({"part": TWO[-1:]}, root=str(node), runner=network.systemctl, tools=network)
    told = [failure.why for failure in outcome.failures]
    try:
        rows = json.loads(text or "[]")
        good = isinstance(rows, list) and all(isinstance(row, dict) for row in rows)
    except (ValueError, RecursionError):
        good = False
    if not good:
        assert len(told) == 1
        assert "answered" in told[0] or "form that iproute2" in told[0]
        assert network.calls == []
