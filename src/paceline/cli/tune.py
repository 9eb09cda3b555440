"""Search the settings of a server or of a benchmark for those that serve an objective best."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from paceline.api.cases import find_suite, suite_of_file
from paceline.cli._flags import SUITE, CaseCommand, case_flags, read_flags, read_settings
from paceline.cli._options import complete_cases
from paceline.core.errors import InputError, located
from paceline.core.interrupt import catch_interrupts

if TYPE_CHECKING:
    from paceline.analysis.tune import Objective, Trial, Tuning
    from paceline.core.case import Case
    from paceline.core.suite import Suite

DEFAULT = "serve"
ROUNDS = 4
MOST_SETTINGS = 2_000  # the search has tables of every setting by every other
INTERRUPTED = 130


class TuneCommand(CaseCommand):
    """Tunes a server unless something else is named."""

    def suite(self, what: str | None, args: Sequence[str]) -> Suite | None:
        return suite_of_file(what) if what is not None and what.endswith(".py") else find_suite(what or DEFAULT)


@click.command(cls=TuneCommand, params=[flag for flag in case_flags() if flag.name != "parameter__repeat"])
@click.argument("what", required=False, shell_complete=complete_cases)
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="A parameter, or values of it to choose from."
)
@click.option(
    "--objective",
    type=click.Choice(["goodput", "throughput", "cost"]),
    help="What counts as better; unset is goodput, without an SLO throughput.",
)
@click.option(
    "--rounds", default=ROUNDS, show_default=True, type=click.IntRange(2),
    help="Rounds in which the best setting is measured against the first one at the end.",
)  # fmt: skip
@click.option("--search-seed", default=0, show_default=True, help="Which settings are tried first.")
@click.option("--resume", metavar="RUN", help="Go on with an earlier tuning; the rest is as it was.")
@click.option("--tag", "tags", multiple=True, metavar="NAME", help="Name the run, alone or with others of its kind.")
@click.option("--store", metavar="PATH|URL", help="Where results go: a SQLite file or postgresql://...")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line for every event.")
@click.option("--dry-run", is_flag=True, help="Show the settings; measure nothing.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    what: str | None,
    settings: tuple[str, ...],
    objective: Objective | None,
    rounds: int,
    search_seed: int,
    resume: str | None,
    tags: tuple[str, ...],
    store: str | None,
    as_json: bool,
    dry_run: bool,
    **flags: Any,
) -> None:
    """Find the best of many settings of WHAT: a benchmark, or a suite of one (default: serve).

    Lists are what to choose from, their first values what the others are compared with:

    \b
    paceline tune --slo p99=50ms --load.arrival closed --load.users 16 \\
      --server.max-batch 1,4,16 --server.max-delay 0ms,2ms,10ms

    The length of the load, of the search or of the budget is that of a whole trial; most settings get a shorter one.
    Exit codes: 0 a setting is shown to be better than the first, 3 none is, 1 all failed.
    """
    from paceline.api.cases import expand_here
    from paceline.api.running import check_tag, records_of
    from paceline.api.tune import Tuner
    from paceline.cli._running import Output
    from paceline.store import open_existing, open_store

    suite: Suite = ctx.meta[SUITE]
    cases = expand_here(suite, read_flags(flags) | read_settings(settings))
    chosen = objective or ("goodput" if cases[0].parameters.get("slo") else "throughput")
    _check(cases, chosen)
    for tag in tags:
        check_tag(tag)
    limits = cases[0].parameters.get("limits")
    if not as_json and isinstance(limits, dict) and any(limits.values()):
        click.echo("The limits hold for each trial, not for the tuning as a whole.")
    if dry_run:
        for case in cases:
            click.echo(case.model_dump_json() if as_json else f"{case.index + 1:4}  {case.benchmark:12} {case.title}")
        return
    listener = Output(as_json=as_json).listener()
    catch_interrupts()
    with open_store(store) if resume is None else open_existing(store) as opened:
        records = records_of(opened, f"tune {suite.name}", resume, tags)
        if resume is None:
            opened.begin(records.run)
        made = {record.case.index: record for record in records.records}
        tuner = Tuner(opened, records.run, cases, chosen, rounds, search_seed, listener, records=made)
        tuner.on_batch = (lambda _: None) if as_json else _announce
        try:
            tuning = tuner.go()
        except KeyboardInterrupt:
            words = sys.argv[2:] if resume else ["--resume", records.run.id, *sys.argv[2:]]
            click.echo(f"\npaceline: interrupted; go on with: paceline tune {shlex.join(words)}", err=True)
            sys.exit(INTERRUPTED)
    sys.exit(_show(tuning, records.run.id, as_json=as_json))


def _check(cases: Sequence[Case], objective: Objective) -> None:
    """Refuse what cannot be tuned before anything is measured or stored."""
    from paceline.analysis.tune import LENGTHS, space_of
    from paceline.core.benchmark import BENCHMARKS

    first = cases[0]
    names = {case.benchmark for case in cases}
    if len(names) > 1:
        message = f"a tuning compares settings of one benchmark, not of {', '.join(sorted(names))}"
        raise InputError("several-benchmarks", message)
    if len(cases) < 2:
        message = "there is one setting only: give values to choose from, such as --server.max-batch 1,4,16"
        raise InputError("nothing-to-tune", message)
    if len(cases) > MOST_SETTINGS:
        message = f"these are {len(cases):,} settings, and a tuning takes at most {MOST_SETTINGS:,}: give fewer values"
        raise InputError("too-many-settings", message)
    if any(case.repeat > 1 for case in cases):
        raise InputError("repeat-in-tuning", "leave 'repeat' out: a tuning repeats what it has to", key="repeat")
    places = space_of(cases)[0].places
    if (again := next((number for number, one in enumerate(places) if one in places[:number]), None)) is not None:
        message = f"settings {places.index(places[again]) + 1} and {again + 1} are equal in parameters, target, ranks, "
        message += "env, power_limit and clock_limit, so that there is nothing to choose between them: leave one out"
        raise InputError("equal-settings", message)
    if objective == "goodput" and not first.parameters.get("slo"):
        message = "goodput is what meets an SLO: give one, such as --slo p99=50ms, or --objective throughput"
        raise InputError("goodput-without-slo", message, key="--objective", value=objective)
    if objective == "cost" and not (first.parameters.get("price") or first.parameters.get("instance")):
        message = "cost needs a price: give --price 2.5 (US dollars for an hour) or --instance"
        raise InputError("cost-without-price", message, key="--objective", value=objective)
    benchmark = BENCHMARKS.get(first.benchmark)
    for case in cases:
        with located(f"a trial of {LENGTHS[0]:.0%} of the time"):
            shortest = benchmark.shortened(benchmark.Parameters.read(case.parameters), LENGTHS[0])
            benchmark.Parameters.read(shortest.model_dump(mode="json"))


def _announce(batch: Sequence[Trial]) -> None:
    from paceline.report.tune import RUNG_NAMES

    noun = "setting" if len(batch) == 1 else "settings"
    click.echo(f"{RUNG_NAMES[batch[0].rung]}: {len(batch)} {noun}")


def _show(tuning: Tuning, run_id: str, *, as_json: bool) -> int:
    """The table, then the sentence, and what they come to as an exit code."""
    from paceline.report import tune as report
    from paceline.report.render import terminal

    if as_json:
        click.echo(report.to_json(tuning), nl=False)
    else:
        click.echo()
        terminal.show(report.document(tuning))
        click.echo(f"\nRun: {run_id}; again: paceline report {run_id}")
    return 1 if tuning.winner is None else 0 if tuning.is_better else 3
