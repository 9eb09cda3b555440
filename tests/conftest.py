"""What tests of every kind share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cli import Sandbox, sandbox_in


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    """A place to start real processes in; whatever they leave running ends with the test."""
    with sandbox_in(tmp_path / "sandbox") as made:
        yield made
