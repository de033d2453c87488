"""The slice `nccl`: NCCL's packages at exact versions, from an archive or from this project's own build."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Optional

from ..node.model import Facts, Finding, NcclLibraryPolicy, Policy, Slice
from . import cuda, packages
from .stack.pairs import version

SET = "nccl"
# deb (pkg/debian/control.in) and rpm (pkg/redhat/nccl.spec.in) of NCCL 2.30.7.
RUNTIME = ("libnccl2", "libnccl")
PATTERNS = ("libnccl*", "nccl-tests*")
# "2.30.4-1+cuda13.0" (NCCL 2.30.7 pkg/debian/changelog.in).
_CUDA = re.compile(r"\+cuda([0-9]+\.[0-9]+)", re.ASCII)
_UPSTREAM = re.compile(r"(?:[0-9]+:)?([0-9]+\.[0-9]+\.[0-9]+)", re.ASCII)


def slice_of(facts: Facts, policy: Policy) -> tuple[Optional[Slice], list[Finding]]:
    """The slice, and what there is to know. None: NCCL is not asked for, or it cannot be; then findings say why."""
    asked = policy.nccl_library
    if asked is None:
        return None, []
    if packages.system_of(facts) is None:
        return None, [packages.unknown_system(SET)]
    findings = [*_driver(facts, policy, asked), *_built(facts, asked), *_agreement(policy, asked)]
    if any(finding.severity == "error" for finding in findings):
        return None, findings
    entries = [packages.packages_entry(SET, asked.packages, facts, policy)]
    if packages.system_of(facts) == "dpkg":
        entries.append(packages.hold_file(SET, PATTERNS))
    origin = "an archive" if asked.built is None else f"the build {asked.built.sha256[:12]} of this fleet"
    because = (
        f"NCCL {wanted(policy) or ''} from {origin}, exact and held: runtimes that bring none of their own load it, "
        "and `railwright audit libraries` says which do"
    ).replace("  ", " ")
    return Slice("persistent", tuple(entries), because), findings


def wanted(policy: Policy) -> Optional[str]:
    """The version of NCCL that this policy installs, "2.30.4"; None where it installs none."""
    asked = policy.nccl_library
    name = None if asked is None else next((each for each in RUNTIME if each in asked.packages), None)
    match = None if asked is None or name is None else _UPSTREAM.match(asked.packages[name])
    return None if match is None else match[1]


def _driver(facts: Facts, policy: Policy, asked: NcclLibraryPolicy) -> Iterator[Finding]:
    told = {match[1] for match in map(_CUDA.search, asked.packages.values()) if match is not None}
    if len(told) > 1:
        yield Finding(
            "nccl.cuda", "error", "policy.nccl_library.packages",
            f"they are made with CUDA {' and '.join(sorted(told, key=version))}; nothing of NCCL is written",
            "name packages of one build",
        )  # fmt: skip
    for each in sorted(told, key=version):
        # NCCL carries its own runtime of CUDA (-lcudart_static), so the driver alone decides.
        yield from cuda.judged_driver(
            SET, "policy.nccl_library.packages", each, cuda.driver_of(facts, policy)
        )


def _built(facts: Facts, asked: NcclLibraryPolicy) -> Iterator[Finding]:
    if asked.built is None:
        return
    has = asked.built.architectures
    known, unknown = cuda.capabilities(facts)
    for capability in sorted(set(known.values()), key=version):
        if not any(_runs(code, capability) for code in has):
            names = ", ".join(name for name, its in known.items() if its == capability)
            yield Finding(
                "nccl.architecture", "error", "policy.nccl_library.built.architectures",
                f"the build has code for {', '.join(has)}, and none for {names} (compute capability {capability}): "
                "every collective would end with \"no kernel image is available\"; nothing of NCCL is written",
                "run playbooks/build_nccl.yml with all nodes in the inventory, and state what it tells",
            )  # fmt: skip
    if unknown:
        yield Finding(
            "nccl.unknown_gpu", "info", ", ".join(unknown),
            "the chip is not in our table, so whether this build has code for it is not checked",
            "see cuobjdump --list-elf on its libnccl.so",
        )  # fmt: skip


def _runs(code: str, capability: str) -> bool:
    made, on = version(code), version(capability)
    return made[:1] == on[:1] and made <= on


def _agreement(policy: Policy, asked: NcclLibraryPolicy) -> Iterator[Finding]:
    full = wanted(policy)
    if full is not None and policy.nccl.version is not None and version(policy.nccl.version) != version(full):
        yield Finding(
            "nccl.version", "warning", "policy.nccl.version",
            f"nccl.conf is written for NCCL {policy.nccl.version}, and {full} is installed",
            f"state policy.nccl.version {full}, or leave it out where runtimes bring their own",
        )  # fmt: skip
    meant = None if policy.cuda is None else cuda.chosen(policy.cuda)
    told = next((match[1] for match in map(_CUDA.search, asked.packages.values()) if match is not None), None)
    if meant is not None and told is not None and version(told)[:1] != version(meant)[:1]:
        yield Finding(
            "nccl.other_cuda", "info", "policy.nccl_library.packages",
            f"NCCL is made with CUDA {told}, and the default toolkit is {meant}: NCCL carries its own runtime, but one "
            "process with both majors needs the newer driver",
            f"take packages with +cuda{version(meant)[0]}.…",
        )  # fmt: skip
