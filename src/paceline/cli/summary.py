"""Show a fleet in one table."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import click

from paceline.cli._options import Answer, format_options

FORMATS = {
    "json": "One JSON object, for programs.",
    "csv": "One row for each statistic.",
    "md": "Markdown.",
    "html": "A self-contained page.",
    "xlsx": "An Excel workbook; needs 'paceline[exports]'.",
}


@click.command("summary")
@click.argument("sources", nargs=-1, required=True, metavar="RUN|TAG|FILE...")
@click.option("--rules", type=click.Path(path_type=Path), help="Rules, ours or SuperBench's; unset is all that leads.")
@click.option("--round", "digits", type=click.IntRange(1, 15), default=2, show_default=True, help="Digits of a value.")
@format_options(FORMATS)
@click.option("--store", metavar="URL", help="Where results are stored.")
def command(sources: tuple[str, ...], rules: Path | None, digits: int, answer: Answer, store: str | None) -> None:
    """Show statistics of metrics over the nodes behind runs, tags, or files of results, ours or SuperBench's."""
    from paceline.analysis.node_summary import default_rules, read_summary_rules, summarize_nodes, without_match
    from paceline.analysis.summary import shortened
    from paceline.api.sources import read_table
    from paceline.report import node_summary as report

    chosen, is_theirs = read_summary_rules(rules) if rules else (default_rules(), False)
    table, _ = read_table(sources, store, superbench=is_theirs)
    lines = summarize_nodes(table, chosen)
    if unmatched := without_match(table, chosen):
        click.echo(f"Nothing matches the patterns {shortened(unmatched)}; check the names of the metrics.", err=True)
    data: dict[str, Callable[[], str | bytes]] = {
        "json": lambda: (
            json.dumps({"nodes": list(table.nodes), "summary": report.rows(lines, digits)}, indent=1) + "\n"
        ),
        "csv": lambda: report.as_csv(lines, digits),
        "xlsx": lambda: report.as_xlsx(lines, digits),
    }
    answer.give(
        report.document(lines, digits, len(table.nodes), "run" if table.by_run else "node"), "paceline-summary", data
    )
