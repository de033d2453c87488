"""Free text, the kernel command line and tools' outputs: what goes and what stays."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railwright.collect.cmdline import redact_cmdline
from railwright.collect.pseudonyms import Pseudonyms
from railwright.collect.text import TextRedactor
from railwright.collect.tools import redact_output

KEY = b"k" * 32


def redactor(*names: str, key: bytes = KEY) -> TextRedactor:
    return TextRedactor(Pseudonyms(key), names)


@pytest.mark.parametrize(
    "text",
    [
        "0000:0c:00.0 Infiniband controller [0207]: Mellanox Technologies MT2910 Family [ConnectX-7] [15b3:1021]",
        "10000:e1:00.1",
        "mlx5_0 port 1 ==> enp12s0np0 (Up)",
        "mlx5_comp12@pci:0000:0c:00.0",
        "28.39.1002 (MT_0000000838)",
        "0-15,32-47",
        "12:34:56",
        "std::string 127.0.0.1 ::1 00:00:00:00:00:00 ff:ff:ff:ff:ff:ff 255.255.255.0",
        "NVRM version 550.54.14",
    ],
)
def test_what_names_no_machine_stays(text: str) -> None:
    assert redactor("gpu", "nvidia", "ab", "42").text(text) == text


@pytest.mark.parametrize(
    "secret",
    [
        "b8:3f:d2:00:00:10",
        "B8-3F-D2-00-00-10",
        "b83fd2000010",
        "0xb83fd20300000010",
        "b83f:d203:0000:0010",
        "b8-3f-d2-03-00-00-00-10",
        "10-00-00-00-03-d2-3f-b8",
        "fe80::ba3f:d2ff:fe00:10",
        "fe80:0000:0000:0000:ba3f:d2ff:fe00:0010",
        "2001:db8:17::15",
        "10.77.3.9",
        "GPU-3b1e4d7c-0f7a-41f2-9c27-0d1c1f5ab001",
        "enxb83fd2000010",
        "rocexb83fd20300000010",
        "zebrahost",
        "ZebraHost.Corp.Example",
        "acmewidgets",
        "deadbeefdeadbeefdeadbeefdeadbeef",
    ],
)
@pytest.mark.parametrize(
    "around", ["{}", "x {} y", "key={},z", "({})", "a-{}-b", "_{}_", "\t{}\n", "http://{}/x"]
)
def test_identifiers_and_known_names_go_wherever_they_stand(secret: str, around: str) -> None:
    shown = redactor("zebrahost.corp.example", "acmewidgets").text(around.format(secret))
    assert secret.lower() not in shown.lower()
    assert re.sub("[:-]", "", secret).lower() not in re.sub("[:-]", "", shown).lower()


def test_a_value_has_one_pseudonym_in_every_form_under_one_key() -> None:
    one = redactor()
    forms = ["b8:3f:d2:00:00:10", "B8-3F-D2-00-00-10", "b83fd2000010", "enxb83fd2000010"]
    plain = {re.sub("enx|[:-]", "", one.text(form)).lower() for form in forms}
    assert len(plain) == 1
    # The local bit of IEEE 802: nobody was assigned this address.
    assert plain.pop().startswith("02")
    guids = ["b83f:d203:0000:0010", "b8-3f-d2-03-00-00-00-10", "0xb83fd20300000010"]
    assert len({re.sub("0x|[:-]", "", one.text(form)) for form in guids}) == 1
    assert redactor().text("zebra 10.1.2.3") == redactor().text("zebra 10.1.2.3")
    assert redactor().text("b83fd2000010") != redactor(key=b"x" * 32).text("b83fd2000010")


def test_hosts_of_one_domain_stay_hosts_of_one_domain() -> None:
    names = Pseudonyms(KEY)
    first, second = names.name("node1.Corp.example").split("."), names.name("node2.corp.example").split(".")
    assert first[1:] == second[1:]
    assert first[0] != second[0]


@given(st.binary(min_size=6, max_size=6), st.sampled_from([":", "-", ""]))
def test_no_mac_address_survives(mac: bytes, mark: str) -> None:
    text = mark.join(f"{byte:02x}" for byte in mac)
    if set(mac) not in ({0}, {255}):
        assert text not in redactor().text(f"link/ether {text} brd")


def test_values_are_counted_once_each() -> None:
    one = redactor("zebrahost")
    one.text("zebrahost zebrahost 10.1.2.3 10.1.2.3 10.1.2.4 127.0.0.1 b8:3f:d2:00:00:10 b83fd2000010")
    assert {kind: count for kind, count in one.pseudonyms.counts().items() if count} == {
        "names of hosts, domains and users": 1,
        "MAC addresses": 1,
        "IP addresses": 2,
    }


def test_the_command_line_keeps_what_is_allowed_and_hides_every_other_value() -> None:
    line = (
        "BOOT_IMAGE=/vmlinuz root=UUID=0aa1f-77 ro quiet iommu=pt pci=realloc=off,disable_acs_redir=0000:3b:00.0"
        " isolcpus=managed_irq,domain,2-15 console=ttyS0,115200n8 ip=10.7.7.7::10.7.7.1:255.255.0.0:zebra:eno1:none"
        ' nfsroot=10.7.7.2:/export/zebra hugepages=64 mod.token=hunter2 dyndbg="file tiger.c +p" swordfish'
        " zebra.key=1 -- tiger"
    )
    shown = redact_cmdline(line, redactor("zebra"))
    words = shown.split(" ")
    assert words[2:8] == [
        "ro",
        "quiet",
        "iommu=pt",
        "pci=realloc=off,disable_acs_redir=0000:3b:00.0",
        "isolcpus=managed_irq,domain,2-15",
        "console=ttyS0,115200n8",
    ]
    assert "hugepages=64" in words
    for secret in ("0aa1f", "10.7.7", "zebra", "export", "hunter2", "tiger", "swordfish", "eno1"):
        assert secret not in shown
    assert [
        word.split("=")[0] for word in words if word.startswith(("root=", "ip=", "nfsroot=", "mod.token="))
    ] == [
        "root",
        "ip",
        "nfsroot",
        "mod.token",
    ]


def test_a_known_parameter_with_an_identifier_in_it_is_hidden_all_the_same() -> None:
    assert redact_cmdline("console=netb83fd2000010 iommu=10.0.0.1", redactor()).count("redacted-") == 2


LSPCI = """\
0000:0c:00.0 Infiniband controller [0207]: Mellanox Technologies MT2910 Family [ConnectX-7] [15b3:1021]
\tPhysical Slot: 41
\tRegion 0: Memory at 20001f000000 (64-bit, prefetchable) [size=32M]
\tPrefetchable memory behind bridge: 0000200000000000-000020001fffffff [size=512M] [32-bit]
\tExpansion ROM at 20001f000000 [disabled] [size=1M]
\t\tAddress: 00000000fee00000  Data: 0000
\tCapabilities: [48] Vital Product Data
\t\tProduct Name: NVIDIA ConnectX-7 HHHL Adapter Card
\t\tRead-only fields:
\t\t\t[PN] Part number: MCX75310AAS-NEAT
\t\t\t[EC] Engineering changes: A6
\t\t\t[V2] Vendor specific: TIGERLILY
\t\t\t[SN] Serial number: MT2243X00017
\t\t\t[V3] Vendor specific: c0f0a2b4e548ed11
\t\t\t[RV] Reserved: checksum good, 1 byte(s) reserved
\tCapabilities: [1c0 v1] Device Serial Number b8-3f-d2-03-00-00-00-10
\tKernel driver in use: mlx5_core
"""


def test_lspci_keeps_parts_and_loses_serial_numbers() -> None:
    shown = redact_output("lspci", LSPCI, redactor())
    for secret in ("MT2243X00017", "TIGERLILY", "c0f0a2b4e548ed11", "b8-3f-d2-03-00-00-00-10"):
        assert secret not in shown
    for kept in ("MCX75310AAS-NEAT", "[EC] Engineering changes: A6", "Physical Slot: 41", "checksum good"):
        assert kept in shown
    assert len(shown.splitlines()) == len(LSPCI.splitlines())
    assert sum(line in shown for line in LSPCI.splitlines(keepends=True)) == 13


def test_ip_link_loses_its_alias_and_unknown_keys_and_what_is_no_json() -> None:
    link = {
        "ifname": "eno1",
        "address": "b8:3f:d2:00:00:10",
        "ifalias": "uplink to zebra",
        "altnames": ["enxb83fd2000010"],
    }
    shown = json.loads(redact_output("ip-link", json.dumps([link]), redactor()))
    assert shown[0].keys() == {"ifname", "address", "altnames"}
    assert shown[0]["altnames"] == ["enx" + shown[0]["address"].replace(":", "")]
    assert redact_output("ip-link", "zebra: command failed", redactor()) == ""


def test_nothing_of_what_lldp_heard_leaves_the_machine() -> None:
    heard = '{"lldp": {"interface": {"eth0": {"chassis": {"zebra-leaf": {"descr": "hall 3", "mgmt-ip": "10.1.2.3"}}}}}}'
    assert redact_output("lldpcli", heard, redactor()) == ""


SMI = """\
==============NVSMI LOG==============

