"""The script on a fake node with secrets planted wherever it reads: none leaves, nothing else is written."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import stat
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from railwright import captures
from railwright.collect import script
from railwright.fleet import zipapp
from railwright.node.discover import discover
from railwright.node.model import Facts, Policy, to_json
from railwright.plan import plan as make_plan
from tests.ansible.racks import plain_python, scratch
from tests.fake_nodes import FakeNode, FakeNodeError, changes, create, snapshot

from .collect_support import KEY, forms, unpacked, with_pseudonyms

MACHINE = "2s_8xh200_8xcx7_snc2"
NAMES = ("zebrahost", "acmewidgets", "quentin", "morgana", "tigerlily", "ferdinand", "porcupine")
TOKENS = ("hunter2secret", "swordfish77", "f00dfacef00dfacef00dface", "MT2243X00017", "1653722012345")
MAC, GUID, UUID = "b8:3f:d2:7e:57:01", "b83f:d203:007e:5701", "3b1e4d7c-0f7a-41f2-9c27-0d1c1f5ab001"
IPS = ("10.77.3.9", "2001:db8:7e57::15", "192.168.77.201")
PATCH: dict[str, Any] = {
    "kernel": {
        "hostname": "zebrahost.corp.acmewidgets.example",
        "cmdline": "BOOT_IMAGE=/vmlinuz-tigerlily root=UUID=" + UUID + " ro iommu=pt console=ttyS0,115200"
        " ip=10.77.3.9::10.77.3.1:255.255.255.0:zebrahost:eno1:none ds=nocloud;seedfrom=http://192.168.77.201/quentin/"
        " mod.token=hunter2secret swordfish77 ifname=eno1:" + MAC,
    },
    "files": {
        "etc/hosts": "127.0.0.1 localhost\n10.77.3.9 zebrahost.corp.acmewidgets.example zebrahost porcupine\n",
        "etc/resolv.conf": "search corp.acmewidgets.example tigerlily.example\nnameserver 192.168.77.201\n",
        "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nferdinand:x:1000:1000:F:/home/f:/bin/sh\n",
        "etc/sysctl.d/50-site.conf": "kernel.core_pattern = |/opt/quentin/dump\nnet.ipv6.conf.all.stable_secret = x\n",
        "proc/sys/kernel/core_pattern": "|/opt/quentin/dump %p\n",
        "proc/sys/net/ipv6/conf/all/stable_secret": "2001:db8:7e57::15\n",
    },
}
SAYS = {
    "lspci": f"""\
0000:0c:00.0 Infiniband controller [0207]: Mellanox Technologies MT2910 Family [ConnectX-7] [15b3:1021]
\t\t\t[PN] Part number: MCX75310AAS-NEAT
\t\t\t[SN] Serial number: MT2243X00017
\t\t\t[V3] Vendor specific: f00dfacef00dfacef00dface
\tCapabilities: [1c0 v1] Device Serial Number {"-".join(re.findall("..", GUID.replace(":", "")))}
""",
    "ip": json.dumps(
        [
            {
                "ifname": "eno1",
                "address": MAC,
                "ifalias": "to quentin",
                "altnames": ["enx" + MAC.replace(":", "")],
            }
        ]
    ),
    "ibdev2netdev": f"""\
mlx5_0 port 1 ==> enx{MAC.replace(":", "")} (Up)
warning from Zebrahost.corp, tigerlily (porcupine, ferdinand)
""",
    "show_gids": f"mlx5_0  1  3  {ipaddress.ip_address('2001:db8:7e57::15').exploded}  10.77.3.9  v2  eno1\n{GUID}\n",
    "mlnx_qos": "DCBX mode: OS controlled\nPriority trust state: dscp\nset by morgana on zebrahost\n",
    "nvidia-smi": f"""\
    Serial Number : 1653722012345
    GPU UUID : GPU-{UUID}
    Process ID : 1
    Name : /home/quentin/x
""",
}


@pytest.fixture(scope="module")
def node() -> Iterator[FakeNode]:
    with scratch() as place:
        try:
            made = create(place.nodes / "node1", MACHINE, plain_python("3.9"), PATCH, trees=place.trees)
            made.must_enter()
        except FakeNodeError as error:
            pytest.skip(str(error))
        folder = made.tree / "usr/local/bin"
        folder.mkdir(exist_ok=True)
        for name, said in SAYS.items():
            text = "#!/bin/sh\n" + (_answers(made) if name == "nvidia-smi" else "")
            (folder / name).write_text(f"{text}cat <<'END'\n{said}\nEND\n", encoding="utf-8")
            (folder / name).chmod(0o755)
        (made.tree / "root/collect.sh").write_text(script.build(), encoding="utf-8")
        (made.tree / "root/key").write_bytes(KEY)
        (made.tree / "root/short").write_bytes(KEY[:-1])
        (made.tree / "root/railwright.pyz").write_bytes(zipapp.build())
        yield made


def _answers(node: FakeNode) -> str:
    """nvidia-smi's list of the GPUs and its matrix of NVLinks, as lines of a shell script."""
    gpus = discover(node.tree.resolve()).gpus
    rows = "\n".join(f"0000{gpu.address}, {gpu.uuid}, {gpu.model}, 9.0" for gpu in gpus)
    names = [gpu.name for gpu in gpus]
    matrix = "\n".join(
        "\t".join([one, *("X" if one == other else "NV18" for other in names)]) for one in names
    )
    head = "\t" + "\t".join(names)
    return (
        f"case $1 in --query-gpu*) cat <<'END'\n{rows}\nEND\nexit;;\n"
        f"topo) cat <<'END'\n{head}\n{matrix}\nEND\nexit;; esac\n"
    )


