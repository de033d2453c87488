"""Lab nodes: that systemd really runs there on the recorded hardware, and that this machine is left as it is."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import racks
from tests.lab.lab import Lab, Node, Wanted
from tests.lab.shell import call

SUITES = {"n1": "bookworm", "n2": "trixie"}
PYTHON = """
import os, sys
try:
    fd = os.open(sys.argv[1], os.O_WRONLY | os.O_TRUNC)
    os.write(fd, sys.argv[2].encode() + b"\\n")
    print("taken")
except OSError as error:
    import errno
    print(errno.errorcode[error.errno])
"""


@pytest.fixture(params=[0, 1], ids=["bookworm", "trixie"])
def node(rack: Lab, request: pytest.FixtureRequest) -> Node:
    return rack.nodes[int(request.param)]


def write(node: Node, path: str, value: str) -> str:
    return node.must("python3", "-c", f"'{PYTHON}'", path, f"'{value}'").strip()


def irqs_of(node: Node, handler: str) -> list[str]:
    """Numbers of the interrupts whose handler's name begins so."""
    return node.must(f"cd /proc/irq && ls -d */{handler}* | cut -d/ -f1 | sort -n").split()


def test_systemd_runs_there_and_no_unit_failed(node: Node) -> None:
    assert node.read("/proc/1/comm") == "systemd"
    assert node.must("systemctl is-system-running").strip() == "running"
    assert node.must("systemctl --failed --no-legend") == ""
    assert f"VERSION_CODENAME={SUITES[node.spec.name]}" in node.read("/etc/os-release").splitlines()


def test_a_node_has_its_own_names_and_keys(rack: Lab) -> None:
    key = "cat /etc/ssh/ssh_host_ed25519_key.pub"
    for what in ("hostname", "cat /etc/machine-id", key, "cat /proc/sys/kernel/random/boot_id"):
        assert len({node.must(what) for node in rack.nodes}) == 2, what
    assert [node.must("hostname").strip() for node in rack.nodes] == ["n1", "n2"]


def test_lspci_sees_the_recorded_machine(node: Node) -> None:
    listed = node.must("lspci -Dn").splitlines()
    assert sum(" 0302: 10de:2330" in line for line in listed) == 8
    assert sum(" 15b3:" in line for line in listed) == 10
    assert node.read("/sys/devices/system/cpu/online") == "0-223"


def test_the_programs_of_a_node_see_the_recorded_cpus_as_those_they_may_use(node: Node) -> None:
    status = node.must("python3 -c \"print(open('/proc/self/status').read())\"")
    assert "Cpus_allowed_list:\t0-223\n" in status


def test_its_network_devices_are_the_recorded_ones(node: Node) -> None:
    recorded = set(node.must("ls /sys/class/net").split())
    real = {line.split("@")[0].split()[0] for line in node.must("ip -br link").splitlines()}
    assert recorded == real
    device = {"n1": "enp75s0f0np0", "n2": "eth6"}[node.spec.name]
    assert node.must("ip route show default").split()[2:5] == ["10.77.0.1", "dev", device]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("smp_affinity_list", "400", "ERANGE"),
        ("smp_affinity", f"1{',00000000' * 7}", "EOVERFLOW"),
        ("smp_affinity_list", "", "EINVAL"),
        ("smp_affinity_list", "some", "EINVAL"),
        ("effective_affinity_list", "4", "EACCES"),
    ],
)
def test_proc_irq_refuses_what_a_kernel_refuses(node: Node, name: str, text: str, said: str) -> None:
    irq = irqs_of(node, "mlx5_comp1@")[0]
    before = node.must(f"cat /proc/irq/{irq}/*affinity*")
    # Root may open what is read only for all; the kernel's procfs then says EIO.
    assert write(node, f"/proc/irq/{irq}/{name}", text) in (said, "EIO" if said == "EACCES" else said)
    assert node.must(f"cat /proc/irq/{irq}/*affinity*") == before


