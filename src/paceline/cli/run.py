"""Measure a suite or one benchmark on this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline.api.cases import find_suite, suite_of_file
from paceline.cli._flags import SUITE, CaseCommand, case_flags, read_flags, read_settings
from paceline.cli._options import complete_cases
from paceline.cli._running import joined_value
from paceline.core.errors import InputError

if TYPE_CHECKING:
    from paceline.analysis.diagnose.early import DefectRules
    from paceline.api.fleet import Plan
    from paceline.core.run import RunRecords
    from paceline.core.suite import Suite

DEFAULT_SUITE = "quick"
FLEET = "fleet-"  # begins the names of runs over a fleet


class RunCommand(CaseCommand):
    """Measures the default suite unless another is named; `--profile` may stand without a folder."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, joined_value(args, lambda words: self.named(ctx, words) is not None))

    def suite(self, what: str | None, args: Sequence[str]) -> Suite | None:
        is_resumed = any(arg.partition("=")[0] == "--resume" for arg in args)
        if what is None:
            return None if is_resumed else find_suite(DEFAULT_SUITE)
        return suite_of_file(what) if what.endswith(".py") else find_suite(what)


@click.command(cls=RunCommand, params=case_flags())
@click.argument("what", required=False, shell_complete=complete_cases)
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override a parameter in every case that has it."
)
@click.option(
    "--only",
    "filters",
    multiple=True,
    metavar="WORDS",
    help="Leave out every case whose name, as --dry-run shows it, does not have all of these; repeat for others.",
)
@click.option(
    "--peer", metavar="NAME", help="After each case, the same under this benchmark, which takes the same parameters."
)
@click.option("--tag", "tags", multiple=True, metavar="NAME", help="Name the run, alone or with others of its kind.")
@click.option(
    "--profile", metavar="[DIR]", help="Trace a few more steps of each model: where the time goes, kernel by kernel."
)
@click.option("--explain", is_flag=True, help="Trace as --profile does, and explain each step as 'paceline explain'.")
@click.option("--store", metavar="PATH|URL", help="Where results go: a SQLite file or postgresql://...")
@click.option("--resume", metavar="RUN", help="Do only what is missing of an earlier run.")
@click.option("--retry-failed", is_flag=True, help="With --resume: also what did not succeed.")
@click.option("--hosts", metavar="A,B:2|FILE", help="Measure over these hosts; :2 means two ranks there.")
@click.option("--each", is_flag=True, help="With --hosts: the whole suite on every host at once, a run for each.")
@click.option(
    "--until-defect", is_flag=True, help="End the check of a machine at the first case that fails or accuses it."
)
@click.option("--rules", type=click.Path(path_type=Path), help="With --until-defect: what accuses, as in `diagnose`.")
@click.option(
    "--baseline", type=click.Path(path_type=Path), help="With --until-defect: what to compare with, as in `diagnose`."
)
@click.option("--remote-shell", metavar="COMMAND", help="How to get to a {host} instead of by ssh.")
@click.option("--remote-python", metavar="PATH", help="The interpreter on the hosts; unset is this one's path.")
@click.option("--master-address", metavar="ADDRESS", help="How the other hosts reach the first.")
@click.option(
    "--affinity",
    metavar="CPUS|auto|isolated",
    help="Pin every process of a case to these CPUs (0-3,8), to one thread of each core, or to isolated ones.",
)
@click.option("--report", "report_path", metavar="PATH", help="Where the HTML report goes.")
@click.option("--no-report", is_flag=True, help="Make no HTML report.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line for every event.")
@click.option("--strict", is_flag=True, help="Refuse a config of SuperBench's that has parts without a counterpart.")
@click.option("--dry-run", is_flag=True, help="Show the cases and about how long they take; measure nothing.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    what: str | None,
    settings: tuple[str, ...],
    filters: tuple[str, ...],
    peer: str | None,
    tags: tuple[str, ...],
    profile: str | None,
    explain: bool,
    store: str | None,
    resume: str | None,
    retry_failed: bool,
    hosts: str | None,
    each: bool,
    until_defect: bool,
    rules: Path | None,
    baseline: Path | None,
    remote_shell: str | None,
    remote_python: str | None,
    master_address: str | None,
    affinity: str | None,
    report_path: str | None,
    no_report: bool,
    as_json: bool,
    strict: bool,
    dry_run: bool,
    **flags: Any,
) -> None:
    """Measure WHAT: a suite by name or file, or one benchmark (default: the suite 'quick').

    Flags named after parameters override them; a value list (a,b) measures every combination.
    """
    from paceline.api.cases import expand_here, left_out, left_out_of_each
    from paceline.api.running import affinity_of, check_tag, folder_of, others, refuse_if_none_can, warm_server
    from paceline.cli import _running

    tracing = "--explain" if explain and profile is None else "--profile"
    profile = "" if explain and profile is None and resume is None else profile
    overrides = read_flags(flags) | read_settings(settings)
    if resume is not None and (what is not None or overrides or peer is not None or tags or filters):
        message = "--resume goes on with a run as it was: leave out the suite, its parameters, --only, --peer and --tag"
        raise InputError("resume-with-other-options", message, key="--resume", value=resume)
    if resume is not None and profile is not None:
        message = "--resume goes on with a run as it was, which traces if that run did: leave out --profile"
        raise InputError("resume-with-profile", message, key="--profile")
    if resume is not None and affinity is not None:
        message = "--resume goes on with a run as it was, on the same CPUs: leave out --affinity"
        raise InputError("resume-with-affinity", message, key="--affinity", value=affinity)
    for tag in tags:
        check_tag(tag)
    if retry_failed and resume is None:
        raise InputError("retry-without-resume", "--retry-failed goes with --resume RUN", key="--retry-failed")
    answer = _explained(as_json=as_json) if explain else None
    output = _running.Output(as_json=as_json, report=not no_report, report_path=report_path, answer=answer)
    if dry_run and resume is not None:
        message = "--dry-run does not go with --resume; 'paceline results' shows what is missing"
        raise InputError("dry-run-with-resume", message, key="--dry-run")
    is_fleet = each or (resume or "").startswith(FLEET)
    until = _what_ends_it(rules, baseline, asked=until_defect, alone=hosts is None or is_fleet)
    if until is not None and until.baseline is None and not is_fleet:
        click.echo("paceline: without --baseline only a case that fails ends the run early", err=True)
    if is_fleet:
        only_here = {
            "--peer": peer, "--explain": explain, "--profile": profile is not None, "--affinity": affinity,
            "--dry-run": dry_run, "--report": report_path, "--master-address": master_address,
        }  # fmt: skip
        if SUITE in ctx.meta:
            _say_what_is_left_out(ctx.meta[SUITE], left_out_of_each(ctx.meta[SUITE]), strict=strict)
        plan = _fleet_plan(ctx, hosts, resume, overrides, filters, tags, remote_shell, remote_python, only_here)
        plan.strict = strict or plan.strict
        from paceline.analysis.diagnose.early import FEWEST
        from paceline.cli import _fleet

        if until is not None and until.baseline is None and len(plan.hosts) < FEWEST:
            few = f"fewer than {FEWEST} nodes are not compared: without --baseline only a case that fails ends a check"
            click.echo(f"paceline: {few} early", err=True)
        sys.exit(_fleet.run(plan, store, as_json=as_json, retry_failed=retry_failed, until=until))
    with others(hosts, remote_shell, remote_python, master_address) as world:
        if SUITE in ctx.meta:
            _say_what_is_left_out(ctx.meta[SUITE], left_out(ctx.meta[SUITE], world), strict=strict)
        output.check()
        cpus = affinity_of(affinity, world)
        if resume is not None:
            sys.exit(_running.resume(resume, store, output, world, retry_failed=retry_failed, until=until))
        traces = folder_of(profile, tracing) if not dry_run else None
        suite: Suite = ctx.meta[SUITE]
        if not dry_run:
            with nullcontext() if world is not None else warm_server(cpus) as warm:
                cases = expand_here(suite, overrides, world, peer, filters)
                if traces is not None:
                    refuse_if_none_can(cases, tracing)
                for sends in dict.fromkeys(case.sends for case in cases if case.sends and not as_json):
                    click.echo(sends, err=True)
                sys.exit(_running.start(suite.name, cases, store, output, world, tags, traces, cpus, warm, until))
        cases = expand_here(suite, overrides, world, peer, filters)
        if profile is not None:
            refuse_if_none_can(cases, tracing)
        for case in cases:
            line = f"{case.index + 1:4}  {case.benchmark:12} {case.title}  on {case.target}"
            click.echo(case.model_dump_json() if as_json else line)
            if case.sends and not as_json:
                click.echo(f"      {case.sends}")
        if not as_json:
            click.echo(_running.foreseen(cases, _running.past_durations(store)), err=True)


