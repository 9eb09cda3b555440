"""Say which measured configuration to take for an SLO, a budget or a rate, and why."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from paceline.cli._options import Answer, format_options, price_option
from paceline.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.analysis.cost import Prices
    from paceline.analysis.recommend.choice import Recommendation
    from paceline.analysis.recommend.evidence import Objective
    from paceline.core.run import RunRecords

UNDECIDED = 3


@click.command("recommend")
@click.argument("sources", nargs=-1, metavar="[RUN|TAG|FILE]...")
@click.option(
    "--slo", multiple=True, metavar="BOUND", help="What must hold: p99=50ms, error_rate=0.1%. May be repeated."
)
@click.option(
    "--by",
    type=click.Choice(["goodput", "cost", "energy", "latency"]),
    default="goodput",
    show_default=True,
    help="What counts as better.",
)
@click.option("--rate", metavar="RATE", help="What all replicas together must answer, such as 200/s.")
@click.option("--budget", metavar="AMOUNT", help="The most to spend: '5 USD/h', or '0.02 USD/1k' for 1,000 requests.")
@price_option
@click.option("--carbon", metavar="INTENSITY", help="CO2 of your electricity, such as '400 g/kWh'.")
@click.option("--case", "text", default="", metavar="TEXT", help="Only cases that have this in their name.")
@click.option("--strict", is_flag=True, help="Leave out what may not meet the SLO.")
@click.option("--top", type=click.IntRange(min=1), default=5, show_default=True, help="How many to show.")
@click.option("--store", metavar="URL", help="Where results are stored.")
@format_options()
def command(
    sources: tuple[str, ...],
    slo: tuple[str, ...],
    by: Objective,
    rate: str | None,
    budget: str | None,
    prices: tuple[str, ...],
    carbon: str | None,
    text: str,
    strict: bool,
    top: int,
    store: str | None,
    answer: Answer,
) -> None:
    """Say which configuration to take: server, batches, precision, machine. Without a name, of the last run.

    Served models are compared by the rate at which they meet the SLO, models without a server by their throughput.
    What misses the SLO is never recommended. The exit code is 1 where nothing can be, and 3 where what can be only
    perhaps meets it.
    """
    from paceline.analysis.cost import Budget, read_carbon, read_per_second
    from paceline.analysis.recommend.choice import recommend, with_users
    from paceline.analysis.recommend.evidence import Question, evidence, read_bounds
    from paceline.api.sources import read_sources
    from paceline.report.recommend import document as report

    question = Question(
        bounds=read_bounds(slo),
        by=by,
        rate=read_per_second(rate) if rate is not None else None,
        budget=Budget.read(budget) if budget is not None else None,
        strict=strict,
        carbon=read_carbon(carbon) if carbon is not None else None,
    )
    runs = [run for source in read_sources(sources or ("last",), store) for run in source.runs]
    measured = evidence(runs, read_prices(prices, runs), text=text)
    if not measured:
        named = f" that has '{text}' in its name" if text else ""
        message = f"no case{named} measured a model: run `paceline run serve` or `paceline run train` first"
        raise InputError("nothing-to-recommend", message, value=text or None)
    answers = [recommend(one, question) for one in with_users(measured, question)]
    data = {"json": lambda: report.to_json(answers, top), "csv": lambda: report.to_csv(answers)}
    answer.give(report.document(answers, top), "paceline-recommendation", data)
    sys.exit(exit_code(answers))


def exit_code(answers: Sequence[Recommendation]) -> int:
    """0 where each piece of work has what surely meets the SLO, 1 where one has nothing at all, otherwise 3."""
    if not all(one.best is not None for one in answers):
        return 1
    return UNDECIDED if any(one.best is not None and one.best.standing.is_open for one in answers) else 0


def read_prices(texts: tuple[str, ...], runs: list[RunRecords]) -> Prices:
    """What the user states, and the table that ships with Paceline or is the user's own."""
    from paceline.analysis.configuration import device_of
    from paceline.analysis.cost import Prices, read_price
    from paceline.machine.profile import price_table

    table = price_table()
    prices = Prices(table, tuple(read_price(text, table) for text in texts))
    prices.refuse_unused([device_of(record, source.run) for source in runs for record in source.records])
    return prices
