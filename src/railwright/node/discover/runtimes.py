"""Environments of a node, by their links and the pages that their self-tests left: nothing of them is run."""

from __future__ import annotations

import json
import os
import re
from typing import Any, Optional

from ..model.runtime_facts import Runtime, SelfTest
from .tree import Tree

_TOP = "opt/railwright"
_PAGES = "run/railwright-self-test"
_SCHEMA = "railwright.self_test/1"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,40}", re.ASCII)
_PAGE_BYTES = 1024 * 1024
_MOST_TEXT = 500
_MOST_ROWS = 64


def read_runtimes(tree: Tree) -> tuple[Runtime, ...]:
    """A page that is larger than any self-test writes is none."""
    names = [name for name in tree.names(_TOP) if _NAME.fullmatch(name) and tree.is_folder(f"{_TOP}/{name}")]
    return tuple(
        Runtime(name, tree.link(f"{_TOP}/{name}/current"), _page(tree, name)) for name in names[:_MOST_ROWS]
    )


def _page(tree: Tree, name: str) -> Optional[SelfTest]:
    """None where there is none, and where the file is not one of ours."""
    try:
        page = json.loads(tree.text(f"{_PAGES}/{name}.json", _PAGE_BYTES) or "null")
        if page is None or page["schema"] != _SCHEMA:
            return None
        torch = page["found"]["torch"]
        return SelfTest(
            int(page["code"]),
            str(page["verdict"])[:_MOST_TEXT],
            _text(torch.get("version")),
            _text(torch.get("cuda")),
            _text(torch.get("nccl")),
            _text(page["found"].get("driver")),
            tuple(f"{one['why']}: {one['remedy']}"[:_MOST_TEXT] for one in page["problems"][:_MOST_ROWS]),
            tuple(
                f"{one['what']}: {one['value']} {one['unit']}".strip()[:_MOST_TEXT]
                for one in page["measured"][:_MOST_ROWS]
            ),
            os.path.basename(_text(page["found"].get("prefix")) or "") or None,
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _text(value: Any) -> Optional[str]:
    return value[:_MOST_TEXT] if isinstance(value, str) else None
