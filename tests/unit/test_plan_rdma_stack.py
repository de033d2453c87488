"""The RDMA stack: one of two and never a mix, in its order, with the GPUs' modules no older than it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from railwright.node.check import check, checks
from railwright.node.discover import module_age
from railwright.node.discover.rdma_stack import read_rdma_stack
from railwright.node.discover.tree import Tree
from railwright.node.model import (
    Facts,
    Finding,
    InputError,
    Module,
    Plan,
    Policy,
    RdmaStack,
    Slice,
    to_json,
)
from railwright.node.model.software import Dkms as Tracked
from railwright.node.model.software import Kernel, Package
from railwright.node.state import Said, apply
from railwright.node.state.kinds import read_slices
from railwright.plan import nvidia_driver, rdma_stack
from railwright.plan.stack import rdma as known
from tests.unit.damage import damaged
from tests.unit.small_machine import plant
from tests.unit.stack_support import H100, NEW, machine, rail, software
from tests.unit.state_support import make_node

INBOX = {"rdma-core": "44.0-2", "libibverbs1": "44.0-2", "ibverbs-providers": "44.0-2"}
# As DOCA 3.2 and MLNX_OFED 5 have them.
DOCA = {"doca-ofed": "3.2.3-1", "rdma-core": "2510mlnx59-1.2510051", "libibverbs1": "2510mlnx59-1.2510051",
        "ibverbs-providers": "2510mlnx59-1.2510051", "mlnx-ofed-kernel-dkms": "25.10.OFED.25.10.0.5.1-1"}  # fmt: skip
KERNEL = "6.1.0-50-amd64"
FIRMWARE = {"MT_0000000838": "28.43.1014"}
DEP = "kernel/drivers/infiniband/core/ib_core.ko.xz:\n"
OFED_DEP = (
    "updates/dkms/ib_core.ko: updates/dkms/mlx_compat.ko\n"
    "updates/dkms/nvidia.ko:\n"
    "updates/dkms/nvidia-peermem.ko:\n"
)


def facts(packages: dict[str, str], **changes: Any) -> Facts:
    installed = tuple(Package(name, version) for name, version in packages.items())
    return replace(machine(H100, software=software(packages=installed)), **changes)


def asked(stack: str | None, packages: dict[str, str | None] | None = None, **more: Any) -> Policy:
    return Policy.read({"rdma_stack": {"stack": stack, "packages": packages or {}, **more}})


def planned(node: Facts, policy: Policy) -> Slice:
    made, findings = rdma_stack.slice_of(node, policy)
    assert made is not None, findings
    return made


def mix(node: Facts, policy: Policy) -> Finding:
    made, findings = rdma_stack.slice_of(node, policy)
    assert made is None
    (found,) = (finding for finding in findings if finding.code == "rdma_stack.mix")
    assert found.severity == "error"
    return found


def codes(node: Facts, policy: Policy) -> list[str]:
    return [finding.code for finding in rdma_stack.slice_of(node, policy)[1]]


def files(made: Slice) -> dict[str, str]:
    return {entry["path"]: entry["content"] for entry in made.entries if entry["kind"] == "file"}


# ----- never a mix ---------------------------------------------------------------------------------------------------


def test_a_policy_without_the_group_writes_and_says_nothing() -> None:
    assert rdma_stack.slice_of(facts({**INBOX, **DOCA}), Policy()) == (None, [])


@pytest.mark.parametrize(
    ("name", "version", "doca"),
    [
        ("rdma-core", "44.0-2", False),
        ("libibverbs1", "56.1-1", False),
        ("libibverbs1", "2510mlnx59-1.2510051", True),
        ("libibverbs", "2404mlnx51-1.2404066.el9", True),
        ("mlnx-ofed-kernel-dkms", "25.10.OFED.25.10.0.5.1-1", True),
        ("doca-ofed", "3.2.3-1", True),
        ("kmod-mlnx-ofa_kernel", "25.10-1", True),
        ("libibverbs-utils", "51.0-1.el9", False),
        ("rdma-core-devel", "2404mlnx51-1.2404066.el9", True),
    ],
)
def test_whose_a_package_is_is_told_by_its_name_or_its_version(name: str, version: str, doca: bool) -> None:
    assert (known.is_doca(name, version), known.is_inbox(name, version)) == (doca, not doca)


def test_inbox_beside_doca_is_refused_with_the_names_of_the_other() -> None:
    found = mix(facts(DOCA), asked("inbox", {"rdma-core": "44.0-2"}))
    for name in ("doca-ofed", "libibverbs1", "ibverbs-providers", "mlnx-ofed-kernel-dkms"):
        assert name in found.where
        assert name in found.remedy
    # rdma-core is named and moves to the distribution's version: it is none of those in the way.
    assert "rdma-core" not in found.remedy


def test_doca_beside_inbox_is_refused_until_each_package_is_named() -> None:
    node = facts(INBOX)
    assert "libibverbs1" in mix(node, asked("doca", {"doca-ofed": "3.2.3-1"})).remedy
    made = planned(node, asked("doca", dict(DOCA)))
    (row,) = (entry for entry in made.entries if entry["kind"] == "packages")
    assert row["versions"] == DOCA
    assert (row["hold"], row["reboot"]) == (True, True)


def test_a_change_of_stacks_takes_the_other_one_away_in_the_same_transaction() -> None:
    away: dict[str, str | None] = {**dict.fromkeys(DOCA, None), **INBOX}
    made = planned(facts(DOCA), asked("inbox", away))
    (row,) = (entry for entry in made.entries if entry["kind"] == "packages")
    assert row["versions"]["mlnx-ofed-kernel-dkms"] is None
    assert row["versions"]["libibverbs1"] == "44.0-2"
    assert "rdma_stack.reboot" in codes(facts(DOCA), asked("inbox", away))


def test_a_policy_that_mixes_by_itself_is_refused() -> None:
    wrong: dict[str, str | None] = {**DOCA, "libibverbs1": "44.0-2"}
    assert "libibverbs1 44.0-2" in mix(facts({}), asked("doca", wrong)).where


def test_a_name_with_its_architecture_hides_no_mix() -> None:
    wrong: dict[str, str | None] = {**DOCA, "libibverbs1:amd64": "44.0-2"}
    assert "libibverbs1:amd64 44.0-2" in mix(facts({}), asked("doca", wrong)).where
    named: dict[str, str | None] = {f"{name}:amd64": version for name, version in DOCA.items()}
    planned(facts(INBOX), asked("doca", named))


def test_docas_modules_on_red_hat_are_known_by_the_package_beside_them() -> None:
    # Built by doca-kernel-support without kmods: mlnx-ofa_kernel and mlnx-ofa_kernel-modules.
    red_hat = {"mlnx-ofa_kernel": "25.10-OFED.25.10.0.5.1.1.rhel9u6", "rdma-core": "2510mlnx59-1.2510051"}
    host = replace(machine(H100).host, modules=(Module("mlx5_core", "25.10-0.5.1"),))
    assert "rdma_stack.loaded" not in codes(facts(red_hat, host=host), asked(None))


def test_a_mix_that_stands_there_is_told_where_only_findings_are_asked_for() -> None:
    half = {**INBOX, "mlnx-ofed-kernel-dkms": "25.10-1"}
    assert mix(facts(half), asked(None)).where == "1 packages of DOCA-OFED, 3 of the distribution"
    assert codes(facts(INBOX), asked(None, firmware=FIRMWARE)) == []
    # doca-host holds an archive and its key, and none of the stack.
    archive = {**INBOX, "doca-host": "3.2.1-044000-25.10-debian12"}
    assert codes(facts(archive), asked(None, firmware=FIRMWARE)) == []
    planned(facts(archive), asked("inbox", dict(INBOX)))


def test_a_group_that_names_nothing_says_so() -> None:
    made, findings = rdma_stack.slice_of(facts(INBOX), Policy.read({"rdma_stack": {}}))
    assert made is None
    assert [(one.code, one.severity) for one in findings] == [("rdma_stack.not_managed", "info")]
    assert "stack: inbox or doca" in findings[0].remedy


# ----- Canonical's builds --------------------------------------------------------------------------------------------

# packages.ubuntu.com, resolute, 2026-11: the package of a flavour, what it depends on, and the source for DKMS.
PREBUILT = {
    "linux-modules-doca-ofed-3.4-generic": "7.0.0-38.38",
    "linux-main-modules-doca-ofed-3.4-7.0.0-38-generic": "7.0.0-38.38",
}
CANONICAL = {"doca-ofed-26.01-dkms": "26.01-0ubuntu1"}
NVIDIAS = {"mlnx-ofed-kernel-dkms": "25.10.OFED.25.10.0.5.1-1"}


@pytest.mark.parametrize("one", [PREBUILT, CANONICAL])
@pytest.mark.parametrize("other", [NVIDIAS, CANONICAL, PREBUILT])
def test_modules_of_two_builds_are_refused_beside_each_other(
    one: dict[str, str], other: dict[str, str]
) -> None:
    node = facts({**one, **other})
    made, findings = rdma_stack.slice_of(node, asked("doca"))
    found = [finding for finding in findings if finding.code == "rdma_stack.two_builds"]
    assert (made is None) == bool(found) == (one is not other)
    if found:
        assert found[0].severity == "error"
        assert all(name in found[0].why for name in (*one, *other))
        gone: dict[str, str | None] = dict.fromkeys(other)
        assert "rdma_stack.two_builds" not in codes(node, asked("doca", gone))
        # One that comes with this run is as bad as one that stands there.
        coming: dict[str, str | None] = dict(other)
        assert "rdma_stack.two_builds" in codes(facts(one), asked("doca", coming))
        assert "rdma_stack.two_builds" in codes(node, asked(None))


def test_canonicals_prebuilt_modules_are_named_with_what_is_not_known_of_them() -> None:
    path = "kernel/doca-ofed-3.4/mlx5_core.ko.zst"
    kernels = (Kernel(NEW, modules={"mlx5_core": path}),)
    # Ubuntu's archive has the modules, and its own rdma-core is the user space that there is for them.
    both = {**PREBUILT, "rdma-core": "61.0-2ubuntu1", "libibverbs1": "61.0-2ubuntu1"}
    packages = tuple(Package(name, version) for name, version in both.items())
    node = facts(both, software=software(packages=packages, kernels=kernels), nics=(rail("mlx5_0"),))
    made, findings = rdma_stack.slice_of(node, asked("doca"))
    (found,) = (one for one in findings if one.code == "rdma_stack.prebuilt")
    assert found.severity == "warning"
    assert set(found.where.split(", ")) == set(PREBUILT)
    # Its modules lie below kernel/ and are none of the kernel's own; nothing of it starts openibd.
    assert "rdma_stack.kernel" not in [one.code for one in findings]
    assert made is not None
    assert list(files(made)) == [rdma_stack.LOADED]
    inbox = (Kernel(NEW, modules={"mlx5_core": "kernel/drivers/net/mlx5_core.ko.zst"}),)
    bad = replace(node, software=software(packages=packages, kernels=inbox))
    assert "rdma_stack.kernel" in codes(bad, asked("doca"))
    assert "rdma_stack.mix" not in codes(node, asked(None))
    # User space of NVIDIA's beside the distribution's is a mix, whose modules ever these are.
    mlnx = {"libibverbs-dev": DOCA["libibverbs1"]}
    assert "libibverbs1" in mix(facts({**both, **mlnx}), asked("doca")).where
    assert "rdma-core" in mix(facts(both), asked("doca", dict(mlnx))).where
    assert "rdma_stack.mix" in codes(facts({**both, **mlnx}), asked(None))
    assert "rdma_stack.mix" not in codes(facts({**PREBUILT, **mlnx}), asked("doca"))
    # They are of the other stack where the distribution's is asked for.
    assert mix(node, asked("inbox")).severity == "error"


# ----- order ---------------------------------------------------------------------------------------------------------


def test_inbox_loads_ib_umad_where_a_port_is_infiniband_and_before_the_gpus_modules() -> None:
    ports = facts(INBOX, nics=(rail("mlx5_0"),))
    made = planned(ports, asked("inbox"))
    assert files(made)[rdma_stack.LOADED].endswith("ib_umad\n")
    # modules-load.d(5): files are read in the order of their names, whatever their folder.
    ours, theirs = (path.rpartition("/")[2] for path in (rdma_stack.LOADED, nvidia_driver.LOADED))
    assert ours < theirs
    ethernet = replace(ports, nics=(replace(rail("mlx5_0"), link_layer="Ethernet"),))
    assert rdma_stack.slice_of(ethernet, asked("inbox"))[0] is None
    assert "rdma_ucm" in files(planned(ethernet, asked("inbox", modules=["rdma_ucm"])))[rdma_stack.LOADED]


def test_docas_service_stands_before_what_is_on_the_gpus_side_and_loads_its_modules_itself() -> None:
    made = planned(facts(DOCA, nics=(rail("mlx5_0"),)), asked("doca"))
    text = files(made)[rdma_stack.AFTER_OPENIBD]
    assert "Before=nvidia-persistenced.service nvidia-fabricmanager.service" in text
    assert "ExecStartPost=-/sbin/modprobe ib_umad" in text
    assert rdma_stack.LOADED not in files(made)
    assert {"kind": "dkms_module", "name": "nvidia", "reboot": True} in made.entries
    assert len(read_slices({"rdma_stack": to_json(made.entries)}, None)["rdma_stack"]) == len(made.entries)


# ----- versions ------------------------------------------------------------------------------------------------------


def test_versions_that_do_not_go_together_are_told() -> None:
    half = {**INBOX, "libibverbs1": "45.0-1"}
    assert "rdma_stack.user_space" in codes(facts(half), asked(None))
    assert "rdma_stack.tools" in codes(facts({"mft": "4.34.0-1", "mstflint": "4.21.0-1"}), asked(None))
    two = facts(
        INBOX, rdma_stack=RdmaStack(("/usr/lib/x/libibverbs.so.1.14.44.0", "/usr/local/lib/libibverbs.so.1"))
    )
    assert "rdma_stack.libraries" in codes(two, asked(None))
    one = facts(INBOX, rdma_stack=RdmaStack(("/usr/lib/x/libibverbs.so.1.14.44.0",)))
    assert codes(one, asked(None, firmware=FIRMWARE)) == []


def test_a_kernel_without_docas_modules_and_a_loaded_module_of_the_other_are_told() -> None:
    kernels = (
        Kernel(NEW, modules={"mlx5_core": "kernel/drivers/net/ethernet/mellanox/mlx5/core/mlx5_core.ko"}),
    )
    packages = tuple(Package(name, version) for name, version in DOCA.items())
    node = facts(DOCA, software=software(packages=packages, kernels=kernels))
    (found,) = (one for one in rdma_stack.slice_of(node, asked("doca"))[1] if one.code == "rdma_stack.kernel")
    assert (found.severity, found.where) == ("error", f"kernel {NEW}")
    built = (Kernel(NEW, modules={"mlx5_core": "updates/dkms/mlx5_core.ko"}),)
    good = replace(node, software=software(packages=packages, kernels=built))
    assert "rdma_stack.kernel" not in codes(good, asked("doca"))
    host = replace(good.host, modules=(Module("mlx5_core"),))
    assert "rdma_stack.loaded" in codes(replace(good, host=host), asked("doca"))
    host = replace(good.host, modules=(Module("mlx5_core", "25.10-0.5.1"),))
    assert "rdma_stack.loaded" not in codes(replace(good, host=host), asked("doca"))
    assert "rdma_stack.loaded" in codes(facts(INBOX, host=host), asked(None))


def test_firmware_is_compared_within_a_board_and_with_the_policy() -> None:
    nics = tuple(
        replace(rail(f"mlx5_{number}"), board="MT_0000000838", firmware=version)
        for number, version in enumerate(("28.43.1014", "28.43.1014", "28.39.3004"))
    )
    other_board = asked(None, firmware={"MT_0000000001": "28.43.1014"})
    (found,) = rdma_stack.slice_of(facts(INBOX, nics=nics), other_board)[1]
    assert (found.code, found.where) == ("rdma_stack.firmware", "MT_0000000838")
    assert "28.39.3004: mlx5_2" in found.why
    same = tuple(replace(nic, firmware="28.43.1014") for nic in nics)
    assert codes(facts(INBOX, nics=same), asked(None, firmware=FIRMWARE)) == []
    other = asked(None, firmware={"MT_0000000838": "28.45.1200"})
    assert codes(facts(INBOX, nics=same), other) == ["rdma_stack.firmware"]


def test_peer_memory_on_the_kernels_own_stack_is_told() -> None:
    host = replace(machine(H100).host, modules=(Module("mlx5_core"), Module("nvidia_peermem")))
    assert "rdma_stack.peermem" in codes(facts(INBOX, host=host), asked(None))
    ours = replace(host, modules=(Module("mlx5_core", "25.10-0.5.1"), Module("nvidia_peermem")))
    assert "rdma_stack.peermem" not in codes(facts(DOCA, host=ours), asked("doca"))


def test_peer_memory_that_is_loaded_and_not_registered_is_told(tmp_path: Path) -> None:
    """As on Ubuntu 24.04 with MLNX_OFED 24.10: lsmod shows it, memory_peers does not (NVIDIA/nccl#1939)."""
    host = replace(machine(H100).host, modules=(Module("mlx5_core", "24.10-3.2.5"), Module("nvidia_peermem")))
    seen: dict[bool | None, bool] = {}
    for name in ("nothing", "empty", "registered"):
        root = plant(tmp_path / name, {})
        if name != "nothing":
            (root / "sys/kernel/mm").mkdir(parents=True, exist_ok=True)
        if name == "registered":
            plant(root, {"sys/kernel/mm/memory_peers/nv_mem/version": "570.133.20"})
        stack = read_rdma_stack(Tree(root))
        told = codes(facts(DOCA, host=host, rdma_stack=stack), asked("doca"))
        seen[stack.registered] = "rdma_stack.peermem" in told
    assert seen == {None: False, False: True, True: False}
    idle = replace(host, modules=(Module("mlx5_core", "24.10-3.2.5"),))
    assert "rdma_stack.peermem" not in codes(
        facts(DOCA, host=idle, rdma_stack=RdmaStack(registered=False)), asked("doca")
    )


@pytest.mark.parametrize("peermem", [True, False])
@pytest.mark.parametrize("left", ["package", "module", ""])
def test_the_module_before_nvidia_peermem_is_told_with_what_takes_its_place(left: str, peermem: bool) -> None:
    own = {"nvidia_peermem": "updates/dkms/nvidia-peermem.ko"} if peermem else {}
    old = {"nvidia-peer-memory-dkms": "1.3-0"} if left == "package" else {}
    packages = tuple(Package(name, version) for name, version in {**INBOX, **old}.items())
    host = replace(machine(H100).host, modules=(Module("nv_peer_mem"),) if left == "module" else ())
    node = facts(INBOX, host=host, software=software(packages=packages, kernels=(Kernel(NEW, modules=own),)))
    found = [one for one in rdma_stack.slice_of(node, asked(None))[1] if one.code.endswith("nv_peer_mem")]
    assert len(found) == bool(left)
    for one in found:
        assert ("install the driver's modules" in one.remedy) is not peermem


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"stack": "mofed"}, "stack"),
        ({"packages": {"rdma-core": "1"}}, "stack"),
        ({"stack": "inbox", "packages": {"rdma*": "1"}}, "packages"),
        ({"stack": "inbox", "modules": ["ib-umad"]}, "modules"),
        ({"firmware": {"mt2910": "28.43.1014"}}, "firmware"),
        ({"firmware": {"MT_0000000838": "latest"}}, "firmware.MT_0000000838"),
    ],
)
def test_a_policy_that_no_stack_can_be_is_refused_with_its_place(given: dict[str, Any], place: str) -> None:
    with pytest.raises(InputError) as caught:
        Policy.read({"rdma_stack": given})
    assert caught.value.where == f"policy.rdma_stack.{place}"