Timestamp                                 : Mon Mar  4 10:20:30 2024
Driver Version                            : 550.54.14
Attached GPUs                             : 8
GPU 00000000:18:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    Serial Number                         : 1653722012345
    GPU UUID                              : GPU-3b1e4d7c-0f7a-41f2-9c27-0d1c1f5ab001
    VBIOS Version                         : 96.00.89.00.01
    Platform Info
        Chassis Serial Number             : 77123
    Temperature
        GPU Current Temp                  : 31 C
    ECC Mode
        Current                           : Enabled
    Processes
        GPU instance ID                   : N/A
        Process ID                        : 4711
            Name                          : /home/quentin/train.py
            Used GPU Memory               : 1024 MiB
quentin was here
"""


def test_nvidia_smi_keeps_numbers_and_states_and_loses_who_runs_what() -> None:
    shown = redact_output("nvidia-smi-full", SMI, redactor("quentin"))
    for secret in ("1653722012345", "3b1e4d7c", "77123", "4711", "quentin", "train.py", "10:20:30"):
        assert secret not in shown
    kept = (
        "550.54.14|NVIDIA H100 80GB HBM3|96.00.89.00.01|31 C|: Enabled|1024 MiB|GPU 00000000:18:00.0|: GPU-"
    )
    for text in kept.split("|"):
        assert text in shown
