"""Measure two commits, environments, settings, commands or servers in alternation until the difference is decided."""

from __future__ import annotations

import json
import math
import re
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from paceline.analysis.compare.sides import MARKS, Decision, compare_paired, decision
from paceline.analysis.compare.verdicts import Comparison, ComparisonRow
from paceline.api.progress import label, sentence
from paceline.api.running import records_of as records_of
from paceline.cli._options import value_of
from paceline.core.case import Case
from paceline.core.errors import InputError
from paceline.core.interrupt import catch_interrupts, interrupts_held
from paceline.core.metric import Better, Metric
from paceline.core.quantity import parse_duration, parse_fraction, show_duration
from paceline.core.record import Cause, CauseKind, Measurement, Outcome, Record
from paceline.core.run import RunRecords, RunStatus
from paceline.machine.software import scrub
from paceline.runner.sides import RUN, Ended, Side, run_command

if TYPE_CHECKING:
    from paceline.core.run import RunStatus
    from paceline.store.store import Store


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
    from paceline.runner.sides import make_side, read_kind
    from paceline.store import open_existing, open_store

    words: list[str] = ctx.meta["words"]
    limits = Limits(rounds, value_of("--budget", budget, parse_duration), value_of("--within", within, parse_fraction))
    if not 0 < limits.within < 1:
        message = f"--within {within}: a difference to rule out is above 0 and below 100 %, such as 1%"
        raise InputError("out-of-range", message, key="--within", value=within)
    kind, texts = read_kind((a, b), words)
    figure = Figure.read(pattern, higher_is_better=higher_is_better)
    if build is not None and kind != "commit":
        raise InputError("build-without-commits", f"--build is for two commits, not for {kind}", key="--build")

    def say(text: str) -> None:
        click.echo(json.dumps({"event": "building", "message": text}) if as_json else text)

    measure = measuring(words, figure)
    first, second = (make_side(mark, kind, text, words, build, say) for mark, text in zip("AB", texts, strict=True))
    check_sides((first, second), words)
    with open_store(store) if resume is None else open_existing(store) as opened:
        records = records_of(opened, f"ab {first.label} {second.label}", resume, tags)
        alternation = Alternation((first, second), measure, limits, records, opened, metrics)
        sys.exit(_follow(alternation, as_json=as_json))


def _follow(alternation: Alternation, *, as_json: bool) -> int:
    """Rounds until they decide or may not go on; returns the exit code."""

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


FAILED_ROUNDS = 3  # after which it ends: what fails so often is not chance
WALL_TIME = Metric(name="wall_time", unit="s", better=Better.LOWER, description="from start to end of the command")
_OURS = (
    "--store",
    "--resume",
    "--retry-failed",
    "--dry-run",
    "--repeat",
    "--json",
    "--report",
    "--no-report",
    "--peer",
)


@dataclass(frozen=True)
class Figure:
    """How a command's figure is taken: its wall time, or what it prints."""

    pattern: re.Pattern[str] | None = None
    metric: Metric = WALL_TIME

    @classmethod
    def read(cls, text: str | None, *, higher_is_better: bool) -> Figure:
        """What --metric-from asks for."""
        if text is None:
            if higher_is_better:
                message = "--higher-is-better goes with --metric-from: a command's wall time is better if it is lower"
                raise InputError("direction-without-metric", message, key="--higher-is-better")
            return cls()
        try:
            pattern = re.compile(text, re.MULTILINE)
        except re.error as error:
            message = f"'{text}' is not a regular expression: {error}"
            raise InputError("not-a-pattern", message, key="--metric-from", value=text) from None
        if pattern.groups != 1:
            message = f"'{text}' has {pattern.groups} groups; put one around the number, as in 'took ([0-9.]+) s'"
            raise InputError("not-one-group", message, key="--metric-from", value=text)
        name = next(iter(pattern.groupindex), "figure")
        better = Better.HIGHER if higher_is_better else Better.LOWER
        return cls(pattern, Metric(name=name, unit="", better=better, description=f"what the command prints: {text}"))

    def value(self, ended: Ended) -> float:
        """The figure of a command that succeeded; the last where it prints several."""
        if self.pattern is None:
            return ended.seconds
        matches = self.pattern.findall(ended.output)
        try:
            value = float(matches[-1]) if matches else math.nan
        except ValueError:
            message = f"'{matches[-1]}' is not a number"
            raise InputError("not-a-number", message, key="--metric-from", value=matches[-1]) from None
        if not matches:
            message = f"the command printed nothing that matches '{self.pattern.pattern}'"
            raise InputError("no-match", message, key="--metric-from")
        return value