# ----- GPU modules behind the stack ----------------------------------------------------------------------------------


def modules(root: Path, dep: str, **ages: int) -> Path:
    """A kernel's modules; ages: seconds since 1970 of what they were written, by file name with _ for -."""
    plant(root, {f"lib/modules/{KERNEL}/modules.dep": dep})
    for line in dep.splitlines():
        path = root / f"lib/modules/{KERNEL}" / line.partition(":")[0]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"module")
        moment = ages.get(path.name.partition(".")[0].replace("-", "_"), 1000)
        os.utime(path, (moment, moment))
    return root


@pytest.mark.parametrize(
    ("dep", "ages", "behind"),
    [
        (OFED_DEP, {"ib_core": 2000, "nvidia_peermem": 1000}, (KERNEL,)),
        (OFED_DEP, {"ib_core": 2000, "nvidia_peermem": 3000}, ()),
        # The kernel's own ib_core takes nothing to be rebuilt for.
        (DEP + "updates/dkms/nvidia.ko:\n", {"ib_core": 2000, "nvidia": 1000}, None),
        (
            OFED_DEP.replace("updates/dkms/nvidia-peermem.ko:\n", ""),
            {"ib_core": 2000, "nvidia": 1000},
            (KERNEL,),
        ),
        (DEP, {}, None),
        # Debian's names, and Canonical's prebuilt modules of DOCA-OFED.
        (
            OFED_DEP.replace("/nvidia", "/nvidia-current-open"),
            {"ib_core": 2000, "nvidia_current_open_peermem": 1000, "nvidia_current_open": 3000},
            (KERNEL,),
        ),
        (
            "kernel/doca-ofed-3.4/ib_core.ko.zst:\nupdates/dkms/nvidia-peermem.ko.zst:\n",
            {"ib_core": 2000, "nvidia_peermem": 1000},
            (KERNEL,),
        ),
    ],
)
def test_gpu_modules_that_are_older_than_the_stacks_are_found(
    tmp_path: Path, dep: str, ages: dict[str, int], behind: tuple[str, ...] | None
) -> None:
    assert read_rdma_stack(Tree(modules(tmp_path, dep, **ages))).behind == behind


