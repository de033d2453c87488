"""The writer's packages with the real dnf 4 and rpm, which come from Debian's archive: for `make lab-stack`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from railwright.node.state import Outcome, apply, revert
from tests.lab import chroots
from tests.lab.chroots import Chroot

SOURCE = "/etc/yum.repos.d/railwright-lab.repo"
OLD, NEW = "3:580.126.20-1.el9", "3:580.173.02-1.el9"
DRIVER = ("nvidia-open", "nvidia-kernel", "nvidia-utils", "nvidia-fabricmanager")
TOOLS = "dnf rpm createrepo-c dnf-plugins-core"
SPEC = """Name: {name}
Epoch: {epoch}
Version: {version}
Release: 1.el9
Summary: stand-in
License: none
BuildArch: noarch
{more}
%description
stand-in
%files
"""
Entry = dict[str, Any]


@pytest.fixture(scope="module")
def root(ready: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chroot]:
    """A root with dnf in it, and a repository of stand-ins as a folder."""
    with chroots.entered(Path(tmp_path_factory.mktemp("dnf")) / "root") as chroot:
        install_tools(chroot)
        for version in ("580.126.20", "580.173.02"):
            needs = f"Requires: nvidia-kernel = 3:{version}-1.el9\nRequires: nvidia-utils = 3:{version}-1.el9"
            build(chroot, "nvidia-open", version, more=needs)
            for name in DRIVER[1:]:
                build(chroot, name, version)
        build(chroot, "nvidia-fabric-manager", "570.1", more="Conflicts: nvidia-fabricmanager")
        build(chroot, "dcgm", "1", epoch=0, more="Requires: nvidia-fabric-manager")
        chroot.must("createrepo_c -q /srv/rpms")
        yield chroot


def install_tools(chroot: Chroot) -> None:
    """From the archive that this machine's apt names."""
    for place in ("etc/apt/sources.list", "etc/apt/sources.list.d", "etc/apt/apt.conf.d", "etc/resolv.conf"):
        here, there = Path("/") / place, chroot.root / place
        if here.is_dir():
            shutil.copytree(
                here, there, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*backports*", "*railwright*")
            )
        elif here.exists():
            shutil.copy(here, there)
    python = next(path.name for path in sorted((chroot.root / "usr/bin").glob("python3.[0-9]*")))
    chroot.must(f"ln -sf {python} /usr/bin/python3; apt-get -q update")
    chroot.must(f"apt-get -q -y --no-install-recommends install {TOOLS}")
    # Debian's dnf has a repository of its own for what was downloaded, which RHEL's has not.
    chroot.must(
        "sed -i 's/^enabled.*/enabled = false/' /etc/dnf/plugins/local.conf; mkdir -p /etc/yum.repos.d /srv/rpms"
    )


def build(chroot: Chroot, name: str, version: str, epoch: int = 3, more: str = "") -> None:
    chroot.write(f"/tmp/{name}.spec", SPEC.format(name=name, version=version, epoch=epoch, more=more))
    chroot.must(f"rpmbuild -bb --define '_rpmdir /srv/rpms' --quiet /tmp/{name}.spec")


def sources() -> dict[str, list[Entry]]:
    text = "[railwright-lab]\nname=lab\nbaseurl=file:///srv/rpms\nenabled=1\ngpgcheck=0\n"
    return {
        "package_sources": [
            {"kind": "file", "path": SOURCE, "content": text},
            {"kind": "package_index", "system": "rpm", "sources": [SOURCE], "wait": 5},
        ]
    }


def wanted(versions: dict[str, str | None]) -> dict[str, list[Entry]]:
    entry = {"kind": "packages", "name": "part", "system": "rpm", "versions": versions, "sources": [SOURCE]}
    return {"part": [{**entry, "wait": 5}]}


def do(chroot: Chroot, slices: dict[str, list[Entry]], **more: Any) -> Outcome:
    return apply(slices, root=str(chroot.root), tools=chroot.tools, **more)


def why(outcome: Outcome) -> str:
    return " | ".join(failure.why for failure in outcome.failures)


def standing(chroot: Chroot) -> dict[str, str]:
    """What rpm says, asked apart from the writer; "held" behind what versionlock lists at that version."""
    shown = chroot.tools(["rpm", "-qa", "--qf", "%{NAME} %{EPOCHNUM}:%{VERSION}-%{RELEASE}\n"]).out
    locks = chroot.read("/etc/dnf/plugins/versionlock.list")
    rows = [line.split() for line in shown.splitlines()]
    return {name: version + (" held" if f"{name}-{version}.*" in locks else "") for name, version in rows}


def test_a_set_is_installed_moved_taken_back_and_put_back_by_the_real_dnf(root: Chroot) -> None:
    assert why(do(root, sources())) == ""
    assert not do(root, sources()).changed
    before = standing(root)
    assert do(root, wanted(dict.fromkeys(DRIVER, OLD)), check=True).changed
    assert standing(root) == before
    for version in (OLD, NEW, OLD):
        assert why(do(root, wanted(dict.fromkeys(DRIVER, version)))) == ""
        assert standing(root) == dict.fromkeys(DRIVER, f"{version} held")
        assert not do(root, wanted(dict.fromkeys(DRIVER, version))).changed
    root.must("dnf -y -q upgrade")
    assert standing(root) == dict.fromkeys(DRIVER, f"{OLD} held")
    assert "have no nvidia-open-3:9-1" in why(do(root, wanted({"nvidia-open": "3:9-1"})))
    assert why(revert(["part"], root=str(root.root), tools=root.tools)) == ""
    assert standing(root) == before
    assert "nvidia" not in root.read("/etc/dnf/plugins/versionlock.list")


def test_what_would_take_a_package_away_that_nobody_named_is_refused(root: Chroot) -> None:
    do(root, sources())
    root.must("dnf -y -q install dcgm")
    before = standing(root)
    old = {"nvidia-fabric-manager": None}
    said = why(do(root, wanted({"nvidia-fabricmanager": NEW, **old})))
    assert "dcgm" in said
    assert standing(root) == before
    assert why(do(root, wanted({"nvidia-fabricmanager": NEW, "dcgm": None, **old}))) == ""
    assert standing(root) == {"nvidia-fabricmanager": f"{NEW} held"}