Measure = Callable[[Side], list[Record]]


def measuring(words: Sequence[str], figure: Figure) -> Measure:
    """How a side is measured once: by Paceline, or as any other command."""
    if list(words[:1]) != [RUN]:
        return lambda side: [_timed(side.command or tuple(words), side, figure)]
    for word in words:
        if (name := word.partition("=")[0]) in _OURS:
            message = f"{name} does not go with ab, which measures in rounds and stores them itself; leave it out"
            raise InputError("not-in-ab", message, key=name)
    if figure.pattern is not None:
        message = "--metric-from is for a command; of a run of Paceline, choose with --metric NAME"
        raise InputError("metric-from-a-run", message, key="--metric-from")
    return lambda side: _measured(words, side)


def _timed(command: tuple[str, ...], side: Side, figure: Figure) -> Record:
    started_at = datetime.now(UTC)
    ended = run_command(command, side)
    shown = scrub(" ".join(command))
    case = Case(index=0, benchmark="command", parameters={"command": shown}, title="" if side.command else shown)
    record = Record(run_id="", case=case, outcome=Outcome.OK, started_at=started_at, seconds=ended.seconds)
    if ended.problem:
        cause = Cause(kind=CauseKind.ERROR, message=scrub(ended.problem), detail=scrub(ended.output[-2000:]))
        return record.model_copy(update={"outcome": Outcome.FAILED, "cause": cause})
    measured = [Measurement.of_value(figure.metric, figure.value(ended))]
    return record.model_copy(update={"measurements": measured, "primary": figure.metric.name})


def check_sides(sides: Sequence[Side], words: Sequence[str]) -> None:
    """Refuse what a side cannot run, and sides that are not pairs of cases, before anything is measured."""
    if list(words[:1]) != [RUN]:
        return
    counts = [_paceline(side, [*words, "--dry-run", "--json"]).output.count("\n") for side in sides]
    if counts[0] != counts[1]:
        message = f"the sides make {counts[0]} and {counts[1]} cases, which are not pairs; give single values"
        raise InputError("unpaired-sides", message, value=sides[1].label)


def _measured(words: Sequence[str], side: Side) -> list[Record]:
    from paceline.store import open_existing

    with TemporaryDirectory(prefix="paceline-ab-") as folder:
        path = Path(folder) / "paceline.db"
        ended = _paceline(side, [*words, "--no-report", "--store", str(path)])
        if not path.exists():
            raise _not_measured(side, ended)
        with open_existing(path) as store:
            return store.load(store.find_run("last")).records


def _paceline(side: Side, words: Sequence[str]) -> Ended:
    """Paceline in the side's own environment, which may be another version of it."""
    ended = run_command([side.python, "-m", "paceline", *words, *side.settings], side)
    if ended.code not in (0, 1):  # 1 is a case that did not succeed, which its record says
        raise _not_measured(side, ended)
    return ended


def _not_measured(side: Side, ended: Ended) -> InputError:
    reason = (ended.last_line or ended.problem).removeprefix("paceline: ")
    return InputError("cannot-be-measured", f"{side.mark} ({side.label}): {reason}", value=side.label)


@dataclass(frozen=True)
class Limits:
    """How long it may take, and which difference is too small to matter."""

    rounds: int
    budget: float  # seconds
    within: float


