"""What a run shows at a glance as one picture: its overview, and the charts of what it says beyond its cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from paceline.analysis.roofline import KnownCeilings
from paceline.analysis.summary import summarize_run
from paceline.core.errors import InputError
from paceline.core.files import write_atomic
from paceline.core.run import RunRecords
from paceline.report.charts import CONFIG, Chart, draw_png, overview
from paceline.report.insights import insight_charts, insights


def render(
    records: RunRecords, *, primary: Mapping[str, str] | None = None, ceilings: KnownCeilings | None = None
) -> bytes:
    """The picture's bytes; a run without a result has none."""
    summary = summarize_run(records, primary)
    first = overview(summary.measured)
    if first is None:
        raise InputError(f"run '{records.run.id}' has no result to draw; see 'paceline report {records.run.id}'")
    return draw_png(stacked([first, *insight_charts(insights(summary, ceilings))]))


def stacked(charts: Sequence[Chart]) -> Chart:
    """Several charts as one, each with its own scales and legends."""
    if len(charts) == 1:
        return charts[0]
    specs = [{key: value for key, value in chart.spec.items() if key != "config"} for chart in charts]
    apart = dict.fromkeys(("color", "shape", "fillOpacity"), "independent")
    spec = {"vconcat": specs, "spacing": 44, "config": CONFIG, "resolve": {"scale": apart, "legend": apart}}
    return Chart(spec, "; ".join(chart.title for chart in charts), "; ".join(chart.description for chart in charts))


def write(
    records: RunRecords,
    path: str | Path,
    *,
    primary: Mapping[str, str] | None = None,
    ceilings: KnownCeilings | None = None,
) -> Path:
    """Write the picture."""
    return write_atomic(path, render(records, primary=primary, ceilings=ceilings))
