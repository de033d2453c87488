"""Entries of the slices that install, against the facts: packages and holds, the command line, values of every CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Optional

from ..model import Facts, Finding
from ..model.software import Package
from ..packages import cmdline
from ..state.kernel_items import chosen
from .answer import Answer, elsewhere, listed, unseen

Entry = dict[str, Any]
_INSTALL = "run `ansible-playbook -i INVENTORY playbooks/install.yml -l NODE`"
_READ_AGAIN = "read the node again with the plan's files and packages: railwright check PLAN"


def packages(facts: Facts, name: str, entry: Entry) -> Iterator[Answer]:
    """Versions and holds of the entry's packages."""
    software = facts.software
    code, held_code = f"{name}.version", f"{name}.hold"
    if software is None or software.system != entry["system"]:
        why = f"the facts hold no package of {entry['system']}"
        yield unseen(code, entry.get("name", name), why, _READ_AGAIN)
        return
    wrong: list[str] = []
    free: list[str] = []
    for package, version in entry["versions"].items():
        found = software.package(package)
        standing = None if found is None else _standing(found)
        whole = found is None or found.status == "installed"
        if whole and (standing is None if version is None else version in (standing or "").split()):
            yield Answer(code)
        else:
            wrong.append(f"{package} is {standing or 'not there'}, planned {version or 'not there'}")
        if version is not None and entry.get("hold", True) and found is not None and not found.held:
            free.append(package)
    if wrong:
        yield _drift(code, entry.get("name", name), listed(wrong))
    if free:
        yield _drift(held_code, entry.get("name", name), f"not held: {listed(free)}")
    elif entry.get("hold", True):
        yield Answer(held_code)
    if software.interrupted:
        why = f"dpkg did not come to its end: {listed(list(software.interrupted))}"
        yield _drift(f"{name}.interrupted", "dpkg", why)


def _standing(found: Package) -> str:
    return found.version if found.status == "installed" else f"{found.version} ({found.status})"


def boot_arguments(facts: Facts, name: str, entry: Entry) -> Iterator[Answer]:
    """Whether the running kernel was started with the arguments: never assumed from what a boot loader's file says.

    Where every entry of the boot loader has them, nothing is wrong and nothing is in force: it waits for a reboot.
    """
    code = f"{name}.cmdline"
    running = facts.host.cmdline
    if running is None:
        yield unseen(code, "/proc/cmdline", "the facts hold no command line", _READ_AGAIN)
        return
    lacking = cmdline.lacking(running, entry["arguments"])
    if not lacking:
        yield Answer(code)
        return
    why = f"the running kernel was started without {', '.join(lacking)}"
    remedy = f"{_INSTALL} -e install_reboot=true, or reboot the node"
    lines = () if facts.software is None else facts.software.boot_lines
    if lines and all(cmdline.holds(line, entry["arguments"]) for line in lines):
        said = f"waits for a reboot: {why}, and every entry of the boot loader has it"
        yield Answer(code, Finding(code, "info", "/proc/cmdline", said, remedy), seen=False)
        return
    yield Answer(code, Finding(code, "error", "/proc/cmdline", why, remedy))


def initramfs(facts: Facts, name: str, entry: Entry) -> Iterator[Answer]:
    """Every kernel has one, where any has. What is in it no fact tells; the writer compares it by its time."""
    software = facts.software
    if software is None or not any(kernel.initramfs for kernel in software.kernels):
        return
    without = [kernel.release for kernel in software.kernels if not kernel.initramfs]
    code = f"{name}.initramfs"
    if without:
        yield _drift(code, "/boot", f"kernels without an initramfs: {listed(without)}")
    else:
        yield Answer(code)


def sysfs_each(facts: Facts, name: str, entry: Entry) -> Iterator[Answer]:
    """The first file of the pattern stands for all."""
    code, path, wanted = f"{name}.value", first_of(entry["path"]), entry["value"]
    found = next((file for file in facts.files if file.path == path), None)
    if found is None or found.text is None:
        yield unseen(code, path, f"the facts hold no text of {path}", _READ_AGAIN)
        return
    now = chosen(found.text)
    if now.split() == wanted.split():
        yield Answer(code, why=f"looked at {path}")
    else:
        yield _drift(code, path, f"is {now}, planned {wanted}")


def first_of(pattern: str) -> str:
    """One file of a pattern: that of CPU 0."""
    return pattern.replace("*", "0")


def _drift(code: str, where: str, why: str, remedy: Optional[str] = None) -> Answer:
    return Answer(code, Finding(code, "error", where, why, remedy or _INSTALL))


KINDS = {
    "packages": packages,
    # An index has no state that a check could miss: the packages say whether it knew them.
    "package_index": elsewhere,
    "initramfs": initramfs,
    "boot_arguments": boot_arguments,
    "sysfs_each": sysfs_each,
}
