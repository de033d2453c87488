"""The archive of stand-ins as apt sees it on a node, and the tools in it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.lab import packages
from tests.lab.lab import Lab, Node


def apt(node: Node, words: str) -> subprocess.CompletedProcess[str]:
    return node.ssh(f"DEBIAN_FRONTEND=noninteractive apt-get -qq -y {words}", timeout=120)


def test_the_index_is_signed_by_the_archives_key(archive: packages.Archive, tmp_path: Path) -> None:
    signed = archive.folder / "dists/lab/InRelease"
    good = subprocess.run(
        ["gpgv", "--keyring", str(archive.keyring), str(signed)], capture_output=True, check=False
    )
    assert good.returncode == 0
    forged = tmp_path / "InRelease"
    forged.write_text(signed.read_text().replace("Suite: lab", "Suite: bad"))
    bad = subprocess.run(
        ["gpgv", "--keyring", str(archive.keyring), str(forged)], capture_output=True, check=False
    )
    assert bad.returncode != 0


def test_apt_refuses_an_archive_that_its_key_did_not_sign(archive: packages.Archive, bookworm: Node) -> None:
    index = archive.folder / "dists/lab"
    kept = {name: (index / name).read_bytes() for name in ("InRelease", "Release.gpg")}
    (index / "InRelease").write_bytes(
        kept["InRelease"].replace(b"Origin: Railwright lab", b"Origin: somebody else!")
    )
    # HTTP tells times in whole seconds: one that was written in the second in which apt read the last is no newer one.
    later = (index / "Release.gpg").stat().st_mtime + 2
    os.utime(index / "InRelease", (later, later))
    try:
        said = bookworm.ssh("apt-get update -o APT::Update::Error-Mode=any")
        assert said.returncode != 0
        assert "signature" in said.stdout + said.stderr
    finally:
        for name, content in kept.items():
            (index / name).write_bytes(content)
        bookworm.must("apt-get -qq update")


@pytest.mark.parametrize("number", [0, 1], ids=["bookworm", "trixie"])
def test_a_node_installs_the_driver_with_all_of_one_version(
    archive: packages.Archive, rack: Lab, number: int
) -> None:
    node = rack.nodes[number]
    done = apt(node, f"install nvidia-driver-pinning-{packages.OLDER_DRIVER}")
    assert done.returncode == 0, done.stderr
    assert apt(node, "install nvidia-open nvidia-fabricmanager").returncode == 0
    shown = node.must("dpkg-query -W -f '${Package} ${Version}\\n' 'nvidia-*'").split("\n")
    installed = dict(line.split() for line in shown if len(line.split()) == 2)
    assert installed["nvidia-fabricmanager"] == installed["nvidia-open"] == f"{packages.OLDER_DRIVER}-1"
    # A node without a loaded driver: the tools say so, and the fabric manager does not stay up.
    smi = node.ssh("nvidia-smi")
    assert (smi.returncode, smi.stdout[:29]) == (9, "NVIDIA-SMI has failed because")
    node.ssh("systemctl start nvidia-fabricmanager; sleep 0.5")
    assert node.ssh("systemctl is-active nvidia-fabricmanager").stdout.strip() in ("failed", "inactive")
    node.ssh("systemctl reset-failed nvidia-fabricmanager")
    assert apt(node, "purge 'nvidia-*'").returncode == 0


def test_the_fabric_manager_of_another_version_conflicts_by_its_branch_name(
    archive: packages.Archive, bookworm: Node
) -> None:
    assert apt(bookworm, "install nvidia-fabricmanager-570").returncode == 0
    assert "nvidia-fabricmanager-580" in bookworm.must("dpkg-query -W -f '${Package}\\n' 'nvidia-fabric*'")
    said = bookworm.ssh("apt-get install -s nvidia-fabricmanager").stdout
    assert "Remv nvidia-fabricmanager-580" in said
    assert apt(bookworm, "purge 'nvidia-fabric*'").returncode == 0


@pytest.fixture(scope="module")
def tooled(archive: packages.Archive, trixie: Node) -> Node:
    done = apt(trixie, "install doca-ofed nvidia-container-toolkit nvidia-utils")
    assert done.returncode == 0, done.stderr
    return trixie


def test_mlnx_qos_keeps_a_ports_qos_and_refuses_other_ports(tooled: Node) -> None:
    rail = next(port.netdev for port in tooled.ports if port.switch == "sw100.0")
    done = tooled.must(f"mlnx_qos -i {rail} --trust dscp --pfc 0,0,0,1,0,0,0,0")
    assert "Priority trust state: dscp" in done
    assert "enabled     0   0   0   1   0   0   0   0" in tooled.must(f"mlnx_qos -i {rail}")
    assert tooled.ssh("mlnx_qos -i lo").returncode == 1
    shares = (
        f"mlnx_qos -i {rail} --tsa ets,ets,strict,strict,strict,strict,strict,strict --tcbw 50,40,0,0,0,0,0,0"
    )
    refused = tooled.ssh(shares)
    assert (refused.returncode, "not 100" in refused.stderr) == (1, True)


def test_mstconfig_takes_effect_at_the_next_boot(tooled: Node) -> None:
    address = next(iter(tooled.must("lspci -D -d 15b3: | cut -d' ' -f1").split()))
    assert tooled.ssh(f"mstconfig -d {address} set SRIOV_EN=1").returncode == 1, "it asks first"
    tooled.must(f"mstconfig -d {address} -y set SRIOV_EN=1")
    shown = tooled.must(f"mstconfig -d {address} query SRIOV_EN")
    assert "False(0)        False(0)        True(1)" in shown
    assert tooled.ssh("mstconfig -d ff:00.0 query").returncode == 3
    assert tooled.ssh(f"mstconfig -d {address} query NO_SUCH_THING").returncode == 3


def test_nvidia_ctk_adds_a_runtime_and_keeps_what_is_there(tooled: Node) -> None:
    tooled.must('mkdir -p /etc/docker && echo \'{"log-driver": "local"}\' > /etc/docker/daemon.json')
    tooled.must("nvidia-ctk runtime configure --runtime=docker")
    page = tooled.read("/etc/docker/daemon.json")
    assert '"log-driver": "local"' in page
    assert '"nvidia-container-runtime"' in page
    assert tooled.ssh("nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml").returncode == 1


def test_a_package_with_a_bad_page_is_refused(tmp_path: Path, ready: None) -> None:
    from tests.lab import LabError

    pool = tmp_path / "pool"
    pool.mkdir()
    with pytest.raises(LabError, match="dpkg-deb"):
        packages.build(packages.Package("Bad Name", "1", "no name"), "amd64", tmp_path / "scratch", pool)
    shutil.rmtree(tmp_path / "scratch")
