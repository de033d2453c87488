"""Limits of a node as they are read: of processes, of PAM's sessions, of sshd and Slurm; and damaged texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from railwright.node.discover.limits import read_limits, with_limits
from railwright.node.discover.tree import Tree
from railwright.node.model import Facts, Limits, ProcessLimits, SlurmPropagation, to_json
from tests.unit.damage import damaged
from tests.unit.small_machine import plant
from tests.unit.stack_support import H100, machine

# As the kernel prints it (fs/proc/base.c, proc_pid_limits).
PROC_LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max open files            1024                 524288               files
Max locked memory         8388608              unlimited            bytes
Max address space         unlimited            unlimited            bytes
"""
DEBIAN_SSHD = """\
# PAM configuration for the Secure Shell service
@include common-auth
account    required     pam_nologin.so
session [success=ok ignore=ignore module_unknown=ignore default=bad]        pam_selinux.so close
@include common-session
session    required     pam_limits.so
"""
RED_HAT_SSHD = """\
#%PAM-1.0
auth       substack     password-auth
session    required     pam_selinux.so close
session    include      password-auth
"""
PASSWORD_AUTH = """\
auth        required                                     pam_env.so
session     optional                                     pam_keyinit.so revoke
-session    optional                                     pam_systemd.so
session     required                                     pam_limits.so
session     [success=1 default=ignore]                   pam_succeed_if.so service in crond quiet use_uid
"""


def read(root: Path, files_: dict[str, str], running: dict[int, str] | None = None) -> Limits:
    return read_limits(Tree(plant(root, files_)), running or {})


def test_a_running_process_is_read_with_its_unit_and_both_limits(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        {
            "proc/1/limits": PROC_LIMITS,
            "proc/1/status": "Name:\tsystemd\nCapBnd:\t000001ffffffffff\n",
            "proc/4711/limits": PROC_LIMITS,
            "proc/4711/cgroup": "0::/system.slice/slurmd.service\n",
            "proc/4712/limits": PROC_LIMITS,
            "proc/4712/cgroup": "0::/user.slice/user-0.slice/session-2.scope\n",
            "proc/sys/fs/nr_open": "1073741816\n",
            "usr/lib/systemd/system/slurmd.service": "[Service]\n",
        },
        {1: "systemd", 4711: "slurmd", 4712: "sshd"},
    )
    (one,) = found.processes
    assert one == ProcessLimits("slurmd.service", "slurmd", ("8388608", "unlimited"), ("1024", "524288"))
    assert (found.units, found.may_raise, found.nr_open) == (("slurmd.service",), True, 1073741816)


def test_without_the_capability_in_its_bounding_set_pid_1_may_not_raise(tmp_path: Path) -> None:
    # CAP_SYS_RESOURCE is bit 24: 0x1ffffffffff without it.
    assert read(tmp_path, {"proc/1/status": "CapBnd:\t000001fffeffffff\n"}).may_raise is False


@pytest.mark.parametrize(
    ("uid_map", "may"),
    [("         0          0 4294967295\n", True), ("         0     100000      65536\n", False)],
)
def test_the_capability_counts_in_the_first_user_namespace_only(
    tmp_path: Path, uid_map: str, may: bool
) -> None:
    # kernel/sys.c, do_prlimit: capable(), which asks the first one.
    files_ = {"proc/1/status": "CapBnd:\t000001ffffffffff\n", "proc/1/uid_map": uid_map}
    assert read(tmp_path, files_).may_raise is may


def test_hundreds_of_logins_do_not_hide_a_daemon_that_was_started_after_them(tmp_path: Path) -> None:
    running = dict.fromkeys(range(2, 200), "sshd") | {9999: "slurmd"}
    plant(
        tmp_path, {"proc/9999/limits": PROC_LIMITS, "proc/9999/cgroup": "0::/system.slice/slurmd.service\n"}
    )
    assert [one.process for one in read_limits(Tree(tmp_path), running).processes] == ["slurmd"]


def test_files_that_name_each_other_are_read_once(tmp_path: Path) -> None:
    # Each of 20 names all: without a memory 20 to the eighth files would be read.
    names = [f"{number:02}.conf" for number in range(20)]
    pages = {f"etc/ssh/sshd_config.d/{name}": "Include sshd_config.d/*.conf\n" for name in names}
    pages["etc/ssh/sshd_config"] = "Include sshd_config.d/*.conf\nUsePAM yes\n"
    pages |= {f"etc/pam.d/{name}": "".join(f"@include {other}\n" for other in names) for name in names}
    pages["etc/pam.d/sshd"] = "@include 00.conf\nsession required pam_limits.so\n"
    found = read(tmp_path, pages)
    assert (found.use_pam, found.pam["sshd"]) == (True, True)
    assert with_limits(Tree(tmp_path), "00.conf") is None


