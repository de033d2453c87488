"""What only a live node can answer before an installation: its clock, and what it reaches. Changes nothing."""

from __future__ import annotations

import ctypes
import re
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Optional
from urllib.parse import urlsplit

from .model import InputError, Probe, Reached
from .words import address_without_user

_SECONDS = 10.0
# All addresses together; a firewall that drops packets makes each of them take its full time.
_ALL_SECONDS = 120.0
_MOST = 64
# adjtimex(2): the kernel's clock is not synchronised.
_STA_UNSYNC = 0x0040
_TIMEX_BYTES = 512
# struct timex: modes (an int, padded), offset, freq, maxerror and esterror come before it (linux/timex.h).
_STATUS_AT = 5 * ctypes.sizeof(ctypes.c_long)
_APT_PROXY = re.compile(r'^\s*Acquire::https?::Proxy\s+"([^"\s]{1,300})"', re.MULTILINE)
_DNF_PROXY = re.compile(r"^\s*proxy\s*=\s*(\S{1,300})\s*$", re.MULTILINE)


def probe(urls: Sequence[str], root: Path = Path("/")) -> Probe:
    """Asks for each address once. Raises InputError for more of them than any run needs."""
    if len(urls) > _MOST:
        raise InputError("urls", f"found {len(urls)} addresses", f"expected at most {_MOST}")
    proxy = _proxy(root)
    deadline = time.monotonic() + _ALL_SECONDS
    return Probe(
        python=".".join(map(str, sys.version_info[:3])),
        clock=time.time(),
        synchronized=_synchronized(),
        proxy=None if proxy is None else address_without_user(proxy),
        reached=tuple(_reach(url, proxy, root, deadline) for url in dict.fromkeys(urls)),
    )


def _proxy(root: Path) -> Optional[str]:
    """The proxy of the package manager: the environment of this process is not that of a later apt."""
    apt = [*sorted((root / "etc/apt/apt.conf.d").glob("*")), root / "etc/apt/apt.conf"]
    for path, pattern in [*((path, _APT_PROXY) for path in apt), (root / "etc/dnf/dnf.conf", _DNF_PROXY)]:
        try:
            match = pattern.search(path.read_text("utf-8", "replace"))
        except OSError:
            continue
        if match is not None:
            return match[1]
    return None


def _synchronized() -> Optional[bool]:
    """None where the C library or the machine does not tell."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        buffer = (ctypes.c_byte * _TIMEX_BYTES)()
        if libc.adjtimex(ctypes.byref(buffer)) < 0:
            return None
    except (OSError, AttributeError):
        return None
    status = ctypes.c_int.from_buffer(buffer, _STATUS_AT).value
    return not status & _STA_UNSYNC


def _reach(url: str, proxy: Optional[str], root: Path, deadline: float) -> Reached:
    parts = urlsplit(url)
    if parts.scheme in ("", "file"):
        path = root / parts.path.lstrip("/")
        return Reached(url, path.exists(), "is there" if path.exists() else "is not there")
    if parts.scheme not in ("http", "https"):
        return Reached(url, None, f"nobody here asks by {parts.scheme}")
    left = min(_SECONDS, deadline - time.monotonic())
    if left <= 0:
        return Reached(url, None, f"not asked: the others took {_ALL_SECONDS:.0f} s")
    begun = time.monotonic()
    ok, why = _ask(url, proxy, left)
    return Reached(url, ok, why, int((time.monotonic() - begun) * 1000))


def _ask(url: str, proxy: Optional[str], seconds: float) -> tuple[bool, str]:
    handlers: list[urllib.request.BaseHandler] = []
    if proxy is not None:
        handlers.append(urllib.request.ProxyHandler({"http": proxy, "https": proxy}))
    opener = urllib.request.build_opener(*handlers)
    # The caller let http and https through only.
    request = urllib.request.Request(url, method="HEAD", headers={"User-Agent": "railwright"})  # noqa: S310
    try:
        with opener.open(request, timeout=seconds) as answer:
            return _judged(url, answer.geturl(), answer.status)
    except urllib.error.HTTPError as error:
        return False, f"answers {error.code} {error.reason}"
    except urllib.error.URLError as error:
        return False, _why(error.reason)
    except (OSError, ValueError) as error:
        return False, _why(error)


def _judged(asked: str, got: str, status: int) -> tuple[bool, str]:
    if got == asked:
        return True, f"answers {status}"
    before, after = urlsplit(asked), urlsplit(got)
    if before.scheme == "https" and after.scheme != "https":
        return False, f"leads from https to {after.scheme}://{after.netloc}"
    if before.netloc != after.netloc:
        return (
            False,
            f"leads to another host, {after.netloc}: a mirror's redirect, or a portal that wants a login",
        )
    return True, f"answers {status} as {after.path}"


def _why(error: object) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not good: {error.verify_message}"
    if isinstance(error, TimeoutError):
        return "does not answer"
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be reached: {error.strerror}"
    return f"cannot be reached: {error}"
