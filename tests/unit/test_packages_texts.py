"""What apt, dpkg, dnf and rpm write, as they wrote it (Debian 12's apt 2.6.1 and dpkg 1.21; dnf 4.14), and damaged."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from railwright.node.model import InputError
from railwright.node.packages import apt, cmdline, dpkg, rpm
from railwright.node.packages.change import Change

STATUS = """Package: dpkg
Essential: yes
Status: install ok installed
Architecture: amd64
Version: 1.21.22
Description: Debian package management system

Package: nvidia-open
Status: hold ok installed
Architecture: amd64
Version: 580.126.20-1
Depends: nvidia-utils (= 580.126.20-1)

Package: libgl1
Status: install ok installed
Architecture: i386
Version: 1.6.0-1
Description: with a line
 Status: that is none

Package: rw-killed
Status: install ok half-configured
Architecture: amd64
Version: 1:2.0~rc1+dfsg-3

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 3

Package: man-db
Status: install ok triggers-pending
Architecture: amd64
Version: 2.11
"""
SIMULATION = """NOTE: This is only a simulation!
Reading package lists...
The following packages will be REMOVED:
  nvidia-fabricmanager-580*
Purg nvidia-fabricmanager-580 [580.126.20-0ubuntu0.24.04.1]
Remv rw-guest [1]
Inst nvidia-utils (580.173.02-1 Railwright lab:lab [amd64])
Inst nvidia-open [580.126.20-1] (580.173.02-1 Railwright lab:lab [amd64]) []
Inst libc6:i386 (2.36-9 Debian:12.1/stable, Debian-Security:12/stable-security [i386])
Inst local (1:2-3 [amd64]) [nvidia-open:amd64 ]
Conf nvidia-utils (580.173.02-1 Railwright lab:lab [amd64])
"""
QUERY = (
    "kernel-core\t0\t5.14.0-503.11.1.el9_5\tx86_64\nkernel-core\t0\t5.14.0-570.el9\tx86_64\n"
    "nvidia-open\t3\t580.126.20-1.el9\tnoarch\n"
)
DNF = """Last metadata expiration check: 0:00:05 ago on Mon Nov 30 13:00:00 2026.
Dependencies resolved.
================================================================================
 Package              Arch   Version               Repository              Size
================================================================================
Installing:
 nvidia-open          noarch 3:580.173.02-1.el9    railwright-cuda        9.9 k
Installing dependencies:
 nvidia-kernel-module-source-with-a-name-that-is-long
                      noarch 3:580.173.02-1.el9    railwright-cuda         31 M
Upgrading:
 libnvidia-ml         x86_64 3:580.173.02-1.el9    railwright-cuda        1.0 M
Downgrading:
 nvlsm                x86_64 2025.10.11-1          railwright-cuda        1.0 M
Removing:
 nvidia-fabricmanager x86_64 570.1-1               @cuda                  1.0 M
Removing dependent packages:
 dcgm                 x86_64 1:3.3.9-1             @cuda                  1.0 M

Transaction Summary
================================================================================
Install  2 Packages
Upgrade  1 Package

