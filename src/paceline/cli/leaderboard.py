"""Rank machines, software and settings that did the same work."""

from __future__ import annotations

import click

from paceline.cli._options import Answer, format_options, price_option
from paceline.core.errors import InputError


@click.command("leaderboard")
@click.argument("sources", nargs=-1, metavar="[RUN|TAG|FILE]...")
@click.option("--case", "text", default="", metavar="TEXT", help="Only cases that have this in their name.")
@click.option("--metric", metavar="NAME", help="What to rank by; unset is what leads each benchmark's report.")
@price_option
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True, help="How many rows of each board.")
@click.option("--store", metavar="URL", help="Where results are stored.")
@format_options()
def command(
    sources: tuple[str, ...],
    text: str,
    metric: str | None,
    prices: tuple[str, ...],
    top: int,
    store: str | None,
    answer: Answer,
) -> None:
    """Rank machines, software and settings that did the same work, best first. Without a name, over all runs.

    Results that do not differ significantly share a rank.
    """
    from paceline.analysis.leaderboard import boards
    from paceline.api.sources import read_sources
    from paceline.cli.recommend import read_prices
    from paceline.report.recommend import leaderboard as report

    if sources:
        runs = [run for source in read_sources(sources, store) for run in source.runs]
    else:
        from paceline.store import open_existing
        from paceline.store.dashboard_queries import headlines

        with open_existing(store) as opened:
            runs = headlines(opened)
    rankings = boards(runs, read_prices(prices, runs), metric=metric, text=text)
    if not rankings:
        named = f" that has '{text}' in its name" if text else ""
        message = f"there is no result{named} to rank: `paceline results` lists the runs"
        raise InputError("nothing-to-rank", message, value=text or None)
    data = {"json": lambda: report.to_json(rankings, top), "csv": lambda: report.to_csv(rankings)}
    answer.give(report.document(rankings, top), "paceline-leaderboard", data)