def _say_what_is_left_out(suite: Suite, notes: Sequence[str], *, strict: bool) -> None:
    """What of another tool's file has no counterpart, or is not needed, before anything runs."""
    without = _listed(f"parts of '{suite.name}' without a counterpart", notes)
    if without and strict:
        raise InputError("no-counterpart", f"--strict: {without}", key="--strict")
    needless = _listed(f"parts of '{suite.name}' that are not needed here", suite.needless)
    for message in filter(None, (without, needless)):
        click.echo(f"paceline: {message}", err=True)


def _listed(what: str, notes: Sequence[str]) -> str:
    return f"{what} ({len(notes)}):" + "".join(f"\n  {note}" for note in notes) if notes else ""


def _what_ends_it(rules: Path | None, baseline: Path | None, *, asked: bool, alone: bool) -> DefectRules | None:
    """What counts as a defect that ends a check; None where every case is measured."""
    from paceline.api.sources import read_defect_rules
    from paceline.runner.launcher_ranks import World

    given = [("--rules", rules), ("--baseline", baseline)]
    if not asked:
        for flag, path in given:
            if path is not None:
                message = f"{flag} says what ends a check, with --until-defect; afterwards, give it to diagnose"
                raise InputError("rules-without-until", message, key=flag, value=str(path))
        return None
    if not alone or World.of_environment() is not None:
        message = "--until-defect judges machines that measure by themselves: with --hosts use --each, and no launcher"
        raise InputError("until-defect-with-ranks", message, key="--until-defect")
    return read_defect_rules(rules, baseline)


