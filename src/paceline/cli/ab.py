"""Measure two commits, environments, settings, commands or servers in alternation until the difference is decided."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from paceline.core.errors import InputError

if TYPE_CHECKING:
    from paceline.cli._ab import Alternation
    from paceline.core.run import RunStatus

ROUNDS = 30
BUDGET = "30m"
WITHIN = "1%"
UNDECIDED = 3
INTERRUPTED = 130


class AbCommand(click.Command):
    """A command that takes what follows -- as it is."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        position = args.index("--") if "--" in args else len(args)
        ctx.meta["words"] = args[position + 1 :]
        try:
            return super().parse_args(ctx, args[:position])
        except click.NoSuchOption as error:
            hint = "" if "--" in args else "; what to measure follows --, as in: paceline ab A B -- run train"
            raise InputError(
                "unknown-flag", f"{error.format_message().rstrip('.')}{hint}", key=error.option_name
            ) from None
        except click.UsageError as error:
            message = f"{error.format_message()} Write: paceline ab A B -- run train --model resnet50"
            raise InputError("usage", message) from None


@click.command("ab", cls=AbCommand, options_metavar="[OPTIONS]")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B [-- COMMAND...]")
@click.option(
    "--rounds", default=ROUNDS, show_default=True, type=click.IntRange(2), help="Measure each side at most so often."
)
@click.option(
    "--budget", default=BUDGET, show_default=True, metavar="TIME", help="Begin no round that would end later."
)
@click.option(
    "--within", default=WITHIN, show_default=True, metavar="PART",
    help="A difference that is smaller does not matter: end once a larger one is ruled out.",
)  # fmt: skip
@click.option(
    "--metric", "metrics", multiple=True, metavar="NAME", help="Compare this instead of each case's headline."
)
@click.option(
    "--metric-from", "pattern", metavar="REGEX",
    help="Of a command: compare the number that it prints, in the group of this pattern, instead of its wall time.",
)  # fmt: skip
@click.option("--higher-is-better", is_flag=True, help="With --metric-from: the larger number is the better one.")
@click.option(
    "--build", metavar="COMMAND",
    help="What builds a commit, in its worktree; unset is pip install of requirements.txt and of the project.",
)  # fmt: skip
@click.option("--resume", metavar="RUN", help="Go on with the rounds of an earlier run; the rest is as it was.")
@click.option("--tag", "tags", multiple=True, metavar="NAME", help="Name the run, alone or with others of its kind.")
@click.option("--store", metavar="PATH|URL", help="Where results go: a SQLite file or postgresql://...")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line for every event.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    a: str,
    b: str,
    rounds: int,
    budget: str,
    within: str,
    metrics: tuple[str, ...],
    pattern: str | None,
    higher_is_better: bool,
    build: str | None,
    resume: str | None,
    tags: tuple[str, ...],
    store: str | None,
    as_json: bool,
) -> None:
    """Measure A and B in alternation, A B B A ..., each time in fresh processes, until the difference is decided.

    What to measure follows --: 'run ...' as for 'paceline run', or any other command, whose wall time is taken. A and B
    are two of one kind:

    \b
    HEAD~1 HEAD                          commits of this repository; '.' is the working tree
    'numpy==1.26' 'numpy==2.1'           packages
    OMP_NUM_THREADS=1 OMP_NUM_THREADS=2  environment variables
    batch_size=8 batch_size=16           parameters of what is run
    http://one:8000 http://two:8000      servers, with: -- run serve ...
    ./one.sh './other.sh --fast'         commands, without anything after --

    Where that is not clear: commit:, packages:, env:, set:, server: or command: before it.

    Exit codes: 0 no worse, 1 B is worse or did not succeed, 2 the input was refused, 3 undecided.
    """
    from paceline.cli import _ab
    from paceline.core.quantity import parse_duration, parse_fraction
    from paceline.runner.sides import make_side, read_kind
    from paceline.store import open_existing, open_store

    words: list[str] = ctx.meta["words"]
    limits = _ab.Limits(rounds, _value("--budget", budget, parse_duration), _value("--within", within, parse_fraction))
    if not 0 < limits.within < 1:
        message = f"--within {within}: a difference to rule out is above 0 and below 100 %, such as 1%"
        raise InputError("out-of-range", message, key="--within", value=within)
    kind, texts = read_kind((a, b), words)
    figure = _ab.Figure.read(pattern, higher_is_better=higher_is_better)
    if build is not None and kind != "commit":
        raise InputError("build-without-commits", f"--build is for two commits, not for {kind}", key="--build")

    def say(text: str) -> None:
        click.echo(json.dumps({"event": "building", "message": text}) if as_json else text)

    measure = _ab.measuring(words, figure)
    first, second = (make_side(mark, kind, text, words, build, say) for mark, text in zip("AB", texts, strict=True))
    _ab.check_sides((first, second), words)
    with open_store(store) if resume is None else open_existing(store) as opened:
        records = _ab.records_of(opened, f"ab {first.label} {second.label}", resume, tags)
        alternation = _ab.Alternation((first, second), measure, limits, records, opened, metrics)
        sys.exit(_follow(alternation, as_json=as_json))


