"""The kinds "sysctl", "sysfs" and "irq_affinity": values that the kernel holds."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from railwright.node.state import apply, kernel_items, revert
from tests.unit.state_support import DEVICE, MLX5, fingerprint, item, items, make_node, plant, plant_irqs

SOURCE = Path(__file__).resolve().parents[2] / "src"


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return make_node(tmp_path / "node")


def put(node: Path, *entries: dict[str, Any], **more: Any) -> Any:
    return apply({"part": list(entries)}, root=str(node), **more)


def sysctl(name: str, value: str) -> dict[str, Any]:
    return {"kind": "sysctl", "name": name, "value": value}


def sysfs(path: str, value: str) -> dict[str, Any]:
    return {"kind": "sysfs", "path": path, "value": value}


def test_a_sysctl_is_set_and_put_back(node: Path) -> None:
    path = plant(node, "/proc/sys/vm/zone_reclaim_mode", "1\n")
    outcome = put(node, sysctl("vm.zone_reclaim_mode", "0"))
    assert path.read_text() == "0\n"
    assert (item(outcome)["before"], item(outcome)["after"]) == ("1", "0")
    assert outcome.to_json()["diff"][0]["after"] == "sysctl:vm.zone_reclaim_mode = 0\n"
    assert not put(node, sysctl("vm.zone_reclaim_mode", "0")).changed
    revert(root=str(node))
    assert path.read_text() == "1\n"


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("net.ipv4.conf.eth0/100.rp_filter", "net/ipv4/conf/eth0.100/rp_filter"),
        ("net/ipv4/conf/eth0.100/rp_filter", "net/ipv4/conf/eth0.100/rp_filter"),
        ("kernel.numa_balancing", "kernel/numa_balancing"),
    ],
)
def test_a_name_is_read_as_sysctl_d_reads_it(node: Path, name: str, path: str) -> None:
    plant(node, f"/proc/sys/{path}", "2\n")
    outcome = put(node, sysctl(name, "1"))
    assert (node / "proc/sys" / path).read_text() == "1\n"
    assert item(outcome)["id"] == f"sysctl:{path if '.' in path else path.replace('/', '.')}"


def test_tabs_and_spaces_are_the_same_to_a_sysctl(node: Path) -> None:
    path = plant(node, "/proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n")
    assert not put(node, sysctl("net.ipv4.tcp_rmem", "4096 131072  6291456")).changed
    assert path.read_text() == "4096\t131072\t6291456\n"


def test_a_link_out_of_the_kernels_folders_is_never_followed(node: Path) -> None:
    outside = plant(node, "/etc/passwd-like", "0-3\n")
    plant(node, "/proc/interrupts", "     CPU0\n 60:  0  IR-PCI-MSIX-0000:18:00.0 0-edge mlx5_comp0@pci\n")
    plant(node, f"/sys/bus/pci/devices/{DEVICE}/msi_irqs/60", "msix\n")
    for path in ("proc/sys/vm/swappiness", "proc/irq/60/smp_affinity_list", "sys/kernel/mm/ksm"):
        (node / path).parent.mkdir(parents=True, exist_ok=True)
        (node / path).symlink_to(outside)
    for entry, name in (
        (sysctl("vm.swappiness", "2"), "/proc/sys/vm/swappiness"),
        (sysfs("/sys/kernel/mm/ksm", "2"), "/sys/kernel/mm/ksm"),
        ({"kind": "irq_affinity", "device": DEVICE, "cpus": "2"}, "/proc/irq/60/smp_affinity_list"),
    ):
        (failure,) = put(node, entry).failures
        assert failure.why == f"{name} leads to {os.path.realpath(outside)}"
    assert outside.read_text() == "0-3\n"


def test_a_sysctl_that_the_kernel_lacks_is_named(node: Path) -> None:
    for check in (True, False):
        (failure,) = put(node, sysctl("vm.no_such", "1"), check=check).failures
        assert failure.why == "the kernel has no sysctl vm.no_such"


def test_a_value_that_a_reboot_reset_is_not_somebody_elses(node: Path) -> None:
    path = plant(node, "/proc/sys/vm/swappiness", "60\n")
    put(node, sysctl("vm.swappiness", "10"))
    path.write_text("60\n")  # as after a boot
    outcome = revert(root=str(node))
    assert (outcome.changed, item(outcome)["note"], path.read_text()) == (False, "", "60\n")


def test_a_value_that_somebody_else_set_is_left(node: Path) -> None:
    path = plant(node, "/proc/sys/vm/swappiness", "60\n")
    put(node, sysctl("vm.swappiness", "10"))
    path.write_text("35\n")
    assert (
        item(revert(root=str(node)))["note"] == "sysctl:vm.swappiness was changed since by someone else: left"
    )
    assert path.read_text() == "35\n"


def test_a_value_that_is_gone_at_the_revert_is_noted(node: Path) -> None:
    path = plant(node, "/proc/sys/vm/swappiness", "60\n")
    put(node, sysctl("vm.swappiness", "10"))
    path.unlink()
    assert item(revert(root=str(node)))["note"] == "sysctl:vm.swappiness is gone: nothing to put back"


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EACCES])
def test_what_the_kernel_does_not_take_is_a_failure_and_leaves_no_record(
    node: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    plant(node, "/proc/sys/vm/swappiness", "60\n")

    def refuse(path: str, value: str) -> None:
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr(kernel_items, "write_value", refuse)
    outcome = put(node, sysctl("vm.swappiness", "500"))
    (failure,) = outcome.failures
    assert os.strerror(number) in failure.why
    assert "sysctl:vm.swappiness" in failure.why
    assert not outcome.changed
    assert not (node / "var/lib/railwright").exists()


def test_a_value_that_reads_back_otherwise_is_a_failure_and_still_a_change(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = plant(node, "/proc/sys/net/core/rmem_max", "100\n")
    before = fingerprint(node)
    real = kernel_items.write_value
    clamp = {"7": "64", "100": "100"}
    monkeypatch.setattr(kernel_items, "write_value", lambda place, value: real(place, clamp[value]))
    outcome = put(node, sysctl("net.core.rmem_max", "7"))
    (failure,) = outcome.failures
    assert failure.why == "sysctl:net.core.rmem_max: '7' was written and reads back as '64'"
    assert outcome.changed
    # What the kernel made of it is no value of ours, so it is left and said.
    assert "changed since by someone else" in item(revert(root=str(node)))["note"]
    path.write_text("100\n")
    os.utime(path, ns=(before["proc/sys/net/core/rmem_max"][4],) * 2)
    assert fingerprint(node) == before


def test_a_short_write_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = plant(tmp_path, "/x", "60\n")
    monkeypatch.setattr(os, "write", lambda fd, data: len(data) - 1)
    with pytest.raises(OSError, match="a part of the value"):
        kernel_items.write_value(str(path), "10")


def test_of_a_file_that_shows_its_choices_the_chosen_one_counts(node: Path) -> None:
    thp = "/sys/kernel/mm/transparent_hugepage/enabled"
    path = plant(node, thp, "always [madvise] never\n")
    assert not put(node, sysfs(thp, "madvise")).changed
    outcome = put(node, sysfs(thp, "never"))
    assert (item(outcome)["before"], item(outcome)["after"]) == ("madvise", "never")
    path.write_text("always madvise [never]\n")  # as the kernel shows it then
    assert not put(node, sysfs(thp, "never")).changed
    revert(root=str(node))
    assert path.read_text() == "madvise\n"


def test_a_sysfs_path_may_go_over_the_kernels_own_links_but_not_out(node: Path) -> None:
    real = plant(node, "/sys/devices/pci0000:00/x/net/eth0/mtu", "1500\n")
    (node / "sys/class/net").mkdir(parents=True)
    (node / "sys/class/net/eth0").symlink_to("../../devices/pci0000:00/x/net/eth0")
    (node / "sys/class/net/out").symlink_to("../../../etc")
    plant(node, "/etc/mtu", "1\n")
    assert put(node, sysfs("/sys/class/net/eth0/mtu", "9000")).failures == ()
    assert real.read_text() == "9000\n"
    (failure,) = put(node, sysfs("/sys/class/net/out/mtu", "9000")).failures
    assert failure.why.startswith("/sys/class/net/out/mtu leads to ")
    (failure,) = put(node, sysfs("/sys/class/net", "9000")).failures
    assert failure.why == "/sys/class/net is a folder"
    (failure,) = put(node, sysfs("/sys/class/net/eth9/mtu", "9000")).failures
    assert failure.why == "the kernel has no /sys/class/net/eth9/mtu"


def test_two_names_of_one_sysfs_value_are_one_thing(node: Path) -> None:
    plant(node, "/sys/devices/x/mtu", "1500\n")
    (node / "sys/class").mkdir()
    (node / "sys/class/eth0").symlink_to("../devices/x")
    with pytest.raises(ValueError, match="slice two and slice one both own sysfs"):
        apply(
            {"one": [sysfs("/sys/devices/x/mtu", "9000")], "two": [sysfs("/sys/class/eth0/mtu", "4200")]},
            root=str(node),
        )


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for namespaces of its own")
def test_a_real_kernel_takes_refuses_and_gives_back_a_sysctl() -> None:
    program = f"""
