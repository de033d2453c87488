"""Sealing a tree: what of one machine is found, what goes, and what has to stay."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from railwright.image import seal
from railwright.node.model import InputError

# A host that was in use, as its daemons and its people leave it.
USED = {
    "etc/machine-id": "4c1e0b3a5d6f4e7f8a9b0c1d2e3f4a5b\n",
    "var/lib/dbus/machine-id": "4c1e0b3a5d6f4e7f8a9b0c1d2e3f4a5b\n",
    "etc/ssh/ssh_host_ed25519_key": "secret\n",
    "etc/ssh/ssh_host_ed25519_key.pub": "public\n",
    "etc/ssh/sshd_config": "UsePAM yes\n",
    "var/lib/dhcp/dhclient.eth0.leases": "lease {}\n",
    "var/lib/systemd/random-seed": "seed",
    "etc/iscsi/initiatorname.iscsi": "InitiatorName=iqn.1993-08.org.debian:01:aa\n",
    "etc/iscsi/iscsid.conf": "node.startup = manual\n",
    "etc/nvme/hostid": "1\n",
    "etc/nvme/hostnqn": "nqn.2014-08.org.nvmexpress:uuid:1\n",
    "var/lib/cloud/instances/i-1/user-data.txt": "#cloud-config\n",
    "var/lib/apt/lists/archive_InRelease": "Origin: x\n",
    "etc/apt/sources.list": "deb http://archive.example/debian trixie main\n",
    "etc/apt/sources.list.d/railwright-local.sources": "Types: deb\n",
    "root/.ssh/authorized_keys": "ssh-ed25519 AAAA controller\n",
    "etc/dropbear/initramfs/dropbear_ed25519_host_key": "secret",
    "etc/NetworkManager/system-connections/eno1.nmconnection": "psk=secret\n",
    "etc/NetworkManager/system-connections/railwright-rail0.nmconnection": "[connection]\n",
    "etc/sysconfig/network-scripts/ifcfg-eno1": "HWADDR=02:00:00:00:00:01\n",
    "etc/sysconfig/network-scripts/ifcfg-lo": "DEVICE=lo\n",
    "etc/apt/auth.conf.d/bake.conf": "machine archive.example login bake password hunter2\n",
    "etc/apt/auth.conf.d/railwright-local.conf": "machine archive.example\n",
    "etc/salt/minion_id": "bake01\n",
    "etc/slurm/jwt_hs256.key": "secret",
    "etc/credstore/ssh.authorized_keys.root": "ssh-ed25519 AAAA\n",
    "etc/security/opasswd": "root:1:$6$x\n",
    "etc/crypttab": "swap UUID=1 none\n",
    "var/lib/wtmpdb/wtmp.db": "SQLite",
    "var/lib/lastlog/lastlog2.db": "SQLite",
    "var/lib/sss/db/cache_example.ldb": "TDB",
    "var/lib/dkms/mok.key": "secret",
    "var/lib/dkms/mok.pub": "public",
    "root/anaconda-ks.cfg": "rootpw --iscrypted $6$x\n",
    "home/op/.aws/credentials": "aws_secret_access_key = x\n",
    "root/.bash_history": "mysql -p hunter2\n",
    "home/op/.ssh/id_ed25519": "secret\n",
    "home/op/notes": "stays\n",
    "etc/netplan/50-cloud-init.yaml": "network: {}\n",
    "etc/netplan/60-railwright.yaml": "network: {}\n",
    "etc/resolv.conf": "nameserver 192.0.2.1\n",
    "etc/hostname": "bake01\n",
    "var/log/syslog": "Nov 30 bake01 sshd\n",
    "var/log/journal/4c1e0b3a5d6f4e7f8a9b0c1d2e3f4a5b/system.journal": "LPKSHHRH",
    "var/log/apt/history.log": "Start-Date\n",
    "var/lib/railwright/state.json": "{}",
    "etc/railwright/policy.json": "{}",
}
STAYS = (
    "etc/ssh/sshd_config", "etc/iscsi/iscsid.conf", "home/op/notes", "etc/netplan/60-railwright.yaml",
    "etc/apt/sources.list.d/railwright-local.sources", "etc/railwright/policy.json",
    "etc/NetworkManager/system-connections/railwright-rail0.nmconnection", "etc/sysconfig/network-scripts/ifcfg-lo",
    "etc/apt/auth.conf.d/railwright-local.conf", "var/lib/dkms/mok.pub",
)  # fmt: skip


def tree(root: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, "utf-8")
    return root


def paths(root: Path) -> set[str]:
    return {
        str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and not path.is_symlink()
    }


def test_every_trace_of_one_machine_is_named_and_what_is_not_one_is_left(tmp_path: Path) -> None:
    found = {path for path, _ in seal.leftovers(tree(tmp_path, USED))}
    goes = set(USED) - set(STAYS) - {"etc/apt/sources.list"}
    for path in goes:
        above = {str(parent) for parent in Path(path).parents}
        assert path in found or above & found, path
    for path in STAYS:
        assert not {path, *map(str, Path(path).parents)} & found, path


def test_a_sealed_tree_has_an_empty_machine_id_and_nothing_else_of_the_machine(tmp_path: Path) -> None:
    seal.seal(tree(tmp_path, USED))
    assert paths(tmp_path) == {*STAYS, "etc/machine-id"}
    assert (tmp_path / "etc/machine-id").read_bytes() == b""
    assert os.readlink(tmp_path / "var/lib/dbus/machine-id") == "/etc/machine-id"
    assert (tmp_path / "var/log/apt").is_dir()
    assert not (tmp_path / "var/log/journal/4c1e0b3a5d6f4e7f8a9b0c1d2e3f4a5b").exists()
    assert seal.leftovers(tmp_path) == []
    assert seal.seal(tmp_path) == []


@pytest.mark.parametrize("wrong", ["absent", "a word", "a link"])
def test_a_machine_id_that_is_not_there_and_empty_is_named(tmp_path: Path, wrong: str) -> None:
    seal.seal(tree(tmp_path, USED))
    place = tmp_path / "etc/machine-id"
    place.unlink()
    if wrong == "a word":
        # What systemd writes into images that shall have a first boot; it is no identity, but it is not empty either.
        place.write_text("uninitialized\n", "ascii")
    elif wrong == "a link":
        place.symlink_to("/run/machine-id")
    assert [path for path, _ in seal.leftovers(tmp_path)] == ["etc/machine-id"]


def test_a_tree_with_a_resolver_of_its_own_asks_that_one_and_stays_so(tmp_path: Path) -> None:
    root = tree(tmp_path, {**USED, "usr/lib/systemd/systemd-resolved": ""})
    for _ in range(2):
        seal.seal(root)
        assert os.readlink(root / "etc/resolv.conf") == "../run/systemd/resolve/stub-resolv.conf"
        assert seal.leftovers(root) == []


# What the controller has under the same names: nothing of it may be read, written or removed.
OWN = {
    "etc/ssh/ssh_host_rsa_key": "the controller's own\n",
    "etc/machine-id": "4c1e0b3a5d6f4e7f8a9b0c1d2e3f4a5b\n",
    "etc/fstab": "UUID=1 / ext4 defaults 0 1\n",
    "etc/hosts": "127.0.1.1 controller\n",
    "etc/apt/sources.list": "deb http://archive.example/debian trixie main\n",
    "var/log/syslog": "Nov 30 controller\n",
    "var/lib/iscsi/nodes": "x",
    "root/.ssh/authorized_keys": "ssh-ed25519 AAAA\n",
}


@pytest.mark.parametrize(
    "link", ["etc", "var", "root", "etc/ssh", "etc/apt", "var/log", "etc/fstab", "etc/machine-id"]
)
def test_a_link_out_of_the_tree_leads_nowhere(tmp_path: Path, link: str) -> None:
    host = tree(tmp_path / "host", OWN)
    root = tree(tmp_path / "tree", {"usr/lib/systemd/systemd-resolved": "", "usr/lib/open-iscsi/x": ""})
    (root / link).parent.mkdir(parents=True, exist_ok=True)
    (root / link).symlink_to(host / link)
    for place in (host / "etc", host / "var"):
        assert place.is_dir()
    seal.leftovers(root)
    seal.seal(root, "deb http://archive.example/debian trixie main")
    assert {path: (host / path).read_text("utf-8") for path in OWN} == OWN
    assert paths(host) == set(OWN)


def test_a_link_within_the_tree_hides_nothing_behind_it(tmp_path: Path) -> None:
    root = tree(
        tmp_path, {"data/home/op/.ssh/id_rsa": "secret\n", "data/log/syslog": "x\n", "etc/machine-id": ""}
    )
    (root / "var").mkdir()
    (root / "home").symlink_to("/data/home")
    (root / "var/log").symlink_to("../data/log")
    assert {path for path, _ in seal.leftovers(root)} == {"data/home/op/.ssh", "data/log/syslog"}
    seal.seal(root)
    assert seal.leftovers(root) == []
    assert paths(root) == {"etc/machine-id"}


def test_a_circle_of_links_is_an_error_that_names_its_path(tmp_path: Path) -> None:
    (tmp_path / "etc").symlink_to("etc")
    with pytest.raises(InputError, match="lead in a circle"):
        seal.leftovers(tmp_path)


def test_the_disks_and_the_name_of_one_machine_leave_the_tables_that_all_machines_have(
    tmp_path: Path,
) -> None:
    root = tree(
        tmp_path,
        {
            "etc/hostname": "bake01\n",
            "etc/fstab": "# disks\nUUID=1 / ext4 defaults 0 1\n/dev/sda2 none swap sw 0 0\n/swap.img none swap sw 0 0\n"
            "tmpfs /scratch tmpfs size=1g 0 0\nfiler:/home /home nfs defaults 0 0\n",
            "etc/hosts": "127.0.0.1 localhost\n127.0.1.1 bake01.example bake01\n192.0.2.7 bake01\n192.0.2.8 filer\n",
        },
    )
    assert {"etc/fstab", "etc/hosts"} <= {path for path, _ in seal.leftovers(root)}
    seal.seal(root)
    assert (root / "etc/fstab").read_text("utf-8") == (
        "# disks\ntmpfs /scratch tmpfs size=1g 0 0\nfiler:/home /home nfs defaults 0 0\n"
    )
    assert (root / "etc/hosts").read_text("utf-8") == "127.0.0.1 localhost\n192.0.2.8 filer\n"
    assert seal.leftovers(root) == []


def test_an_initiator_of_debian_is_asked_to_make_its_name_and_not_left_without_a_file(tmp_path: Path) -> None:
    root = tree(tmp_path, {**USED, "usr/lib/open-iscsi/startup-checks.sh": ""})
    for _ in range(2):
        seal.seal(root)
        # What the package brings: its startup-checks.sh makes a name for that, and stops where there is no file.
        assert (root / "etc/iscsi/initiatorname.iscsi").read_text("utf-8") == "GenerateName=yes\n"
        assert seal.leftovers(root) == []


def test_a_machine_is_found_by_its_id_in_files_and_in_their_names(tmp_path: Path) -> None:
    own = USED["etc/machine-id"].strip()
    root = tree(
        tmp_path, {**USED, f"boot/loader/entries/{own}-6.12.conf": "x", "etc/agent.conf": f"id={own}\n"}
    )
    assert seal.identity(root) == own
    seal.seal(root)
    assert seal.identity(root) is None
    assert seal.holders(root, (own,)) == [f"boot/loader/entries/{own}-6.12.conf", "etc/agent.conf"]


def test_private_keys_are_found_by_their_bytes_and_not_in_programs_and_samples(tmp_path: Path) -> None:
    key = (
        "-----BEGIN OPENSSH PRIVATE KEY-----\n"
        + "b3BlbnNzaC1rZXktdjE" * 3
        + "\n-----END OPENSSH PRIVATE KEY-----\n"
    )
    root = tree(
        tmp_path,
        {
            "opt/tool/deploy.pem": key,
            "usr/bin/ssh": "\0-----BEGIN OPENSSH PRIVATE KEY-----\0\n",
            "usr/share/doc/openssl/key.pem": key,
            # What a person calls a test is none of a package's; and a cloud's key is a line of JSON.
            "root/tests/key.pem": key,
            "opt/cloud.json": '{"private_key": "' + key.replace("\n", "\\n") + '"}',
        },
    )
    assert seal.private_keys(root) == ["opt/cloud.json", "opt/tool/deploy.pem", "root/tests/key.pem"]


def test_a_text_is_found_in_a_disk_wherever_it_lies_also_over_the_edge_of_two_reads(tmp_path: Path) -> None:
    disk = tmp_path / "disk.raw"
    # Zeros that are written are no hole: it is read by the mebibyte.
    disk.write_bytes(bytes((1 << 20) - 7) + b"planted-secret-4711" + bytes(1 << 20))
    with pytest.raises(InputError, match="holds a text that the recipe forbids"):
        seal.must_not_hold(disk, ("planted-secret-4711",))
    seal.must_not_hold(disk, ("planted-secret-4712",))
