"""Keeping work away before an upgrade, and giving the node back: what Slurm, a site's command and a lease are told."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.ansible.playing import PROGRAMS, PROJECT, Run, play

TASKS = PROJECT / "playbooks/tasks"
SINFO = '#!/bin/sh\ncat "$SLURM/state"\n'
SCONTROL = '#!/bin/sh\nprintf "%s " "$@" >>"$SLURM/told"\necho >>"$SLURM/told"\n'
# The jobs of a node end one by one, each time that somebody asks.
SQUEUE = '#!/bin/sh\ncat "$SLURM/jobs"\nsed -i 1d "$SLURM/jobs"\n'


@dataclass
class Site:
    """A controller with Slurm's commands as stand-ins, and one node: this machine."""

    folder: Path

    def run(self, **variables: Any) -> Run:
        page = [
            {
                "name": "Drain and give back",
                "hosts": "gpu_nodes",
                "gather_facts": False,
                "tasks": [
                    {"name": "Drain", "ansible.builtin.include_tasks": {"file": str(TASKS / "drain.yml")}},
                    {
                        "name": "Give back",
                        "ansible.builtin.include_tasks": {"file": str(TASKS / "undrain.yml")},
                    },
                ],
            }
        ]
        (self.folder / "drain.yml").write_text(yaml.safe_dump(page), "utf-8")
        reach = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        inventory = {"gpu_nodes": {"hosts": {"gpu01": reach}}}
        (self.folder / "hosts.yml").write_text(yaml.safe_dump(inventory), "utf-8")
        environment: Mapping[str, str] = {
            "PATH": f"{self.folder / 'bin'}:{PROGRAMS}:{os.environ['PATH']}",
            "SLURM": str(self.folder),
        }
        return play(
            self.folder / "drain.yml", self.folder / "hosts.yml", self.folder / "out",
            variables=variables, environment=environment,
        )  # fmt: skip

    @property
    def told(self) -> list[str]:
        path = self.folder / "told"
        return [line.strip() for line in path.read_text("utf-8").splitlines()] if path.exists() else []


@pytest.fixture
def site(tmp_path: Path) -> Site:
    (tmp_path / "bin").mkdir()
    for name, text in (("sinfo", SINFO), ("scontrol", SCONTROL), ("squeue", SQUEUE), ("hook", SCONTROL)):
        (tmp_path / "bin" / name).write_text(text, "utf-8")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "state").write_text("idle\n", "utf-8")
    (tmp_path / "jobs").write_text("", "utf-8")
    return Site(tmp_path)


def test_slurm_is_told_to_drain_and_to_resume(site: Site) -> None:
    done = site.run(upgrade_drain="slurm")
    assert done.code == 0, done.output
    assert site.told == [
        "update nodename=gpu01 state=drain reason=railwright: driver upgrade",
        "update nodename=gpu01 state=resume",
    ]


def test_a_node_that_somebody_else_has_drained_stays_drained(site: Site) -> None:
    (site.folder / "state").write_text("drained broken fan\n", "utf-8")
    done = site.run(upgrade_drain="slurm")
    assert (done.code, site.told) == (0, []), done.output


def test_what_a_run_of_ours_that_was_broken_off_has_drained_and_leased_is_given_back(site: Site) -> None:
    (site.folder / "state").write_text("drained railwright: driver upgrade\n", "utf-8")
    done = site.run(upgrade_drain="slurm")
    assert (done.code, site.told) == (0, ["update nodename=gpu01 state=resume"]), done.output
    lease = site.folder / "lease"
    lease.write_text("railwright: driver upgrade\n", "utf-8")
    leased = site.run(upgrade_drain="lease", upgrade_lease_file=str(lease))
    assert (leased.code, lease.exists()) == (0, False), leased.output


def test_a_job_that_does_not_end_stops_the_node_and_leaves_it_drained(site: Site) -> None:
    (site.folder / "jobs").write_text("4711\n4712\n", "utf-8")
    done = site.run(upgrade_drain="slurm")
    assert done.failed == {"gpu01"}
    assert [line.split()[2] for line in site.told] == ["state=drain"]


def test_a_sites_command_is_run_with_the_nodes_name(site: Site) -> None:
    done = site.run(
        upgrade_drain="command",
        upgrade_drain_command=["hook", "away"],
        upgrade_undrain_command=["hook", "back"],
    )
    assert done.code == 0, done.output
    assert site.told == ["away gpu01", "back gpu01"]


def test_a_lease_is_made_and_ended(site: Site) -> None:
    lease = site.folder / "lease"
    assert site.run(upgrade_drain="lease", upgrade_lease_file=str(lease)).code == 0
    assert not lease.exists()
    lease.write_text("a tenant\n", "utf-8")
    held = site.run(upgrade_drain="lease", upgrade_lease_file=str(lease))
    assert held.failed == {"gpu01"}
    assert lease.read_text("utf-8") == "a tenant\n"


def test_a_way_that_there_is_none_of_is_refused(site: Site) -> None:
    done = site.run(upgrade_drain="kubernetes")
    assert done.failures("gpu01") == ["upgrade_drain is none, slurm, command or lease."]
