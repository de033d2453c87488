"""Entries for packages: archives and their index, exact versions, and what keeps others from moving them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Optional

from ..node.model import Facts, Finding, Policy, Slice
from ..node.model.software_policy import PinPolicy, SourcePolicy
from .entries import CONF_HEADER, HEADER, Entry, file

# Where packages of this project's own builds lie on a node, in a folder named by the digest of their manifest.
ARCHIVES = "/var/lib/railwright/archives"
BUILT = "built-nccl"
# apt.conf knows // as a comment, and # only at the beginning of a line in newer versions.


def system_of(facts: Facts) -> Optional[str]:
    """ "dpkg" or "rpm"; None where the facts do not tell."""
    return None if facts.software is None else facts.software.system


def sources_slice(facts: Facts, policy: Policy) -> tuple[Optional[Slice], list[Finding]]:
    """Archives with their keys and preferences, and their index; it stands before every slice with packages."""
    software, sources = policy.software, sources_of(policy)
    if not sources and not software.pins:
        return None, []
    system = system_of(facts)
    if system is None:
        return None, [unknown_system("package_sources")]
    entries: list[Entry] = []
    for source in sources:
        entries += _apt_source(source) if system == "dpkg" else _rpm_source(source)
    if software.pins and system == "dpkg":
        entries.insert(0, file("/etc/apt/preferences.d/railwright", _preferences(software.pins)))
    if sources:
        entries.append(
            {
                "kind": "package_index",
                "name": "package_sources",
                "system": system,
                "sources": list(source_paths(facts, policy)),
                "inputs": [_key_path(source, system) for source in sources if source.key is not None],
                "wait": software.wait,
            }
        )
        if not entries[-1]["inputs"]:
            del entries[-1]["inputs"]
    because = "packages come from these archives only where their keys fit, and keys and preferences stand before them"
    return Slice("persistent", tuple(entries), because), list(_over_http(software.sources))


def source_paths(facts: Facts, policy: Policy) -> tuple[str, ...]:
    """The files of the policy's archives: without them no index knows their versions."""
    system = system_of(facts)
    return tuple(_source_path(source, system or "dpkg") for source in sources_of(policy))


def sources_of(policy: Policy) -> tuple[SourcePolicy, ...]:
    """The policy's archives, and the folder of what this project has built for the fleet itself."""
    own = built(policy)
    return (*policy.software.sources, *(() if own is None else (own,)))


def built(policy: Policy) -> Optional[SourcePolicy]:
    """The folder with the packages of this project's own build, as an archive; None where it has built none."""
    asked = policy.nccl_library
    if asked is None or asked.built is None:
        return None
    return SourcePolicy(BUILT, f"file:{ARCHIVES}/{asked.built.sha256}", "./", trusted=True)


def packages_entry(
    name: str,
    versions: Mapping[str, Optional[str]],
    facts: Facts,
    policy: Policy,
    *,
    hold: bool = True,
    reboot: bool = False,
    may_change: Sequence[str] = (),
) -> Entry:
    """One transaction: exactly these packages, held. name: of the slice. versions: None is "must not be there"."""
    entry: Entry = {
        "kind": "packages",
        "name": name,
        "system": system_of(facts) or "dpkg",
        "versions": dict(versions),
        "hold": hold,
        "recommends": policy.software.recommends,
        "wait": policy.software.wait,
    }
    sources = source_paths(facts, policy)
    if sources:
        entry["sources"] = list(sources)
    if may_change:
        entry["may_change"] = list(may_change)
    if reboot:
        entry["reboot"] = True
    return entry


def hold_file(name: str, packages: Iterable[str], said: str = "") -> Entry:
    """What keeps unattended-upgrades from these packages: it does not look at holds when it removes and installs.

    packages: names, or patterns that end with *. unattended-upgrades takes regular expressions that fit from the
    beginning (python-apt's re.match). said: a further line of comment.
    """
    listed = "".join(f'    "{_expression(package)}";\n' for package in packages)
    content = f"{CONF_HEADER}{said}Unattended-Upgrade::Package-Blacklist {{\n{listed}}};\n"
    return file(f"/etc/apt/apt.conf.d/90-railwright-{name.replace('_', '-')}-held", content)


