"""The policy as bytes: what lies on the node for the boot unit, and its digest."""

from __future__ import annotations

import hashlib
import json

from ..node.model import Policy, to_json


def canonical(policy: Policy) -> str:
    """The policy's JSON with every default written out, keys in order, on one line."""
    return json.dumps(to_json(policy), sort_keys=True, separators=(",", ":"), ensure_ascii=True) + "\n"


def sha256(policy: Policy) -> str:
    """Digest of the policy's canonical bytes, in hex."""
    return hashlib.sha256(canonical(policy).encode()).hexdigest()
