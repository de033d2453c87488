"""`railwright collect` on real systemd hosts, over SSH as an owner would run it, with secrets planted on each."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from railwright import captures
from railwright.collect import script
from railwright.fleet import zipapp
from railwright.node.model import Facts, Policy, to_json
from railwright.plan import plan
from tests.lab.lab import Lab, Node
from tests.unit.collect_support import forms, unpacked, with_pseudonyms

# Planted on each node, where the collector looks for names and where tools print them.
NAMES = ("zebrahost", "acmewidgets", "morgana", "porcupine")
ADDRESSES = ("10.77.3.9", "2001:db8:7e57::15")
PLANT = """
echo '10.77.3.9 zebrahost.acmewidgets.example porcupine' >> /etc/hosts
echo '2001:db8:7e57::15 zebrahost6.acmewidgets.example' >> /etc/hosts
echo 'morgana:x:1777:1777:M:/home/m:/bin/sh' >> /etc/passwd
link=$(ls /sys/class/net | grep -v '^lo$' | head -n 1)
ip link set dev "$link" alias 'to zebrahost of morgana, 10.77.3.9'
"""
# Files that have become newer on the node's own file systems, without what sshd and the journal write of any session.
NEWER = (
    "find / -xdev '(' -path /proc -o -path /sys -o -path /run -o -path /dev -o -path /var/log ')' -prune"
    " -o -newer /run/before -not -type d -print"
)


@dataclass(frozen=True)
class Collected:
    """One node's bundle, what the node says of itself, its own plan, and which files the collector left newer."""

    bundle: Path
    live: Facts
    plan: str
    said: str
    newer: list[str]


def put(node: Node, path: str, data: bytes) -> None:
    node.must(f"base64 -d > {path}", stdin=base64.b64encode(data).decode())


def collect(node: Node, folder: Path) -> Collected:
    put(node, "/root/collect.sh", script.build().encode())
    put(node, "/root/railwright.pyz", zipapp.build())
    node.must("sh -s", stdin=PLANT)
    live = Facts.read(json.loads(node.must("python3 -B /root/railwright.pyz discover --json")))
    planned = node.must("python3 -B /root/railwright.pyz plan --json || [ $? = 3 ]")
    node.must("sleep 1; touch /run/before; sleep 1")
    # The owner's machine is given no more than is promised.
    said = node.must("timeout 30 sh /root/collect.sh --output /root/bundle.tar.gz", timeout=120)
    newer = node.must(NEWER).split()
    path = folder / f"{node.name}.tar.gz"
    path.write_bytes(base64.b64decode(node.must("base64 /root/bundle.tar.gz")))
    node.must("rm /root/bundle.tar.gz /root/collect.sh /root/railwright.pyz")
    return Collected(path, live, planned, said, newer)


@pytest.fixture(scope="module")
def collected(rack: Lab, tmp_path_factory: pytest.TempPathFactory) -> list[Collected]:
    folder = tmp_path_factory.mktemp("collected")
    return [collect(node, folder) for node in rack.nodes]


def test_nothing_but_the_bundle_was_written(collected: list[Collected]) -> None:
    assert [entry.newer for entry in collected] == [["/root/bundle.tar.gz"]] * len(collected)


def test_no_secret_of_the_host_is_in_its_bundle(collected: list[Collected]) -> None:
    for entry in collected:
        shown = unpacked(entry.bundle).lower().decode("utf-8", "backslashreplace")
        live = entry.live
        identities = (
            {nic.mac for nic in live.nics} | {nic.guid for nic in live.nics} | {gpu.uuid for gpu in live.gpus}
        )
        addresses = {address.partition("/")[0] for nic in live.nics for address in nic.addresses}
        secrets = {*NAMES, *ADDRESSES, live.host.boot_id, *identities, *addresses} - {None}
        assert len(identities) > 10
        leaked = [form for secret in secrets for form in forms(str(secret)) if form.lower() in shown]
        assert leaked == [], entry.bundle.name


def test_the_bundle_gives_the_plan_of_the_host(collected: list[Collected]) -> None:
    for entry in collected:
        replayed = captures.read([entry.bundle])
        expected = with_pseudonyms(entry.plan, entry.live, replayed)
        assert json.dumps(to_json(plan(replayed, Policy())), indent=2) + "\n" == expected
        assert '"status": "planned"' in expected


def test_the_real_tools_were_asked_and_are_in_it(collected: list[Collected]) -> None:
    for entry in collected:
        told = {tool.name: tool for tool in captures.read([entry.bundle]).tools}
        assert [told[name].code for name in ("lspci", "systemctl", "ip-link")] == [0, 0, 0]
        assert '"ifname"' in told["ip-link"].output
        assert "ifalias" not in told["ip-link"].output
        assert "Written: /root/bundle.tar.gz" in entry.said
