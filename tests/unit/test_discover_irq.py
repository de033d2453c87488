"""Interrupts: names by the table's own columns, numbers and CPUs by function."""

from __future__ import annotations

from pathlib import Path

import pytest

from railwright.node.discover import discover
from railwright.node.discover.irq import read_actions
from railwright.node.model import InputError, Irq
from tests.unit.small_machine import function, functions, plant

HEADER = "           CPU0       CPU1       CPU8\n"
FOLDER = "sys/devices/pci0000:15/0000:15:01.0"


@pytest.mark.parametrize(
    ("rest", "action"),
    [
        ("PCI-MSI 524288-edge      mlx5_comp0@pci:0000:41:00.0", "mlx5_comp0@pci:0000:41:00.0"),
        ("IR-PCI-MSI-0000:18:00.0    3-edge      mlx5_comp3@pci:0000:18:00.0", "mlx5_comp3@pci:0000:18:00.0"),
        ("PCI-MSIX-0000:18:00.0   3-edge      mlx5_comp3@pci:0000:18:00.0", "mlx5_comp3@pci:0000:18:00.0"),
        ("ITS-MSI 524288 Edge      mlx5_async0@pci:0002:01:00.0", "mlx5_async0@pci:0002:01:00.0"),
        ("PCI-MSI 1  mlx5_comp0@pci:0000:41:00.0", "mlx5_comp0@pci:0000:41:00.0"),
        ("mlx5_comp0@pci:0000:65:00.0", "mlx5_comp0@pci:0000:65:00.0"),
        ("PCI-MSI-edge      eth0-rx-1", "eth0-rx-1"),
        ("IO-APIC   9-fasteoi   acpi, i801_smbus", "acpi, i801_smbus"),
        ("PCI-MSI 524288-edge   ", None),
        ("ITS-MSI 524288 Edge", None),
        ("", None),
    ],
)
def test_the_name_stands_behind_chip_and_trigger(rest: str, action: str | None) -> None:
    text = f"{HEADER} 120:         10          0          5   {rest}\n LOC:    1    1    1   Local timer interrupts\n"
    assert read_actions(text, "interrupts").get(120) == action


def test_columns_are_counted_and_not_numbered() -> None:
    # Field case: CPUs 2 to 7 are offline, so the third column is CPU 8.
    text = (
        HEADER
        + " 120:   10   0   5   PCI-MSI 1  mlx5_comp0@pci:0000:41:00.0\n 121:  0  0  9   PCI-MSI 2  nvme0q1\n"
    )
    assert read_actions(text, "interrupts") == {120: "mlx5_comp0@pci:0000:41:00.0", 121: "nvme0q1"}


def test_no_table_is_no_name() -> None:
    assert read_actions("", "interrupts") == {}


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("CPU0 cpu1\n", 1, "a header like"),
        (HEADER + " 120:   10   0   PCI-MSI 1  mlx5_comp0@pci:0000:41:00.0\n", 2, "3 counters"),
        (HEADER + "\n 120:   10   0\n", 3, "3 counters"),
    ],
)
def test_a_table_that_does_not_fit_its_header_is_refused(text: str, line: int, words: str) -> None:
    with pytest.raises(InputError, match=words) as error:
        read_actions(text, "interrupts")
    assert error.value.where == f"interrupts:{line}"


def planted(root: Path) -> Path:
    files, links = functions(
        function("pci0000:15/0000:15:01.0", "0x020000"),
        function("pci0000:15/0000:15:02.0", "0x010802", "0x144d"),
    )
    files |= {
        f"{FOLDER}/net/eth0/mtu": "9000",
        f"{FOLDER}/msi_irqs/120": "msix",
        f"{FOLDER}/msi_irqs/99": "msix",
        f"{FOLDER}/msi_irqs/121": "msix",
        "sys/devices/pci0000:15/0000:15:02.0/msi_irqs/130": "msix",
        "proc/interrupts": f"{HEADER}  99: 1 0 0  PCI-MSI 0-edge      mlx5_async0@pci:0000:15:01.0\n"
        " 120: 1 0 0  PCI-MSI 1-edge      mlx5_comp0@pci:0000:15:01.0\n",
        "proc/irq/99/smp_affinity_list": "0-1,8\n",
        "proc/irq/120/smp_affinity_list": "8\n",
        "proc/irq/120/effective_affinity_list": "8\n",
        "proc/irq/121/smp_affinity_list": "0-1\n",
        "proc/irq/121/effective_affinity_list": "\n",
        "proc/irq/121/mlx5_comp1@pci:0000:15:01.0/nothing": "",
    }
    links["sys/class/net/eth0"] = "../../devices/pci0000:15/0000:15:01.0/net/eth0"
    return plant(root, files, links)


def test_interrupts_of_nics_come_by_number_with_name_and_cpus(tmp_path: Path) -> None:
    device = "0000:15:01.0"
    assert discover(planted(tmp_path)).irqs == (
        Irq(99, device, f"mlx5_async0@pci:{device}", "0-1,8", None),
        Irq(120, device, f"mlx5_comp0@pci:{device}", "8", "8"),
        # Its line is not in the table, but the kernel has made a folder for its handler.
        Irq(121, device, f"mlx5_comp1@pci:{device}", "0-1", ""),
    )


def test_an_interrupt_that_nobody_may_write_is_the_kernels(tmp_path: Path) -> None:
    root = planted(tmp_path)
    (root / "proc/irq/120/smp_affinity_list").chmod(0o444)
    assert {irq.number: irq.managed for irq in discover(root).irqs} == {99: None, 120: True, 121: None}


def test_a_cpu_list_that_is_none_is_refused(tmp_path: Path) -> None:
    root = planted(tmp_path)
    (root / "proc/irq/120/effective_affinity_list").write_text("8-", encoding="utf-8")
    with pytest.raises(InputError, match="proc/irq/120/effective_affinity_list"):
        discover(root)