def unknown_system(name: str) -> Finding:
    """The policy asks for packages, and the facts do not tell of a package system."""
    return Finding(
        f"{name}.system",
        "error",
        "software",
        "the facts do not tell of dpkg or rpm on this node, so nothing of its packages is planned",
        "read the node itself (railwright discover), or leave packages out of the policy",
    )


def _expression(package: str) -> str:
    escaped = re.sub(r"([.+])", r"\\\1", package.rstrip("*"))
    return escaped if package.endswith("*") else f"{escaped}$"


def _source_path(source: SourcePolicy, system: str) -> str:
    if system == "dpkg":
        return f"/etc/apt/sources.list.d/railwright-{source.name}.sources"
    return f"/etc/yum.repos.d/railwright-{source.name}.repo"


def _key_path(source: SourcePolicy, system: str) -> str:
    if system == "dpkg":
        return f"/etc/apt/keyrings/railwright-{source.name}.asc"
    return f"/etc/pki/rpm-gpg/RPM-GPG-KEY-railwright-{source.name}"


def _key(source: SourcePolicy, system: str) -> list[Entry]:
    return [] if source.key is None else [file(_key_path(source, system), source.key.strip() + "\n")]


def _apt_source(source: SourcePolicy) -> list[Entry]:
    signed = "Trusted: yes\n" if source.key is None else f"Signed-By: {_key_path(source, 'dpkg')}\n"
    components = f"Components: {source.components}\n" if source.components else ""
    text = f"{HEADER}Types: deb\nURIs: {source.uris}\nSuites: {source.suites}\n{components}{signed}"
    never = tuple(PinPolicy((pattern,), f"origin {_host(source)}", -1) for pattern in source.exclude)
    pins = (*never, *source.pins)
    named = f"/etc/apt/preferences.d/railwright-{source.name}"
    preferences = [file(named, _preferences(pins))] if pins else []
    return [*_key(source, "dpkg"), *preferences, file(_source_path(source, "dpkg"), text)]


def _host(source: SourcePolicy) -> str:
    """As apt_preferences(5) means it: the host of an address, "" for a folder."""
    first = source.uris.split(" ")[0]
    return '""' if first.startswith("file:") else first.split("/")[2]


def _preferences(pins: Sequence[PinPolicy]) -> str:
    stanzas = [
        f"Package: {' '.join(pin.packages)}\nPin: {pin.pin}\nPin-Priority: {pin.priority}\n" for pin in pins
    ]
    return HEADER + "\n".join(stanzas)


def _rpm_source(source: SourcePolicy) -> list[Entry]:
    key = "" if source.key is None else f"gpgkey=file://{_key_path(source, 'rpm')}\n"
    exclude = f"excludepkgs={' '.join(source.exclude)}\n" if source.exclude else ""
    signed = "0" if source.key is None else "1"
    text = (
        f"{HEADER}[railwright-{source.name}]\nname={source.name}\nbaseurl={source.uris}\nenabled=1\n"
        f"gpgcheck={signed}\nrepo_gpgcheck=0\n{key}{exclude}"
    )
    return [*_key(source, "rpm"), file(_source_path(source, "rpm"), text)]


def _over_http(sources: Sequence[SourcePolicy]) -> Iterable[Finding]:
    for source in sources:
        if any(uri.startswith("http:") for uri in source.uris.split(" ")):
            yield Finding(
                "package_sources.http",
                "info",
                source.name,
                f"the archive {source.name} is read over plain http: its signature guards it, and a proxy on the way "
                "may break that (BADSIG)",
                "use https, where the archive has it",
            )
