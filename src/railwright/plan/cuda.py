"""The slice `cuda`: which toolkits, side by side, which one is found by default; or why one cannot be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Optional

from ..node.model import CudaPolicy, Facts, Finding, Policy, Slice
from . import packages
from .entries import HEADER, Entry, file
from .stack import cuda as table
from .stack.pairs import version

SET = "cuda"
LD_CONF = "/etc/ld.so.conf.d/00-railwright-cuda.conf"
PREFERENCES = "/etc/apt/preferences.d/60-railwright-cuda"
LINK = "/usr/local/cuda"
_HELD = "// A toolkit's parts want each other by \"at least\": a night's upgrade would move some of them.\n"


def slice_of(facts: Facts, policy: Policy) -> tuple[Optional[Slice], list[Finding]]:
    """The slice, and what there is to know. None: no toolkit is named, or one cannot be; then findings say why."""
    asked = policy.cuda
    if asked is None or not (asked.toolkits or asked.packages):
        return None, []
    if packages.system_of(facts) is None:
        return None, [packages.unknown_system(SET)]
    findings = list(_at_odds(asked))
    findings += [finding for toolkit in asked.toolkits for finding in _judged(facts, policy, asked, toolkit)]
    if any(finding.severity == "error" for finding in findings):
        return None, findings
    because = (
        f"CUDA {', '.join(ordered(asked.toolkits)) or 'of the packages named'}: exact and held, each in a folder of "
        f"its own; {chosen(asked) or 'none'} is the default, by an alternative and ld.so.conf.d, which services and "
        "containers' builds see as logins do"
    )
    return Slice("persistent", tuple(_entries(facts, policy, asked)), because), findings


def ordered(toolkits: Iterable[str]) -> tuple[str, ...]:
    """Toolkits by their number, the newest first."""
    return tuple(sorted(toolkits, key=version, reverse=True))


def chosen(asked: CudaPolicy) -> Optional[str]:
    """The toolkit that /usr/local/cuda leads to; None where none is named."""
    newest = ordered(asked.toolkits)
    return asked.default or (newest[0] if newest else None)


def folder(toolkit: str) -> str:
    """Where a toolkit of NVIDIA's packages lies."""
    return f"{LINK}-{toolkit}"


def driver_of(facts: Facts, policy: Policy) -> Optional[str]:
    """The driver that the node will have: the policy's, else the one that is loaded; None where nobody knows."""
    return policy.driver.version or facts.host.driver


def capabilities(facts: Facts) -> tuple[dict[str, str], tuple[str, ...]]:
    """Compute capability by GPU, and the GPUs whose is not known."""
    devices = {device.address: device for device in facts.pci}
    known: dict[str, str] = {}
    unknown = []
    for gpu in facts.gpus:
        device = devices.get(gpu.address or "")
        found = None if device is None else table.architecture(device.vendor, device.device)
        if found is None:
            unknown.append(gpu.name)
        else:
            known[gpu.name] = found
    return known, tuple(unknown)


# ----- what speaks against it ----------------------------------------------------------------------------------------


def _at_odds(asked: CudaPolicy) -> Iterator[Finding]:
    """Packages that would undo what else the policy says."""
    of_toolkits = {table.package(asked.part, toolkit): toolkit for toolkit in asked.toolkits}
    for name, full in asked.packages.items():
        where = f"policy.cuda.packages.{name}"
        if any(fnmatchcase(name, pattern) for pattern in table.BRING_A_DRIVER):
            yield Finding(
                "cuda.packages", "error", where,
                "it brings a driver besides, of whichever version is the newest; nothing of CUDA is written",
                "name the toolkit in policy.cuda.toolkits, and the driver in policy.driver.version",
            )  # fmt: skip
        toolkit = of_toolkits.get(name)
        if toolkit is not None and asked.toolkits[toolkit] != full:
            yield Finding(
                "cuda.packages", "error", where,
                f"{full} is asked for, and {asked.toolkits[toolkit]} by policy.cuda.toolkits.{toolkit}; nothing of "
                "CUDA is written",
                "leave one of the two",
            )  # fmt: skip


def _judged(facts: Facts, policy: Policy, asked: CudaPolicy, toolkit: str) -> Iterator[Finding]:
    where = f"policy.cuda.toolkits.{toolkit}"
    compatible = f"cuda-compat-{toolkit.replace('.', '-')}" in asked.packages
    yield from judged_driver(SET, where, asked.toolkits[toolkit], driver_of(facts, policy), compatible)
    yield from _architectures(facts, where, toolkit)


