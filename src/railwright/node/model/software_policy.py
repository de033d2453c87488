"""Policy of packages and of the kernel: archives, what is installed at which version, boot arguments, power."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Optional

from .codec import InputError
from .values import ARGUMENT, like, one_of, packages, within

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,40}", re.ASCII)
_PATTERN = re.compile(r"[A-Za-z0-9*?][A-Za-z0-9+.*?_-]*", re.ASCII)
_URI = re.compile(r"(?:https?|file)://?[!-~]+", re.ASCII)
# A host and its port, where nothing else stands before the path: an "@" behind them is no user's.
_HOST = re.compile(
    r"https?://(?:\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]{1,5})?(?=/|$)", re.ASCII | re.IGNORECASE
)
_WORDS = re.compile(r"[!-~]+(?: [!-~]+)*", re.ASCII)
_PIN = re.compile(r"(?:origin|release|version) [ -~]+", re.ASCII)
_KEY_BEGINS = "-----BEGIN PGP PUBLIC KEY BLOCK-----"
_PROFILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?: [A-Za-z0-9][A-Za-z0-9._-]*)*", re.ASCII)
# What x86-64 and arm64 kernels know (Documentation/admin-guide/mm/hugetlbpage.rst).
HUGE_PAGES = ("64K", "2M", "32M", "512M", "1G", "16G")
_MOST_PAGES = 10**8


@dataclass(frozen=True)
class PinPolicy:
    """An apt preference. packages: names or patterns. pin: "origin ...", "release ..." or "version ..." as in
    apt_preferences(5)."""

    packages: tuple[str, ...]
    pin: str
    priority: int = 1001


@dataclass(frozen=True)
class SourcePolicy:
    """An archive, mirror or offline folder.

    uris, suites, components: as in sources.list(5), with blanks between, and without a user or a password; of a flat
    folder "file:/srv/debs" and "./". Of rpm the uris are the base addresses. key: its public key, as text. trusted: it
    has none, and is believed all the same (a folder on the node only). exclude: packages that are never taken from it.
    """

    name: str
    uris: str
    suites: str = "./"
    components: str = ""
    key: Optional[str] = None
    trusted: bool = False
    exclude: tuple[str, ...] = ()
    pins: tuple[PinPolicy, ...] = ()


@dataclass(frozen=True)
class SoftwarePolicy:
    """How packages are installed. wait: seconds for another program's lock. recommends: whether what is only
    recommended comes too. pins: preferences beside those of a source."""

    sources: tuple[SourcePolicy, ...] = ()
    pins: tuple[PinPolicy, ...] = ()
    wait: int = 120
    recommends: bool = False


@dataclass(frozen=True)
class KernelPolicy:
    """The kernel, its arguments and the processors' power.

    packages: kernel, headers and meta packages with their exact versions; they are held. arguments: besides those that
    are planned, and instead of those for the same key. without: keys that are left out. realloc_off: pci=realloc=off,
    where the firmware has found a place for every memory window. power: whether the workload's governor, idle states
    and huge pages' mode are set. profile: tuned's, which then does that. huge_pages: reserved at boot, by size ("1G").
    """

    packages: dict[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    realloc_off: bool = False
    power: bool = True
    profile: Optional[str] = None
    huge_pages: dict[str, int] = field(default_factory=dict)


def must_be_sound(software: SoftwarePolicy, kernel: Optional[KernelPolicy], where: str) -> None:
    """Raises InputError with the place of what no package system and no kernel takes."""
    names: list[str] = []
    for number, source in enumerate(software.sources):
        place = f"{where}.software.sources[{number}]"
        _source(source, place)
        if source.name in names:
            raise InputError(
                f"{place}.name", f"{source.name!r} is there twice", "give each a name of its own"
            )
        names.append(source.name)
    _pins(software.pins, f"{where}.software.pins")
    within(software.wait, 0, 86400, f"{where}.software.wait", "0 to 86400 seconds")
    if kernel is not None:
        _kernel(kernel, f"{where}.kernel")


def _source(source: SourcePolicy, where: str) -> None:
    like(source.name, _NAME, f"{where}.name", "lower-case letters, digits and -")
    for uri in source.uris.split(" "):
        _address(uri, f"{where}.uris")
    for key in ("suites", "components"):
        value = getattr(source, key)
        if value or key == "suites":
            like(value, _WORDS, f"{where}.{key}", "words with one blank between")
    if source.key is not None and not source.key.strip().startswith(_KEY_BEGINS):
        raise InputError(
            f"{where}.key", "is no public key", f"expected a text that begins with {_KEY_BEGINS}"
        )
    local = all(uri.startswith("file:") for uri in source.uris.split(" "))
    if source.trusted and not local:
        raise InputError(f"{where}.trusted", "only a folder on the node may be without a key", "give its key")
    if source.key is None and not source.trusted:
        raise InputError(
            f"{where}.key", "missing", "give the archive's public key; a folder may be trusted instead"
        )
    for pattern in source.exclude:
        like(pattern, _PATTERN, f"{where}.exclude", "names of packages, with * and ?")
    _pins(source.pins, f"{where}.pins")


def _address(uri: str, where: str) -> None:
    """Raises InputError, which never tells the address: one that is written wrong may hold a secret, too."""
    if not uri.startswith("file:") and ("?" in uri or ("@" in uri and not _HOST.match(uri))):
        raise InputError(
            where,
            "has a user, a password or a query in it, which every reader of plan, report and node would see",
            "leave it out; apt reads them from /etc/apt/auth.conf.d (apt_auth.conf(5)), mode 0600, and dnf from a "
            "repository file of your own",
        )
    if not _URI.fullmatch(uri):
        raise InputError(
            where, "is no address", "expected ones like https://archive.example/debian or file:/srv/debs"
        )


def _pins(pins: tuple[PinPolicy, ...], where: str) -> None:
    for number, pin in enumerate(pins):
        place = f"{where}[{number}]"
        if not pin.packages:
            raise InputError(f"{place}.packages", "names nothing", "name packages or patterns")
        for pattern in pin.packages:
            like(pattern, _PATTERN, f"{place}.packages", "names of packages, with * and ?")
        like(pin.pin, _PIN, f"{place}.pin", "origin, release or version, and what it is")
        if not -32768 <= pin.priority <= 32767 or pin.priority == 0:
            raise InputError(
                f"{place}.priority", f"found {pin.priority}", "expected a number like 1001 or -1"
            )


def _kernel(kernel: KernelPolicy, where: str) -> None:
    packages(kernel.packages, f"{where}.packages")
    for number, word in enumerate(kernel.arguments):
        like(word, ARGUMENT, f"{where}.arguments[{number}]", "key or key=value, without blanks")
    for number, word in enumerate(kernel.without):
        like(word, ARGUMENT, f"{where}.without[{number}]", "a key like iommu or pci=realloc")
    like(kernel.profile, _PROFILE, f"{where}.profile", "the name of a profile of tuned")
    for size, count in kernel.huge_pages.items():
        one_of(size, HUGE_PAGES, f"{where}.huge_pages.{size}")
        within(count, 1, _MOST_PAGES, f"{where}.huge_pages.{size}")