def test_two_libraries_are_two_and_a_link_is_none_of_them(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            "usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.44.0": "",
            "usr/local/lib/libibverbs.so.1.14.59.0": "",
            "usr/lib/systemd/system/openibd.service": "",
        },
        {"usr/lib/x86_64-linux-gnu/libibverbs.so.1": "libibverbs.so.1.14.44.0"},
    )
    found = read_rdma_stack(Tree(tmp_path))
    assert len(found.libraries) == 2
    assert found.openibd is True


def test_damaged_lists_of_modules_never_end_the_reader(tmp_path: Path) -> None:
    for number, data in enumerate(damaged(OFED_DEP)):
        root = plant(tmp_path / str(number), {f"lib/modules/{KERNEL}/modules.dep": data})
        assert read_rdma_stack(Tree(root)).behind in (None, (), (KERNEL,))


# `modprobe --dump-modversions` of Debian 12's kmod and Linux 6.1's Module.symvers have this form: of ib_uverbs.ko they
# name ib_register_client with 0x784501ff both (2026-11).
REGISTER, UNREGISTER = "ib_register_peer_memory_client", "ib_unregister_peer_memory_client"
SYMVERS = (
    f"0x5a2188e6\tib_register_device\tdrivers/infiniband/core/ib_core\tEXPORT_SYMBOL\t\n"
    f"0xe8fb1cbe\t{REGISTER}\tdrivers/infiniband/core/ib_core\tEXPORT_SYMBOL\t\n"
    f"0x1c8a6d33\t{UNREGISTER}\tdrivers/infiniband/core/ib_core\tEXPORT_SYMBOL\t\n"
)
FITS = f"0x6c2fd65f\tmodule_layout\n0xe8fb1cbe\t{REGISTER}\n0x1c8a6d33\t{UNREGISTER}\n"
STUB = "0x6c2fd65f\tmodule_layout\n"
SOURCE = f"usr/src/ofa_kernel/x86_64/{KERNEL}/Module.symvers"


