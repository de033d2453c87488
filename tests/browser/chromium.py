"""A headless Chromium over its debugging pipe (`--remote-debugging-pipe`: JSON, ended by a zero byte, on fds 3 and 4).

No driver and no socket: what the page logs, asks of the network and measures comes from the browser itself.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)
# The pipe's ends must be 3 and 4 in the browser: this starts it with them moved there.
_LAUNCH = """
import os, sys
reads, writes = (os.dup(int(text)) for text in sys.argv[1:3])
reads, writes = os.dup(reads), os.dup(writes)
os.dup2(reads, 3), os.dup2(writes, 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""
_PATIENCE = 60.0


class BrowserError(RuntimeError):
    """The browser went away, answered with an error or did not answer."""


def find() -> str | None:
    """Path of a Chromium, or None."""
    return next((path for name in NAMES if (path := shutil.which(name)) is not None), None)


@dataclass
class Page:
    """One tab. messages: what the page logged; problems: its errors; requests: each URL that it asked for."""

    _send: int
    _receive: int
    session: str = ""
    messages: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    _buffer: bytes = b""
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _loaded: bool = False

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the DevTools protocol and its answer."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self._event(answer)

    def open(self, path: Path, width: int, height: int = 900, scheme: str = "light") -> None:
        """Show a file at a window size and colour scheme, and wait until it has loaded."""
        self.messages.clear()
        self.problems.clear()
        self.requests.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._loaded = False
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not self._loaded:
            self._event(self._next())

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise BrowserError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def screenshot(self, path: Path, *, whole: bool = True) -> bytes:
        """The page as PNG, written to `path` too."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        data = base64.b64decode(answer["data"])
        path.write_bytes(data)
        return data

    def pdf(self) -> bytes:
        """The page as it would be printed on A4."""
        answer = self.call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, printBackground=True)
        return base64.b64decode(answer["data"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._receive], [], [], _PATIENCE)
            chunk = os.read(self._receive, 1 << 20) if ready else b""
            if not chunk:
                raise BrowserError("Chromium does not answer" if not ready else "Chromium went away")
            self._buffer += chunk
        message, self._buffer = self._buffer.split(b"\0", 1)
        value: dict[str, Any] = json.loads(message)
        return value

    def _event(self, event: dict[str, Any]) -> None:
        method, parameters = event.get("method"), event.get("params", {})
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.exceptionThrown":
            self.problems.append(str(parameters["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled":
            (self.problems if parameters["type"] in ("error", "warning") else self.messages).append(
                str(parameters)
            )
        elif method == "Log.entryAdded":
            self.problems.append(f"{parameters['entry']['level']}: {parameters['entry']['text']}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])


@contextmanager
def browser(program: str, profile: Path) -> Iterator[Page]:
    """A tab of a browser of its own, gone afterwards. `profile`: an empty folder."""
    to_browser, from_us = os.pipe()
    to_us, from_browser = os.pipe()
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            _LAUNCH,
            str(to_browser),
            str(from_browser),
            program,
            *_FLAGS,
            f"--user-data-dir={profile}",
        ],
        pass_fds=(to_browser, from_browser),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_browser)
    os.close(from_browser)
    try:
        page = Page(from_us, to_us)
        target = page.call("Target.createTarget", url="about:blank")["targetId"]
        page.session = page.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        yield page
        page.session = ""
        page.call("Browser.close")
    finally:
        os.close(from_us)
        os.close(to_us)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
