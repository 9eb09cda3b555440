"""A calibrated plan states an error that unseen layouts bear out, and the guide has that of the published rows."""

from __future__ import annotations

import numpy as np
import pytest
from bench.verdicts.plans import SYSTEMS, _published, _stated

from paceline.analysis.plan_calibration import System
from support.docs_markdown import ROOT


def test_the_stated_error_is_no_smaller_than_that_of_unseen_layouts() -> None:
    # The standard error of the median of so few is a third.
    assert _stated(8, np.random.default_rng(20)).measured > 0.5


@pytest.mark.long
@pytest.mark.parametrize("system", SYSTEMS)
def test_the_guide_has_the_error_of_published_layouts_that_were_left_out(system: System) -> None:
    cell = _published(system, SYSTEMS[system])
    assert cell.is_met()
    worst = cell.note.removeprefix("worst ").replace("%", " %")
    guide = (ROOT / "docs" / "guide" / "planning.md").read_text(encoding="utf-8")
    assert f"| {SYSTEMS[system]} | 41 | {100 * cell.measured:.1f} % | {worst} |" in guide