@pytest.mark.parametrize("older", [True, False])
@pytest.mark.parametrize(
    ("place", "said", "behind"),
    [
        (SOURCE, FITS, False),
        (SOURCE, FITS.replace("0xe8fb1cbe", "0x00fb1cbe"), True),
        # Built without the stack's headers: it loads nowhere ("Invalid argument"), whatever its time.
        (SOURCE, STUB, True),
        (f"usr/src/ofa_kernel/{KERNEL}/Module.symvers", FITS, False),
        (f"usr/src/ofa_kernel-dkms/x86_64/{KERNEL}/Module.symvers", FITS.replace("0x1c", "0x2c"), True),
        # Nothing to compare: of another kernel, of no known one, a kernel without checksums, no modprobe.
        ("usr/src/ofa_kernel/x86_64/6.1.0-49-amd64/Module.symvers", FITS, None),
        ("usr/src/ofa_kernel/default/Module.symvers", FITS, None),
        (SOURCE, "", None),
        (SOURCE, None, None),
    ],
)
def test_checksums_of_symbols_decide_and_times_only_where_there_are_none(
    tmp_path: Path, place: str, said: str | None, behind: bool | None, older: bool
) -> None:
    root = modules(tmp_path, OFED_DEP, ib_core=2000, nvidia_peermem=1000 if older else 3000)
    plant(root, {place: SYMVERS})
    asked_for = []

    def ask(argv: Any) -> str | None:
        asked_for.append(argv)
        return said

    assert module_age.behind(Tree(root), KERNEL, ask) is (older if behind is None else behind)
    wanted = ("modprobe", "--dump-modversions", f"/lib/modules/{KERNEL}/updates/dkms/nvidia-peermem.ko")
    assert set(asked_for) <= {wanted}
    assert module_age.behind(Tree(root), KERNEL) is older


