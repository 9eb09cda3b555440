"""Compare runs, tags, files or published figures: ratios with intervals, and an exit code for CI."""

from __future__ import annotations

import sys

import click

from paceline.cli._options import Answer, complete_runs, format_options
from paceline.core.errors import InputError
from paceline.core.gc_pause import no_garbage

UNDECIDED = 3  # the exit code of a gate that neither passes nor fails
MOST_LINES = 10  # of cases that a gate cannot decide


@click.command("compare")
@click.argument("sides", metavar="REFERENCE NEW...", nargs=-1, required=True, shell_complete=complete_runs)
@click.option(
    "--metric", "metrics", multiple=True, metavar="NAME", help="Compare this instead of each case's headline."
)
@click.option("--all", "whole", is_flag=True, help="Show every row, however many there are.")
@click.option("--all-metrics", "every", is_flag=True, help="Compare everything that both sides measured.")
@click.option(
    "--fail-on",
    "limits",
    multiple=True,
    metavar="METRIC<RATIO",
    help="Exit with 1 where new / reference is significantly beyond this, like 'throughput<0.97', with 3 where that "
    "cannot be decided; '*' is every metric.",
)
@click.option("--strict", is_flag=True, help="With --fail-on: also where the change is not significant.")
@format_options()
@click.option("--store", metavar="URL", help="Where results are stored.")
def command(
    sides: tuple[str, ...],
    metrics: tuple[str, ...],
    whole: bool,
    every: bool,
    limits: tuple[str, ...],
    strict: bool,
    answer: Answer,
    store: str | None,
) -> None:
    """Compare every NEW with the REFERENCE.

    Each is a run (an id, the beginning of one, 'last'), a tag (its runs count as one), a file of 'paceline report
    --jsonl', or published:libai, published:megatron, published:flashlight. A run of 'paceline ab' is
    compared with itself: name it alone.
    """
    from paceline.analysis.compare.verdicts import Limit, undecided, violations
    from paceline.api.comparison import compared
    from paceline.api.sources import read_sources
    from paceline.report.compare import document as pages
    from paceline.report.compare import words

    if strict and not limits:
        raise InputError("strict-without-fail-on", "--strict goes with --fail-on METRIC<RATIO", key="--strict")
    bounds = [Limit.parse(text, strict=strict) for text in limits]
    # Metrics that a limit names are compared alongside the headlines.
    also = [bound.metric for bound in bounds if bound.metric != "*"]
    with no_garbage():
        comparison = compared(sides, read_sources(sides, store), store, metrics=metrics, also=also, every=every)
    crossed = violations(comparison, bounds, strict=strict)
    open_rows = [] if strict else undecided(comparison, bounds)
    page = pages.document(comparison, full=answer.kind in ("html", "md"), every=whole)
    data = {"csv": lambda: pages.csv_text(comparison), "json": lambda: pages.json_text(comparison, crossed, open_rows)}
    answer.give(page, "paceline-compare", data)
    for violation in crossed:
        click.echo(f"paceline: fails on {words.violation_words(violation)}", err=True)
    for one in open_rows[:MOST_LINES]:
        click.echo(f"paceline: cannot decide {words.undecided_words(one)}", err=True)
    if len(open_rows) > MOST_LINES:
        click.echo(f"paceline: and cannot decide {len(open_rows) - MOST_LINES} more", err=True)
    sys.exit(1 if crossed else UNDECIDED if open_rows else 0)