def judged_driver(
    slice_name: str, where: str, release: str, driver: Optional[str], compatible: bool = False
) -> Iterator[Finding]:
    """Whether what is made with this CUDA ("13.0.2-1", or "13.0") runs on a driver; an error is a refusal.

    compatible: whether NVIDIA's forward compatibility package stands beside it.
    """
    toolkit = ".".join(map(str, version(release)[:2]))
    least, own = table.least_driver(release), table.own_driver(release)
    if least is None:
        yield Finding(
            f"{slice_name}.unknown", "warning", where,
            f"CUDA {toolkit} is in no table of ours, so nothing is said of the driver that it wants",
            "see its release notes, \"CUDA Toolkit and Corresponding Driver Versions\"",
        )  # fmt: skip
    elif driver is None:
        yield Finding(
            f"{slice_name}.driver", "info", where,
            f"no driver is loaded and the policy names none: that CUDA {toolkit} gets {least} or later is not checked",
            "state policy.driver.version",
        )  # fmt: skip
    elif version(driver) < version(least):
        if compatible:
            yield Finding(
                f"{slice_name}.compat", "info", where,
                f"driver {driver} is older than {least}: programs of CUDA {toolkit} run only where they load the "
                "library of cuda-compat, which NVIDIA supports on data center GPUs alone",
                "start them with its folder in LD_LIBRARY_PATH, or take a newer driver",
            )  # fmt: skip
            return
        yield Finding(
            f"{slice_name}.driver", "error", where,
            f"CUDA {toolkit} needs driver {least} or later, and this node has {driver}: every program of it would end "
            "with \"CUDA driver version is insufficient\"; nothing of it is written",
            f"take driver {least} or later, an older CUDA, or cuda-compat-{toolkit.replace('.', '-')} on data center "
            "GPUs",
        )  # fmt: skip
    elif own is not None and version(driver) < version(own):
        yield Finding(
            f"{slice_name}.minor_version", "info", where,
            f"this release came with driver {own}, and the node has {driver}: it runs by minor version compatibility. "
            "PTX that it makes is not compiled by the older driver, and calls that the newer one brought fail",
            f"build for the GPUs' own architectures (no PTX), or take driver {own}",
        )  # fmt: skip


def _architectures(facts: Facts, where: str, toolkit: str) -> Iterator[Finding]:
    known, unknown = capabilities(facts)
    if unknown:
        yield Finding(
            "cuda.unknown_gpu", "info", ", ".join(unknown),
            f"the chip is not in our table, so whether CUDA {toolkit} has code for it is not checked",
            f"see {folder(toolkit)}/bin/nvcc --list-gpu-code",
        )  # fmt: skip
    for capability in sorted(set(known.values()), key=version):
        names = ", ".join(name for name, its in known.items() if its == capability)
        told = table.knows(toolkit, capability)
        if told is None:
            yield Finding(
                "cuda.unknown", "warning", where,
                f"CUDA {toolkit} is newer than the last one whose architectures were read ({table.LAST_READ}): whether "
                f"it has code for {names} (compute capability {capability}) is not checked",
                f"see {folder(toolkit)}/bin/nvcc --list-gpu-code",
            )  # fmt: skip
        if told is not False:
            continue
        older = table.code_for(toolkit, capability)
        row = table.ARCHITECTURES[capability]
        works = f"CUDA {row.since} or later" + (f", before {row.until}" if row.until else "")
        if older is None:
            yield Finding(
                "cuda.architecture", "error", where,
                f"CUDA {toolkit} makes no code that runs on {names} (compute capability {capability}); nothing of it "
                "is written",
                f"take {works}",
            )  # fmt: skip
        else:
            yield Finding(
                "cuda.architecture", "warning", where,
                f"CUDA {toolkit} does not know compute capability {capability} of {names}: code for {older} runs "
                "there, without what is new in it",
                f"take {works}",
            )  # fmt: skip


# ----- what is written -----------------------------------------------------------------------------------------------


def _entries(facts: Facts, policy: Policy, asked: CudaPolicy) -> Iterator[Entry]:
    apt = packages.system_of(facts) == "dpkg"
    if apt and asked.toolkits:
        yield file(PREFERENCES, _no_driver_besides())
    named = {table.package(asked.part, toolkit): full for toolkit, full in asked.toolkits.items()}
    yield packages.packages_entry(SET, {**named, **asked.packages}, facts, policy)
    if apt:
        patterns = table.PART_PATTERNS if asked.toolkits else ()
        yield packages.hold_file(SET, (*patterns, *asked.packages), _HELD)
    default = chosen(asked)
    if default is None:
        return
    yield {"kind": "alternative", "name": "cuda", "link": LINK, "path": folder(default)}
    yield file(LD_CONF, _library_folders(asked, default))
    yield {"kind": "linker_cache", "name": SET, "inputs": [LD_CONF]}


def _no_driver_besides() -> str:
    return (
        f"{HEADER}# These bring a driver besides, of whichever version is the newest.\n"
        f"Package: {' '.join(table.BRING_A_DRIVER)}\nPin: release *\nPin-Priority: -1\n"
    )


def _library_folders(asked: CudaPolicy, default: str) -> str:
    """The default's libraries, then those of each other major number: their names differ, so none hides another."""
    kept = {version(default)[0]: default}
    for toolkit in ordered(asked.toolkits):
        kept.setdefault(version(toolkit)[0], toolkit)
    return HEADER + "".join(f"{folder(toolkit)}/lib64\n" for toolkit in kept.values())