def collect(node: FakeNode, *arguments: str) -> subprocess.CompletedProcess[str]:
    """By the node's own Python, with people's names in the environment."""
    people = ("USER=quentin", "LOGNAME=quentin", "SUDO_USER=morgana", "API_TOKEN=hunter2secret")
    python = str(plain_python("3.9"))
    return node.run("env", *people, python, "-I", "-S", "-B", "/root/collect.sh", *arguments)


@pytest.fixture(scope="module")
def bundle(node: FakeNode) -> Path:
    """The bundle of the node, and that it is all that was written."""
    before = snapshot(node.tree)
    done = collect(node, "--key-file", "/root/key", "--output", "/root/bundle.tar.gz")
    assert (done.returncode, done.stderr) == (0, "")
    assert changes(before, snapshot(node.tree)) == {"root/bundle.tar.gz"}
    return node.tree / "root/bundle.tar.gz"


@pytest.fixture(scope="module")
def live(node: FakeNode) -> Facts:
    """What the node says of itself without any redaction."""
    done = node.run(str(plain_python("3.9")), "-I", "/root/railwright.pyz", "discover", "--json")
    return Facts.read(json.loads(done.stdout))


def test_the_bundle_is_one_file_for_its_owner_alone(bundle: Path) -> None:
    assert stat.S_IMODE(bundle.stat().st_mode) == 0o600


def test_no_planted_secret_is_in_the_bundle_in_any_form(bundle: Path, live: Facts) -> None:
    shown = unpacked(bundle).lower().decode("utf-8", "backslashreplace")
    identities = (
        {nic.mac for nic in live.nics} | {nic.guid for nic in live.nics} | {gpu.uuid for gpu in live.gpus}
    )
    addresses = {address.partition("/")[0] for nic in live.nics for address in nic.addresses}
    secrets = {*NAMES, *TOKENS, MAC, GUID, UUID, *IPS, live.host.boot_id, *identities, *addresses} - {None}
    assert len(identities) > 20
    assert len(addresses) > 5
    leaked = [form for secret in secrets for form in forms(str(secret)) if form.lower() in shown]
    assert leaked == []


def test_the_secrets_were_there_to_be_found(node: FakeNode, live: Facts) -> None:
    said = node.run("sh", "-c", " && ".join(SAYS)).stdout
    raw = json.dumps(to_json(live)) + said
    for secret in (*NAMES, *TOKENS, MAC, GUID, UUID, *IPS):
        assert secret in raw, secret


def test_the_interface_part_of_an_eui64_address_is_in_no_form_in_the_bundle(
    bundle: Path, live: Facts
) -> None:
    shown = unpacked(bundle).lower().decode("utf-8", "backslashreplace")
    macs = [bytes.fromhex(nic.mac.replace(":", "")) for nic in live.nics if nic.mac]
    ends = [bytes([mac[0] ^ 2]) + mac[1:3] + b"\xff\xfe" + mac[3:] for mac in macs]
    assert any(":".join(re.findall("....", end.hex())) in str(live.nics) for end in ends)
    for end in ends:
        assert end.hex() not in shown
        assert ":".join(re.findall("....", end.hex())) not in shown
        # The part that is one card's own.
        assert re.sub("(..)(....)", r"\1:\2", end[-3:].hex()) not in shown


def test_the_bundle_gives_the_plan_of_the_live_machine(bundle: Path, node: FakeNode, live: Facts) -> None:
    done = node.run(str(plain_python("3.9")), "-I", "/root/railwright.pyz", "plan", "--json")
    replayed = captures.read([bundle])
    expected = with_pseudonyms(done.stdout, live, replayed)
    assert json.dumps(to_json(make_plan(replayed, Policy())), indent=2) + "\n" == expected
    assert '"status": "planned"' in expected
    # What only nvidia-smi tells is there too.
    assert [(gpu.sm, gpu.nvlinks) for gpu in replayed.gpus] == [(gpu.sm, gpu.nvlinks) for gpu in live.gpus]
    assert {gpu.sm for gpu in live.gpus} == {90}
    assert live.gpus[0].nvlinks is not None
    assert len(live.gpus[0].nvlinks) == len(live.gpus) - 1


