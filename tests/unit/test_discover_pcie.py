"""Windows, error counters, lockdown and translation as the kernel writes them; garbled, an error with its place."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from railwright.node.discover import discover
from railwright.node.model import Bar, Facts, InputError, PcieErrors
from tests.unit.small_machine import function, functions, plant

PLACE = "pci0000:15/0000:15:01.0"
FOLDER = f"sys/devices/{PLACE}"
LOCKDOWN = "sys/kernel/security/lockdown"
DOMAIN = "sys/kernel/iommu_groups/41/type"
EMPTY = "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"
# An H100: registers at 16 MiB, memory of 128 GiB that has no place, 32 MiB more; the rest and the ROM are not there.
WINDOWS = (
    "0x00000000d2000000 0x00000000d2ffffff 0x0000000000040200\n"
    + EMPTY
    + "0x0000000000000000 0x0000001fffffffff 0x000000002014220c\n"
    + EMPTY
    + "0x0000204000000000 0x0000204001ffffff 0x000000000014220c\n"
    + EMPTY * 8
)
COUNTERS = "RxErr 0\nBadTLP 3\nTimeout 1\nTOTAL_ERR_COR 4\n"
TEXTS = {
    f"{FOLDER}/resource": WINDOWS,
    f"{FOLDER}/aer_dev_correctable": COUNTERS,
    LOCKDOWN: "none [integrity] confidentiality\n",
    DOMAIN: "DMA-FQ\n",
}


def read(root: Path, **changed: str) -> Facts:
    files, links = functions(function(PLACE, "0x030200", "0x10de", "0x2330"))
    links[f"{FOLDER}/iommu_group"] = "../../../kernel/iommu_groups/41"
    return discover(plant(root, {**files, **TEXTS, **changed}, links))


def test_what_the_kernel_writes_is_read(tmp_path: Path) -> None:
    found = read(tmp_path)
    (gpu,) = found.pcie.functions
    assert gpu.bars == (Bar(0, 1 << 24, True), Bar(2, 1 << 37, False), Bar(4, 1 << 25, True))
    assert (gpu.iommu, found.pcie.lockdown) == ("DMA-FQ", "integrity")
    assert found.pcie_errors == (PcieErrors("0000:15:01.0", 4, None, None),)


def test_without_these_files_nothing_is_known(tmp_path: Path) -> None:
    files, links = functions(function(PLACE, "0x030200", "0x10de", "0x2330"))
    found = discover(plant(tmp_path, files, links))
    (gpu,) = found.pcie.functions
    assert (gpu.bars, gpu.iommu, found.pcie.lockdown, found.pcie_errors) == (None, None, None, ())


def garbled(text: str, seed: int) -> str:
    """A few marks changed, left out or put in, or the end cut off."""
    rng = random.Random(seed)  # noqa: S311 - a sample, no secret
    marks = list(text)
    for _ in range(rng.randrange(1, 6)):
        if not marks:
            break
        at = rng.randrange(len(marks))
        what = rng.randrange(4)
        if what == 0:
            marks[at] = rng.choice("0x9[] \nZ-\u0663\x1b")
        elif what == 1:
            del marks[at]
        elif what == 2:
            marks.insert(at, rng.choice("0 []\n"))
        else:
            del marks[max(at, 1) :]
    return "".join(marks)


def told(path: str, found: Facts) -> object:
    (gpu,) = found.pcie.functions
    return {
        f"{FOLDER}/resource": gpu.bars,
        f"{FOLDER}/aer_dev_correctable": found.pcie_errors,
        LOCKDOWN: found.pcie.lockdown,
        DOMAIN: gpu.iommu,
    }[path]


def stands(path: str, text: str) -> object:
    """What a person reads in the text: another way than the code's, for text that is taken."""
    if path == LOCKDOWN:
        return text.partition("[")[2].partition("]")[0]
    if path == DOMAIN:
        return text.strip()
    if path.endswith("resource"):
        rows = [[int(part, 0) for part in line.split()] for line in text.strip().splitlines()[:6]]
        return tuple(
            Bar(number, last - first + 1, first > 0 and not flags >> 29 & 1)
            for number, (first, last, flags) in enumerate(rows)
            if flags >> 9 & 1 and last > first
        )
    return (PcieErrors("0000:15:01.0", int(text.strip().split()[-1]), None, None),)


@pytest.mark.parametrize("seed", range(32))
@pytest.mark.parametrize("path", TEXTS)
def test_garbled_text_is_an_error_with_its_place_or_says_what_stands_there(
    tmp_path: Path, path: str, seed: int
) -> None:
    text = garbled(TEXTS[path], seed)
    found, refused = None, None
    try:
        found = read(tmp_path, **{path: text})
    except InputError as error:
        refused = error
    if found is None:
        assert refused is not None
        assert path in refused.where
        assert refused.remedy
    else:
        assert told(path, found) == stands(path, text)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (LOCKDOWN, "none integrity"),
        (LOCKDOWN, "[none] [integrity]"),
        (f"{FOLDER}/aer_dev_correctable", "BadTLP 3"),
        (f"{FOLDER}/aer_dev_correctable", ""),
        (f"{FOLDER}/resource", "0xd2000000"),
        (DOMAIN, "0"),
    ],
)
def test_text_that_no_kernel_writes_is_refused(tmp_path: Path, path: str, text: str) -> None:
    with pytest.raises(InputError) as error:
        read(tmp_path, **{path: text})
    assert path in error.value.where