def _value(flag: str, text: str, parse: Callable[[str], float]) -> float:
    try:
        return parse(text)
    except ValueError as error:
        raise InputError("invalid-value", str(error), where=flag, key=flag, value=text) from None


def _follow(alternation: Alternation, *, as_json: bool) -> int:
    """Rounds until they decide or may not go on; returns the exit code."""
    from paceline.core.interrupt import catch_interrupts

    catch_interrupts()
    status: RunStatus = "interrupted"
    try:
        while not alternation.why_ended:
            alternation.measure_round()
            _show_round(alternation, as_json=as_json)
        status = "finished"
    except KeyboardInterrupt:
        if not alternation.records.run.cases:
            click.echo("\npaceline: interrupted before anything was measured", err=True)
            return INTERRUPTED
        words = sys.argv[2:]
        if "--resume" not in words:
            words = ["--resume", alternation.records.run.id, *words]
        click.echo(f"\npaceline: interrupted; go on with: paceline ab {shlex.join(words)}", err=True)
        return INTERRUPTED
    finally:
        alternation.finish(status)
    return _show_answer(alternation, as_json=as_json)


def _show_round(alternation: Alternation, *, as_json: bool) -> None:
    from paceline.analysis.compare.sides import Decision
    from paceline.core.quantity import show_duration
    from paceline.report.compare import document as pages

    decisions = alternation.decisions
    if as_json:
        rows = list(pages.decided_data(decisions, alternation.limits.within))
        click.echo(json.dumps({"event": "round", "round": alternation.rounds, "cases": rows}))
        sys.stdout.flush()
        return
    if alternation.problem:
        click.echo(f"round {alternation.rounds}: {alternation.problem}", err=True)
    if len(decisions) == 1:
        words = pages.progress(*decisions[0])
    else:
        words = f"{sum(one is not Decision.OPEN for _, one in decisions)} of {len(decisions)} cases decided"
    if alternation.rounds == 1:
        most = min(alternation.limits.budget, alternation.limits.rounds * alternation.round_seconds)
        words += f"; a round takes {show_duration(alternation.round_seconds)}, all of it at most {show_duration(most)}"
    if decisions:
        click.echo(f"round {alternation.rounds:>{len(str(alternation.limits.rounds))}}: {words}")
        sys.stdout.flush()


def _show_answer(alternation: Alternation, *, as_json: bool) -> int:
    """The sentences, the table, and what they come to as an exit code."""
    from paceline.analysis.compare.sides import Decision
    from paceline.core.quantity import show_duration
    from paceline.report.compare import document as pages
    from paceline.report.compare.document import json_line
    from paceline.report.render import terminal

    decisions, run_id = alternation.decisions, alternation.records.run.id
    reached = {one for _, one in decisions}
    is_worse = Decision.WORSE in reached or alternation.has_failed or alternation.comparison is None
    code = 1 if is_worse else UNDECIDED if Decision.OPEN in reached else 0
    if as_json:
        if alternation.comparison is not None:
            click.echo(json_line(alternation.comparison))
        rows = list(pages.decided_data(decisions, alternation.limits.within))
        end = {"event": "ab_ended", "run": run_id, "ended": alternation.why_ended, "exit_code": code, "cases": rows}
        click.echo(json.dumps(end))
        return code
    if alternation.comparison is not None:
        click.echo()
        terminal.show(
            pages.decided_document(
                alternation.comparison, decisions, alternation.limits.within, alternation.round_seconds
            )
        )
    click.echo(
        f"\n{pages.counted(alternation.rounds)} in {show_duration(alternation.seconds)}; "
        f"again: paceline compare {run_id}"
    )
    return code
