"""The kind "pci_register": bits of a register that is found by its capability. Config space is laid out by hand."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from railwright.node.model import InputError
from railwright.node.state import apply, revert
from tests.unit.state_support import DEVICE, fingerprint, item, make_node, plant

BRIDGE = "0000:17:01.0"
CONFIG = f"sys/bus/pci/devices/{DEVICE}/config"
BRIDGE_CONFIG = f"sys/bus/pci/devices/{BRIDGE}/config"


def space(express: int = 0x60, acs: int = 0, control: int = 0x2910, acs_control: int = 0x001D) -> bytearray:
    """Config space with power management at 0x40, Express at `express` and ACS (0: none) behind AER at 0x100."""
    data = bytearray(4096)
    data[0:4] = (0x15B3).to_bytes(2, "little") + (0x1021).to_bytes(2, "little")
    data[0x06] = 0x10
    data[0x34] = 0x40
    data[0x40:0x42] = bytes([0x01, express])
    data[express : express + 4] = bytes([0x10, 0x00, 0x02, 0x00])
    data[express + 8 : express + 10] = control.to_bytes(2, "little")
    data[0x100:0x104] = (0x0001 | 1 << 16 | acs << 20).to_bytes(4, "little")
    if acs:
        data[acs : acs + 4] = (0x000D | 1 << 16).to_bytes(4, "little")
        data[acs + 4 : acs + 8] = (0x005F).to_bytes(2, "little") + acs_control.to_bytes(2, "little")
    return data


@pytest.fixture
def node(tmp_path: Path) -> Path:
    made = make_node(tmp_path / "node")
    plant(made, CONFIG, bytes(space()))
    plant(made, BRIDGE_CONFIG, bytes(space(express=0x90, acs=0x220)))
    plant(made, CONFIG.replace("/config", "/class"), "0x020000\n")
    plant(made, BRIDGE_CONFIG.replace("/config", "/class"), "0x060400\n")
    return made


def reads(value: str = "5000", **more: Any) -> dict[str, Any]:
    return {
        "kind": "pci_register",
        "device": DEVICE,
        "capability": "CAP_EXP",
        "offset": 8,
        "width": 2,
        "mask": "7000",
        "value": value,
        **more,
    }


def acs(value: str = "0000", mask: str = "001d", **more: Any) -> dict[str, Any]:
    entry = reads(device=BRIDGE, capability="ECAP_ACS", offset=6, mask=mask, value=value)
    return {**entry, **more}


def put(node: Path, *entries: dict[str, Any], **more: Any) -> Any:
    return apply({"pcie": list(entries)}, root=str(node), **more)


def differing(before: bytes, after: bytes) -> dict[int, tuple[int, int]]:
    return {at: (a, b) for at, (a, b) in enumerate(zip(before, after, strict=True)) if a != b}


def test_only_the_masked_bits_change_and_a_revert_gives_every_byte_back(node: Path) -> None:
    before = {path: (node / path).read_bytes() for path in (CONFIG, BRIDGE_CONFIG)}
    outcome = put(node, reads(), acs())
    assert outcome.failures == ()
    # Express at 0x60, Device Control 8 bytes on: 2910 becomes 5910. ACS at 0x220, control 6 bytes on: 1d becomes 0.
    assert differing(before[CONFIG], (node / CONFIG).read_bytes()) == {0x69: (0x29, 0x59)}
    assert differing(before[BRIDGE_CONFIG], (node / BRIDGE_CONFIG).read_bytes()) == {0x226: (0x1D, 0x00)}
    assert not put(node, reads(), acs()).changed
    revert(root=str(node))
    assert {path: (node / path).read_bytes() for path in before} == before
    assert not (node / "var/lib/railwright").exists()


@pytest.mark.parametrize("express", [0x44, 0x60, 0x78, 0xC0])
def test_the_register_is_where_the_capability_list_says(node: Path, express: int) -> None:
    plant(node, CONFIG, bytes(space(express=express)))
    assert put(node, reads()).failures == ()
    assert (node / CONFIG).read_bytes()[express + 9] == 0x59


@pytest.mark.parametrize("start", [0x104, 0x180, 0xFF0])
def test_acs_is_where_the_extended_list_says(node: Path, start: int) -> None:
    plant(node, BRIDGE_CONFIG, bytes(space(acs=start)))
    assert put(node, acs()).failures == ()
    assert (node / BRIDGE_CONFIG).read_bytes()[start + 6] == 0x00


def test_a_check_says_what_a_run_would_do_and_touches_nothing(node: Path) -> None:
    before = fingerprint(node)
    outcome = put(node, reads(), check=True)
    assert (item(outcome)["before"], item(outcome)["after"]) == ("2000", "5000")
    assert fingerprint(node) == before


def test_two_entries_may_set_different_bits_of_one_register_and_never_the_same(node: Path) -> None:
    put(node, reads(), reads(mask="0010", value="0000"))
    assert (node / CONFIG).read_bytes()[0x68:0x6A] == bytes([0x00, 0x59])
    with pytest.raises(InputError, match="both own pci_register"):
        apply({"one": [reads()], "two": [reads(mask="7010", value="5010")]}, root=str(node))


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (reads(capability="CAP_MSI"), "is no register that is written"),
        (reads(offset=4), "is no register that is written"),
        (reads(width=4), "is no register that is written"),
        (reads(mask="8000", value="0000"), "has bits outside of 7010"),
        (reads(mask="0100", value="0100"), "has bits outside of 7010"),
        (reads("6000"), "6000 under 7000 is no read request size"),
        (reads(mask="7010", value="7010"), "7010 under 7010 is no read request size"),
        (reads("1000", mask="1000"), "1000 under 1000 is no read request size"),
        (reads(value="8000"), "has bits outside of 7000"),
        (reads(mask="0000", value="0000"), "names no bit"),
        (reads(value="5G00"), "is no hexadecimal number"),
        (reads(device="18:00"), "is no PCI address"),
        (acs(mask="0080", value="0080"), "has bits outside of 007f"),
    ],
)
def test_an_entry_that_is_no_such_register_is_refused(node: Path, entry: dict[str, Any], why: str) -> None:
    before = fingerprint(node)
    with pytest.raises(InputError, match=why):
        put(node, entry)
    assert fingerprint(node) == before


@pytest.mark.parametrize("level", ["integrity", "confidentiality"])
@pytest.mark.parametrize("check", [True, False])
def test_a_locked_down_kernel_is_named_before_anything_is_written(
    node: Path, level: str, check: bool
) -> None:
    words = " ".join(
        f"[{word}]" if word == level else word for word in ("none", "integrity", "confidentiality")
    )
    plant(node, "/sys/kernel/security/lockdown", f"{words}\n")
    before = fingerprint(node)
    (failure,) = put(node, reads(), check=check).failures
    assert failure.why.startswith(f"the kernel is locked down ({level})")
    assert "config_acs" in failure.remedy
    assert fingerprint(node) == before


def test_a_kernel_that_is_not_locked_down_takes_it(node: Path) -> None:
    plant(node, "/sys/kernel/security/lockdown", "[none] integrity confidentiality\n")
    assert put(node, reads()).failures == ()


def test_bits_that_a_bridge_is_not_capable_of_are_refused(node: Path) -> None:
    (failure,) = put(node, acs("0020", "0020")).failures
    assert failure.why == f"{BRIDGE} is not capable of ECAP_ACS+6.w=0020"


def test_bits_that_read_back_otherwise_are_a_failure(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: len(data))
    outcome = put(node, reads())
    (failure,) = outcome.failures
    assert "5000 was written and reads back as 2000" in failure.why
    assert not outcome.changed


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\xff" * 4096, "does not answer: it fell off the bus"),
        (bytes(space()[:64]), "not there, without it, or not readable"),
        (bytes(256), "not there, without it, or not readable"),
        (b"", "not there, without it, or not readable"),
    ],
)
def test_a_function_that_cannot_be_read_is_named(node: Path, data: bytes, why: str) -> None:
    plant(node, CONFIG, data)
    (failure,) = put(node, reads()).failures
    assert why in failure.why
    assert (node / CONFIG).read_bytes() == data


def test_without_extended_space_acs_cannot_be_told(node: Path) -> None:
    plant(node, BRIDGE_CONFIG, bytes(space(acs=0x220)[:256]))
    (failure,) = put(node, acs()).failures
    assert "only 256 bytes" in failure.why


def test_a_function_that_is_gone_is_named(node: Path) -> None:
    shutil.rmtree(node / CONFIG.rpartition("/")[0])
    (failure,) = put(node, reads()).failures
    assert failure.why.startswith(f"the node has no {DEVICE}")


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize(
    ("given", "kind", "why"),
    [
        (reads(), "0x030200", "is no network controller (class 0x030200)"),
        (reads(), "0x060400", "is no network controller"),
        (reads(), "", "is no network controller (class unknown)"),
        (acs(), "0x020000", "is no PCI bridge"),
        (acs(), "0x060000", "is no PCI bridge"),
    ],
)
def test_a_register_is_written_of_its_own_kind_of_function_alone(
    node: Path, given: dict[str, Any], kind: str, why: str, check: bool
) -> None:
    plant(node, f"/sys/bus/pci/devices/{given['device']}/class", f"{kind}\n")
    before = fingerprint(node)
    (failure,) = put(node, given, check=check).failures
    assert why in failure.why
    assert fingerprint(node) == before


def test_a_virtual_function_and_an_nvswitchs_management_function_are_left(node: Path) -> None:
    plant(node, f"/sys/bus/pci/devices/{DEVICE}/class", "0x020700\n")
    plant(node, f"/sys/bus/pci/devices/{DEVICE}/vpd", b"\x82\x05\x00SW_MNG")
    (failure,) = put(node, reads()).failures
    assert "manages NVSwitches" in failure.why
    (node / f"sys/bus/pci/devices/{DEVICE}/vpd").unlink()
    (node / f"sys/bus/pci/devices/{DEVICE}/physfn").symlink_to("../0000:18:00.1")
    (failure,) = put(node, reads()).failures
    assert "is a virtual function" in failure.why
    assert (node / CONFIG).read_bytes()[0x69] == 0x29


def given_to(node: Path, driver: str) -> None:
    """A function below the bridge, with this driver; the bridge's place holds its folder as sysfs does."""
    place = node / f"sys/bus/pci/devices/{BRIDGE}/0000:19:00.0"
    place.mkdir()
    (node / "sys/bus/pci/devices/0000:19:00.0").symlink_to(f"{BRIDGE}/0000:19:00.0")
    (node / f"sys/bus/pci/drivers/{driver}").mkdir(parents=True)
    (place / "driver").symlink_to(f"../../../drivers/{driver}")


