"""Nodes that answer what no module of ours says: each is named and left, and nothing of what it said is acted on.

A forged answer comes from the node's Python, which knows by what it was sent whether it is asked for facts or told to
write. The corpus holds one node for each forgery, in one run with a good node.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from railwright.node.discover import discover
from railwright.node.model import Facts, InputError, to_json
from tests.ansible.playing import Run
from tests.ansible.racks import Rack, build_rack, plain_python, scratch
from tests.fake_nodes import FakeNode

MIB = 1 << 20
# How long a task may take here; the drip would take 60.
SECONDS = 20
TEMPLATE = "{{ lookup('ansible.builtin.pipe', 'touch TRAP') }}"
GARBLED = "\x1b[2J\x1b]0;owned\x07\u202egnol\u2066\x00"
# What a forged answer may hold beside what its module says, and what Ansible does with it when it comes from elsewhere.
STEERING = {
    "add_host": {
        "host_name": "smuggled",
        "groups": ["gpu_nodes"],
        "host_vars": {"ansible_connection": "local"},
    },
    "add_group": "smuggled_group",
    "ansible_stats": {"data": {"smuggled": 1}, "per_host": False, "aggregate": False},
    "_ansible_no_log": True,
    "_ansible_delegated_vars": {"ansible_host": "smuggled"},
    "ansible_included_var_files": ["/etc/passwd"],
    "notify": ["smuggled"],
    "skipped": True,
    "unreachable": True,
    "results": [{"failed": True}],
    "exception": TEMPLATE,
    "warnings": [GARBLED],
    "deprecations": [{"msg": GARBLED, "version": "9"}],
}
VARIABLES = {
    "node_output": "/smuggled",
    "node_plan": TEMPLATE,
    "node_policy": {"workload": TEMPLATE},
    "ansible_connection": "local",
    "ansible_host": "smuggled",
    "ansible_ssh_common_args": "-o ProxyCommand=smuggled",
    "ansible_python_interpreter": "/smuggled",
    "discovered_interpreter_python": "/smuggled",
}

# Forgery to a sentence that its node fails with.
FORGED_FACTS: dict[str, tuple[str, str]] = {
    "nothing": ("printf ''", "The node said nothing"),
    "noise": (r"printf 'Welcome!\n\033[2J to {{ 7*7 }} this node\n'", "Welcome!"),
    "no-object": ("echo '[1, 2]'", "The node said"),
    "half": ('printf \'{"changed": false, "ansible_facts": {"node": {\'', "The node said"),
    "deep": (
        "printf '{\"a\":'; head -c 200000 /dev/zero | tr '\\0' '['; head -c 200000 /dev/zero | tr '\\0' ']'; echo '}'",
        "nested deeper than any answer",
    ),
    "large": (
        f"printf '{{\"changed\": false, \"a\": \"'; head -c {100 * MIB} /dev/zero | tr '\\0' a; echo '\"}}'",
        "where 16777216 are enough",
    ),
    "loud": (f"head -c {100 * MIB} /dev/zero | tr '\\0' a >&2", "where 16777216 are enough"),
    "drip": ("for n in $(seq 300); do printf a; sleep 0.2; done", f"Timed out after {SECONDS} second"),
    "killed": ("kill -9 $$", "The node said"),
}


@dataclass
class Story:
    """One run of site.yml over the corpus and a good node. sentences: what each forged node is to fail with."""

    rack: Rack
    trap: Path
    sentences: dict[str, str]
    run: Run


def forged(folder: Path, facts: str, state: str = "exit 1") -> FakeNode:
    """A node whose Python answers with what these lines of shell print."""
    (folder / "scratch").mkdir(parents=True)
    node = FakeNode(folder.name, folder)
    node.python.write_text(
        "#!/bin/sh\n"
        'sent=$(cat | head -c 4000000 | tr -d "\\0")\n'
        f'case "$sent" in *node_state*) {state};; *) {facts};; esac\n',
        encoding="utf-8",
    )
    node.python.chmod(0o755)
    return node


def answering(folder: Path, answer: Any, state: Any = None) -> FakeNode:
    """A node whose Python answers with this JSON."""
    folder.mkdir()
    for name, content in (("facts", answer), ("state", state)):
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
    return forged(folder, f"cat {folder}/facts.json", f"cat {folder}/state.json")


def altered(facts: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"changed": False, "ansible_facts": {"node": {**facts, **changes}}}


def forged_forms(facts: dict[str, Any], trap: Path) -> dict[str, tuple[Any, Any, str]]:
    """Node to its answers and to a sentence that it fails with."""
    nic = dict(facts["nics"][0])
    true = altered(facts)
    template = TEMPLATE.replace("TRAP", str(trap))
    diff = {"before_header": GARBLED, "after_header": "x", "before": GARBLED, "after": "y\n"}
    state = {"changed": True, "slices": {}, "failures": [], "reboot_needed": [], "diff": []}
    item = {
        "id": "a",
        "kind": "file",
        "changed": True,
        "action": "write",
        "before": 1,
        "after": 2,
        "note": "",
    }
    return {
        "name-is-a-path": (
            altered(facts, host={**facts["host"], "name": f"../..{trap}"}),
            None,
            "facts.host.name",
        ),
        "name-is-a-template": (
            altered(facts, host={**facts["host"], "name": template}),
            None,
            "facts.host.name",
        ),
        "null-facts": (
            altered(facts) | {"ansible_facts": {"node": None}},
            None,
            "expected dict, found NoneType",
        ),
        "no-facts": ({"changed": False, "ansible_facts": {}}, None, "ansible_facts.node: missing"),
        "text-facts": ({"changed": False, "ansible_facts": template}, None, "ansible_facts.node: missing"),
        "wrong-type": (altered(facts, gpus={"0": 1}), None, "facts.gpus: expected list, found dict"),
        "unknown-key": (altered(facts, **{GARBLED: 1}), None, "unknown key"),
        "huge-integer": (
            altered(facts, nics=[nic | {"rate": 10**4000}]),
            None,
            "a number that no machine has",
        ),
        "endless-integer": (
            json.dumps(true).replace('"rate": ', '"rate": ' + "9" * 100_000, 1),
            None,
            "The node said",
        ),
        "infinite": (
            altered(facts, nics=[nic | {"rate": float("inf")}]),
            None,
            "a number that no machine has",
        ),
        "not-a-number": (
            altered(facts, nics=[nic | {"rate": float("nan")}]),
            None,
            "a number that no machine has",
        ),
        "bool-for-number": (altered(facts, nics=[nic | {"rate": True}]), None, "expected int, found bool"),
        "null-byte": (altered(facts, nics=[nic | {"netdev": "eth0\0"}]), None, "facts.nics[0].netdev"),
        "own-parent": (
            altered(facts, pci=[p | {"parent": p["address"]} for p in facts["pci"]]),
            None,
            "is its own parent",
        ),
        "twice": (altered(facts, nics=[nic, nic]), None, "stands twice"),
        "crowd": (altered(facts, notes=["n"] * 3_000_000), None, "at most"),
        "failing": (
            {"failed": True, "msg": GARBLED + template, **STEERING, "ansible_facts": VARIABLES},
            None,
            "\\u001b[2J",
        ),
        "steering": (
            true | STEERING | {"ansible_facts": {**VARIABLES, "node": facts}},
            state | STEERING | {"diff": [diff]},
            "",
        ),
        "state-of-other-form": (
            true,
            state | {"reboot_needed": "yes"},
            "answer.reboot_needed: expected list, found str",
        ),
        "state-without-slices": (true, {"changed": True}, "answer.slices: missing"),
        "state-item": (
            true,
            state | {"slices": {template: {"changed": 1, "items": [item]}}},
            "expected bool",
        ),
        "state-diff": (true, state | {"diff": [{"before": ["x"]}]}, "expected str, found list"),
        "state-extra": (
            true,
            state | {"slices": {"../..": {"changed": True, "items": [item | {"x": 1}]}}},
            "unknown key",
        ),
    }


@pytest.fixture(scope="module")
def story() -> Iterator[Story]:
    with scratch() as place:
        python = plain_python("3.9", "3.10", "3.11", "3.12")
        rack = build_rack(place, {"good": ("2s_8xh100_10xcx7", {})}, python)
        trap = place.nodes / "trap"
        facts = to_json(discover(rack.nodes[0].tree))
        shells = [forged(place.nodes / name, lines) for name, (lines, _) in FORGED_FACTS.items()]
        forms = forged_forms(facts, trap)
        answers = [answering(place.nodes / name, first, then) for name, (first, then, _) in forms.items()]
        rack = Rack(place.nodes, (*rack.nodes, *shells, *answers))
        rack.write_inventory()
        run = rack.play("site.yml", "--diff", environment={"ANSIBLE_TASK_TIMEOUT": str(SECONDS)})
        sentences = {name: sentence for name, (_, sentence) in FORGED_FACTS.items()}
        yield Story(rack, trap, sentences | {name: said for name, (*_, said) in forms.items()}, run)


def test_every_node_that_forges_an_answer_fails_with_a_sentence_that_says_what_is_wrong(story: Story) -> None:
    said = {name: " ".join(story.run.failures(name)) for name in story.sentences}
    assert {name: words for name, words in said.items() if story.sentences[name] not in words} == {}
    assert {name for name in said if not said[name]} == set()
    assert story.run.failed == story.sentences.keys()


def test_a_good_node_beside_them_is_tuned(story: Story) -> None:
    assert story.run.failures("good") == []
    assert story.run.hosts["good"]["changed"] > 0


def test_nothing_is_evaluated_and_no_file_is_made_but_the_records_of_the_inventorys_nodes(
    story: Story,
) -> None:
    assert not story.trap.exists()
    output = story.rack.output
    written = {path.relative_to(output).as_posix() for path in output.rglob("*") if path.is_file()}
    names = {node.name for node in story.rack.nodes}
    nouns = ("changes", "facts", "findings", "plan", "policy", "ports")
    assert written <= {f"{name}/{noun}.json" for name in names for noun in nouns} | {
        "fleet.json",
        "fleet-record.json",
        "report.json",
        "index.html",
    }
    taken = {name for name in names if (output / name / "facts.json").exists()}
    assert taken == {"good", "steering", *(name for name in names if name.startswith("state-"))}


def test_no_host_is_added_and_no_variable_set_by_an_answer(story: Story) -> None:
    assert story.run.hosts.keys() == {node.name for node in story.rack.nodes}
    (read, *_) = story.run.results("node_read", "steering")
    assert read["ansible_facts"].keys() == {"node", "node_asked"}
    assert read["ansible_facts"]["node"].keys() == {"kept", "sha256"}
    # Ansible 2.19 says of itself that nothing is to be hidden.
    assert not {key for key, value in STEERING.items() if key in read and read[key] == value}
    policy = json.loads((story.rack.output / "steering/policy.json").read_text("utf-8"))
    assert policy["workload"] == "train-large"


def test_no_answer_steers_the_terminal_of_who_looks_on(story: Story) -> None:
    assert not {"\x1b", "\x07", "\u202e", "\u2066", "\0"} & set(story.run.output)


def test_answers_of_a_hundred_mebibytes_take_less_than_500_of_memory(story: Story) -> None:
    assert story.run.peak_mib < 500


@pytest.mark.parametrize(("devices", "most"), [("gpus", 128), ("nics", 2048)])
def test_a_crowd_of_devices_is_no_machine(devices: str, most: int) -> None:
    def machine(count: int) -> dict[str, Any]:
        crowd = [{"name": f"d{n}", "index": n} for n in range(count)]
        if devices == "nics":
            crowd = [{"name": device["name"]} for device in crowd]
        return {"schema": "railwright.facts/1", "witnesses": [], devices: crowd}

    Facts.read(machine(most))
    with pytest.raises(InputError, match=f"facts.{devices}: found {most + 1} entries"):
        Facts.read(machine(most + 1))