def _fleet_plan(
    ctx: click.Context,
    hosts: str | None,
    resume: str | None,
    overrides: dict[str, Any],
    filters: tuple[str, ...],
    tags: tuple[str, ...],
    remote_shell: str | None,
    remote_python: str | None,
    only_here: dict[str, Any],  # flags of runs on one machine, with their values
) -> Plan:
    """What `--each` is to measure where; what is refused is refused before any host is entered."""
    from paceline.api.cases import expand_here
    from paceline.api.fleet import Plan
    from paceline.runner.hosts import read_hosts

    if flag := next((flag for flag, value in only_here.items() if value), None):
        message = f"{flag} does not go with --each, which runs the suite on every host by itself: leave it out"
        raise InputError("not-with-each", message, key=flag)
    if resume is not None and hosts is not None:
        message = "--resume of a run over a fleet goes on with its own hosts, each with its own run: leave out --hosts"
        raise InputError("resume-with-hosts", message, key="--hosts", value=hosts)
    names = [host.name for host in read_hosts(hosts)] if hosts is not None else []
    ways = {"remote_shell": remote_shell, "remote_python": remote_python, "hosts": names}
    given = {name: value for name, value in ways.items() if value}
    if resume is not None:
        plan = Plan.load(resume).model_copy(update=given)
    elif not names:
        message = "--each goes with --hosts A,B or --hosts FILE, which name the hosts to measure on"
        raise InputError("each-without-hosts", message, key="--each")
    else:
        plan = Plan(suite=ctx.meta[SUITE], overrides=overrides, filters=list(filters), tags=list(tags), **given)
        try:  # what is wrong on any machine is refused once
            expand_here(plan.suite, overrides, None, None, filters)
        except InputError as error:
            if error.code not in ("no-case-left", "no-such-case"):  # hosts may have devices that are not here
                raise
    _ = plan.shell  # which refuses a shell that is none
    return plan


def _explained(*, as_json: bool) -> Callable[[RunRecords], None]:
    """Shows the table of a run's cases, and then where the time of each that was traced went."""

    def answer(records: RunRecords) -> None:
        from paceline.api.sources import known_ceilings
        from paceline.cli.explain import Explaining
        from paceline.report.run.document import show

        ceilings = known_ceilings(records)
        if not as_json:
            show(records, ceilings=ceilings)
        for record in records.records:
            if record.trace is not None and record.trace.spent is not None:
                Explaining(records, record, ceilings, as_json=as_json).show()

    return answer
