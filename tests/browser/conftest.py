"""One browser for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser import chromium


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Page]:
    program = chromium.find()
    assert program is not None
    with chromium.browser(program, tmp_path_factory.mktemp("profile")) as page:
        yield page