def test_both_forms_of_an_affinity_and_the_serving_cpu_follow_a_write(node: Node) -> None:
    irq = irqs_of(node, "mlx5_comp2@")[0]
    assert write(node, f"/proc/irq/{irq}/smp_affinity_list", "34,36") == "taken"
    # 34 and 36 are bits 2 and 4 of the second word from the right.
    assert node.read(f"/proc/irq/{irq}/smp_affinity").endswith(",00000014,00000000")
    assert node.read(f"/proc/irq/{irq}/effective_affinity_list") in ("34", "36")


def test_what_the_kernel_alone_places_is_an_input_output_error(node: Node) -> None:
    managed = irqs_of(node, "nvme0q1")[0]
    assert write(node, f"/proc/irq/{managed}/smp_affinity_list", "4") == "EIO"
    assert write(node, f"/proc/irq/{irqs_of(node, 'nvme0q0')[0]}/smp_affinity_list", "4") == "taken"


def test_a_cpu_can_be_told_to_be_full(node: Node) -> None:
    irq = irqs_of(node, "mlx5_comp3@")[0]
    told = node.spec.folder / "full-cpus"
    told.write_text("40\n", "ascii")
    try:
        assert write(node, f"/proc/irq/{irq}/smp_affinity_list", "40") == "ENOSPC"
    finally:
        told.unlink()
    assert write(node, f"/proc/irq/{irq}/smp_affinity_list", "40") == "taken"


def test_what_a_node_writes_does_not_reach_this_machine(node: Node) -> None:
    ours = {path: Path(path).read_text() for path in ("/proc/sys/vm/swappiness", "/proc/sys/kernel/panic")}
    for path, text in ours.items():
        node.must(f"echo {(int(text) + 7) % 60} > {path}")
        assert node.read(path) != text.strip()
        assert Path(path).read_text() == text
        node.must(f"echo {text.strip()} > {path}")


def test_a_node_shares_no_folder_with_this_machine(node: Node, tmp_path: Path) -> None:
    """Debian clears /tmp at boot: a node that shared ours would clear it."""
    assert tmp_path.is_dir()
    assert node.must("ls -A /tmp").find(tmp_path.parts[2]) == -1
    shared = {"/", "/tmp", "/run", "/dev/shm", "/var/tmp"}
    for path in shared:
        assert node.must(f"stat -c %d:%i {path}").strip() != f"{os.stat(path).st_dev}:{os.stat(path).st_ino}"


def test_sysctl_lists_all_values_and_ends(node: Node) -> None:
    listed = node.must("timeout 20 sysctl -a 2>/dev/null")
    assert "net.ipv4.neigh.default.gc_thresh1 = 128" in listed.splitlines()
    assert len(listed.splitlines()) > 500


def test_this_machine_sees_no_mount_of_a_node(rack: Lab) -> None:
    mounts = Path("/proc/self/mountinfo").read_text()
    assert str(rack.run.folder) not in mounts
    assert "/run/lab" not in mounts


@pytest.fixture
def twin(rack: Lab) -> Iterator[Lab]:
    """Another lab, whose node has the name and the address of one of this."""
    with racks.raised("twin", Wanted("n1", "bookworm", racks.MACHINES[0])) as other:
        yield other


def test_ansible_tells_two_labs_apart_that_have_the_same_addresses(rack: Lab, twin: Lab) -> None:
    """Its connection to the first lab's node is open while the second's is asked."""

    def asks(one: Lab, command: str) -> list[str]:
        program = str(Path(sys.executable).with_name("ansible"))
        return one.controller(program, "-i", str(one.inventory), "n1", "-m", "raw", "-a", command)

    assert [one.nodes[0].spec.address for one in (rack, twin)] == ["10.77.0.2"] * 2
    held = subprocess.Popen(asks(rack, "sleep 600"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not list((rack.run.folder / "cp").glob("*")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        said = call(asks(twin, "cat /etc/machine-id"))
    finally:
        held.kill()  # unshare(1) lets SIGTERM pass while it waits
        held.wait()
    assert twin.nodes[0].read("/etc/machine-id") in said
    assert rack.nodes[0].read("/etc/machine-id") not in said