Total download size: 33 M
Operation aborted.
"""
MENU = """set default="0"
### BEGIN /etc/grub.d/10_linux ###
menuentry 'Debian GNU/Linux' --class debian $menuentry_id_option 'gnulinux-simple-1' {
\tlinux\t/boot/vmlinuz-6.1.0-50-amd64 root=UUID=1 ro quiet iommu=pt numa_balancing=disable
\tinitrd\t/boot/initrd.img-6.1.0-50-amd64
}
submenu 'Advanced options for Debian GNU/Linux' $menuentry_id_option 'gnulinux-advanced-1' {
\tmenuentry 'Debian GNU/Linux, with Linux 6.1.0-50-amd64' $menuentry_id_option 'gnulinux-6.1.0-50-amd64-advanced-1' {
\t\tlinux\t/boot/vmlinuz-6.1.0-50-amd64 root=UUID=1 ro quiet iommu=pt numa_balancing=disable
\t}
\tmenuentry 'Debian GNU/Linux, with Linux 6.1.0-50-amd64 (recovery mode)' $menuentry_id_option 'x' {
\t\tlinux\t/boot/vmlinuz-6.1.0-50-amd64 root=UUID=1 ro single
\t}
\tmenuentry 'Debian GNU/Linux, with Linux 6.1.0-9-amd64' $menuentry_id_option 'gnulinux-6.1.0-9-amd64-advanced-1' {
\t\tlinux\t/boot/vmlinuz-6.1.0-9-amd64 root=UUID=1 ro quiet iommu=pt numa_balancing=disable
\t}
}
### END /etc/grub.d/10_linux ###
### BEGIN /etc/grub.d/20_memtest86+ ###
menuentry 'Memory test' {
\tlinux16\t/boot/memtest86+x64.bin
}
### END /etc/grub.d/20_memtest86+ ###
### BEGIN /etc/grub.d/30_os-prober ###
menuentry 'Another system' {
\tlinux\t/boot/vmlinuz-5.0 root=/dev/sdb1
}
### END /etc/grub.d/30_os-prober ###
"""


def test_dpkgs_record_is_read_word_for_word() -> None:
    found = dpkg.read_status(STATUS, dpkg.native_architecture(STATUS))
    assert {name: (one.cell, one.held) for name, one in found.items()} == {
        "dpkg": ("1.21.22", False),
        "nvidia-open": ("580.126.20-1", True),
        "libgl1:i386": ("1.6.0-1", False),
        "rw-killed": ("1:2.0~rc1+dfsg-3 half-configured", False),
        "gone": (None, False),
        "man-db": ("2.11 triggers-pending", False),
    }
    assert dpkg.half_way(found) == ("rw-killed half-configured",)


@pytest.mark.parametrize(
    ("words", "torn", "cell"),
    [
        ("ok installed", False, "1"),
        ("ok unpacked", False, "1 unpacked"),
        ("ok half-configured", False, "1 half-configured"),
        ("ok half-installed", True, "1 half-installed"),
        ("reinstreq half-installed", True, "1 half-installed"),
        ("reinstreq installed", True, "1 reinstreq"),
        # dpkg 1.21 is here for as long as a sync takes, and neither configures nor removes what it left so.
        ("reinstreq unpacked", True, "1 unpacked"),
    ],
)
def test_what_dpkg_wants_installed_anew_is_told_by_its_flag_as_well(
    words: str, torn: bool, cell: str
) -> None:
    found = dpkg.read_status(f"Package: rw-slow\nStatus: install {words}\nVersion: 1\n")
    assert (found["rw-slow"].torn, found["rw-slow"].cell) == (torn, cell)


def test_a_simulation_is_read_word_for_word() -> None:
    assert apt.read_simulation(SIMULATION) == (
        Change("nvidia-fabricmanager-580", "580.126.20-0ubuntu0.24.04.1", None),
        Change("rw-guest", "1", None),
        Change("nvidia-utils", None, "580.173.02-1", "Railwright lab:lab"),
        Change("nvidia-open", "580.126.20-1", "580.173.02-1", "Railwright lab:lab"),
        Change("libc6:i386", None, "2.36-9", "Debian:12.1/stable, Debian-Security:12/stable-security"),
        Change("local", None, "1:2-3", None),
    )


def test_rpms_record_and_dnfs_table_are_read_word_for_word() -> None:
    installed = rpm.read_query(
        QUERY, rpm.read_locks("# a comment\nnvidia-open-3:580.126.20-1.el9.*\n!dcgm-1:2-3.*\n")
    )
    assert {name: (one.cell, one.held) for name, one in installed.items()} == {
        "kernel-core": ("5.14.0-503.11.1.el9_5 5.14.0-570.el9", False),
        "nvidia-open": ("3:580.126.20-1.el9", True),
    }
    assert [change.words for change in rpm.read_transaction(DNF, installed)] == [
        "nvidia-open 3:580.126.20-1.el9 -> 3:580.173.02-1.el9",
        "nvidia-kernel-module-source-with-a-name-that-is-long 3:580.173.02-1.el9 comes",
        "libnvidia-ml 3:580.173.02-1.el9 comes",
        "nvlsm 2025.10.11-1 comes",
        "nvidia-fabricmanager goes",
        "dcgm goes",
    ]


def test_grubs_menu_shows_every_entry_that_needs_our_words_and_no_other() -> None:
    lines = cmdline.grub_lines(MENU)
    assert len(lines) == 3
    assert all(cmdline.holds(line, ["iommu=pt", "numa_balancing=disable"]) for line in lines)


@pytest.mark.parametrize(
    ("line", "wanted", "lacks"),
    [
        ("root=1 iommu=pt", ["iommu=pt"], []),
        ("root=1 iommu=pt iommu=off", ["iommu=pt"], ["iommu=pt"]),
        ("root=1 iommu=off iommu=pt", ["iommu=pt"], []),
        ("pci=realloc=off pci=config_acs=101@01:00.0", ["pci=realloc=off"], []),
        ("pci=realloc=off pci=realloc", ["pci=realloc=off"], ["pci=realloc=off"]),
        ("hugepagesz=2M hugepages=9 hugepagesz=1G hugepages=2", ["hugepagesz=1G", "hugepages=2"], []),
        ("iommu=pt -- iommu=off", ["iommu=pt"], []),
        ("root=1 -- iommu=pt", ["iommu=pt"], ["iommu=pt"]),
        ('dyndbg="file x +p" iommu=pt', ["iommu=pt"], []),
        ('x="iommu=pt"', ["iommu=pt"], ["iommu=pt"]),
        ("numa-balancing=x numa_balancing=disable", ["numa_balancing=disable"], []),
        ("quiet\n", ["quiet"], []),
    ],
)
def test_what_is_in_force_is_decided_as_the_kernel_does(
    line: str, wanted: list[str], lacks: list[str]
) -> None:
    assert cmdline.lacking(line, wanted) == lacks


# By hand after the GRUB manual, "Quoting" and "Words, Operators and reserved words"; left is what GRUB's script has.
SCRIPTS = [
    ("root=1 ro  quiet", ["root=1", "ro", "quiet"]),
    ("ro pci=config_acs=A@1;B@2 quiet", ["ro", "pci=config_acs=A@1"]),
    ("ro 'pci=config_acs=A@1;B@2' quiet", ["ro", "pci=config_acs=A@1;B@2", "quiet"]),
    ('ro "pci=config_acs=A@1;B@2" quiet', ["ro", "pci=config_acs=A@1;B@2", "quiet"]),
    ("ro pci=config_acs='A@1;B@2' quiet", ["ro", "pci=config_acs=A@1;B@2", "quiet"]),
    ("ro pci=config_acs=A@1\\;B@2 quiet", ["ro", "pci=config_acs=A@1;B@2", "quiet"]),
    ('dyndbg="file x +p" ro', ["dyndbg=file x +p", "ro"]),
    ('\'it\\\' "a \\"b\\" \\n"', ["it\\", 'a "b" \\n']),
    ("quiet splash $vt_handoff ${more} ro", ["quiet", "splash", "$vt_handoff", "${more}", "ro"]),
    ("ro & quiet", ["ro"]),
    ("ro # quiet", ["ro"]),
    ("ro a#b }", ["ro", "a#b"]),
    ("", []),
]


@pytest.mark.parametrize(("script", "words"), SCRIPTS)
def test_grubs_script_hands_on_what_its_quotes_hold_together_and_nothing_after_an_end(
    script: str, words: list[str]
) -> None:
    assert cmdline.grub_words(script) == words


@pytest.mark.parametrize(("mark", "whole"), [("'", True), ('"', True), ("", False)])
def test_a_word_with_a_semicolon_is_in_the_menu_only_where_it_is_quoted(mark: str, whole: bool) -> None:
    word = "pci=config_acs=xx000x0@0000:20:01.0;xx000x0@0000:22:00.0"
    lines = cmdline.grub_lines(MENU.replace("iommu=pt", f"{mark}{word}{mark} iommu=pt"))
    assert [cmdline.holds(line, [word, "iommu=pt"]) for line in lines] == [whole] * 3


def test_the_kernel_gets_a_word_with_blanks_between_double_quotes_and_a_semicolon_as_it_is() -> None:
    """grub-core/lib/cmdline.c puts the quotes around the whole word; the kernel takes them off again."""
    line = cmdline.as_booted("ro dyndbg='file x +p' 'pci=config_acs=A@1;B@2'")
    assert line == 'ro "dyndbg=file x +p" pci=config_acs=A@1;B@2'
    assert cmdline.holds(line, ["dyndbg=file x +p", "pci=config_acs=A@1;B@2"])
    # systemd-boot hands quotes on.
    assert cmdline.holds('ro "pci=config_acs=A@1;B@2"', ["pci=config_acs=A@1;B@2"])


def test_a_drop_in_has_quotes_only_around_what_grub_would_take_apart_byte_for_byte() -> None:
    text = cmdline.drop_in_text("iommu=pt pci=config_acs=xx000x0@0000:20:01.0;xx000x0@0000:22:00.0")
    assert text.splitlines()[1:] == [
        'GRUB_CMDLINE_LINUX_DEFAULT="${GRUB_CMDLINE_LINUX_DEFAULT:+$GRUB_CMDLINE_LINUX_DEFAULT }'
        "iommu=pt 'pci=config_acs=xx000x0@0000:20:01.0;xx000x0@0000:22:00.0'\""
    ]
    assert cmdline.read_drop_in(text) == "iommu=pt pci=config_acs=xx000x0@0000:20:01.0;xx000x0@0000:22:00.0"
    assert cmdline.read_drop_in(text.replace("'", "")) == "iommu=pt pci=config_acs=xx000x0@0000:20:01.0", (
        "what was written bare is read as GRUB reads it"
    )


def test_entries_of_the_boot_loader_specification_take_what_grubenv_holds() -> None:
    environment = cmdline.grubenv(
        "# GRUB Environment Block\nsaved_entry=x\nkernelopts=root=1 ro iommu=pt\n####\n"
    )
    assert cmdline.bls_options("title x\noptions $kernelopts $tuned quiet\n", environment).split() == [
        "root=1", "ro", "iommu=pt", "quiet",
    ]  # fmt: skip
    assert cmdline.options_of("options\ninitrd /x\n") == ""


@pytest.mark.parametrize(
    ("options", "edited"),
    [
        ('root=1 dyndbg="file a.c  +p" ro', 'root=1 dyndbg="file a.c  +p" ro iommu=pt'),
        ('x="a iommu=off b"  ro', 'x="a iommu=off b"  ro iommu=pt'),
        ("x='a  iommu=off b' iommu=off ro", "x='a  iommu=off b' iommu=pt ro"),
        ("ro -- single iommu=off", "ro iommu=pt -- single iommu=off"),
        ("iommu=soft  ro iommu=off --", "iommu=pt  ro --"),
        ('ro x="a  b', 'ro x="a  b iommu=pt'),
        ("-- single", "iommu=pt -- single"),
        ("root=1 pci=nocrs iommu=off ro $tuned_params", "root=1 pci=nocrs iommu=pt ro $tuned_params"),
    ],
)
def test_an_edited_entry_keeps_what_is_in_quotes_what_is_inits_and_blanks(options: str, edited: str) -> None:
    assert cmdline.bls_edited(options, {"iommu"}, ["iommu=pt"]) == edited


CAUSES = [
    ("E: Version '1' for 'nvidia-open' was not found", "version", "'1' for 'nvidia-open'"),
    ("E: Unable to locate package nvidia-opne", "package", "nvidia-opne"),
    ("E: Package 'nvlsm' has no installation candidate", "package", "nvlsm"),
    ("E: You don't have enough free space in /var/cache/apt/archives/.", "disk-full", "/var/cache/apt"),
    (
        "dpkg: error processing archive x (--unpack):\n cannot copy: No space left on device",
        "disk-full",
        "No space",
    ),
    (
        "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 7 (apt-get)",
        "lock",
        "lock-frontend",
    ),
    ("E: dpkg was interrupted, you must manually run 'dpkg --configure -a'", "interrupted", "interrupted"),
    (
        "E: The package rw-friend needs to be reinstalled, but I can't find an archive for it.",
        "torn-unknown",
        "the package rw-friend was torn",
    ),
    (
        "dpkg: error processing package rw-friend (--configure):\n package is in a very bad inconsistent state; you "
        "should\n reinstall it before attempting configuration\nErrors were encountered while processing:\n rw-friend",
        "torn",
        "the package rw-friend was torn",
    ),
    (
        "W: GPG error: https://x InRelease: EXPKEYSIG A4B469963BF863CC cudatools",
        "expired-key",
        "A4B469963BF863CC",
    ),
    ("W: GPG error: https://x InRelease: NO_PUBKEY A4B469963BF863CC", "no-key", "A4B469963BF863CC"),
    ("E: https://x InRelease: BADSIG 1 x", "bad-signature", "BADSIG"),
    (
        "E: Clearsigned file isn't valid, got 'NOSPLIT' (does the network require authentication?)",
        "bad-signature",
        "C",
    ),
    ("E: The repository 'https://x ./ Release' is not signed.", "unsigned", "https://x"),
    ("E: Redirection from https to 'http://x' is forbidden", "redirect", "http://x"),
    ("E: The repository 'https://x lab Release' does not have a Release file.", "no-release", "https://x"),
    ("E: Failed to fetch https://x/a.deb  Hash Sum mismatch", "hash", "Hash Sum"),
    ("E: Failed to fetch https://x/a.deb  404  Not Found [IP: 1.2.3.4 80]", "fetch", "https://x/a.deb"),
    (
        "Errors were encountered while processing:\n nvidia-dkms-580\nE: Sub-process",
        "script",
        "nvidia-dkms-580",
    ),
]


@pytest.mark.parametrize(
    ("text", "code", "names"), CAUSES, ids=[f"{n}-{row[1]}" for n, row in enumerate(CAUSES)]
)
def test_apts_words_are_told_as_a_cause_with_what_to_do(text: str, code: str, names: str) -> None:
    cause = apt.cause_of(text, {})
    assert cause is not None
    assert (cause.code, names in cause.why or names in text) == (code, True)
    assert cause.remedy


UNMET = """The following packages have unmet dependencies:
 nvidia-driver-580 : Depends: libnvidia-gl-580 (= 580.159.03-0ubuntu0.24.04.1) but 580.173.02-1 is to be installed
