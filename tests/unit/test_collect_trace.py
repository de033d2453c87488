"""What `collect` does to the machine it runs on, by its system calls: strace is the witness."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from railwright import captures
from railwright.collect import script

# Everything that changes a file system, another process, the network or the machine.
CALLS = (
    "open,openat,openat2,creat,truncate,ftruncate,fallocate,rename,renameat,renameat2,link,linkat,symlink,symlinkat,unlink,"
    "unlinkat,mkdir,mkdirat,rmdir,mknod,mknodat,chmod,fchmod,fchmodat,chown,lchown,fchown,fchownat,utime,utimes,utimensat,"
    "futimesat,setxattr,lsetxattr,fsetxattr,removexattr,lremovexattr,fremovexattr,mount,umount2,swapon,swapoff,sethostname,"
    "setdomainname,settimeofday,clock_settime,adjtimex,clock_adjtime,init_module,finit_module,delete_module,kexec_load,reboot,"
    "iopl,ioperm,bpf,perf_event_open,sched_setaffinity,kill,tkill,tgkill,connect,bind,listen,sendto,sendmsg,sendmmsg,ioctl"
)  # fmt: skip
_LINE = re.compile(r"^\d+ +(\w+)\((.*)\) += (-?\d+|\?)")
_READ_ONLY = re.compile(r"\bO_(?:WRONLY|RDWR|CREAT|TRUNC|APPEND|TMPFILE)\b")
# Asking the kernel for its list of links is a message too: RTM_GETLINK and its like read.
_ASKS = re.compile(
    r"nlmsg_type=(?:RTM_GET\w+|NLMSG_\w+|nlctrl|0x10)|nl_family=AF_NETLINK|sa_family=AF_NETLINK"
)
# Terminals' sizes, a pipe's fill and the like; BTRFS and others ask for a file's flags.
_ASKING_IOCTLS = re.compile(
    r"\b(?:TCGETS\w*|TIOCGWINSZ|TIOCGPGRP|FIONREAD|FIOCLEX|SIOCG\w+|FS_IOC_GETFLAGS)\b"
)


def changes(log: Path, own: Path) -> list[str]:
    """Calls that change something but `own`, that came to something or were tried."""
    found = []
    for line in log.read_text(errors="replace").splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        call, arguments = match[1], match[2]
        path = next(iter(re.findall(r'"([^"]*)"', arguments)), "")
        if path in {str(own), "/dev/null", "/dev/tty"}:
            continue
        if call.startswith("open") and not _READ_ONLY.search(arguments):
            continue
        if call == "ioctl" and _ASKING_IOCTLS.search(arguments):
            continue
        if call in {"connect", "bind", "sendto", "sendmsg"} and _ASKS.search(arguments):
            continue
        # glibc's own cache of accounts on this machine, which lspci looks its user's folder up in.
        if call == "connect" and '"/var/run/nscd/socket"' in arguments:
            continue
        found.append(line)
    return found


def traced(log: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    return subprocess.run(
        ["strace", "-f", "-qq", "-s", "256", "-o", str(log), "-e", f"trace={CALLS}", *argv],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        cwd="/",
    )


def test_on_this_machine_it_writes_its_one_file_and_changes_nothing_else(tmp_path: Path) -> None:
    program, out, log = tmp_path / "collect.sh", tmp_path / "bundle.tar.gz", tmp_path / "log"
    program.write_text(script.build())
    done = traced(log, sys.executable, "-I", "-S", "-B", str(program), "--output", str(out))
    assert done.returncode == 0, done.stderr
    assert captures.read([out]).cpus.online
    assert changes(log, out) == []
    # It was watched while it read, asked its tools and wrote.
    text = log.read_text(errors="replace")
    assert '"/proc/cpuinfo", O_RDONLY' in text
    assert len(set(re.findall(r"^(\d+) ", text, re.MULTILINE))) > 1
    assert re.search(rf'"{re.escape(str(out))}", O_WRONLY\|O_CREAT\|O_EXCL\|O_CLOEXEC, 0600\) += \d', text)


def test_a_dry_run_writes_nothing_at_all(tmp_path: Path) -> None:
    program, log = tmp_path / "collect.sh", tmp_path / "log"
    program.write_text(script.build())
    done = traced(log, sys.executable, "-I", "-S", "-B", str(program), "--dry-run")
    assert done.returncode == 0, done.stderr
    assert changes(log, tmp_path / "nothing") == []


@pytest.mark.parametrize(
    "deed",
    [
        "open('new', 'w')",
        "open('/dev/shm/../..' + __file__, 'a')",
        "os.mkdir('folder')",
        "os.chmod(__file__, 0o700)",
        "os.utime(__file__)",
        "os.rename(__file__, 'elsewhere')",
        "os.kill(os.getpid(), 0)",
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(('127.0.0.1', 9))",
        "socket.socket(socket.AF_UNIX).connect_ex('/run/none')",
        "os.unlink('absent') if os.path.lexists('absent') else os.rmdir('nowhere')",
    ],
)
def test_the_same_eyes_see_a_program_that_does(deed: str, tmp_path: Path) -> None:
    program, log = tmp_path / "deed.py", tmp_path / "log"
    program.write_text(f"import os, socket\nos.chdir({str(tmp_path)!r})\n{deed}\n")
    traced(log, sys.executable, "-I", "-S", "-B", str(program))
    assert changes(log, tmp_path / "bundle.tar.gz"), log.read_text()