def test_another_name_of_a_unit_is_not_counted_twice(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {"usr/lib/systemd/system/ssh.service": "[Service]\n"},
        {"etc/systemd/system/sshd.service": "/usr/lib/systemd/system/ssh.service"},
    )
    assert read_limits(Tree(tmp_path), {}).units == ("ssh.service",)


def test_pam_limits_is_found_in_debians_and_in_red_hats_way(tmp_path: Path) -> None:
    common = "session required pam_unix.so\n"
    auth = "auth required pam_unix.so\n"
    pages = {"etc/pam.d/sshd": DEBIAN_SSHD, "etc/pam.d/common-auth": auth, "etc/pam.d/common-session": common}
    debian = plant(tmp_path / "d", pages)
    assert with_limits(Tree(debian), "sshd") is True
    red_hat = plant(
        tmp_path / "r", {"etc/pam.d/sshd": RED_HAT_SSHD, "etc/pam.d/password-auth": PASSWORD_AUTH}
    )
    assert with_limits(Tree(red_hat), "sshd") is True
    without = PASSWORD_AUTH.replace(
        "session     required                                     pam_limits.so\n", ""
    )
    other = plant(tmp_path / "o", {"etc/pam.d/sshd": RED_HAT_SSHD, "etc/pam.d/password-auth": without})
    assert with_limits(Tree(other), "sshd") is False


def test_what_pams_files_do_not_tell_is_unknown(tmp_path: Path) -> None:
    lost = plant(tmp_path / "l", {"etc/pam.d/sshd": "session include gone\n"})
    assert with_limits(Tree(lost), "sshd") is None
    own = plant(tmp_path / "c", {"etc/pam.d/sshd": "session required pam_limits.so conf=/etc/other.conf\n"})
    assert with_limits(Tree(own), "sshd") is None
    ring = plant(tmp_path / "x", {"etc/pam.d/sshd": "@include sshd\n"})
    assert with_limits(Tree(ring), "sshd") is None


@pytest.mark.parametrize(
    ("text", "more", "wanted"),
    [
        ("# UsePAM yes\n", "", False),
        ("UsePAM yes\nUsePAM no\n", "", True),
        ("Include /etc/ssh/sshd_config.d/*.conf\nUsePAM no\n", "usepam yes\n", True),
        ("Match User root\n  UsePAM yes\n", "", False),
        ('UsePAM="yes"\n', "", True),
        ("UsePAM perhaps\n", "", None),
    ],
)
def test_use_pam_is_read_as_sshd_reads_it(tmp_path: Path, text: str, more: str, wanted: bool | None) -> None:
    pages = {"etc/ssh/sshd_config": text, "etc/ssh/sshd_config.d/50-red-hat.conf": more}
    assert read(tmp_path, pages).use_pam is wanted


def test_slurm_conf_is_read_without_its_comments(tmp_path: Path) -> None:
    text = "#PropagateResourceLimits=NONE\npropagateresourcelimitsexcept=memlock,NOFILE # why\n"
    found = read(tmp_path, {"etc/slurm/slurm.conf": text}).slurm
    assert found == SlurmPropagation("/etc/slurm/slurm.conf", None, ("MEMLOCK", "NOFILE"))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("etc/pam.d/sshd", DEBIAN_SSHD),
        ("etc/ssh/sshd_config", "Include /etc/ssh/sshd_config.d/*.conf\nUsePAM yes\nMatch User a\n X11Forwarding no\n"),
        ("etc/slurm/slurm.conf", "ClusterName=a\nPropagateResourceLimitsExcept=MEMLOCK,\\\nNOFILE\n"),
        ("proc/9/limits", PROC_LIMITS),
        ("proc/1/status", "Name:\tsystemd\nCapBnd:\t000001ffffffffff\nSeccomp:\t0\n"),
    ],
)  # fmt: skip
def test_damaged_files_are_read_or_unknown_and_never_end_the_reader(
    tmp_path: Path, path: str, text: str
) -> None:
    for number, data in enumerate(damaged(text)):
        root = plant(tmp_path / str(number), {"proc/9/cgroup": "0::/system.slice/slurmd.service\n"})
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
        found = read_limits(Tree(root), {9: "slurmd"})
        assert Facts.read({**to_json(machine(H100)), "limits": to_json(found)}).limits == found
