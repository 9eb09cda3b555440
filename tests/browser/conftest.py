"""A real browser for the tests of this folder: Debian's chromium, without a network of its own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One for each file of tests."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="install it with: pip install '.[dev]'")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed; get it with: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=OPTIONS)
        yield started
        started.close()
