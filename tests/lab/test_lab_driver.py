"""The planned driver with the real apt: one set, pinned and held, one transaction to another, and the way back."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from railwright.fleet import upgrade
from railwright.node.model import Facts, Plan, Policy, Slice, to_json
from railwright.node.model.software import Package
from railwright.node.state import Outcome, apply
from railwright.plan import fabric_manager, nvidia_driver
from railwright.plan import packages as package_plans
from tests.lab import chroots, packages
from tests.lab.chroots import Chroot
from tests.unit.stack_support import H100, machine, policy, software

OLD, NEW = packages.OLDER_DRIVER, packages.DRIVER
SET = ("nvidia-open", "nvidia-kernel-open-dkms", "nvidia-persistenced", "nvidia-utils", "nvidia-fabricmanager",
       "libnvidia-nscq")  # fmt: skip
ARCHIVE = {"name": "lab", "uris": "file:/srv/archive", "suites": packages.SUITE, "components": packages.COMPONENT,
           "trusted": True}  # fmt: skip
# Half of an older branch, as some hand left it, under names that this archive gave it then.
LEFT = packages.Package("nvidia-kernel-dkms", "570.211.01-1", "proprietary modules of another branch")


@pytest.fixture(scope="module")
def archive(ready: None, tmp_path_factory: pytest.TempPathFactory) -> packages.Archive:
    return packages.make(Path(tmp_path_factory.mktemp("driver")) / "made", [*packages.standins(), LEFT])


@pytest.fixture
def node(archive: packages.Archive, tmp_path: Path) -> Iterator[Chroot]:
    with chroots.entered(tmp_path / "root") as chroot:
        shutil.copytree(archive.folder, chroot.root / "srv/archive")
        yield chroot


def facts() -> Facts:
    """Eight H100 behind four NVSwitches; a chroot has no kernel."""
    found = machine(*[H100] * 8, switches=4, software=software(kernels=(), next_kernel=None))
    return replace(found, host=replace(found.host, kernel=None))


def asked(version: str) -> Policy:
    return policy(version, driver={"packages": ["nvidia-utils"]}, software={"sources": [ARCHIVE], "wait": 2})


def plan_for(version: str) -> Plan:
    wanted, node = asked(version), facts()
    parts = {
        "package_sources": package_plans.sources_slice(node, wanted)[0],
        "nvidia_driver": nvidia_driver.slice_of(node, wanted)[0],
        "fabric_manager": fabric_manager.slice_of(node, wanted)[0],
    }
    slices: dict[str, Slice] = {name: part for name, part in parts.items() if part is not None}
    return Plan(schema="railwright.plan/1", status="planned", slices=slices)


def write(node: Chroot, version: str, check: bool = False) -> Outcome:
    """As the playbook does it: sources and index in one call, the sets in the next."""
    slices = {name: to_json(part.entries) for name, part in plan_for(version).slices.items()}
    sources = {"package_sources": slices.pop("package_sources")}
    first = apply(sources, root=str(node.root), tools=node.tools, check=check)
    assert first.failures == (), first.failures
    return apply(slices, root=str(node.root), tools=node.tools, check=check)


def standing(node: Chroot) -> dict[str, str]:
    return {name: version for name, version in node.versions("*nvidia*").items() if "container" not in name}


def test_the_set_stands_at_one_version_and_the_second_run_changes_nothing(node: Chroot) -> None:
    done = write(node, OLD)
    assert done.failures == (), done.failures
    assert standing(node) == dict.fromkeys(SET, f"{OLD}-1 held")
    again = write(node, OLD)
    assert (again.changed, again.failures) == (False, ())


def test_without_holds_the_pin_alone_keeps_every_other_version_out(node: Chroot) -> None:
    write(node, OLD)
    node.must(f"apt-mark unhold {' '.join(SET)}")
    # What an image recipe did that got the fabric manager of another driver: a name without its version, and a glob.
    for words in (
        "dist-upgrade",
        "install nvidia-fabricmanager",
        "install nvidia-open",
        "install nvidia-imex",
    ):
        said = node.must(f"apt-get -s {words} 2>&1 || true")
        assert f"({NEW}" not in said, words
    chosen = node.must("apt-cache policy nvidia-fabricmanager")
    assert f"Candidate: {OLD}-1\n" in chosen
    moved = node.must("apt-get -s install nvidia-fabricmanager-570 2>&1 || true")
    assert "Inst nvidia-fabricmanager-580" not in moved


def test_another_version_is_one_transaction_that_leaves_nothing_of_the_first(node: Chroot) -> None:
    write(node, OLD)
    log = node.root / "var/log/apt/history.log"
    before = log.read_text("utf-8").count("Start-Date")
    done = write(node, NEW)
    assert done.failures == (), done.failures
    assert standing(node) == dict.fromkeys(SET, f"{NEW}-1 held")
    assert log.read_text("utf-8").count("Start-Date") == before + 1
    assert "packages:nvidia_driver" in done.reboot_needed


def test_what_another_branch_left_goes_in_the_same_transaction(node: Chroot) -> None:
    write(node, OLD)
    sources = {"package_sources": to_json(plan_for(OLD).slices["package_sources"].entries)}
    apply(sources, root=str(node.root), tools=node.tools)
    node.must(f"apt-mark unhold {' '.join(SET)} && rm {nvidia_driver.PIN}")
    node.must("apt-get -q -y install nvidia-kernel-dkms=570.211.01-1 nvidia-open- nvidia-kernel-open-dkms-")
    done = write(node, NEW)
    assert done.failures == (), done.failures
    assert standing(node) == dict.fromkeys(SET, f"{NEW}-1 held")


def test_the_way_back_is_the_recorded_set_pinned_and_held(node: Chroot) -> None:
    write(node, OLD)
    stood = {name: version.split()[0] for name, version in standing(node).items()}
    rows = tuple(Package(name, version, held=True) for name, version in stood.items())
    seen = facts()
    assert seen.software is not None
    recorded = upgrade.installed(replace(seen, software=replace(seen.software, packages=rows)))
    assert recorded == stood
    write(node, NEW)
    slices = upgrade.way_back(plan_for(NEW), recorded)
    back = apply(slices, root=str(node.root), tools=node.tools)
    assert back.failures == (), back.failures
    assert standing(node) == dict.fromkeys(SET, f"{OLD}-1 held")
    assert f"Candidate: {OLD}-1\n" in node.must("apt-cache policy nvidia-open")


def test_a_dry_run_tells_of_the_set_and_writes_nothing(node: Chroot) -> None:
    before = standing(node)
    told = write(node, OLD, check=True)
    assert told.failures == (), told.failures
    assert told.changed
    assert standing(node) == before == {}
    assert not (node.root / nvidia_driver.PIN.lstrip("/")).exists()
