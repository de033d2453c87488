"""Damaged switch files, inventories and host outputs: a sentence with its place, never a traceback."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from railwright.fabric import Found, document, lint, read_hosts, read_inventory
from railwright.node.model import InputError
from tests.unit.fabric_samples import (
    PORTS,
    RIGHT_EOS,
    RIGHT_NVUE,
    RIGHT_NXOS,
    as_file,
    contract,
    contract_data,
    result,
    right_sonic,
)
from tests.unit.test_fabric_hosts import HOSTS

# RAILWRIGHT_FUZZ: how many mutants of each kind.
MUTANTS = int(os.environ.get("RAILWRIGHT_FUZZ", "400"))
TEXTS = {
    "sonic": as_file(
        right_sonic(*PORTS["sonic"])
        | {
            "BUFFER_PG": {"Ethernet0|3": {"profile": "x"}},
            "BUFFER_PROFILE": {"x": {"xoff": "240000", "dynamic_th": "0", "pool": "p", "size": "1"}},
            "BUFFER_POOL": {"p": {"size": "50000000"}},
        }
    ),
    "nvue": RIGHT_NVUE,
    "eos": RIGHT_EOS,
    "nxos": RIGHT_NXOS,
}
ODD = (
    "",
    "-1",
    "999999999999",
    "\u202e",
    "\x1b[2J",
    "[]",
    "{}",
    "null",
    "é",
    "3,,4",
    "0-63",
    "7-0",
    "|",
    ": :",
    "!",
)


def damaged(text: str, chance: random.Random) -> str:
    """The text with one to four damages."""
    for _ in range(chance.randint(1, 4)):
        lines = text.split("\n")
        line = chance.randrange(len(lines))
        kind = chance.randrange(7)
        if kind == 0:
            del lines[line]
        elif kind == 1:
            lines.insert(chance.randrange(len(lines) + 1), lines[line])
        elif kind == 2:
            words = lines[line].split(" ")
            words[chance.randrange(len(words))] = chance.choice(ODD)
            lines[line] = " ".join(words)
        elif kind == 3:
            lines[line] = lines[line][: chance.randrange(len(lines[line]) + 1)]
        elif kind == 4:
            lines[line] = " " * chance.randrange(9) + lines[line].lstrip()
        elif kind == 5:
            digits = [place for place, letter in enumerate(lines[line]) if letter.isdigit()]
            if digits:
                place = chance.choice(digits)
                lines[line] = lines[line][:place] + str(chance.randrange(100)) + lines[line][place + 1 :]
        else:
            lines = lines[: line + 1]
        text = "\n".join(lines) or "\n"
    return text


def sentence(use: Callable[[], object]) -> InputError | None:
    """What was said about an input that cannot be used; anything but a sentence is a traceback here."""
    try:
        json.dumps(use())
    except InputError as error:
        return error
    return None


@pytest.mark.parametrize("system", TEXTS)
def test_a_damaged_switch_file_gives_findings_or_a_sentence(system: str) -> None:
    chance = random.Random(20261130)  # noqa: S311
    of = contract(system)
    told = []
    for _ in range(MUTANTS):
        text = damaged(TEXTS[system], chance)
        told.append(sentence(lambda text=text: document(result(of, **{system: text}))))  # type: ignore[misc]
    said = [error for error in told if error is not None]
    assert 0 < len(said) < MUTANTS
    assert all(error.where.startswith(f"{system}.cfg") and error.why for error in said)


def test_a_damaged_inventory_gives_a_contract_or_a_sentence(tmp_path: Path) -> None:
    chance = random.Random(20261130)  # noqa: S311
    ecn = {"400": {"min_bytes": 1, "max_bytes": 2, "probability_percent": 5}}
    text = yaml.safe_dump({"fabric": contract_data("sonic", "eos", ecn=ecn)})
    path = tmp_path / "all.yml"
    told = []
    for _ in range(MUTANTS):
        path.write_text(damaged(text, chance), encoding="utf-8")
        told.append(sentence(lambda: document(lint(read_inventory(path), {}))))
    said = [error for error in told if error is not None]
    assert 0 < len(said) < MUTANTS
    assert all(str(path) in error.where and error.why for error in said)


def test_damaged_host_outputs_give_findings_or_a_sentence() -> None:
    chance = random.Random(20261130)  # noqa: S311
    text = json.dumps(HOSTS, indent=1)
    found = Found(contract("sonic"), "fabric", None, policy_seen=False)
    told = []
    for _ in range(MUTANTS):
        try:
            data = json.loads(damaged(text, chance))
        except ValueError:
            continue
        told.append(
            sentence(lambda data=data: document(lint(found, {}, read_hosts(data, "hosts.json"))))  # type: ignore[misc]
        )
    said = [error for error in told if error is not None]
    assert 0 < len(said) < len(told)
    assert all(error.where.startswith("hosts.json") and error.why for error in said)
