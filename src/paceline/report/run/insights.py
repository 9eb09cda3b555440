"""All that a run says beyond its cases: rooflines, where time went, scaling over ranks, maps over two parameters."""

from __future__ import annotations

from paceline.analysis.heatmap import heat_maps
from paceline.analysis.roofline import KnownCeilings, rooflines
from paceline.analysis.scaling import scaling
from paceline.analysis.summary import RunSummary
from paceline.analysis.traces import traced
from paceline.report.charts import Chart
from paceline.report.run.insight import Insight, Part
from paceline.report.run.sections.heatmaps import heat_map_parts
from paceline.report.run.sections.roofline import roofline_parts
from paceline.report.run.sections.scaling import scaling_parts
from paceline.report.run.sections.traces import trace_parts


def insights(summary: RunSummary, known: KnownCeilings | None = None) -> list[Insight]:
    """Only those that say something."""
    found: list[tuple[str, str, list[Part]]] = [
        ("roofline", "What bounds each case", roofline_parts(rooflines(summary.source, summary.rows, known))),
        ("time", "Where the time went", trace_parts(traced(summary.rows))),
        ("scaling", "Scaling over ranks", scaling_parts(scaling(summary.measured))),
        ("heatmap", "Over two parameters", heat_map_parts(heat_maps(summary.rows, summary.not_run))),
    ]
    return [Insight(key, title, tuple(parts)) for key, title, parts in found if parts]


def insight_charts(found: list[Insight]) -> list[Chart]:
    """The charts alone, in the order of the page."""
    return [part.chart for insight in found for part in insight.parts if part.chart is not None]
