"""The filters as Ansible sees them: documentation, types at the border, errors with their place."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleError
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import filter_loader
from ansible.template import Templar, trust_as_template

from tests.ansible.playing import PROJECT

FILTERS = PROJECT / "filter_plugins"
filter_loader.add_directory(str(FILTERS))


def filters() -> dict[str, Callable[..., Any]]:
    import fabric  # filter_plugins is on pytest's path
    import install
    import node
    import upgrade

    plugins = (fabric, install, node, upgrade)
    return {name: one for plugin in plugins for name, one in plugin.FilterModule().filters().items()}


def render(expression: str, **variables: object) -> Any:
    template = trust_as_template("{{ " + expression + " }}")
    return Templar(loader=DataLoader(), variables=variables).template(template)


@pytest.mark.parametrize("name", sorted(filters()))
def test_a_filter_is_documented_as_it_is_called(name: str) -> None:
    document = yaml.safe_load((FILTERS / f"{name}.yml").read_text("utf-8"))
    options = document["DOCUMENTATION"]["options"]
    parameters = list(inspect.signature(filters()[name]).parameters.values())
    assert document["DOCUMENTATION"]["name"] == name
    assert list(options) == ["_input", *(parameter.name for parameter in parameters[1:])]
    positional = document["DOCUMENTATION"].get("positional", "")
    assert [word.strip() for word in positional.split(",") if word] == list(options)[1:]
    for parameter, (_, option) in zip(parameters, options.items(), strict=True):
        assert option.get("required", False) == (parameter.default is inspect.Parameter.empty)
        assert "default" not in option or option["default"] == parameter.default


def test_every_sidecar_has_its_filter() -> None:
    assert {path.stem for path in FILTERS.glob("*.yml")} == set(filters())


PLANNED = {
    "schema": "railwright.plan/1",
    "status": "planned",
    "slices": {
        "nccl_conf": {
            "stage": "runtime",
            "entries": [
                {"kind": "file", "path": "/etc/nccl.conf", "content": "{{ 1 + 1 }}\n", "mode": "0644"}
            ],
            "because": "a test",
        },
        "boot_unit": {
            "stage": "runtime",
            "entries": [
                {"kind": "file", "path": "/usr/local/lib/x.pyz", "sha256": "0" * 64, "mode": "0644"},
                {"kind": "systemd_unit", "name": "x.service", "enabled": True, "state": "started"},
            ],
            "because": "a test",
        },
    },
}
FINDING = {
    "code": "nccl_conf.content",
    "where": "/etc/nccl.conf",
    "why": "differs",
    "remedy": "Run retune.yml",
}
REFUSED = {
    "schema": "railwright.plan/1",
    "status": "refused",
    "refusals": [{**FINDING, "code": "gpus.none", "severity": "error"}],
}


def test_a_value_that_looks_like_a_template_stays_as_it_is() -> None:
    (entry,) = render("plan | slice_entries('nccl_conf')", plan=PLANNED)
    assert entry["content"] == "{{ 1 + 1 }}\n"


def test_a_filter_gives_plain_data_for_lazy_and_tagged_data() -> None:
    tagged = trust_as_template("/etc/nccl.conf")
    entry = {"kind": "file", "path": tagged, "content": "", "mode": "0644"}
    slices = {"nccl_conf": {"stage": "runtime", "entries": [entry], "because": ""}}
    found = filters()["node_watch"]({**PLANNED, "slices": slices})
    assert type(tagged) is not str
    assert [type(path) for path in found["files"]] == [str]


def test_a_slice_that_the_plan_does_not_hold_has_no_entries() -> None:
    assert render("plan | slice_entries('sysctls')", plan=PLANNED) == []


def test_a_refused_plan_is_not_taken_for_one_that_leaves_slices_alone() -> None:
    with pytest.raises(AnsibleError, match=r"plan: was refused, so there is nothing to write"):
        render("plan | slice_entries('nccl_conf')", plan=REFUSED)


def test_a_refusal_is_told_with_its_code_its_place_its_reason_and_its_remedy() -> None:
    assert render("plan | node_refusal", plan=REFUSED) == (
        "This node cannot be planned, and nothing is written on it.\n"
        "gpus.none: /etc/nccl.conf: differs. Run retune.yml"
    )
    assert render("plan | node_refusal", plan=PLANNED) == ""


def test_a_nodes_own_words_cannot_steer_a_terminal() -> None:
    refusal = {**FINDING, "code": "gpus.none", "severity": "error", "where": "\x1b[2J\nok: [node1]"}
    told = render("plan | node_refusal", plan={**REFUSED, "refusals": [refusal]})
    assert len(told.splitlines()) == 2
    assert told.isascii()
    assert "\x1b" not in told


def test_bad_input_is_told_with_its_place() -> None:
    with pytest.raises(AnsibleError, match=r"node_policy\.worklod: unknown key"):
        render("policy | node_policy", policy={"worklod": "train-large"})


def test_a_policy_is_filled_with_defaults_and_the_digest_of_the_boot_program() -> None:
    from railwright.fleet import zipapp

    policy = render("{} | node_policy")
    assert policy["workload"] == "train-large"
    assert policy["boot"] == {"sha256": zipapp.digest(), "gate": []}
    pinned = {"boot": {"sha256": "1" * 64}}
    assert render("policy | node_policy", policy=pinned)["boot"] == {**pinned["boot"], "gate": []}


def test_a_program_that_this_checkout_does_not_build_is_not_promised() -> None:
    with pytest.raises(
        AnsibleError, match=f"the plan asks for the program {'0' * 64}, and this checkout builds"
    ):
        render("plan | node_blobs", plan=PLANNED)


def test_a_check_looks_at_the_files_and_units_of_the_plan() -> None:
    assert render("plan | node_watch", plan=PLANNED) == {
        "files": ["/etc/nccl.conf", "/usr/local/lib/x.pyz"],
        "units": ["x.service"],
        "packages": [],
    }


def test_what_was_accepted_or_only_told_or_not_looked_at_is_no_problem() -> None:
    row = {"name": "irq_affinity.cpus", "ok": False, "detail": "not looked at", "skipped": True}
    findings = [
        {**FINDING, "severity": "error", "accepted": "known"},
        {**FINDING, "severity": "info", "code": "facts.note"},
    ]
    found = {"findings": findings, "checks": [row]}
    assert render("found | node_problems(plan)", found=found, plan=PLANNED) == ""


def test_an_open_error_and_a_failed_check_are_problems_with_their_remedy() -> None:
    errors = {**PLANNED, "findings": [{**FINDING, "code": "gpu.nvlink", "severity": "error"}]}
    rows = [
        {"name": "nccl_conf.content", "ok": False, "detail": "told above", "skipped": False},
        {"name": "gpu.count", "ok": False, "detail": "7 of 8", "skipped": False},
    ]
    found = {"findings": [{**FINDING, "severity": "warning"}], "checks": rows}
    assert render("found | node_problems(plan)", found=found, plan=errors).splitlines() == [
        "This node is not as it should be.",
        "gpu.nvlink: /etc/nccl.conf: differs. Run retune.yml",
        "nccl_conf.content: /etc/nccl.conf: differs. Run retune.yml",
        "gpu.count: 7 of 8",
    ]


def test_changes_of_several_calls_are_one_and_calls_that_were_left_out_add_nothing() -> None:
    failure = {"where": "slices.sysctls[0]", "why": "Invalid argument", "remedy": "give another value"}
    results = [
        {
            "changed": True,
            "slices": {"nccl_conf": {"changed": True, "items": []}},
            "reboot_needed": ["file:/etc/a"],
        },
        {"skipped": True, "changed": False},
        {
            "changed": False,
            "slices": {"sysctls": {"changed": False, "items": []}},
            "failures": [failure],
            "reboot_needed": ["file:/etc/b", "file:/etc/a"],
        },
        {},
    ]
    assert render("results | node_changes", results=results) == {
        "changed": True,
        "slices": {"nccl_conf": {"changed": True, "items": []}, "sysctls": {"changed": False, "items": []}},
        "failures": [failure],
        "reboot_needed": ["file:/etc/a", "file:/etc/b"],
    }
    assert render("[{}] | node_changes") == {}


def test_a_slice_that_a_plan_has_no_use_for_goes_back_unless_the_policy_leaves_it_alone() -> None:
    assert set(render("plan | node_slices", plan=PLANNED)) == set(PLANNED["slices"])
    found = render("plan | node_slices({'manage': {'irq_affinity': false}})", plan=PLANNED)
    assert {name for name, entries in found.items() if entries == []} >= {"gpu_order", "sysctls"}

    assert found["nccl_conf"] == render("plan | slice_entries('nccl_conf')", plan=PLANNED)
    assert "irq_affinity" not in found


RANKED = {
    **PLANNED,
    "gpus": [
        {
            "index": 0,
            "name": "GPU0",
            "pci": "0000:18:00.0",
            "numa": 0,
            "rail": 0,
            "nics": ["mlx5_0"],
            "path": "PIX",
            "cpus": "1-2",
            "because": "a test",
            "minor": 0,
        }
    ],
    "ranks": [
        {
            "rank": 0,
            "gpu": "GPU0",
            "nic": "mlx5_0",
            "rail": 0,
            "cpus": "1-2",
            "numa": 0,
            "command": "numactl --physcpubind=1-2 --preferred=0",
            "cores": "1-2",
        }
    ],
}


def test_launchers_get_their_files_by_filter() -> None:
    gres = render("plan | node_launch('gres', 'gpu-7')", plan=RANKED)
    assert gres == "NodeName=gpu-7 Name=gpu File=/dev/nvidia0 Cores=1-2\n"
    assert (
        render("plan | node_launch(form='rankfile', host='gpu-7')", plan=RANKED) == "rank 0=gpu-7 slot=1-2\n"
    )
    assert render("plan | node_launch('torchrun')", plan=RANKED).startswith("#!/bin/sh\n")


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ("node_launch('pbs')", "launch: found 'pbs' .*expected one of table, gres, rankfile, torchrun"),
        ("node_launch('gres')", "host: the node's name is not known"),
        ("node_launch('gres', 'a b')", "host: found 'a b'"),
        ("node_explain('GPU9')", "GPU9: the plan has no such device .*one of GPU0"),
    ],
)
def test_a_launch_file_that_cannot_be_made_is_told_with_its_place(call: str, why: str) -> None:
    with pytest.raises(AnsibleError, match=why):
        render(f"plan | {call}", plan=RANKED)


def test_a_refused_plan_has_no_launch_file_and_explains_itself() -> None:
    with pytest.raises(AnsibleError, match="plan: was refused, so nothing can be launched by it: differs"):
        render("plan | node_launch('table')", plan=REFUSED)
    refused = {**RANKED, **REFUSED, "ranks": []}
    assert "refused at /etc/nccl.conf: differs" in render("plan | node_explain('GPU0')", plan=refused)


def test_nccls_file_is_what_the_slice_writes() -> None:
    assert render("plan | nccl_conf", plan=PLANNED) == "{{ 1 + 1 }}\n"
    assert render("plan | nccl_conf", plan={**PLANNED, "slices": {}}) == ""


def test_a_policy_holds_what_its_presets_say() -> None:
    policy = render("policy | node_policy", policy={"presets": ["dell-xe9680-h200"]})
    assert {entry["source"] for entry in policy["nics"]} == {"preset dell-xe9680-h200"}
    with pytest.raises(AnsibleError, match=r"node_policy\.presets\[0\]: there is no preset 'dgx'"):
        render("policy | node_policy", policy={"presets": ["dgx"]})
