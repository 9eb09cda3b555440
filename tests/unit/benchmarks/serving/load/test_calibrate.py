"""What one worker of the load generator can do is not what it could while somebody else had its core."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from paceline.benchmarks.serving.load import calibrate, null_server
from paceline.benchmarks.serving.load.calibrate import Ceiling, Probe
from paceline.benchmarks.serving.servers.base import Endpoint

QUIET = Ceiling(4000.0, 10_000.0, (Probe(500.0, 1.0, 1e-4, 1e-3),))
LATE = Ceiling(500.0, 10_000.0, (Probe(500.0, 1.0, 1e-4, 1e-2),))
NOTHING = Ceiling(0.0, 10_000.0, (Probe(500.0, 0.5, 0.1, 0.3),))


@contextmanager
def _nobody(cpu: int | None = None) -> Iterator[Endpoint]:
    yield Endpoint("kserve-json", "127.0.0.1", 1, "/", "x")


@pytest.mark.parametrize(
    ("seen", "taken", "is_kept"),
    [
        ([QUIET], QUIET, True),
        ([NOTHING, QUIET], QUIET, True),
        ([LATE, NOTHING, QUIET], QUIET, True),
        ([NOTHING, LATE, NOTHING], LATE, False),
    ],
)
def test_a_disturbed_calibration_is_made_again(
    seen: list[Ceiling], taken: Ceiling, is_kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(null_server, "running", _nobody)
    left = list(seen)
    monkeypatch.setattr(calibrate, "measure", lambda *_: left.pop(0))
    assert calibrate.calibrate((0, 0)) == taken
    assert left == []
    assert (calibrate._remembered(calibrate._key([0, 0])) == taken) is is_kept