import json, subprocess, sys
sys.path.insert(0, {str(SOURCE)!r})
from railwright.node.state import apply, revert
ask = lambda: subprocess.run(["cat", "/proc/sys/net/ipv4/tcp_rmem"], capture_output=True, text=True).stdout
entry = lambda value: {{"part": [{{"kind": "sysctl", "name": "net.ipv4.tcp_rmem", "value": value}}]}}
said = [ask(), apply(entry("4096 87380 4194304")).failures, ask()]
said += [apply(entry("4096 87380 4194304")).changed, apply(entry("many")).failures[0].why, revert().changed, ask()]
print(json.dumps(said))
"""
    mounts = "mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /var/lib && exec "
    command = ["unshare", "--net", "--mount", "sh", "-c", mounts + '"$0" -B -', sys.executable]
    done = subprocess.run(command, input=program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    import json

    first, failures, second, changed, why, reverted, third = json.loads(done.stdout)
    assert (failures, changed, reverted) == ([], False, True)
    assert second == "4096\t87380\t4194304\n"
    assert first == third != second
    assert why == "sysctl:net.ipv4.tcp_rmem: the kernel refuses 'many': Invalid argument"


# Interrupts


def affinity(**more: Any) -> dict[str, Any]:
    return {"kind": "irq_affinity", "device": DEVICE, "cpus": "4,6,8", **more}


def placed(node: Path) -> dict[int, str]:
    return {
        int(path.parent.name): path.read_text().strip()
        for path in (node / "proc/irq").glob("*/smp_affinity_list")
    }


def test_completion_vectors_take_turns_in_the_order_of_their_numbers(node: Path) -> None:
    plant_irqs(node, MLX5)
    before = fingerprint(node)
    outcome = put(node, affinity())
    assert placed(node) == {9: "0-9", 10: "4", 11: "6", 12: "8", 13: "0-9", 100: "4"}
    assert item(outcome)["after"] == {"10": "4", "11": "6", "12": "8", "100": "4"}
    assert not put(node, affinity()).changed
    revert(root=str(node))
    assert placed(node) == dict.fromkeys(MLX5, "0-9")
    assert fingerprint(node).keys() == before.keys()


def test_control_vectors_go_where_the_entry_says_and_back_when_it_no_longer_does(node: Path) -> None:
    plant_irqs(node, MLX5)
    put(node, affinity(control_cpus="2-3"))
    assert (placed(node)[9], placed(node)[10]) == ("2-3", "4")
    outcome = put(node, affinity())
    assert (placed(node)[9], placed(node)[10]) == ("0-9", "4")
    assert item(outcome)["after"] == {"9": "0-9"}


@pytest.mark.parametrize(
    ("name", "control"),
    [
        ("mlx5_comp0@pci:0000:18:00.0", False),
        ("mlx5_combined0@pci:0000:18:00.0", False),
        ("mlx5_sf_comp3", False),
        ("mlx5_async14@pci:0000:18:00.0", True),
        ("mlx5_ctrl@pci:0000:18:00.0", True),
        ("mlx5_pages_eq@pci:0000:18:00.0", True),
        ("mlx5_sf_ctrl0", True),
        ("eth0-TxRx-0", False),
        ("ice-eth0-TxRx-3", False),
        ("ice-0000:18:00.0:misc", True),
        ("irdma-ice-0-AEQ", True),
        ("irdma-ice-0-CEQ-1", False),
        ("nvidia", False),
        ("iavf-0000:18:00.0:mbx", True),
        ("virtio0-config", True),
        ("healthcheck-queue", False),
    ],
)
def test_which_vectors_are_control(node: Path, name: str, control: bool) -> None:
    plant_irqs(node, {33: name})
    outcome = put(node, affinity(control_cpus="1"))
    assert outcome.failures == ()
    assert placed(node) == {33: "1" if control else "4"}


@pytest.mark.parametrize(
    ("row", "name"),
    [
        (
            " 33:   5   0  IR-PCI-MSI 12582912-edge      mlx5_comp0@pci:0000:18:00.0",
            "mlx5_comp0@pci:0000:18:00.0",
        ),
        (
            " 33:   5   0  ITS-PCI-MSIX-0000:18:00.0   1 Edge      mlx5_comp0@pci:0000:18:00.0",
            "mlx5_comp0@pci:0000:18:00.0",
        ),
        (
            " 33:   5   0  Hyper-V PCIe MSI 1073741824-edge      mlx5_comp0@pci:0000:18:00.0",
            "mlx5_comp0@pci:0000:18:00.0",
        ),
        (
            " 33: 4294967295 4294967295 IR-PCI-MSIX-0000:18:00.0    1-edge      eth0-rx-0, eth0-tx-0",
            "eth0-rx-0, eth0-tx-0",
        ),
        (" 33:   5   0  PCI-MSIX-0000:18:00.0   1-edge", None),
        (" 33:   5   0", None),
    ],
)
def test_rows_of_the_interrupt_table_of_other_kernels(node: Path, row: str, name: str | None) -> None:
    plant(
        node,
        "/proc/interrupts",
        f"           CPU0       CPU4       \n{row}\n  8:          1          0  IO-APIC   8-edge      rtc0\n",
    )
    plant(node, f"/sys/bus/pci/devices/{DEVICE}/msi_irqs/33", "msix\n")
    plant(node, "/proc/irq/33/smp_affinity_list", "0,4\n")
    outcome = put(node, affinity(cpus="4"))
    assert outcome.failures == ()
    assert placed(node)[33] == ("0,4" if name is None else "4")
    assert ("none of the 1 MSI vectors is a completion vector in use" in item(outcome)["note"]) == (
        name is None
    )


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ("", "/proc/interrupts, line 1: expected the CPUs' names"),
        (" 33: 1 2 x\n", "/proc/interrupts, line 1: expected the CPUs' names"),
        (" CPU0 CPU1\n 33:  12  PCI-MSI 1-edge  mlx5_comp0\n", "/proc/interrupts, line 2: expected 2 counts"),
    ],
)
def test_a_table_that_is_none_is_a_failure_with_its_line(node: Path, table: str, why: str) -> None:
    plant_irqs(node, {33: "mlx5_comp0"})
    plant(node, "/proc/interrupts", table)
    (failure,) = put(node, affinity()).failures
    assert failure.why == why


def test_a_device_without_vectors_is_noted_and_one_that_is_not_there_is_a_failure(node: Path) -> None:
    (node / "sys/bus/pci/devices" / DEVICE).mkdir(parents=True)
    plant(node, "/proc/interrupts", " CPU0\n")
    outcome = put(node, affinity())
    assert (outcome.changed, outcome.failures) == (False, ())
    assert item(outcome)["note"] == f"{DEVICE} has no MSI vectors: its driver is not bound or uses none"
    (failure,) = put(node, affinity(device="0000:99:00.0")).failures
    assert failure.why == "the node has no PCI function 0000:99:00.0"


def test_a_device_with_control_vectors_only_is_noted(node: Path) -> None:
    plant_irqs(node, {9: f"mlx5_async0@pci:{DEVICE}", 10: None})
    outcome = put(node, affinity())
    assert item(outcome)["note"].startswith("none of the 2 MSI vectors is a completion vector in use")


def test_vectors_that_only_the_kernel_places_are_noted_before_and_after(node: Path) -> None:
    plant_irqs(node, MLX5)
    (node / "proc/irq/11/smp_affinity_list").chmod(0o444)  # Linux 6.11 and later
    outcome = put(node, affinity())
    assert placed(node)[11] == "0-9"
    assert placed(node)[12] == "6"
    assert item(outcome)["note"] == "IRQ 11: managed by the kernel, left"


def kernel(refusals: dict[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that answers writes of these IRQs with these errors."""
    real = kernel_items.write_value

    def write(path: str, value: str) -> None:
        number = refusals.get(int(Path(path).parent.name))
        if number is not None:
            raise OSError(number, os.strerror(number))  # write(2) names no file
        real(path, value)

    monkeypatch.setattr("railwright.node.state.irq_item.write_value", write)