E: Unable to correct problems, you have held broken packages.
"""


@pytest.mark.parametrize(
    ("held", "text", "code"),
    [
        ({}, UNMET, "mixed-origin"),
        ({"libnvidia-gl-580": "580.173.02-1"}, UNMET, "hold"),
        ({}, UNMET.replace("-0ubuntu0.24.04.1", "-1"), "branch"),
        ({}, "E: Unable to correct problems, you have held broken packages.", "branch"),
    ],
)
def test_held_broken_packages_has_three_causes_that_are_told_apart(
    held: dict[str, str], text: str, code: str
) -> None:
    cause = apt.cause_of(text, held)
    assert cause is not None
    assert cause.code == code


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Error: Unable to find a match: nvidia-opne", "package"),
        ("Error: Failed to download metadata for repo 'railwright-cuda': Cannot download repomd.xml", "fetch"),
        ("Error: GPG check FAILED", "bad-signature"),
        ("Error: \n Problem: package nvidia-open-3 requires libnvidia-ml, but none can be installed", "broken"),
        ("Disk Requirements:\n   At least 9MB more space needed on the / filesystem.", "disk-full"),
        ("Error in POSTIN scriptlet in rpm package nvidia-open", "script"),
    ],
)  # fmt: skip
def test_dnfs_words_are_told_as_a_cause(text: str, code: str) -> None:
    cause = rpm.cause_of(text)
    assert cause is not None
    assert cause.code == code


READERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "dpkg": (STATUS, dpkg.read_status),
    "apt": (SIMULATION, apt.read_simulation),
    "rpm": (QUERY, rpm.read_query),
    "dnf": (DNF, lambda text: rpm.read_transaction(text, {})),
    "menu": (MENU, cmdline.grub_lines),
    "cause": (UNMET, lambda text: apt.cause_of(text, {"libnvidia-gl-580": "1"})),
}


def damaged(text: str, seed: int) -> str:
    """Cut, swapped, doubled, or with bytes of another kind in it."""
    rng = random.Random(seed)  # noqa: S311 (the same accidents on every run)
    lines = text.splitlines(keepends=True)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(lines))
        act = rng.randrange(5)
        if act == 0:
            lines[at] = lines[at][: rng.randrange(len(lines[at]) + 1)]
        elif act == 1:
            lines.insert(at, lines[rng.randrange(len(lines))])
        elif act == 2:
            place = rng.randrange(len(lines[at]) + 1)
            lines[at] = (
                lines[at][:place]
                + rng.choice(["\0", "\x1b[2J", "\ufffd", "é", "\t", "  ", "[", "'"])
                + lines[at][place:]
            )
        elif act == 3 and len(lines) > 1:
            del lines[at]
        else:
            lines[at] = lines[at].replace(" ", "", 1)
    return "".join(lines)


@pytest.mark.parametrize("name", READERS)
def test_what_is_garbled_is_read_or_refused_with_its_place_and_never_a_crash(name: str) -> None:
    text, read = READERS[name]
    refused = [
        error for error in (refusal(read, damaged(text, seed)) for seed in range(32)) if error is not None
    ]
    assert len(refused) < 32
    assert all(error.where and error.remedy for error in refused)
    assert not any("\x1b" in str(error) for error in refused)


def refusal(read: Callable[[str], Any], text: str) -> InputError | None:
    try:
        read(text)
    except InputError as error:
        return error
    return None


def test_a_record_that_is_none_of_dpkgs_is_refused() -> None:
    for text, where in [
        ("Package: xy\nStatus: install ok installed\n", "Version"),
        ("Package: xy\nStatus: install fine installed\nVersion: 1\n", "Status"),
        ("Package: X Y\nStatus: install ok installed\nVersion: 1\n", "package 1"),
        ("Package: xy\nStatus: install ok installed\nVersion: 1 2\n", "Version"),
    ]:
        with pytest.raises(InputError, match=where):
            dpkg.read_status(text)
