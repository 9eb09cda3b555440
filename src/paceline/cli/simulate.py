"""Simulate a cluster: how soon tasks are completed under several schedulers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import click

from paceline.cli._options import FORMATS, Answer, FiniteRange, duration_of, format_options, value_of
from paceline.core.errors import InputError, unknown
from paceline.core.quantity import parse_fraction, parse_rate

_FORMATS = FORMATS | {"csv": "One row for each policy, workload and load.", "png": "The comparison as a picture."}
_Study = TypeVar("_Study")
_COUNT = click.IntRange(1, 100_000_000)


@click.group("simulate", invoke_without_command=True)
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
    type=FiniteRange(0, 5),
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
@click.pass_context
def command(
    context: click.Context,
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
    """Simulate a cluster under several schedulers, Paceline's own among them, on the same tasks; or a fleet.

    A workload is exponential, lognormal or bimodal, or the path of a CSV file with the columns submitted and seconds;
    predicted, priority, devices, nodes, whole_node and cpu_heavy may follow.
    """
    if context.invoked_subcommand is not None:
        return
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
    results = _with_progress(simulate)
    data = {"csv": lambda: report.to_csv(results), "json": lambda: report.to_json(results)}
    answer.give(report.document(results), "paceline-simulation", data)


@command.command("fleet")
@click.option("--nodes", type=click.IntRange(2, 20_000), default=200, show_default=True, help="Nodes of the fleet.")
@click.option(
    "--defects-after", metavar="TIME", default="100d", show_default=True, help="Mean time until a node is defective."
)
@click.option(
    "--incident-after", metavar="TIME", default="30d", show_default=True, help="From a defect until a job runs into it."
)
@click.option("--sudden", type=FiniteRange(0, 1), default=0.05, show_default=True, help="Defects that show at once.")
@click.option("--every", type=click.IntRange(1, 365), default=7, show_default=True, help="Days between checks.")
@click.option("--checks", type=click.IntRange(1, 1000), default=26, show_default=True, help="That are compared.")
@click.option("--learning", type=click.IntRange(0, 1000), default=26, show_default=True, help="Checks before them.")
@click.option("--budget", type=FiniteRange(0, 1), default=0.15, show_default=True, help="Of the time of the whole set.")
@click.option("--policy", metavar="NAMES", help="Only these of none, whole set, fixed subset, random subset, selector.")
@click.option("--seeds", type=click.IntRange(1, 10_000), default=10, show_default=True, help="How many fleets.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="The first seed.")
@format_options({name: FORMATS[name] for name in ("html", "md", "json")})
def fleet(
    nodes: int,
    defects_after: str,
    incident_after: str,
    sudden: float,
    every: int,
    checks: int,
    learning: int,
    budget: float,
    policy: str | None,
    seeds: int,
    seed: int,
    answer: Answer,
) -> None:
    """Simulate a fleet whose nodes become defective, under several policies of validation: incidents, machine hours."""
    from paceline.analysis import simulation
    from paceline.report import select as report

    policies = _words(policy) if policy else list(simulation.POLICIES)
    for name in policies:
        if name not in simulation.POLICIES:
            raise unknown("policy", name, simulation.POLICIES, key="--policy")
    settings = simulation.FleetSettings(
        nodes=nodes,
        rate=1 / _days("--defects-after", defects_after),
        lasts=_days("--incident-after", incident_after),
        sudden=sudden,
    )
    plan = simulation.FleetPlan(every=every, learning=learning, checks=checks, budget=budget)
    results = _with_progress(partial(simulation.study, settings, plan, policies, range(seed, seed + seeds)))
    answer.give(report.study_document(results), "paceline-fleet", {"json": lambda: report.study_json(results)})


@command.command("trace")
@click.option(
    "--form",
    type=click.Choice(["mooncake", "azure", "burstgpt"]),
    default="mooncake",
    show_default=True,
    help="Whose traces it is like; only Mooncake's have prefixes.",
)
@click.option("--requests", type=_COUNT, default=1000, show_default=True, help="How many.")
@click.option("--rate", metavar="RATE", default="2/s", show_default=True, help="Of arrivals, on average.")
@click.option(
    "--burstiness",
    type=FiniteRange(0.01, 1000),
    default=1.0,
    show_default=True,
    help="Shape of gamma gaps: 1 is Poisson, less comes in bursts.",
)
@click.option(
    "--prompt-tokens", metavar="LENGTHS", default="lognormal(2000, 0.8)", show_default=True, help="Of prompts."
)
@click.option(
    "--output-tokens", metavar="LENGTHS", default="lognormal(200, 0.6)", show_default=True, help="Of answers."
)
@click.option(
    "--prefix-share",
    metavar="SHARE",
    default="40%",
    show_default=True,
    help="Tokens that a cache without limits knows from earlier prompts, in blocks of 512.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of what is drawn.")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, writable=True, path_type=Path), required=True, help="The file."
)
def trace(
    form: str,
    requests: int,
    rate: str,
    burstiness: float,
    prompt_tokens: str,
    output_tokens: str,
    prefix_share: str,
    seed: int,
    output: Path,
) -> None:
    """Write a trace of requests to a language model, for --load '{arrival: trace, file: FILE}'."""
    from paceline.load.arrivals import FORMS, drawn_trace, statistics
    from paceline.load.distribution import Distribution

    share = value_of("--prefix-share", prefix_share, parse_fraction)
    drawn = drawn_trace(
        requests,
        value_of("--rate", rate, parse_rate),
        burstiness,
        value_of("--prompt-tokens", prompt_tokens, Distribution.parse),
        value_of("--output-tokens", output_tokens, Distribution.parse),
        share if form == "mooncake" else 0.0,
        seed,
    )
    try:
        output.write_text(FORMS[form](drawn))
    except OSError as error:
        message = f"-o {output} cannot be written: {error.strerror}"
        raise InputError("unwritable-file", message, key="--output", value=str(output)) from None
    click.echo(f"{output}: {statistics(drawn)}")


def _days(flag: str, text: str) -> float:

    days = duration_of(flag, text).total_seconds() / 86400
    if days < 1:
        raise InputError("out-of-range", f"{flag} {text} must be a day or more, such as 100d", key=flag, value=text)
    return days


def _with_progress(simulate: Callable[..., _Study]) -> _Study:
    """The result, with a line of progress where somebody sees it."""
    if not sys.stderr.isatty():
        return simulate()
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        return simulate(progress=lambda text: status.update(text))


def _words(text: str) -> list[str]:
    return list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def _loads(text: str) -> list[float]:

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
