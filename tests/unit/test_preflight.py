"""What a node is asked before anything changes: pass, warn, fail or skipped, each with what to do."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from railwright.node.discover import discover
from railwright.node.model import (
    Bar,
    Core,
    Facts,
    NumaNode,
    PcieFacts,
    PcieFunction,
    Platform,
    Policy,
    Power,
    Probe,
    Reached,
)
from railwright.node.model.software import IdleState, Kernel, PackageLock
from railwright.node.preflight import probe
from railwright.preflight import addresses, page, preflight
from tests.unit.small_machine import plant
from tests.unit.stack_support import H100, NEW, OLD, machine, policy, software

NOW = 1_780_000_000.0
GIB = 1 << 30


def asked(facts: Facts, policy_: Policy | None = None, **changes: Any) -> dict[str, dict[str, Any]]:
    """The checks by name without their prefix."""
    probed = replace(Probe("3.11.2", NOW + 0.5, True, None), **changes)
    found = preflight(facts, policy_ or policy(), probed, NOW)
    return {row["name"].removeprefix("preflight."): row for row in found["checks"]}


def good() -> Facts:
    return machine(H100, software=software(var_free=40 * GIB, boot_free=GIB, lockdown="none"))


def test_a_plain_node_of_a_known_system_fails_nothing() -> None:
    found = preflight(good(), policy(), Probe("3.11.2", NOW, True, None), NOW)
    assert found["ok"]
    assert [row["name"] for row in found["checks"] if row["level"] in ("fail", "warn")] == []


def test_what_nobody_tells_is_skipped_and_never_passed() -> None:
    facts = machine(H100, software=None, platform=None, host=replace(machine(H100).host, secure_boot=None))
    rows = asked(facts)
    for name in ("image", "packages", "kernel", "secure_boot", "disk", "above_4g", "c_states", "login"):
        assert rows[name]["level"] == "skipped", name
        assert rows[name]["skipped"]
        assert not rows[name]["ok"]


def test_a_system_that_nobody_knows_fails_before_the_first_task() -> None:
    facts = good()
    row = asked(replace(facts, host=replace(facts.host, os_id="pop", os_version="22.04")))["system"]
    assert row["level"] == "fail"
    assert row["detail"].startswith("pop 22.04: the installation knows Ubuntu 22.04")


def test_a_system_on_which_nothing_was_tried_is_a_warning() -> None:
    facts = good()
    row = asked(replace(facts, host=replace(facts.host, os_id="ubuntu", os_version="24.04")))["system"]
    assert row["level"] == "warn"
    assert "was installed by no test of ours" in row["detail"]


def test_secure_boot_fails_a_build_with_the_three_ways_out() -> None:
    facts = good()
    facts = replace(facts, host=replace(facts.host, secure_boot=True))
    row = asked(facts)["secure_boot"]
    assert row["level"] == "fail"
    for way in ("prebuilt", "BMC's console", "Secure Boot off"):
        assert way in row["remedies"][0]
    assert asked(facts, policy(None))["secure_boot"]["level"] == "pass"
    ubuntu = replace(facts, host=replace(facts.host, os_id="ubuntu", os_version="24.04"))
    signed = {"archive": "ubuntu", "build": "prebuilt", "modules_version": "6.8.0-90.91"}
    assert asked(ubuntu, policy(driver=signed))["secure_boot"]["level"] == "pass"


def test_lockdown_is_told() -> None:
    row = asked(machine(H100, software=software(lockdown="integrity")))["lockdown"]
    assert row["level"] == "warn"


def test_missing_headers_fail_a_build_and_name_the_package() -> None:
    kernels = (Kernel(NEW, headers=False, compiler="gcc-12"),)
    facts = machine(H100, software=software(kernels=kernels))
    row = asked(facts)["headers"]
    assert row["level"] == "fail"
    assert f"linux-headers-{NEW}" in row["remedies"][0]
    assert asked(facts, policy(None))["headers"]["level"] == "warn"


def test_a_running_kernel_that_is_gone_from_the_disk_wants_a_reboot_first() -> None:
    facts = good()
    facts = replace(facts, host=replace(facts.host, kernel="6.1.0-1-amd64"))
    row = asked(facts)["headers"]
    assert "it runs and is not installed any more" in row["detail"]


def test_the_compiler_that_built_the_kernel_is_asked_for() -> None:
    row = asked(replace(good(), platform=Platform(compilers={"gcc": 11, "gcc-11": 11})))["compiler"]
    assert row["level"] == "fail"
    assert row["remedies"] == ["install gcc-12"]


@pytest.mark.parametrize(
    ("free", "level"), [(3 * GIB, "fail"), (10 * GIB, "warn"), (40 * GIB, "pass"), (None, "skipped")]
)
def test_disk_is_judged_by_what_a_driver_and_a_toolkit_take(free: int | None, level: str) -> None:
    assert asked(machine(H100, software=software(var_free=free, boot_free=GIB)))["disk"]["level"] == level


def test_a_boot_partition_too_small_for_another_initramfs_fails() -> None:
    row = asked(machine(H100, software=software(var_free=40 * GIB, boot_free=100 << 20)))["disk"]
    assert row["level"] == "fail"
    assert "/boot: 100 MiB free" in row["detail"]


@pytest.mark.parametrize(
    ("off", "synchronized", "level"),
    [
        (0.5, True, "pass"),
        (0.5, None, "pass"),
        (0.5, False, "warn"),
        (30, True, "warn"),
        (-4000, True, "fail"),
    ],
)
def test_the_clock_is_compared_with_the_controllers(
    off: float, synchronized: bool | None, level: str
) -> None:
    assert asked(good(), clock=NOW + off, synchronized=synchronized)["clock"]["level"] == level


def test_a_slow_login_is_a_warning_with_its_cost() -> None:
    facts = good()
    row = asked(replace(facts, host=replace(facts.host, login_ms=1400)))["login"]
    assert row["level"] == "warn"
    assert "1400 ms of CPU go before a command over SSH begins (`ssh node true`)" in row["detail"]


def test_who_holds_a_lock_is_told_and_waited_for() -> None:
    locks = (PackageLock("/var/lib/dpkg/lock-frontend", "unattended-upgr (process 4711)"),)
    row = asked(machine(H100, software=software(locks=locks)))["packages"]
    assert row["level"] == "warn"
    assert "unattended-upgr (process 4711) holds it now" in row["detail"]


def test_what_dpkg_left_half_way_fails() -> None:
    row = asked(machine(H100, software=software(interrupted=("nvidia-open half-configured",))))["packages"]
    assert row["level"] == "fail"


def test_a_vendors_image_is_adopted_or_the_run_stops() -> None:
    facts = replace(good(), platform=Platform(compilers={"gcc-12": 12}, images=("etc/dgx-release",)))
    row = asked(facts)["image"]
    assert row["level"] == "fail"
    assert "this is DGX OS" in row["detail"]
    assert "adopt it" in row["remedies"][0]
    left = policy(manage={"nvidia_driver": False, "fabric_manager": False})
    assert asked(facts, left)["image"]["level"] == "pass"
    assert asked(facts, policy(None))["image"]["level"] == "pass"


def test_a_pair_that_does_not_build_fails_before_anything_is_installed() -> None:
    kernels = (Kernel("6.12.117+deb13-amd64", headers=True),)
    facts = machine(H100, software=software(kernels=kernels, next_kernel="6.12.117+deb13-amd64"))
    facts = replace(facts, host=replace(facts.host, os_version="13"))
    row = asked(facts, policy("550.163.01", driver={"archive": "debian", "revision": "2"}))["driver"]
    assert row["level"] == "fail"
    assert "what works:" in row["remedies"][0]


def test_fewer_gpus_than_bought_fail_and_none_at_all_may_be_an_image() -> None:
    assert asked(good(), policy(expect={"gpus": 8}))["gpus"]["level"] == "fail"
    assert asked(machine())["gpus"]["level"] == "warn"
    assert asked(good())["gpus"]["detail"] == "1 on the bus, seen without a driver"


def windows(*bars: Bar) -> PcieFacts:
    return PcieFacts(functions=(PcieFunction("0000:10:00.0", bars=bars),))


@pytest.mark.parametrize(
    ("bars", "level"),
    [
        ((Bar(0, 16 << 20, True), Bar(2, 128 * GIB, True)), "pass"),
        ((Bar(0, 16 << 20, True), Bar(2, 256 << 20, True)), "warn"),
        ((Bar(0, 16 << 20, True), Bar(2, 128 * GIB, False)), "fail"),
    ],
)
def test_above_4g_is_told_by_the_gpus_windows(bars: tuple[Bar, ...], level: str) -> None:
    assert asked(replace(good(), pcie=windows(*bars)))["above_4g"]["level"] == level


@pytest.mark.parametrize(
    ("nodes", "level", "word"),
    [
        (1, "warn", "interleaved"),
        (2, "pass", "one node a socket"),
        (4, "pass", "2 nodes a socket (NPS2 or SNC2)"),
    ],
)
def test_numa_modes_of_the_bios_are_told(nodes: int, level: str, word: str) -> None:
    facts = good()
    cores = tuple(Core((cpu,), socket=cpu // 4) for cpu in range(8))
    numa = tuple(NumaNode(number, str(number)) for number in range(nodes))
    row = asked(replace(facts, cpus=replace(facts.cpus, cores=cores), numa=numa))["numa"]
    assert row["level"] == level
    assert word in row["detail"]


def test_deep_idle_states_are_a_warning_where_latency_counts() -> None:
    facts = replace(good(), power=Power(idle=(IdleState(0, "POLL", 0), IdleState(2, "C6", 133))))
    assert asked(facts)["c_states"]["level"] == "pass"
    assert asked(facts, policy(workload="inference-latency"))["c_states"]["level"] == "warn"


def test_of_an_rpm_archive_the_index_of_its_own_kind_is_asked_for() -> None:
    source = {"name": "el", "uris": "https://el.example/9/ https://el.example/more", "key": KEY}
    found = addresses(Policy.read({"software": {"sources": [source]}}), "rpm")
    assert found == (
        "https://el.example/9/repodata/repomd.xml",
        "https://el.example/more/repodata/repomd.xml",
    )


def test_translated_addresses_are_a_warning() -> None:
    facts = replace(
        good(),
        platform=Platform(compilers={"gcc-12": 12}, iommu_table=True),
        pcie=PcieFacts(functions=(PcieFunction("0000:10:00.0", iommu="DMA-FQ"),)),
    )
    assert asked(facts)["iommu"]["level"] == "warn"
    facts = replace(facts, pcie=PcieFacts(functions=(PcieFunction("0000:10:00.0", iommu="identity"),)))
    assert asked(facts)["iommu"]["level"] == "pass"


def test_nics_that_can_make_virtual_functions_are_counted_and_nothing_is_claimed_where_none_tells() -> None:
    facts = replace(good(), platform=Platform(vfs={"0000:18:00.0": 8, "0000:18:00.1": 0}))
    row = asked(facts)["sr_iov"]
    assert (row["level"], row["detail"].partition(";")[0]) == (
        "pass",
        "1 of 2 NICs can make virtual functions",
    )
    assert asked(good())["sr_iov"]["level"] == "skipped"


def test_an_accepted_finding_is_shown_and_stops_nothing() -> None:
    facts = good()
    facts = replace(facts, host=replace(facts.host, os_id="pop"))
    found = preflight(
        facts, policy(accept={"preflight.system": "a lab"}), Probe("3.11.2", NOW, True, None), NOW
    )
    (row,) = (row for row in found["checks"] if row["name"] == "preflight.system")
    assert row["level"] == "pass"
    assert "accepted, a lab" in row["detail"]


# ----- addresses -----------------------------------------------------------------------------------------------------


def sources(*rows: dict[str, Any]) -> Policy:
    return policy(software={"sources": list(rows)})


KEY = "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nx\n-----END PGP PUBLIC KEY BLOCK-----\n"


def test_every_archive_is_asked_for_what_its_package_manager_fetches_first() -> None:
    asked_for = addresses(
        sources(
            {"name": "a", "uris": "https://m.example/debian/ https://n.example/debian",
             "suites": "trixie trixie-updates", "components": "main", "key": KEY},
            {"name": "b", "uris": "http://c.example/cuda", "suites": "./", "key": KEY},
            {"name": "c", "uris": "http://c.example/cuda2", "suites": "x86_64/", "key": KEY},
            {"name": "d", "uris": "file:/srv/debs", "trusted": True},
        )
    )  # fmt: skip
    assert asked_for == (
        "https://m.example/debian/dists/trixie/InRelease",
        "https://m.example/debian/dists/trixie-updates/InRelease",
        "https://n.example/debian/dists/trixie/InRelease",
        "https://n.example/debian/dists/trixie-updates/InRelease",
        "http://c.example/cuda/InRelease",
        "http://c.example/cuda2/x86_64/InRelease",
        "file:/srv/debs",
    )


def test_an_address_that_does_not_answer_fails_with_a_way_to_try_it() -> None:
    row = asked(good(), reached=(Reached("http://c.example/x", False, "does not answer"),))["addresses"]
    assert row["level"] == "fail"
    assert "curl -I http://c.example/x" in row["remedies"][0]


class Archive(http.server.BaseHTTPRequestHandler):
    """good answers, gone does not, away leads to another host, here to another path of its own."""

    def do_HEAD(self) -> None:
        port = self.headers["Host"].rpartition(":")[2]
        if self.path == "/good":
            self.send_response(200)
        elif self.path in ("/away", "/here"):
            self.send_response(302)
            host = "localhost" if self.path == "/away" else "127.0.0.1"
            self.send_header("Location", f"http://{host}:{port}/good")
        else:
            self.send_response(404)
        self.end_headers()

    do_GET = do_HEAD  # what urllib makes of a HEAD that is led elsewhere

    def log_message(self, *_arguments: Any) -> None:
        pass


@pytest.fixture(scope="module")
def archive() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Archive)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("path", "ok", "why"),
    [
        ("/good", True, "answers 200"),
        ("/here", True, "answers 200 as /good"),
        ("/gone", False, "answers 404"),
        ("/away", False, "leads to another host"),
    ],
)
def test_a_node_asks_for_an_address_itself(
    archive: str, tmp_path: Path, path: str, ok: bool, why: str
) -> None:
    (row,) = probe([archive + path], tmp_path).reached
    assert row.ok is ok
    assert row.why.startswith(why)


def test_a_folder_is_looked_for_and_a_closed_port_is_told(archive: str, tmp_path: Path) -> None:
    (tmp_path / "srv/debs").mkdir(parents=True)
    there, missing, closed, odd = probe(
        ["file:/srv/debs", "file:///srv/other", "http://127.0.0.1:1/x", "ftp://h/x"], tmp_path
    ).reached
    assert (there.ok, missing.ok, closed.ok, odd.ok) == (True, False, False, None)
    assert closed.why == "cannot be reached: Connection refused"


def test_apts_proxy_is_the_one_that_is_asked_through(archive: str, tmp_path: Path) -> None:
    conf = tmp_path / "etc/apt/apt.conf.d/99proxy"
    conf.parent.mkdir(parents=True)
    conf.write_text('Acquire::http::Proxy "http://127.0.0.1:1";\n')
    probed = probe([f"{archive}/good"], tmp_path)
    assert probed.proxy == "http://127.0.0.1:1"
    assert probed.reached[0].ok is False
    row = asked(good(), reached=probed.reached, proxy=probed.proxy)["addresses"]
    assert "through http://127.0.0.1:1" in row["detail"]


@pytest.mark.parametrize("word", ["hun@ter2", "hunt//ter2"])
@pytest.mark.parametrize("form", ["http://{}127.0.0.1:1", "{}127.0.0.1:1"])
def test_a_proxys_password_is_used_and_never_told(archive: str, tmp_path: Path, form: str, word: str) -> None:
    conf = tmp_path / "etc/apt/apt.conf.d/99proxy"
    conf.parent.mkdir(parents=True)
    conf.write_text(f'Acquire::http::Proxy "{form.format(f"me:{word}@")}";\n')
    probed = probe([f"{archive}/good"], tmp_path)
    assert probed.proxy == form.format("***@")
    assert "ter2" not in repr(probed)


# ----- the reader of the platform ------------------------------------------------------------------------------------


def test_compilers_builds_and_images_are_read_from_files(tmp_path: Path) -> None:
    error = "/b/nvidia/nv-pci.c:237:34: error: too few arguments to function 'pci_resize_resource'"
    log = "var/lib/dkms/nvidia/550.163.01/build/make.log"
    root = plant(
        tmp_path,
        {
            "usr/bin/gcc-12": "",
            "etc/dgx-release": 'DGX_NAME="DGX Server"\n',
            log: f"DKMS (dkms-3.2.2) make.log for nvidia/550.163.01 for kernel {NEW} (x86_64)\n"
            f"CC x.o\n{error}\nmake: ***\n",
            "sys/firmware/acpi/tables/DMAR": "",
        },
        {"usr/bin/gcc": "gcc-12"},
    )
    found = discover(root).platform
    assert found is not None
    assert found.compilers == {"gcc": 12, "gcc-12": 12}
    assert found.images == ("etc/dgx-release",)
    assert found.iommu_table is True
    (failed,) = found.failed_builds
    assert (failed.log, failed.kernel, failed.error) == (f"/{log}", NEW, error)


# ----- the page ------------------------------------------------------------------------------------------------------


def test_the_page_begins_with_what_failed_and_says_what_to_do() -> None:
    facts = good()
    facts = replace(facts, host=replace(facts.host, secure_boot=True, kernel=OLD))
    lines = page("n1", preflight(facts, policy(), Probe("3.8.1", NOW, True, None), NOW)).splitlines()
    assert lines[0].startswith("n1: 2 fail, 0 warn, ")
    assert lines[1] == "  FAIL  preflight.python: 3.8.1: Python 3.9 or later is needed"
    assert lines[2] == "          -> set ansible_python_interpreter"
    assert "FAIL  preflight.secure_boot" in lines[3]