def test_the_writer_builds_again_what_has_other_checksums_and_says_where_that_changes_nothing(
    tmp_path: Path,
) -> None:
    root = node_with_old_modules(tmp_path)
    modules(root, OFED_DEP, ib_core=2000, nvidia_peermem=3000, nvidia=3000)
    plant(root, {SOURCE: SYMVERS})
    good = Dkms(root, sums=(STUB, FITS))
    done = apply(ENTRY, root=str(root), tools=good)
    assert (done.failures, done.reboot_needed) == ((), ("dkms_module:nvidia",))
    stub = Dkms(root, sums=(STUB, STUB))
    (failure,) = apply(ENTRY, root=str(root), tools=stub).failures
    assert "still does not go with the RDMA stack" in failure.why
    assert "Module.symvers" in failure.remedy


class Dkms:
    """What dkms does, as far as its files tell: an installation writes the modules anew. sums: what modprobe says of
    the module's symbols before an installation and behind it."""

    def __init__(self, root: Path, fails: str = "", sums: tuple[str, str] = ("", "")) -> None:
        self.root, self.fails, self.asked = root, fails, list[list[str]]()
        self.sums = sums

    def __call__(self, argv: Any) -> Said:
        words = list(argv)
        if words[0] == "modprobe":
            return Said(0, self.sums[any(one[1] == "install" for one in self.asked)])
        self.asked.append(words)
        if words[1] == self.fails:
            return Said(10, "", "Bad return status for module build on kernel")
        if words[1] == "install":
            for path in (self.root / f"lib/modules/{KERNEL}/updates/dkms").glob("nvidia*"):
                os.utime(path, (3000, 3000))
        return Said(0)


