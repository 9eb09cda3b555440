"""Simulate a cluster: how soon tasks are completed under several schedulers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli._answers import give

if TYPE_CHECKING:
    from paceline.analysis.simulation import Study
    from paceline.service.simulate import SimulationRequest

FORMATS = {
    "html": "a self-contained page",
    "md": "Markdown",
    "csv": "one row for each policy, workload and load",
    "json": "for programs",
    "png": "the comparison as a picture",
}
_WORKLOADS = "exponential,lognormal,bimodal"
_COUNT = click.IntRange(1, 100_000_000)
_SEEDS = click.IntRange(1, 10_000)


def _format_options(function: click.decorators.FC) -> click.decorators.FC:
    for name, what in reversed(FORMATS.items()):
        function = click.option(f"--{name}", is_flag=True, help=f"{what[0].upper()}{what[1:]}.")(function)
    return function


@click.command()
@click.option(
    "--workload", metavar="NAMES|FILE", default=_WORKLOADS, show_default=True, help="Durations, or a trace as CSV."
)
@click.option("--load", metavar="LOADS", help="Work that comes over what the followers can do.  [default: 0.5,0.7,0.9]")
@click.option("--followers", type=_COUNT, default=4, show_default=True, help="Followers, all alike.")
@click.option("--devices", type=click.IntRange(1, 1024), default=1, show_default=True, help="Devices of each follower.")
@click.option("--jobs", type=_COUNT, help="Tasks of a generated workload.  [default: 1000]")
@click.option(
    "--error",
    type=click.FloatRange(0, 5),
    default=0.3,
    show_default=True,
    help="How far predicted durations are off: the deviation of the logarithm.",
)
@click.option(
    "--policy", metavar="NAMES", help="Only these of round-robin, least-loaded, sjf, two-tier and clairvoyant."
)
@click.option("--seeds", type=_SEEDS, default=20, show_default=True, help="How many workloads of each sort.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="The first seed.")
@_format_options
@click.option("-o", "--output", metavar="PATH", help="Where to write; '-' is standard output.")
def command(
    workload: str,
    load: str | None,
    followers: int,
    devices: int,
    jobs: int | None,
    error: float,
    policy: str | None,
    seeds: int,
    seed: int,
    output: str | None,
    **chosen: bool,
) -> None:
    """Simulate a cluster under several schedulers, Paceline's own among them, on the same tasks.

    A workload is exponential, lognormal or bimodal, or the path of a CSV file with the columns submitted and seconds;
    predicted, priority, devices, nodes, whole_node and cpu_heavy may follow.
    """
    from paceline.report.simulate import document as report

    kind = _kind([name for name in FORMATS if chosen[name]], output)
    question = _question(workload, load, followers, devices, jobs, error, policy, range(seed, seed + seeds))
    found = _answered(question)
    data = {"csv": lambda: report.to_csv(found), "json": lambda: report.to_json(found)}
    give(report.document(found), kind, output, "paceline-simulation", data)


def _kind(chosen: list[str], output: str | None) -> str | None:
    if len(chosen) > 1:
        raise click.UsageError(f"--{' and --'.join(chosen)} exclude each other; choose one")
    if chosen or output is None:
        return chosen[0] if chosen else None
    kind = Path(output).suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise click.UsageError(f"'{output}' does not tell the format; add one of --{', --'.join(FORMATS)}")
    return kind


def _question(
    workload: str,
    load: str | None,
    followers: int,
    devices: int,
    jobs: int | None,
    error: float,
    policy: str | None,
    seeds: range,
) -> SimulationRequest:
    from paceline.core.errors import InputError, unknown
    from paceline.service.simulate import POLICIES, WORKLOADS, Fleet, SimulationRequest

    names = _words(workload)
    is_trace = len(names) == 1 and names[0] not in WORKLOADS and ("." in workload or "/" in workload)
    if is_trace and (load is not None or jobs is not None):
        flag = "--load" if load is not None else "--jobs"
        raise InputError("own-load-of-a-trace", f"{flag} does not go with a trace, which has its own", key=flag)
    policies = _words(policy) if policy else list(POLICIES)
    for name, known, what in [(name, POLICIES, "policy") for name in policies] + [
        (name, WORKLOADS, "workload") for name in names if not is_trace
    ]:
        if name not in known:
            raise unknown(what, name, known, key=f"--{what}")
    return SimulationRequest(
        workloads=names,
        loads=_loads(load or "0.5,0.7,0.9"),
        fleet=Fleet(followers, devices),
        jobs=jobs or 1000,
        error=error,
        policies=policies,
        seeds=seeds,
        trace=Path(workload) if is_trace else None,
    )


def _words(text: str) -> list[str]:
    return list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def _loads(text: str) -> list[float]:
    from paceline.core.errors import InputError
    from paceline.core.quantity import parse_fraction

    loads = []
    for word in _words(text):
        try:
            loads.append(parse_fraction(word))
        except ValueError as problem:
            raise InputError("not-a-fraction", str(problem), where="--load", key="--load", value=word) from None
        if not 0 < loads[-1] <= 10:
            message = f"--load {word} must be more than 0 and at most 10; beyond 1 tasks pile up"
            raise InputError("out-of-range", message, key="--load", value=word)
    if not loads:
        raise InputError("no-loads", "--load names no load; write it like 0.5,0.7,0.9", key="--load", value=text)
    return loads


def _answered(question: SimulationRequest) -> Study:
    """The study, with a line of progress on a terminal."""
    from paceline.service.simulate import study

    if not sys.stderr.isatty():
        return study(question)
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        return study(question, lambda text: status.update(text))