@dataclass
class Alternation:
    """Rounds of both sides, stored as they are measured, and what they have decided so far."""

    sides: tuple[Side, Side]
    measure: Measure
    limits: Limits
    records: RunRecords
    store: Store
    metrics: tuple[str, ...] = ()
    comparison: Comparison | None = None  # None until there is a round in which both sides succeeded
    problem: str = ""  # why a measurement of the last round did not succeed
    has_failed: bool = False
    seconds: float = 0.0  # of the rounds that were measured here
    _measured_here: int = 0
    _failed_rounds: int = 0

    def __post_init__(self) -> None:
        self._compare()

    @property
    def rounds(self) -> int:
        """How many rounds have both sides."""
        cases = self.records.run.cases
        last = max((case.repeat for case in cases), default=0)
        marks = {case.title[-2] for case in cases if case.repeat == last}
        return last - (len(marks) == 1)

    @property
    def decisions(self) -> list[tuple[ComparisonRow, Decision]]:
        """Of every case and metric."""
        rows = self.comparison.rows if self.comparison is not None else ()
        within = self.limits.within
        return [(row, decision(row.ratio, row.metric.better, within, is_change=row.is_significant)) for row in rows]

    @property
    def round_seconds(self) -> float:
        """What a round takes; not a number before the first."""
        return self.seconds / self._measured_here if self._measured_here else math.nan

    @property
    def why_ended(self) -> str:
        """Why there is no further round; empty if there is one."""
        if self.comparison is not None and all(one is not Decision.OPEN for _, one in self.decisions):
            return "decided"
        if self._failed_rounds >= FAILED_ROUNDS or (self._failed_rounds and self.comparison is None):
            return "failed"
        if self.rounds >= self.limits.rounds:
            return "rounds"
        return "time" if self._measured_here and self.seconds + self.round_seconds > self.limits.budget else ""

    def measure_round(self) -> None:
        """One more round; in every other one B comes first."""
        number, before, self.problem = self.rounds + 1, self._pairs, ""
        begin = time.monotonic()
        for place, side in enumerate(self.sides if number % 2 else self.sides[::-1]):
            self._keep(self.measure(side), side, number, place)
        self.seconds += time.monotonic() - begin
        self._measured_here += 1
        self._compare()
        self._failed_rounds += self._pairs == before

    def finish(self, status: RunStatus) -> None:
        """Say in the store how it ended, if anything was measured."""
        if self.records.run.cases:
            self.store.finish(self.records.run.id, status)

    @property
    def _pairs(self) -> int:
        return sum(row.parts[0] for row in self.comparison.rows) if self.comparison is not None else 0

    def _keep(self, records: Sequence[Record], side: Side, number: int, place: int) -> None:
        """Store what a side yielded; A and B of a case are next to each other in the run, whichever came first."""
        run, mark = self.records.run, MARKS["AB".index(side.mark)]
        attempts = {record.case.index: record.attempt for record in self.records.records}
        kept = []
        for position, record in enumerate(records):
            index = ((number - 1) * len(records) + position) * 2 + place
            title = f"{_titled(record.case.title, scrub(side.label))}{mark}"
            case = record.case.model_copy(update={"index": index, "repeat": number, "title": title})
            attempt = attempts.get(index, 0) + 1  # a round that was interrupted is measured again
            kept.append(record.model_copy(update={"run_id": run.id, "case": case, "attempt": attempt}))
        planned = {case.index for case in run.cases}
        new = [record.case for record in kept if record.case.index not in planned]
        with interrupts_held():
            if not run.cases:
                self.store.begin(run)
            if new:
                self.store.plan(run.id, new)
            for record in kept:
                self.store.add(record)
            run.cases.extend(new)
        self.records = self.records.with_latest(kept)
        for record in kept:
            if not record.is_success:
                self.has_failed = True
                self.problem = f"{label(record.case)}: {sentence(record)}"

    def _compare(self) -> None:
        try:
            self.comparison = compare_paired(self.records, metrics=self.metrics)
        except InputError as error:
            if error.code != "no-complete-round":
                raise
            self.comparison = None


def _titled(title: str, side: str) -> str:
    """The title with the name of the side, unless it is there already, as the address of a server is."""
    is_there = any(word.rpartition("=")[2] == side for word in title.split())
    return title if is_there else f"{title} {side}".lstrip()
