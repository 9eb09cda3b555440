"""Every test here starts real processes, in a sandbox that ends with the test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.cli import Sandbox, sandbox_in


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    with sandbox_in(tmp_path / "sandbox") as made:
        yield made
