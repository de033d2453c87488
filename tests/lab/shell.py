"""Run a program and tell truthfully how it ended."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from .errors import LabError


def call(
    argv: Sequence[str],
    *,
    stdin: str | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> str:
    """Its standard output. Raises LabError when it is not there or ends with another code than 0."""
    done = ask(argv, stdin=stdin, cwd=cwd, env=env, timeout=timeout)
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip())[-2000:]
        raise LabError(" ".join(argv)[:300], f"ended with {done.returncode}: {said}", "see what it said")
    return done.stdout


def ask(
    argv: Sequence[str],
    *,
    stdin: str | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """How it ended. Raises LabError when it is not there or took more than `timeout` seconds."""
    try:
        return subprocess.run(
            list(argv),
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            cwd=cwd,
            env=env,
            timeout=timeout,
        )
    except FileNotFoundError as error:
        raise LabError(argv[0], "is not installed here", "run `make lab-setup`") from error
    except subprocess.TimeoutExpired as error:
        said = (error.stdout or b"")[-1000:]
        raise LabError(
            " ".join(argv)[:300], f"took more than {timeout} s: {said!r}", "see what it waits for"
        ) from error