def test_the_tools_are_in_the_bundle_without_their_secrets(bundle: Path) -> None:
    told = {tool.name: tool for tool in captures.read([bundle]).tools}
    assert "MCX75310AAS-NEAT" in told["lspci"].output
    assert told["ibdev2netdev"].output.startswith("mlx5_0 port 1 ==> enx02")
    # Still a global address, and still a private one.
    assert re.match(
        r"mlx5_0  1  3  [23][0-9a-f:]{38}  10\.\d+\.\d+\.\d+  v2  eno1\n", told["show_gids"].output
    )
    assert "trust state: dscp" in next(
        tool.output for name, tool in told.items() if name.startswith("mlnx_qos-")
    )
    assert {"nvidia-smi-full", "nvidia-smi-topo", "systemctl", "ip-link"} < told.keys()


def test_what_is_printed_names_what_is_inside_and_what_was_replaced(node: FakeNode, bundle: Path) -> None:
    before = snapshot(node.tree)
    done = collect(node, "--dry-run", "--key-file", "/root/key")
    assert done.returncode == 0
    assert changes(before, snapshot(node.tree)) == set()
    with tarfile.open(bundle) as archive:
        names = [member.name for member in archive]
        first = archive.extractfile(names[0])
        listed = first.read().decode() if first is not None else ""
    assert done.stdout == listed + "Nothing was written (--dry-run).\n"
    for name in names:
        assert name.partition("/")[2] in listed
    for kind in (
        "names of hosts",
        "MAC addresses",
        "GUIDs",
        "UUIDs",
        "serial numbers",
        "IP addresses",
        "other values",
    ):
        assert re.search(rf"^ +[1-9]\d*  {kind}", listed, re.MULTILINE), kind


def test_a_file_that_is_there_is_not_overwritten(node: FakeNode, bundle: Path) -> None:
    before = snapshot(node.tree)
    for path in ("/root/bundle.tar.gz", "/root/dangling"):
        (node.tree / "root/dangling").unlink(missing_ok=True)
        (node.tree / "root/dangling").symlink_to("/root/elsewhere")
        done = collect(node, "--output", path)
        assert done.returncode == 2
        assert f"{path}: is there already" in done.stderr
    (node.tree / "root/dangling").unlink()
    assert changes(before, snapshot(node.tree)) == set()


def test_the_shell_finds_a_python_and_hands_the_options_on(node: FakeNode) -> None:
    path = f"PATH={plain_python('3.9').parent}:/usr/local/bin:/usr/bin:/bin"
    done = node.run("env", path, "sh", "/root/collect.sh", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "Inside:" in done.stdout
    none = node.run("env", "PATH=/nowhere", "/bin/sh", "/root/collect.sh", "--dry-run")
    # Only this fallback is named by its whole path.
    if not (node.tree / "usr/libexec/platform-python").exists():
        assert none.returncode == 2
        assert "no Python 3.9 or later" in none.stderr


WRONG: tuple[tuple[tuple[str, ...], str], ...] = (
    ((), "--output: is missing"),
    (("--output", "/absent/x"), "cannot be written"),
    (("--output", "/root/x", "--key-file", "/absent"), "cannot be read"),
    (("--output", "/root/x", "--key-file", "/root/short"), "expected 32 to 4096 secret bytes"),
    (("--output", "/root/x", "--root", "/etc"), "expected the root of a Linux machine"),
    (("--fly",), "unrecognized arguments"),
)


def test_wrong_usage_is_code_two_and_writes_nothing(node: FakeNode) -> None:
    before = snapshot(node.tree)
    for arguments, words in WRONG:
        done = collect(node, *arguments)
        assert (done.returncode, words in done.stderr) == (2, True), done.stderr
    assert changes(before, snapshot(node.tree)) == set()


def test_a_user_who_is_not_root_gets_a_bundle_that_says_what_was_not_readable(node: FakeNode) -> None:
    tree = node.tree.resolve()
    private = [*tree.glob("sys/devices/**/config"), *tree.glob("sys/devices/**/vpd")]
    modes = {path: path.stat().st_mode for path in private}
    for path in private:
        path.chmod(0o600)
    # pytest's own folder is closed to other users; the node's is not.
    out = node.folder / "out"
    out.mkdir()
    out.chmod(0o777)
    try:
        drop = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
        python = ["/usr/bin/python3", "-I", "-S", "-B", "-"]
        command = [*python, "--root", str(tree), "--output", str(out / "bundle.tar.gz")]
        done = subprocess.run(
            [*drop, *command], input=script.build(), capture_output=True, text=True, check=False, cwd="/"
        )
    finally:
        for path, mode in modes.items():
            path.chmod(mode)
    assert done.returncode == 0, done.stderr
    assert re.search(r"configuration space of (\d+) of \1 PCI functions \(root may read it\)", done.stdout)
    assert "vital product data of" in done.stdout
    assert captures.read([out / "bundle.tar.gz"]).gpus[0].address is not None
