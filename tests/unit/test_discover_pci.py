"""The PCI tree of a machine, from sysfs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from railwright.node.discover import discover
from railwright.node.model import InputError, Link, PciDevice
from tests.unit.small_machine import function, functions, plant

GPU = ("0x030200", "0x10de", "0x2330")
PORT = ("0x060400", "0x1000", "0xc030")


def read(root: Path, *each: tuple[dict[str, str], dict[str, str]], **files: str) -> dict[str, PciDevice]:
    planted, links = functions(*each)
    return {device.address: device for device in discover(plant(root, {**planted, **files}, links)).pci}


def test_a_gpu_is_kept_with_every_bridge_above_it_and_their_host_bridge(tmp_path: Path) -> None:
    place = "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0"
    parts = place.split("/")
    tree = [function("/".join(parts[: n + 1]), *PORT) for n in (1, 2, 3)]
    files, links = functions(*tree, function(place, *GPU, numa_node="0"))
    facts = discover(plant(tmp_path, files, links))
    assert [(device.address, device.parent) for device in facts.pci] == [
        ("0000:15:01.0", "pci0000:15"),
        ("0000:16:00.0", "0000:15:01.0"),
        ("0000:17:00.0", "0000:16:00.0"),
        ("0000:18:00.0", "0000:17:00.0"),
    ]
    assert [(root.name, root.numa) for root in facts.roots] == [("pci0000:15", 0)]
    assert [(gpu.name, gpu.address, gpu.nvlinks) for gpu in facts.gpus] == [("GPU0", "0000:18:00.0", None)]


def test_order_is_by_number_and_not_by_text(tmp_path: Path) -> None:
    files, links = functions(
        function("pci10000:00/10000:00:01.0", *GPU),
        function("pci0000:9a/0000:9a:00.0", *GPU),
        function("pci0002:00/0002:00:00.0", *GPU),
    )
    facts = discover(plant(tmp_path, files, links))
    assert [gpu.address for gpu in facts.gpus] == ["0000:9a:00.0", "0002:00:00.0", "10000:00:01.0"]
    assert [root.name for root in facts.roots] == ["pci0000:9a", "pci0002:00", "pci10000:00"]


@pytest.mark.parametrize(
    ("kind", "vendor", "kept", "gpus"),
    [
        ("0x030000", "0x10de", True, 1),  # a GPU with a screen
        ("0x030200", "0x10de", True, 1),
        ("0x030000", "0x1a03", False, 0),  # the BMC's screen
        ("0x038000", "0x1002", True, 1),
        ("0x120000", "0x1002", True, 1),  # MI300X
        ("0x120000", "0x8086", False, 0),
        ("0x068000", "0x10de", True, 0),  # NVSwitch
        ("0x068000", "0x8086", False, 0),
        ("0x010802", "0x144d", True, 0),  # NVMe
        ("0x020700", "0x15b3", True, 0),
        ("0x020000", "0x14e4", True, 0),
        ("0x028000", "0x15b3", False, 0),  # "other network": only with what it carries
        ("0x080100", "0x15b3", True, 0),  # Data Direct
        ("0x040300", "0x10de", False, 0),  # the GPU's sound
    ],
)
def test_what_is_kept_is_told_by_class_and_vendor(
    tmp_path: Path, kind: str, vendor: str, kept: bool, gpus: int
) -> None:
    files, links = function("pci0000:00/0000:00:01.0", kind, vendor)
    facts = discover(plant(tmp_path, files, links))
    assert (len(facts.pci), len(facts.gpus)) == (int(kept), gpus)


def test_a_nic_of_another_class_is_kept_for_what_it_carries(tmp_path: Path) -> None:
    files, links = functions(
        function("pci0000:00/0000:00:01.0", "0x028000", "0x15b3", "0x1003"),
        function("pci0000:00/0000:00:02.0", "0x0c0600", "0x1077", "0x7322"),
    )
    files["sys/devices/pci0000:00/0000:00:01.0/net/ib0/mtu"] = "2044"
    files["sys/devices/pci0000:00/0000:00:02.0/infiniband/qib0/fw_ver"] = "1"
    assert [device.address for device in discover(plant(tmp_path, files, links)).pci] == [
        "0000:00:01.0",
        "0000:00:02.0",
    ]


def test_a_function_below_vmd_has_vmds_own_host_bridge(tmp_path: Path) -> None:
    place = "pci0000:64/0000:64:00.5/pci10000:80/10000:80:01.0"
    devices = read(tmp_path, function(place, "0x010802", "0x144d", numa_node="1"))
    assert devices["10000:80:01.0"].parent == "pci10000:80"


def test_a_tree_that_was_copied_without_its_links_hides_what_is_above(tmp_path: Path) -> None:
    folder = "sys/bus/pci/devices/0000:18:00.0"
    files = {f"{folder}/class": "0x030200", f"{folder}/vendor": "0x10de", f"{folder}/device": "0x2330"}
    facts = discover(plant(tmp_path, files))
    assert facts.pci[0].parent is None
    assert facts.roots == ()


def test_minus_one_is_no_numa_node(tmp_path: Path) -> None:
    devices = read(tmp_path, function("pci0000:00/0000:00:01.0", *GPU, numa_node="-1\n"))
    assert devices["0000:00:01.0"].numa is None


def test_a_root_whose_functions_disagree_has_no_known_node(tmp_path: Path) -> None:
    files, links = functions(
        function("pci0000:00/0000:00:01.0", *GPU, numa_node="0"),
        function("pci0000:00/0000:00:02.0", *GPU, numa_node="1"),
        function("pci0000:40/0000:40:01.0", *GPU, numa_node="-1"),
        function("pci0000:40/0000:40:02.0", "0x068000", "0x8086", numa_node="3"),
    )
    facts = discover(plant(tmp_path, files, links))
    # 0000:40:02.0 is not kept, but it knows where it is.
    assert [(root.name, root.numa) for root in facts.roots] == [("pci0000:00", None), ("pci0000:40", 3)]


@pytest.mark.parametrize(
    ("speed", "width", "expected"),
    [
        ("32.0 GT/s PCIe", "16", Link(32.0, 16)),
        ("8 GT/s", "8", Link(8.0, 8)),
        ("2.5 GT/s PCIe", "1", Link(2.5, 1)),
        ("Unknown", "0", Link()),
        ("Unknown speed", "255", Link()),
        ("64.0 GT/s PCIe", "63", Link(64.0, None)),
    ],
)
def test_links_are_read_from_sysfs_where_config_space_is_hidden(
    tmp_path: Path, speed: str, width: str, expected: Link
) -> None:
    attributes = {"current_link_speed": speed + "\n", "current_link_width": width + "\n", "config": "\0" * 64}
    devices = read(tmp_path, function("pci0000:00/0000:00:01.0", *GPU, **attributes))
    assert devices["0000:00:01.0"].link == expected
    assert devices["0000:00:01.0"].acs is None


@pytest.mark.parametrize(
    ("attribute", "text", "expected"),
    [
        ("current_link_width", "abc", "a whole number"),
        ("max_link_width", "48", "1 to 32 lanes"),
        ("current_link_speed", "33 GT/s PCIe", "32.0 GT/s PCIe"),
        ("max_link_speed", "fast", "32.0 GT/s PCIe"),
        ("numa_node", "one", "a whole number"),
        ("numa_node", "\u0661", "a whole number"),
        ("max_link_width", "1\u00b2", "a whole number"),
        ("max_link_speed", "\u0668.0 GT/s PCIe", "32.0 GT/s PCIe"),
        ("numa_node", "-2", "-1 for unknown"),
        ("local_cpulist", "0-", "0-3,8"),
        ("subsystem_vendor", "10de", "0x10de"),
        ("class", "0302", "0x030200"),
        ("vendor", "nvidia", "0x10de"),
    ],
)
def test_nonsense_is_refused_with_the_file_and_the_form(
    tmp_path: Path, attribute: str, text: str, expected: str
) -> None:
    files, links = function("pci0000:00/0000:00:01.0", *GPU)
    files[f"sys/devices/pci0000:00/0000:00:01.0/{attribute}"] = text
    plant(tmp_path, files, links)
    with pytest.raises(InputError) as error:
        discover(tmp_path)
    assert error.value.where == f"{tmp_path}/sys/devices/pci0000:00/0000:00:01.0/{attribute}"
    assert expected in error.value.remedy


def test_a_function_without_a_class_is_refused(tmp_path: Path) -> None:
    files, links = function("pci0000:00/0000:00:01.0", *GPU)
    del files["sys/devices/pci0000:00/0000:00:01.0/class"]
    plant(tmp_path, files, links)
    with pytest.raises(InputError, match=r"0000:00:01\.0/class: cannot be read \(expected a PCI class code"):
        discover(tmp_path)


def test_a_name_that_is_no_address_is_refused(tmp_path: Path) -> None:
    plant(tmp_path, {"sys/bus/pci/devices/gpu0/class": "0x030200"})
    with pytest.raises(InputError, match="is no PCI address"):
        discover(tmp_path)


def test_a_function_that_went_away_meanwhile_is_left_out(tmp_path: Path) -> None:
    files, links = functions(
        function("pci0000:00/0000:00:01.0", *GPU), function("pci0000:00/0000:00:02.0", *GPU)
    )
    plant(
        tmp_path,
        files,
        {**links, "sys/bus/pci/devices/0000:00:03.0": "../../../devices/pci0000:00/0000:00:03.0"},
    )
    assert [gpu.address for gpu in discover(tmp_path).gpus] == ["0000:00:01.0", "0000:00:02.0"]


def test_a_function_that_goes_while_it_is_read_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, links = function("pci0000:00/0000:00:01.0", *GPU)
    root = plant(tmp_path, files, links)
    reading = os.open

    def unplug(path: str, *rest: int) -> int:
        if path.endswith("0000:00:01.0/vendor"):
            folder = tmp_path / "sys/devices/pci0000:00/0000:00:01.0"
            for name in ("class", "vendor", "device"):
                (folder / name).unlink()
            folder.rmdir()
        return reading(path, *rest)

    monkeypatch.setattr(os, "open", unplug)
    assert discover(root).gpus == ()


def test_slot_driver_group_and_subsystem_are_read(tmp_path: Path) -> None:
    folder = "sys/devices/pci0000:15/0000:15:01.0"
    files, links = function(
        "pci0000:15/0000:15:01.0",
        *GPU,
        subsystem_vendor="0x10de\n",
        subsystem_device="0x16c1\n",
        local_cpulist="0-47\n",
    )
    files["sys/bus/pci/slots/7/address"] = "0000:15:01\n"
    files["sys/bus/pci/slots/9/address"] = "0000:15:02\n"
    links[f"{folder}/driver"] = "../../../bus/pci/drivers/nvidia"
    links[f"{folder}/iommu_group"] = "../../../kernel/iommu_groups/41"
    device = discover(plant(tmp_path, files, links)).pci[0]
    assert (device.slot, device.driver, device.iommu_group) == ("7", "nvidia", 41)
    assert (device.subsystem_vendor, device.subsystem_device, device.local_cpus) == (
        "0x10de",
        "0x16c1",
        "0-47",
    )


def test_an_iommu_group_without_a_number_is_refused(tmp_path: Path) -> None:
    files, links = function("pci0000:15/0000:15:01.0", *GPU)
    links["sys/devices/pci0000:15/0000:15:01.0/iommu_group"] = "../../../kernel/iommu_groups/first"
    plant(tmp_path, files, links)
    with pytest.raises(InputError, match="expected a group number"):
        discover(tmp_path)


def test_the_driver_names_a_gpu_where_it_is_loaded(tmp_path: Path) -> None:
    files, links = functions(
        function("pci0000:00/0000:00:01.0", *GPU), function("pci0000:00/0000:00:02.0", *GPU)
    )
    information = (
        "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 18\nGPU UUID: \t {}\nBus Location: \t 0000:00:01.0\n"
    )
    uuid = "GPU-5bd10ab0-6c4e-4d59-9d4e-7c2a1c0f1a11"
    files["proc/driver/nvidia/gpus/0000:00:01.0/information"] = information.format(uuid)
    files["proc/driver/nvidia/gpus/0000:00:02.0/information"] = information.format(
        "GPU-????????-????-????-????-????????????"
    )
    gpus = discover(plant(tmp_path, files, links)).gpus
    assert [(gpu.model, gpu.uuid) for gpu in gpus] == [
        ("NVIDIA H100 80GB HBM3", uuid),
        ("NVIDIA H100 80GB HBM3", None),
    ]


def test_a_machine_without_a_pci_bus_says_so(tmp_path: Path) -> None:
    facts = discover(plant(tmp_path, {}))
    assert facts.pci == ()
    assert [note for note in facts.notes if "sys/bus/pci/devices is not there" in note]


def test_a_machine_with_an_empty_pci_bus_has_no_gpu_and_no_note(tmp_path: Path) -> None:
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    facts = discover(plant(tmp_path, {}))
    assert (facts.gpus, facts.notes) == ((), ())
