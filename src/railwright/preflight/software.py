"""System, Python, kernel, compiler, Secure Boot, disk, clock, locks and vendors' images."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..node.check import login
from ..node.check.answer import Answer
from ..node.model import Facts, Policy, Probe
from ..plan import driver_modules, nvidia_driver
from ..plan.stack import images, pairs, systems
from .words import bad, dark, good

# ansible-core's modules and ours need 3.9 on a node.
_LEAST_PYTHON = (3, 9)
# Driver and its sources take 2 GB, a CUDA toolkit 8 GB more, an initramfs of each kernel 100 to 300 MB while it is
# rebuilt (nodes of Debian 12 and Ubuntu 24.04, 2026-11).
_LEAST_ROOT, _PLENTY_ROOT, _LEAST_BOOT = 4 << 30, 15 << 30, 400 << 20
# Certificates and signed indexes are refused for a clock that is behind them; logs of several nodes want seconds.
_MOST_SECONDS, _PLENTY_SECONDS = 300, 5
_WAYS_OUT = (
    "one of: modules that the distribution has signed (policy.driver.build: prebuilt, archive: ubuntu); a key of the "
    "owner's, enrolled at the BMC's console (mokutil --import /var/lib/dkms/mok.pub, then reboot and confirm there); "
    "Secure Boot off in the BIOS"
)


def answers(facts: Facts, policy: Policy, probe: Probe, now: float) -> Iterator[Answer]:
    """In the order in which somebody would ask."""
    yield _system(facts)
    yield _architecture(facts)
    yield _python(probe)
    yield from _images(facts, policy)
    yield from _packages(facts, policy)
    yield from _kernels(facts, policy)
    yield from _secure_boot(facts, policy)
    yield from _disk(facts)
    yield from _clock(probe, now)
    yield from _login(facts)
    yield from _driver(facts, policy)


def _system(facts: Facts) -> Answer:
    os_id, version = facts.host.os_id, facts.host.os_version
    if os_id is None:
        return bad("system", "os-release", "which system this is cannot be told", "see /etc/os-release")
    row = systems.system_of(os_id, version)
    spoken = f"{os_id} {version or ''}".strip()
    if row is None:
        remedy = "install one of these; playbooks that only read and tune work on others too"
        return bad("system", spoken, f"the installation knows {systems.names()}", remedy)
    if row.rendered:
        why = f"{row.name}: what is written for it is rendered by us and was installed by no test of ours"
        return bad("system", row.name, why, "try one node before the others", "warning")
    return good("system", row.name)


def _architecture(facts: Facts) -> Answer:
    arch = facts.cpus.arch
    if arch is None:
        return dark("architecture", "the facts do not tell the processor's architecture")
    if arch in systems.ARCHITECTURES:
        return good("architecture", arch)
    return bad("architecture", arch, f"known are {', '.join(systems.ARCHITECTURES)}", "use such a machine")


def _python(probe: Probe) -> Answer:
    if pairs.version(probe.python) < _LEAST_PYTHON:
        return bad("python", probe.python, "Python 3.9 or later is needed", "set ansible_python_interpreter")
    return good("python", probe.python)


def _images(facts: Facts, policy: Policy) -> Iterator[Answer]:
    if facts.platform is None:
        yield dark("image", "the facts do not tell whether this is a vendor's image")
        return
    found = [image for image in images.IMAGES if image.path in facts.platform.images]
    for image in found:
        if policy.driver.version is None or not policy.manage.get("nvidia_driver", True):
            yield good("image", f"{image.name} is adopted as it is: {image.owns}")
        else:
            yield bad(
                "image", image.name, f"this is {image.name}: {image.owns}; the policy would put another driver over it",
                "adopt it (policy.manage: {nvidia_driver: false, fabric_manager: false}), or install a plain system",
            )  # fmt: skip
    if not found:
        yield good("image", "a plain system, no image of a vendor that is known")


def _packages(facts: Facts, policy: Policy) -> Iterator[Answer]:
    software = facts.software
    if software is None or software.system is None:
        yield dark("packages", "the facts do not tell of a package system")
        return
    for lock in software.locks:
        wait = policy.software.wait
        who = lock.holder or "a program that cannot be told"
        remedy = f"wait for it; a run waits {wait} s (policy.software.wait)"
        yield bad("packages", lock.path, f"{who} holds it now", remedy, "warning")
    if software.interrupted:
        remedy = "dpkg --configure -a; the packages item does so at its next transaction too"
        yield bad("packages", "dpkg", f"left half-way: {', '.join(software.interrupted)}", remedy)
    if not software.locks and not software.interrupted:
        yield good("packages", f"{software.system}, nobody holds its locks and nothing is half-way")


def _kernels(facts: Facts, policy: Policy) -> Iterator[Answer]:
    builds = policy.driver.version is not None and policy.driver.build == "dkms"
    row = systems.system_of(facts.host.os_id, facts.host.os_version)
    software = facts.software
    if software is None or not software.kernels:
        yield dark("kernel", "no kernel is installed here, as in a container or where an image is made")
        return
    yield good("kernel", f"runs {facts.host.kernel}, next {software.next_kernel or 'cannot be told'}")
    here = {kernel.release: kernel for kernel in software.kernels}
    for release in dict.fromkeys(filter(None, (software.next_kernel, facts.host.kernel))):
        kernel = here.get(release)
        if kernel is None:
            remedy = "reboot into an installed kernel, then install its headers, then the driver"
            yield bad("headers", release, "it runs and is not installed any more", remedy, "warning")
            continue
        if kernel.headers:
            yield good("headers", f"{release} has them")
        else:
            package = row.headers_of(release) if row else f"linux-headers-{release}"
            yield bad(
                "headers", release, "its headers are not installed, without which DKMS builds nothing for it",
                f"name {package} with its version in policy.kernel.packages; where the archive has it no more, update "
                "the kernel and reboot first",
                "error" if builds else "warning",
            )  # fmt: skip
        missing = driver_modules.missing_compiler(facts, release)
        if missing is not None:
            why = f"{missing} built it and is not installed; another compiler stops at options that it does not know"
            yield bad("compiler", release, why, f"install {missing}", "error" if builds else "warning")
        elif driver_modules.compiler_wanted(facts, release) is None:
            yield dark("compiler", f"{release}: which compiler built it is not told")
        else:
            yield good("compiler", f"{release}: {driver_modules.compiler_wanted(facts, release)} is there")


def _secure_boot(facts: Facts, policy: Policy) -> Iterator[Answer]:
    state = facts.host.secure_boot
    signed = policy.driver.build == "prebuilt"
    if state is None:
        yield dark("secure_boot", "whether Secure Boot is on cannot be told")
    elif not state:
        yield good("secure_boot", "off")
    elif policy.driver.version is None or signed:
        yield good("secure_boot", "on; nothing unsigned is asked for")
    else:
        why = "on, and a module that DKMS builds is refused (Key was rejected by service) unless its key is enrolled"
        yield bad("secure_boot", "Secure Boot", why, _WAYS_OUT)
    lockdown = facts.software.lockdown if facts.software is not None else None
    if lockdown is None:
        yield dark("lockdown", "the kernel does not tell of a lockdown")
    elif lockdown == "none":
        yield good("lockdown", "none")
    else:
        why = f"{lockdown}: the kernel takes no unsigned module and no write to PCI registers from user space"
        yield bad("lockdown", lockdown, why, "boot without lockdown=, or with Secure Boot off", "warning")


def _disk(facts: Facts) -> Iterator[Answer]:
    software = facts.software
    root = None if software is None else software.var_free
    boot = None if software is None else software.boot_free
    if root is None:
        yield dark("disk", "how much is free cannot be told")
    elif root < _LEAST_ROOT:
        yield bad(
            "disk", "/var", f"{_gib(root)} free, {_gib(_LEAST_ROOT)} are needed", "make room: apt-get clean"
        )
    elif root < _PLENTY_ROOT:
        why = f"{_gib(root)} free: enough for a driver, not for a CUDA toolkit ({_gib(_PLENTY_ROOT)})"
        yield bad("disk", "/var", why, "make room before CUDA is installed", "warning")
    else:
        yield good("disk", f"{_gib(root)} free on /var")
    if boot is not None and boot < _LEAST_BOOT:
        why = f"{boot >> 20} MiB free: an initramfs is written beside the old one"
        yield bad("disk", "/boot", why, "remove kernels that nobody boots: apt-get autoremove --purge")


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"


def _clock(probe: Probe, now: float) -> Iterator[Answer]:
    off = probe.clock - now
    if abs(off) > _MOST_SECONDS:
        why = f"{abs(off):.0f} s {'ahead of' if off > 0 else 'behind'} the controller: signatures and certificates fail"
        yield bad(
            "clock",
            "the node's clock",
            why,
            "set it, then chronyc makestep or systemctl restart systemd-timesyncd",
        )
    elif abs(off) > _PLENTY_SECONDS:
        why = f"{abs(off):.0f} s {'ahead of' if off > 0 else 'behind'} the controller"
        yield bad("clock", "the node's clock", why, "start chrony or systemd-timesyncd on both", "warning")
    elif probe.synchronized is False:
        yield bad(
            "clock", "the node's clock", "right now, and held to no reference", "start chrony", "warning"
        )
    else:
        held = (
            "held to a reference" if probe.synchronized else "whether it is held to a reference is not told"
        )
        yield good("clock", f"{abs(off):.1f} s from the controller's, {held}")


def _login(facts: Facts) -> Iterator[Answer]:
    cost = facts.host.login_ms
    if cost is None:
        yield dark("login", "the node was not reached over SSH")
    elif cost > login.MOST_MS:
        why = f"{cost} ms of CPU go before a command over SSH begins (`ssh node true`), {login.MOST_MS} are plenty"
        remedy = "let ~/.bashrc return at once where the shell is not interactive: case $- in *i*) ;; *) return;; esac"
        yield bad("login", "the login shell", why, remedy, "warning")
    else:
        yield good("login", f"{cost} ms of CPU before a command over SSH begins")


_REMEDY_TAIL = re.compile(r"; no driver is written$")


def _driver(facts: Facts, policy: Policy) -> Iterator[Answer]:
    """What the plan of the driver says, where one is asked for."""
    if policy.driver.version is None:
        yield good("driver", "the policy asks for none; what is there stays")
        return
    chosen, said = nvidia_driver.choose(facts, policy)
    for finding in said:
        if finding.severity in ("error", "warning") and finding.code != "nvidia_driver.compiler":
            yield bad(
                "driver", finding.where, _REMEDY_TAIL.sub("", finding.why), finding.remedy, finding.severity
            )
    if chosen is not None:
        yield good("driver", f"{chosen.full} with {chosen.flavour} modules: {chosen.because}")
