"""Say which nodes are defective, and why."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import click

from paceline.cli._options import Answer, format_options

FORMATS = {
    "json": "One JSON object, for programs.",
    "jsonl": "One JSON object per node.",
    "csv": "What the chart draws: one row per metric and node.",
    "md": "Markdown.",
    "html": "A self-contained page.",
    "png": "The chart as a picture; needs 'paceline[charts]'.",
    "xlsx": "An Excel workbook; needs 'paceline[exports]'.",
}
DEFECTIVE = 1  # the exit code


@click.command("diagnose")
@click.argument("sources", nargs=-1, required=True, metavar="RUN|TAG|FILE...")
@click.option(
    "--rules",
    type=click.Path(path_type=Path),
    help="Rules, ours or SuperBench's; unset is outliers and failures.",
)
@click.option("--baseline", type=click.Path(path_type=Path), help="What to compare with; unset is the other nodes.")
@format_options(FORMATS)
@click.option("--store", metavar="URL", help="Where results are stored.")
def command(
    sources: tuple[str, ...],
    rules: Path | None,
    baseline: Path | None,
    answer: Answer,
    store: str | None,
) -> None:
    """Judge the nodes behind runs, tags, or files of results, ours or SuperBench's results-summary.jsonl.

    Exit code 1 when a node is defective.
    """
    from paceline.api.comparison import judged
    from paceline.report import diagnose as report

    diagnosis = judged(sources, store, rules, baseline)
    data: dict[str, Callable[[], str | bytes]] = {
        "json": lambda: report.as_json(diagnosis),
        "jsonl": lambda: report.as_jsonl(diagnosis),
        "csv": lambda: report.as_csv(diagnosis),
        "png": lambda: report.as_png(diagnosis),
        "xlsx": lambda: report.as_xlsx(diagnosis),
    }
    answer.give(report.document(diagnosis), "paceline-diagnosis", data)
    sys.exit(DEFECTIVE if diagnosis.defective else 0)