@pytest.mark.parametrize("driver", ["vfio-pci", "mlx5_vfio_pci", "nvgrace-gpu-vfio-pci", "pci-stub"])
def test_a_bridge_above_a_guests_device_keeps_it_apart(node: Path, driver: str) -> None:
    given_to(node, driver)
    before = fingerprint(node)
    for check in (True, False):
        (failure,) = put(node, acs(), check=check).failures
        assert f"0000:19:00.0 below it is a guest's ({driver})" in failure.why
    assert fingerprint(node) == before
    # What keeps it apart even more is no matter.
    plant(node, BRIDGE_CONFIG, bytes(space(express=0x90, acs=0x220, acs_control=0)))
    assert put(node, acs("001d")).failures == ()


def test_the_bridges_of_the_hosts_own_devices_are_written(node: Path) -> None:
    given_to(node, "mlx5_core")
    assert put(node, acs()).failures == ()


def test_a_revert_keeps_guests_apart_again(node: Path) -> None:
    put(node, acs())
    given_to(node, "vfio-pci")
    assert revert(root=str(node)).failures == ()
    assert (node / BRIDGE_CONFIG).read_bytes()[0x226] == 0x1D


def test_bits_that_the_driver_changed_meanwhile_are_kept(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the reading of the whole space and the write the driver switches error reporting on (bits 3 to 0)."""
    real = os.pread

    def pread(fd: int, count: int, offset: int) -> bytes:
        assert (count, offset) == (2, 0x68)
        plant(node, CONFIG, bytes(space(control=0x291F)))
        return real(os.open(node / CONFIG, os.O_RDONLY), count, offset)

    monkeypatch.setattr(os, "pread", pread)
    assert put(node, reads()).failures == ()
    assert (node / CONFIG).read_bytes()[0x68:0x6A] == bytes([0x1F, 0x59])


def test_a_function_that_stops_answering_before_the_write_is_not_reset(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ones are read then; written back they hold bit 15 of Device Control, which starts a reset."""
    before = (node / CONFIG).read_bytes()
    monkeypatch.setattr(os, "pread", lambda fd, count, offset: b"\xff" * count)
    (failure,) = put(node, reads()).failures
    assert "is gone or being reset" in failure.why
    assert (node / CONFIG).read_bytes() == before


def test_what_somebody_else_set_since_is_left(node: Path) -> None:
    put(node, reads())
    plant(node, CONFIG, bytes(space(control=0x3910)))
    assert "changed since by someone else" in item(revert(root=str(node)))["note"]
    assert (node / CONFIG).read_bytes()[0x69] == 0x39


def test_after_a_boot_the_same_entry_writes_again_and_a_revert_has_nothing_to_do(node: Path) -> None:
    put(node, reads())
    plant(node, CONFIG, bytes(space()))  # as after a boot
    assert put(node, reads()).changed
    plant(node, CONFIG, bytes(space()))
    assert not revert(root=str(node)).changed


def acs_starts(data: bytes) -> set[int]:
    """Where an ACS header may stand: every place in the whole space, by brute force."""
    return {at for at in range(0x100, 4096 - 7, 4) if data[at : at + 2] == b"\x0d\x00"}


@pytest.mark.parametrize("seed", range(32))
def test_of_a_garbled_space_nothing_but_masked_bits_of_an_acs_capability_is_ever_written(
    node: Path, seed: int
) -> None:
    rng = random.Random(seed)  # noqa: S311 - a sample, no secret
    data = space(acs=0x220)
    for _ in range(rng.randrange(1, 400)):
        data[rng.choice([rng.randrange(4096), 0x102, 0x103, 0x220, 0x221, 0x222, 0x223, 0x06, 0x34])] = (
            rng.randrange(256)
        )
    plant(node, BRIDGE_CONFIG, bytes(data))
    outcome = put(node, acs())
    changed = differing(bytes(data), (node / BRIDGE_CONFIG).read_bytes())
    if outcome.failures:
        assert not changed
    else:
        assert set(changed) <= {start + 6 for start in acs_starts(bytes(data))}
        assert all(after == before & ~0x1D for before, after in changed.values())


@pytest.mark.skipif(shutil.which("lspci") is None, reason="lspci is not installed")
def test_lspci_reads_the_registers_as_they_were_asked_for(node: Path, tmp_path: Path) -> None:
    assert put(node, reads("5000"), reads(mask="0010", value="0000"), acs()).failures == ()

    def told(path: str) -> str:
        data = (node / path).read_bytes()
        rows = [f"{at:02x}: {data[at : at + 16].hex(' ')}" for at in range(0, len(data), 16)]
        dump = tmp_path / "dump"
        dump.write_text("00:00.0 a function\n" + "\n".join(rows) + "\n")
        return subprocess.run(
            ["lspci", "-F", dump, "-vvv"], capture_output=True, text=True, check=True
        ).stdout

    nic, bridge = told(CONFIG), told(BRIDGE_CONFIG)
    assert "MaxReadReq 4096 bytes" in nic
    assert "RlxdOrd-" in nic
    (control,) = [line for line in bridge.splitlines() if "ACSCtl:" in line]
    assert control.split(":")[1].split() == [
        "SrcValid-", "TransBlk-", "ReqRedir-", "CmpltRedir-", "UpstreamFwd-", "EgressCtrl-", "DirectTrans-",
    ]  # fmt: skip
