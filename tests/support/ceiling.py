"""A load generator that counts as calibrated: on a machine that others use, each case would begin with that."""

from __future__ import annotations

import pytest

from paceline.load import quality
from paceline.load.processes import CpuPlacement

CEILING = quality.GeneratorCeiling(5000.0, 10_000.0, (quality.Probe(500.0, 1.0, 1e-4, 1e-3),))


def remember_the_ceiling(data_home: str) -> None:
    """A calibration that others disturbed is not remembered, so that each case would begin with another."""
    cores = CpuPlacement.of_machine()
    key = quality._key((cores.load[0], cores.server[0]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", data_home)
        if quality._remembered(key) is None:
            quality._remember(key, CEILING)
