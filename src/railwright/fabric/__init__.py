"""The lossless contract of hosts and switches: computed headroom, lint and rendering of configuration."""

from __future__ import annotations

from .agree import HostPort, agree, read_hosts
from .contract import Contract
from .hosts import Dcb, Heard, read_dcb, read_lldp, read_pause
from .inventory import Found, read_inventory
from .lint import Lint, document, ecn_rows, lint, read_files
from .nodes import host_states, ports_only
from .policy import host_policy
from .render import Fragment, render

__all__ = [
    "Contract",
    "Dcb",
    "Found",
    "Fragment",
    "Heard",
    "HostPort",
    "Lint",
    "agree",
    "document",
    "ecn_rows",
    "host_policy",
    "host_states",
    "lint",
    "ports_only",
    "read_dcb",
    "read_files",
    "read_hosts",
    "read_inventory",
    "read_lldp",
    "read_pause",
    "render",
]