@pytest.mark.parametrize("number", [errno.EIO, errno.EPERM])
def test_an_older_kernel_that_refuses_its_own_vectors_is_no_failure(
    node: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    plant_irqs(node, MLX5)
    kernel({11: number}, monkeypatch)
    outcome = put(node, affinity())
    assert (outcome.changed, outcome.failures) == (True, ())
    assert item(outcome)["note"] == "IRQ 11: managed by the kernel, left"
    assert "11" not in item(outcome)["after"]
    assert not put(node, affinity()).changed
    kernel({}, monkeypatch)
    revert(root=str(node))
    assert placed(node) == dict.fromkeys(MLX5, "0-9")


def test_a_device_whose_vectors_are_all_the_kernels_is_unchanged(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant_irqs(node, {10: "nvme0q1", 11: "nvme0q2"})
    before = fingerprint(node)
    kernel({10: errno.EIO, 11: errno.EIO}, monkeypatch)
    outcome = put(node, affinity())
    assert (outcome.changed, outcome.failures) == (False, ())
    assert fingerprint(node) == before


@pytest.mark.parametrize(
    ("number", "why", "remedy"),
    [
        (errno.ENOSPC, "IRQ 11: CPU 6 has no free vector", "spread the interrupts over more CPUs"),
        (errno.EINVAL, "IRQ 11: CPU 6 does not exist or is offline", "plan again"),
        (errno.ERANGE, "IRQ 11: CPU 6 does not exist or is offline", "plan again"),
        (errno.EOVERFLOW, "IRQ 11: CPU 6 does not exist or is offline", "plan again"),
        (errno.EFAULT, "IRQ 11: Bad address", "see the kernel's log"),
    ],
)
def test_what_the_kernel_says_of_a_vector_is_told_with_the_remedy_and_the_rest_is_set(
    node: Path, monkeypatch: pytest.MonkeyPatch, number: int, why: str, remedy: str
) -> None:
    plant_irqs(node, MLX5)
    kernel({11: number}, monkeypatch)
    outcome = put(node, affinity())
    (failure,) = outcome.failures
    assert failure.why == why
    assert failure.remedy.startswith(remedy)
    assert outcome.changed
    assert placed(node) == {9: "0-9", 10: "4", 11: "0-9", 12: "8", 13: "0-9", 100: "4"}
    kernel({}, monkeypatch)
    revert(root=str(node))
    assert placed(node) == dict.fromkeys(MLX5, "0-9")


def test_vectors_that_are_refused_for_one_reason_are_told_together(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant_irqs(node, MLX5)
    kernel(dict.fromkeys((10, 11, 12, 100), errno.EINVAL), monkeypatch)
    (failure,) = put(node, affinity(cpus="77")).failures
    assert failure.why == "IRQ 10, 11, 12, 100: CPU 77 does not exist or is offline"


def test_what_is_in_force_is_told_where_it_is_not_what_was_asked_for(node: Path) -> None:
    plant_irqs(node, {10: "mlx5_comp0"})
    plant(node, "/proc/irq/10/effective_affinity_list", "0\n")
    outcome = put(node, affinity())
    lagging = "IRQ 10: set, not in force yet: the kernel moves an interrupt when it next occurs"
    assert item(outcome)["note"] == lagging
    again = put(node, affinity())
    assert (again.changed, item(again)["note"]) == (False, lagging)
    plant(node, "/proc/irq/10/effective_affinity_list", "4\n")
    assert item(put(node, affinity()))["note"] == ""
    (
        node / "proc/irq/10/effective_affinity_list"
    ).unlink()  # before Linux 4.15, and some interrupt controllers
    assert item(put(node, affinity()))["note"] == ""


def test_vectors_that_came_later_are_placed_and_all_go_back(node: Path) -> None:
    plant_irqs(node, {10: "mlx5_comp0"})
    put(node, affinity())
    plant_irqs(node, {10: "mlx5_comp0", 11: "mlx5_comp1"})
    plant(node, "/proc/irq/10/smp_affinity_list", "4\n")
    assert item(put(node, affinity()))["after"] == {"11": "6"}
    revert(root=str(node))
    assert placed(node) == {10: "0-9", 11: "0-9"}


def test_vectors_that_are_gone_are_noted_at_the_revert(node: Path) -> None:
    plant_irqs(node, {10: "mlx5_comp0", 11: "mlx5_comp1"})
    put(node, affinity())
    (node / f"sys/bus/pci/devices/{DEVICE}/msi_irqs/11").unlink()
    outcome = revert(root=str(node))
    assert item(outcome)["note"] == "IRQ 11 is gone: nothing to put back"
    assert placed(node) == {10: "0-9", 11: "6"}  # 11 is some other device's now


def test_a_vector_that_is_freed_while_it_is_read_is_left_out(node: Path) -> None:
    plant_irqs(node, {10: "mlx5_comp0", 11: "mlx5_comp1"})
    (node / "proc/irq/10/smp_affinity_list").unlink()
    assert item(put(node, affinity()))["after"] == {"11": "4"}


def test_a_device_that_left_takes_its_prior_values_along(node: Path) -> None:
    plant_irqs(node, {10: "mlx5_comp0"})
    put(node, affinity())
    subprocess.run(["rm", "-r", str(node / "sys/bus/pci/devices")], check=True)
    assert item(revert(root=str(node)))["note"] == "IRQ 10 is gone: nothing to put back"
    assert not (node / "var/lib/railwright").exists()


def test_an_affinity_that_is_no_cpu_list_is_a_failure(node: Path) -> None:
    plant_irqs(node, {10: "mlx5_comp0"})
    plant(node, "/proc/irq/10/smp_affinity_list", "all of them\n")
    (failure,) = put(node, affinity()).failures
    assert failure.why == f"irq_affinity:{DEVICE}: 'all of them' is no CPU list"


def test_several_kinds_in_one_run_go_in_their_order_and_come_back(node: Path) -> None:
    plant_irqs(node, MLX5)
    plant(node, "/proc/sys/vm/swappiness", "60\n")
    outcome = put(node, affinity(), sysctl("vm.swappiness", "10"))
    assert list(items(outcome, "part")) == [
        f"irq_affinity:{DEVICE}",
        "sysctl:vm.swappiness",
    ]  # as they were given
    assert {entry["action"] for entry in items(outcome, "part").values()} == {"write"}
    assert revert(root=str(node)).changed