def node_with_old_modules(tmp_path: Path) -> Path:
    root = modules(make_node(tmp_path), OFED_DEP, ib_core=2000)
    place = root / "var/lib/dkms/nvidia"
    place.mkdir(parents=True)
    (place / f"kernel-{KERNEL}-x86_64").symlink_to(f"580.173.02/{KERNEL}/x86_64")
    return root


ENTRY = {"rdma_stack": [{"kind": "dkms_module", "name": "nvidia", "reboot": True}]}


def test_the_writer_builds_old_gpu_modules_again_once_and_asks_for_a_reboot(tmp_path: Path) -> None:
    root = node_with_old_modules(tmp_path)
    dkms = Dkms(root)
    assert apply(ENTRY, root=str(root), tools=dkms, check=True).changed
    assert dkms.asked == []
    done = apply(ENTRY, root=str(root), tools=dkms)
    assert (done.failures, done.reboot_needed) == ((), ("dkms_module:nvidia",))
    which = ["-m", "nvidia", "-v", "580.173.02", "-k", KERNEL, "-a", "x86_64", "--force"]
    assert dkms.asked == [["dkms", "build", *which], ["dkms", "install", *which]]
    again = apply(ENTRY, root=str(root), tools=dkms)
    assert (again.changed, len(dkms.asked)) == (False, 2)


