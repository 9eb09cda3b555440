"""Measure a suite or one benchmark on this machine."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from paceline.cli._ab import read_pairs
from paceline.cli._flags import case_flags, flags_of, read_flags, read_settings
from paceline.cli._running import folder_of, joined_value, refuse_if_none_can
from paceline.core.errors import InputError, unknown

if TYPE_CHECKING:
    from paceline.core.suite import Suite

DEFAULT_SUITE = "quick"
SUITE = "paceline.suite"
FLAGS = "paceline.flags"


class RunCommand(click.Command):
    """A command whose flags depend on what is run."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), *ctx.meta.get(FLAGS, [])]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            args = joined_value(args, lambda words: self._named(ctx, words) is not None)
            resumed = "--resume" in args or any(arg.startswith("--resume=") for arg in args)
            what = self._named(ctx, args) or (None if resumed else DEFAULT_SUITE)
            if what is not None:
                suite = find_suite(what)
                ctx.meta[SUITE] = suite
                names = dict.fromkeys(str(entry.get("benchmark")) for entry in suite.cases)
                ctx.meta[FLAGS] = flags_of(_fields_of(names), required=not suite.is_written)
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            flags = [flag for option in self.get_params(ctx) for flag in option.opts if flag.startswith("-")]
            raise unknown("flag", error.option_name, flags, key=error.option_name) from None
        except click.UsageError as error:  # one line, as for every other mistake
            raise InputError("usage", error.format_message()) from None

    def _named(self, ctx: click.Context, args: Sequence[str]) -> str | None:
        """The first argument that is neither a flag nor the value of one."""
        if args and not args[0].startswith("-"):
            return args[0]
        fixed = {name for option in self.params if isinstance(option, click.Option) for name in option.opts}
        # To import every benchmark takes most of the time in which a run starts.
        may_have_others = any(arg.startswith("-") and arg.partition("=")[0] not in fixed for arg in args)
        ctx.meta[FLAGS] = flags_of(_every_field()) if may_have_others else []
        parser = self.make_parser(ctx)
        parser.ignore_unknown_options = True
        values, others, _ = parser.parse_args(list(args))
        words = (word for word in (values["what"], *others) if isinstance(word, str))  # unknown flags among them
        return next((word for word in words if not word.startswith("-")), None)


@click.command(cls=RunCommand, params=case_flags())
@click.argument("what", required=False)
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
@click.option(
    "--ab",
    "sides",
    multiple=True,
    metavar="KEY=VALUE,...",
    help="Given twice, for A and for B: measure both in alternation, and compare them round by round.",
)
@click.option("--rounds", type=int, metavar="N", help="With --ab: how often each side is measured; unset is 6.")
@click.option("--tag", "tags", multiple=True, metavar="NAME", help="Name the run, alone or with others of its kind.")
@click.option(
    "--profile", metavar="[DIR]", help="Trace a few more steps of each model: where the time goes, kernel by kernel."
)
@click.option("--store", metavar="PATH|URL", help="Where results go: a SQLite file or postgresql://...")
@click.option("--resume", metavar="RUN", help="Do only what is missing of an earlier run.")
@click.option("--retry-failed", is_flag=True, help="With --resume: also what did not succeed.")
@click.option("--hosts", metavar="A,B:2|FILE", help="Measure over these hosts; :2 means two ranks there.")
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
@click.option("--dry-run", is_flag=True, help="Show the cases and measure nothing.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    what: str | None,
    settings: tuple[str, ...],
    filters: tuple[str, ...],
    peer: str | None,
    sides: tuple[str, ...],
    rounds: int | None,
    tags: tuple[str, ...],
    profile: str | None,
    store: str | None,
    resume: str | None,
    retry_failed: bool,
    hosts: str | None,
    remote_shell: str | None,
    remote_python: str | None,
    master_address: str | None,
    affinity: str | None,
    report_path: str | None,
    no_report: bool,
    as_json: bool,
    dry_run: bool,
    **flags: Any,
) -> None:
    """Measure WHAT: a suite by name or file, or one benchmark (default: the suite 'quick').

    Flags named after parameters override them; a value list (a,b) measures every combination.
    """
    from paceline.cli import _running

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
        if not tag.strip() or not tag.isprintable():
            message = f"--tag {tag!r} is not a name: give one that can be read and typed, such as nightly"
            raise InputError("invalid-tag", message, key="--tag", value=tag)
    paired = read_pairs(sides, rounds, overrides)
    if paired is not None and (resume is not None or peer is not None):
        message = "--ab goes with neither --resume, which goes on in alternation by itself, nor --peer"
        raise InputError("ab-with-resume-or-peer", message, key="--ab")
    if retry_failed and resume is None:
        raise InputError("retry-without-resume", "--retry-failed goes with --resume RUN", key="--retry-failed")
    output = _running.Output(as_json=as_json, report=not no_report, report_path=report_path)
    if dry_run and resume is not None:
        message = "--dry-run does not go with --resume; 'paceline results' shows what is missing"
        raise InputError("dry-run-with-resume", message, key="--dry-run")
    with _running.others(hosts, remote_shell, remote_python, master_address) as world:
        output.check()
        cpus = _running.affinity(affinity, world)
        if resume is not None:
            sys.exit(_running.resume(resume, store, output, world, retry_failed=retry_failed))
        traces = folder_of(profile) if not dry_run else None
        suite: Suite = ctx.meta[SUITE]
        cases = _running.expand_here(suite, overrides, world, peer, paired, filters)
        if not dry_run:
            sys.exit(_running.start(suite.name, cases, store, output, world, tags, traces, cpus))
        if profile is not None:
            refuse_if_none_can(cases)
        for case in cases:
            line = f"{case.index + 1:4}  {case.benchmark:12} {case.title}  on {case.target}"
            click.echo(case.model_dump_json() if as_json else line)


def find_suite(what: str) -> Suite:
    """A suite file, a suite that ships, or a benchmark as a suite of one case."""
    from paceline.core.benchmark import BENCHMARKS
    from paceline.core.suite import Suite
    from paceline.runner.suite_file import load_suite, shipped

    if "/" in what or what.endswith((".yaml", ".yml")) or what in shipped():
        return load_suite(what)
    with suppress(InputError):
        return Suite.of_benchmark(BENCHMARKS.get(what).name)
    benchmarks = BENCHMARKS.registry()
    if any(what in failure.module for failure in benchmarks.broken):
        benchmarks.get(what)
    raise unknown("suite or benchmark", what, [*shipped(), *benchmarks.entries])


def _fields_of(benchmarks: Iterable[str]) -> dict[str, Any]:
    """The parameters of these benchmarks, once each."""
    from paceline.core.benchmark import BENCHMARKS

    fields: dict[str, Any] = {}
    for name in benchmarks:
        with suppress(InputError):  # reported when the suite is expanded
            for key, field in BENCHMARKS.get(name).Parameters.model_fields.items():
                fields.setdefault(key, field)
    return fields


def _every_field() -> dict[str, Any]:
    from paceline.core.benchmark import BENCHMARKS

    return _fields_of(BENCHMARKS.registry().entries)
