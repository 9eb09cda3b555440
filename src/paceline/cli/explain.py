"""Explain where the time of a step goes and what would make it faster, and prove it by switching."""

from __future__ import annotations

import click

from paceline.cli import _names
from paceline.core.errors import InputError

ROUNDS = 10
BUDGET = "10m"
WITHIN = "2%"


@click.command("explain")
@click.argument("run", default="last", shell_complete=_names.runs)
@click.argument("case", required=False)
@click.option("--try", "is_tried", is_flag=True, help="Measure each candidate that is a setting against the original.")
@click.option(
    "--rounds", default=ROUNDS, show_default=True, type=click.IntRange(2), help="With --try: at most so many for each."
)
@click.option(
    "--budget", default=BUDGET, show_default=True, metavar="TIME",
    help="With --try: for each candidate, begin no round that would end later.",
)  # fmt: skip
@click.option(
    "--within", default=WITHIN, show_default=True, metavar="PART",
    help="With --try: a difference that is smaller does not matter.",
)  # fmt: skip
@click.option("--store", metavar="PATH|URL", help="Where results are stored.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def command(
    run: str,
    case: str | None,
    is_tried: bool,
    rounds: int,
    budget: str,
    within: str,
    store: str | None,
    as_json: bool,
) -> None:
    """Explain the traced cases of RUN: the budget of a step, its longest operations, and candidates with their gain.

    CASE is a case's number in the run, or words of its name. A run has traces if it was measured with --profile or
    --explain. Candidates that are settings can be tried; the others are changes of the model's code, and say where.
    """
    from paceline.api.sources import known_ceilings
    from paceline.cli._ab import Limits
    from paceline.cli._explaining import Explaining
    from paceline.core.quantity import parse_duration, parse_fraction
    from paceline.store import open_reader, open_store

    try:
        limits = Limits(rounds, parse_duration(budget), parse_fraction(within))
    except ValueError as error:
        raise InputError("invalid-value", str(error), key="--budget or --within") from None
    with open_reader(store) as opened:
        records = opened.load(opened.find_run(run))
    named = [(one, f"{one.case.benchmark} {one.case.title}".strip()) for one in records.records]
    chosen = [(one, name) for one, name in named if case is None or _is_meant(case, one.case.index, name)]
    if not chosen:
        known = "; ".join(f"{one.case.index + 1}: {name}" for one, name in named)
        message = f"run {records.run.id} has no case '{case}'; it has {known}"
        raise InputError("unknown-case", message, key="CASE", value=case)
    traced = [one for one, _ in chosen if one.trace is not None and one.trace.spent is not None]
    ceilings = known_ceilings(records)
    for record in traced or [chosen[0][0]]:
        explaining = Explaining(records, record, ceilings, as_json=as_json)
        explaining.show()
        if is_tried:
            with open_store(store) as opened_for_writing:
                explaining.measure(opened_for_writing, limits)


def _is_meant(text: str, index: int, name: str) -> bool:
    return index + 1 == int(text) if text.isdecimal() else all(word in name.split() for word in text.split())
