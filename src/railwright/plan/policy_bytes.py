"""The policy as bytes: what lies on the node for the boot unit, and its digest."""

from __future__ import annotations

import hashlib
import json

from ..node.model import Policy, to_json

# Groups whose absence is written out as null, and has been since the first digest was taken.
_WRITTEN_OUT = ("boot", "kernel", "lossless")


def canonical(policy: Policy) -> str:
    """The policy's JSON with every default written out, keys in order, on one line.

    A group that is not asked for and that came later is left out: it must change no digest of a policy without it.
    """
    said = {key: value for key, value in to_json(policy).items() if value is not None or key in _WRITTEN_OUT}
    return json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=True) + "\n"


def sha256(policy: Policy) -> str:
    """Digest of the policy's canonical bytes, in hex."""
    return hashlib.sha256(canonical(policy).encode()).hexdigest()
