"""The running figure of a case, with its interval once there is one."""

from __future__ import annotations

import pytest

from paceline.cli._live import estimate

STEPS = {"phase": "measuring", "unit": "s", "work": None, "rate_unit": ""}
RATE = {"phase": "measuring", "unit": "s", "work": 100.0, "rate_unit": "images/s"}
EVEN = [0.099, 0.100, 0.101] * 8
SKEWED = [0.100, 0.101, 0.102, 0.180, 0.181] * 8  # in this order their neighbours differ


@pytest.mark.parametrize(
    ("progress", "samples", "text"),
    [
        ({"phase": "warming up"}, EVEN, "warming up"),
        (STEPS, [0.1], "100 ms, 1 steps"),
        (STEPS, EVEN, "100 ms ± 1.0 %, 24 steps"),
        (RATE, EVEN, "1,000 images/s ± 1.0 %, 24 steps"),
        (STEPS, SKEWED, "102 ms (101 to 180 ms), 40 steps"),
        (RATE, SKEWED, "980.4 images/s (555.6 to 990.1 images/s), 40 steps"),
    ],
)
def test_the_running_figure(progress: dict[str, object], samples: list[float], text: str) -> None:
    assert estimate(progress, samples) == text
