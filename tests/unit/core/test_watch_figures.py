"""What is made of series of several cases, and of documents of other versions."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.core.watch import WatchSeries, joined_figure, read_watched


def series(figure: Any, value: float) -> WatchSeries:
    return WatchSeries(of="cuda:0", name="x", figure=figure, value=value, values=[value])


@pytest.mark.parametrize(("figure", "expected"), [("max", 90.0), ("new", 130.0), ("mean", 50.0)])
def test_figures_of_cases_are_joined_by_what_they_are(figure: Any, expected: float) -> None:
    parts = [(series(figure, 40.0), 4.0), (series(figure, 90.0), 1.0)]
    assert joined_figure(parts).value == expected


def test_cases_of_no_length_have_a_mean() -> None:
    assert joined_figure([(series("mean", 1.0), 0.0), (series("mean", 3.0), 0.0)]).value == 2.0


@pytest.mark.parametrize("document", [None, "series", {}, [1], [{"times": "x"}], [{"series": [{"of": 1}]}]])
def test_what_another_version_wrote_is_nothing(document: Any) -> None:
    assert read_watched({"watched": document}) == []


def test_what_this_version_wrote_is_read() -> None:
    written = {"times": [0, 1], "series": [series("max", 3.0).model_dump()], "cpu_seconds": 0.1, "new": 1}
    (seen,) = read_watched({"watched": [written]})
    assert (seen.times, seen.series[0].metric, seen.host) == ([0, 1], "watch/cuda:0/x_max", "")