def test_debians_driver_is_built_again_under_the_name_that_dkms_knows(tmp_path: Path) -> None:
    root = modules(make_node(tmp_path), OFED_DEP.replace("/nvidia", "/nvidia-current-open"), ib_core=2000)
    place = root / "var/lib/dkms/nvidia-current-open"
    place.mkdir(parents=True)
    (place / f"kernel-{KERNEL}-x86_64").symlink_to(f"535.261.03/{KERNEL}/x86_64")
    dkms = Dkms(root)
    assert apply(ENTRY, root=str(root), tools=dkms).reboot_needed == ("dkms_module:nvidia",)
    which = ["-m", "nvidia-current-open", "-v", "535.261.03", "-k", KERNEL, "-a", "x86_64", "--force"]
    assert dkms.asked == [["dkms", "build", *which], ["dkms", "install", *which]]


@pytest.mark.parametrize("verb", ["build", "install"])
def test_a_build_that_fails_is_told_with_its_log_and_tried_again(tmp_path: Path, verb: str) -> None:
    root = node_with_old_modules(tmp_path)
    (failure,) = apply(ENTRY, root=str(root), tools=Dkms(root, fails=verb)).failures
    assert f"dkms {verb} of nvidia 580.173.02" in failure.why
    assert "make.log" in failure.remedy
    assert apply(ENTRY, root=str(root), tools=Dkms(root)).failures == ()


