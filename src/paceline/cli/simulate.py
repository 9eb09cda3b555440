"""Simulate a cluster: how soon tasks are completed under several schedulers."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import click

from paceline.cli._answers import FORMATS, Answer, format_options

_FORMATS = FORMATS | {"csv": "One row for each policy, workload and load.", "png": "The comparison as a picture."}
_COUNT = click.IntRange(1, 100_000_000)


@click.command()
@click.option(
    "--workload",
    metavar="NAMES|FILE",
    default="exponential,lognormal,bimodal",
    show_default=True,
    help="Durations, or a trace as CSV.",
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
@click.option(
    "--seeds", type=click.IntRange(1, 10_000), default=20, show_default=True, help="How many workloads of each kind."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="The first seed.")
@format_options(_FORMATS)
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
    answer: Answer,
) -> None:
    """Simulate a cluster under several schedulers, Paceline's own among them, on the same tasks.

    A workload is exponential, lognormal or bimodal, or the path of a CSV file with the columns submitted and seconds;
    predicted, priority, devices, nodes, whole_node and cpu_heavy may follow.
    """
    from paceline.core.errors import InputError, unknown
    from paceline.report import simulate as report
    from paceline.service.simulate import POLICIES, WORKLOADS, Fleet, study

    workloads = _words(workload)
    is_trace = len(workloads) == 1 and workloads[0] not in WORKLOADS and ("." in workload or "/" in workload)
    if is_trace and (load is not None or jobs is not None):
        flag = "--load" if load is not None else "--jobs"
        raise InputError("own-load-of-a-trace", f"{flag} does not go with a trace, which has its own", key=flag)
    policies = _words(policy) if policy else list(POLICIES)
    for what, names, valid in (("policy", policies, POLICIES), ("workload", workloads, WORKLOADS)):
        for name in names:
            if name not in valid and not (what == "workload" and is_trace):
                raise unknown(what, name, valid, key=f"--{what}")
    simulate = partial(
        study,
        workloads=workloads,
        loads=_loads(load or "0.5,0.7,0.9"),
        fleet=Fleet(followers, devices),
        jobs=jobs or 1000,
        error=error,
        policies=policies,
        seeds=range(seed, seed + seeds),
        trace=Path(workload) if is_trace else None,
    )
    if sys.stderr.isatty():
        from rich.console import Console

        with Console(stderr=True).status("") as status:  # a line of progress
            results = simulate(progress=lambda text: status.update(text))
    else:
        results = simulate()
    data = {"csv": lambda: report.to_csv(results), "json": lambda: report.to_json(results)}
    answer.give(report.document(results), "paceline-simulation", data)


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
        raise InputError("no-loads", "--load has no value; write it like 0.5,0.7,0.9", key="--load", value=text)
    return loads
