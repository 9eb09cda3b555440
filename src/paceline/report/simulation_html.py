"""A simulation as one HTML file that needs nothing else."""

from __future__ import annotations

from markupsafe import Markup

from paceline.analysis.simulation import OURS, Study
from paceline.report import charts
from paceline.report.html import Card, Drawing, render_page
from paceline.report.simulation import POLICIES, answer, assumptions, show_setting, tables
from paceline.report.simulation_charts import charts as simulation_charts
from paceline.report.text import show_relative
from paceline.version import VERSION


def render(study: Study) -> str:
    """The whole page."""
    drawn = simulation_charts(study) if charts.available() else []
    return render_page(
        "simulation.html",
        answer=answer(study),
        setting=show_setting(study.settings),
        seconds=study.seconds,
        cards=_cards(study),
        drawings=[
            Drawing(Markup(charts.draw_svg(chart, f"chart-{at}")), chart.notes) for at, chart in enumerate(drawn)
        ],
        charts_missing=not drawn,
        tables=tables(study),
        policies={line.policy: POLICIES[line.policy] for line in study.cells[0].lines},
        assumptions=assumptions(study),
        settings=study.settings | {"seeds": _seeds(study)},
        version=VERSION,
    )


def _cards(study: Study) -> list[Card]:
    """Each workload at its highest load."""
    cards = []
    for name in dict.fromkeys(cell.workload for cell in study.cells):
        cell = max((cell for cell in study.cells if cell.workload == name), key=lambda cell: cell.load)
        gain = cell.gain(OURS)
        if gain:
            what = "sooner than round-robin, two-tier"
            label = f"{name}, load {cell.load:.3g}"
            cards.append(Card(f"{gain.value:.2f}", "times", show_relative(gain.relative), what, label, False))
    return cards


def _seeds(study: Study) -> str:
    seeds = study.settings["seeds"]
    return str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