def test_an_older_dkms_that_leaves_what_it_has_built_is_not_taken_for_a_clock_that_is_wrong(
    tmp_path: Path,
) -> None:
    root = node_with_old_modules(tmp_path)
    # dkms 2.8.7 (Ubuntu 22.04), maybe_build_module: it looks at no --force and ends with 0.
    said = Said(0, f"Module nvidia/580.173.02 already built for kernel {KERNEL} (x86_64).\n", "")
    (failure,) = apply(ENTRY, root=str(root), tools=lambda argv: said).failures
    assert "leaves what it has built" in failure.why
    assert f"dkms unbuild -m nvidia -v 580.173.02 -k {KERNEL} -a x86_64" in failure.remedy


def test_modules_that_dkms_did_not_build_are_named_and_left(tmp_path: Path) -> None:
    root = modules(make_node(tmp_path), OFED_DEP, ib_core=2000)
    done = apply(ENTRY, root=str(root), tools=Dkms(root))
    (one,) = done.slices["rdma_stack"]
    assert (done.changed, "and not by DKMS" in one.note) == (False, True)


def test_the_check_names_kernels_whose_gpu_modules_are_behind() -> None:
    plan = Plan(
        schema="railwright.plan/1",
        status="planned",
        slices={"rdma_stack": planned(facts(DOCA), asked("doca"))},
    )
    dkms = (Tracked("nvidia-current-open", "580.173.02", KERNEL, "x86_64", "installed"),)
    node = facts(DOCA, rdma_stack=RdmaStack(behind=(KERNEL,)), software=software(dkms=dkms))
    (found,) = [one for one in check(plan, node) if one.code == "rdma_stack.gpu_modules"]
    assert (found.severity, KERNEL in found.why, "install.yml" in found.remedy) == ("error", True, True)
    rows = {row["name"]: row for row in checks(plan, facts(DOCA, rdma_stack=RdmaStack(behind=())))}
    assert rows["rdma_stack.gpu_modules"]["ok"] is True
    rows = {row["name"]: row for row in checks(plan, facts(DOCA, rdma_stack=RdmaStack()))}
    assert rows["rdma_stack.gpu_modules"]["skipped"] is True


@pytest.mark.parametrize(
    ("loaded", "rdma", "kernel", "severity", "row"),
    [
        # row: ok and skipped of the report.
        (("nvidia",), None, KERNEL, "info", (True, False)),
        (("nvidia", "nvidia_peermem"), None, KERNEL, "error", (False, False)),
        (("nvidia",), "nvidia_peermem", KERNEL, "error", (False, False)),
        (None, None, KERNEL, "error", (False, False)),
        (("nvidia_peermem",), None, "6.1.0-49-amd64", "info", (False, True)),
    ],
)
def test_the_check_asks_for_an_installation_only_where_it_helps(
    loaded: tuple[str, ...] | None, rdma: str | None, kernel: str, severity: str, row: tuple[bool, bool]
) -> None:
    node = facts(DOCA, rdma_stack=RdmaStack(behind=(KERNEL,)))
    modules = None if loaded is None else tuple(Module(name) for name in loaded)
    dkms = (Tracked("nvidia", "580.173.02", kernel, "x86_64", "installed"),)
    node = replace(node, host=replace(node.host, modules=modules), software=software(dkms=dkms))
    driver = Policy.read({"driver": {"version": "580.173.02", "rdma": rdma}})
    made, findings = nvidia_driver.slice_of(node, driver)
    assert made is not None, findings
    slices = {"nvidia_driver": made, "rdma_stack": planned(facts(DOCA), asked("doca"))}
    plan = Plan(schema="railwright.plan/1", status="planned", slices=slices)
    (found,) = [one for one in check(plan, node) if one.code == "rdma_stack.gpu_modules"]
    assert (found.severity, "install.yml" in found.remedy) == (severity, severity == "error")
    rows = {one["name"]: one for one in checks(plan, node)}
    assert (rows["rdma_stack.gpu_modules"]["ok"], rows["rdma_stack.gpu_modules"]["skipped"]) == row


@pytest.mark.parametrize(("rdma", "wanted"), [(None, True), ("nvidia_peermem", True), ("dma-buf", False)])
def test_nothing_is_built_again_for_what_dma_buf_does_not_need(rdma: str | None, wanted: bool) -> None:
    node = facts(DOCA, rdma_stack=RdmaStack(behind=(KERNEL,)))
    given = Policy.read({"rdma_stack": {"stack": "doca"}, "driver": {"version": "580.173.02", "rdma": rdma}})
    kinds = [entry["kind"] for entry in planned(node, given).entries]
    assert ("dkms_module" in kinds, "rdma_stack.gpu_modules" in codes(node, given)) == (wanted, wanted)
