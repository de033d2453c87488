"""Every address that a run needs, and what the node said of it."""

from __future__ import annotations

from collections.abc import Iterator

from ..node.check.answer import Answer
from ..node.model import Finding, Policy, Probe
from ..plan.packages import sources_of

_CHECK = "preflight.addresses"


def addresses(policy: Policy, system: str | None = None) -> tuple[str, ...]:
    """What the node's package manager fetches first: each archive's signed index, or its folder.

    system: "dpkg" or "rpm"; None, where the facts do not tell, is taken for dpkg.
    """
    found: list[str] = []
    for source in sources_of(policy):
        for uri in source.uris.split(" "):
            if system == "rpm" and not source.trusted:
                found.append(f"{uri.rstrip('/')}/repodata/repomd.xml")
                continue
            found += _indexes(uri.rstrip("/"), source.suites.split(" "), source.trusted)
    return tuple(dict.fromkeys(found))


def _indexes(uri: str, suites: list[str], trusted: bool) -> Iterator[str]:
    """apt's index of each suite, of a flat archive for one that ends with a slash. A folder that is trusted may be one
    of debs with a plain index, or of rpms."""
    for suite in suites:
        if trusted:
            yield uri
        elif suite.endswith("/"):
            yield f"{uri}/{suite}InRelease".replace("/./", "/")
        else:
            yield f"{uri}/dists/{suite}/InRelease"


def reached(policy: Policy, probe: Probe) -> Iterator[Answer]:
    """One answer for each address that the node was asked about."""
    through = f" through {probe.proxy}" if probe.proxy else ""
    for row in probe.reached:
        if row.ok is None:
            yield Answer(_CHECK, seen=False, why=f"{row.url}: {row.why}")
        elif row.ok:
            yield Answer(_CHECK, why=f"{row.url} {row.why}")
        else:
            remedy = (
                f"ask from the node: curl -I {row.url}; let it through, or name a mirror or a folder on "
                "the node (file:) in policy.software.sources"
            )
            yield Answer(_CHECK, Finding(_CHECK, "error", row.url, f"{row.why}{through}", remedy))
    if not probe.reached:
        yield Answer(_CHECK, why="this policy fetches nothing")
