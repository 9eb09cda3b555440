"""How long the device is idle in a step of each 16-bit row of the suite `zoo`, by a trace, all in one process.

`python -m bench idle --only 'train resnet50' --seconds 500` prints a line for each row as it goes, and when its time is
up which row is next. Each row is made as `paceline run zoo --graph auto` makes it, with the suite's own settings.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from statistics import median
from typing import Any

import click

from paceline.core.case import Case

IDLE_LIMIT = 0.05  # of a step
MEASURED = 0.2  # seconds of steps that are timed before some are traced
FIRST_STEPS = 3  # that initialise what later steps use
SIXTEEN_BITS = ("fp16", "bf16")
Step = Callable[[], object]


@dataclass(frozen=True)
class Row:
    """One row of the suite, and what its device did in a step."""

    name: str
    step: float  # seconds, measured without a profiler
    idle: float  # share of it
    traced_idle: float  # share of a traced step, with what tracing itself adds
    is_graph: bool
    why: str = ""

    def __str__(self) -> str:
        graph = "graph" if self.is_graph else "no graph"
        told = f"  {self.why}" if self.why else ""
        return (
            f"{self.name:44} {self.step * 1e3:9.3f} ms  idle {self.idle:6.1%}  (traced {self.traced_idle:6.1%})"
            f"  {graph:8}{told}"
        )


@click.command()
@click.option("--target", default=None, help="the device; the first GPU, otherwise the CPU")
@click.option("--only", multiple=True, help="words in the name of a row; may be given again")
@click.option("--skip", default=0, help="so many rows that were done before")
@click.option("--seconds", default=540.0, help="no row begins after so many")
@click.option("--set", "settings", multiple=True, help="NAME=VALUE of a parameter: compile=on, scale=tiny")
def main(target: str | None, only: tuple[str, ...], skip: int, seconds: float, settings: tuple[str, ...]) -> None:
    """A line for each row; the exit code is 1 where the device is idle for 5 % of a step or more."""
    from paceline.api.cases import expand_here, find_suite
    from paceline.devices import open_device

    begun = time.monotonic()
    overrides: dict[str, Any] = {"graph": "auto"} | dict(one.split("=", 1) for one in settings)
    overrides |= {"target": target} if target else {}
    cases = [
        case for case in expand_here(find_suite("zoo"), overrides, filters=only)
        if case.parameters["precision"] in SIXTEEN_BITS
    ]  # fmt: skip
    if not cases:
        raise click.BadParameter(f"'{' '.join(only)}' is in the name of no row of 16 bits")
    device = open_device(cases[0].target)
    compiled = sorted({case.parameters["compile"] for case in cases})
    click.echo(f"{len(cases)} rows on {device.name}, compile {' and '.join(compiled)}, graph auto")
    rows: list[Row] = []
    failed, done = 0, skip
    for number, case in enumerate(cases[skip:], start=skip):
        if time.monotonic() - begun > seconds:
            click.echo(f"out of time; next is row {number} ({_name(case)}): go on with --skip {number}")
            break
        done = number + 1
        since = time.monotonic()
        try:
            rows.append(idle_row(case))
            click.echo(f"{number:3} {rows[-1]}  [{time.monotonic() - since:.1f} s]")
        except Exception as error:  # one row must not cost the others
            failed += 1
            click.echo(f"{number:3} {_name(case):44} failed: {type(error).__name__}: {str(error)[:200]}")
        gc.collect()
        device.release_memory()
    busy = [row for row in rows if row.idle < IDLE_LIMIT]
    click.echo(f"rows {skip} to {done - 1}: idle below {IDLE_LIMIT:.0%} in {len(busy)} of {len(rows)}, {failed} failed")
    for row in rows:
        if row not in busy:
            click.echo(f"above: {row.name} {row.idle:.1%}: {row.why or 'no reason is known'}")
    raise SystemExit(1 if failed or len(busy) < len(rows) else 0)


def _name(case: Case) -> str:
    return f"{case.benchmark} {case.title}"


def idle_row(case: Case) -> Row:
    """Make the step of a case as its benchmark does, time it, and trace it."""
    from paceline.core.subject import StepTrace
    from paceline.core.trace_events import IDLE, TimeSpent, read_events, time_spent
    from paceline.measure import loop, trace

    with _prepared(case) as (session, step):
        device, in_flight = session.device, session.in_flight
        quick = session.parameters.model_copy(update={"budget": MEASURED, "span": 0.0})
        measured = median(loop.measure(step, device.timeline(in_flight), quick).samples)
        on_device = device.kind.is_accelerator

        def traced(in_flight: int) -> TimeSpent:
            taken = trace.take(step, device, steps=trace.steps_to_trace(measured), in_flight=in_flight)
            queue = on_device and in_flight > 1
            spent = time_spent(read_events(taken), on_device=on_device, steps_queue=queue)
            if spent is None:
                raise LookupError("the profiler saw no work")
            return spent

        cost = _launch_cost(device) if session.is_graph else 0.0
        spent = traced(in_flight)
        found = StepTrace(spent=spent, launch_cost=cost)
        idle = found.idle(measured) / measured
        reasons = []
        if idle >= IDLE_LIMIT and not session.is_graph:
            reasons.append(f"no graph because {session.facts.get('no_graph_because', 'it is off')}")
        if idle >= IDLE_LIMIT and in_flight == 1 and on_device:
            queued = StepTrace(spent=traced(2), launch_cost=cost)
            assert queued.spent is not None
            part = queued.gaps / queued.spent.step_seconds
            reasons.append(f"each step is waited for before the next is issued; with two in flight {part:.1%}")
        return Row(_name(case), measured, idle, spent.shares[IDLE], session.is_graph, "; ".join(reasons))


@contextmanager
def _prepared(case: Case) -> Iterator[tuple[Any, Step]]:
    """The session of a case and the step that it would measure."""
    import torch

    from paceline.benchmarks._model.session import as_graph, open_session
    from paceline.benchmarks.inference.inference import Predictor
    from paceline.benchmarks.ranks import Ranks
    from paceline.benchmarks.training.train import Trainer
    from paceline.core.benchmark import BENCHMARKS
    from paceline.devices import open_device
    from paceline.models.sources import find_model

    parameters: Any = BENCHMARKS.get(case.benchmark).Parameters.read(case.parameters)
    spec, device = find_model(parameters.model, allow_import=False), open_device(case.target)
    is_training = case.benchmark == "train"
    with nullcontext() if is_training else torch.inference_mode():
        session = open_session(spec, parameters, device, Ranks(0, 1), "train" if is_training else "inference")
        taker: Any = (Trainer if is_training else Predictor)(session)
        taker.load(parameters.batch_size or spec.batch_size)
        for _ in range(FIRST_STEPS):
            taker.step()
        capture = taker.capture if is_training else lambda: device.capture(taker.step)
        yield session, as_graph(session, taker.step, capture)


_launch_costs: dict[str, float] = {}


def _launch_cost(device: Any) -> float:
    """What tracing adds before each kernel of a graph, measured once for a device."""
    from paceline.measure import trace

    if device.name not in _launch_costs:
        _launch_costs[device.name] = trace.launch_cost(device)
    return _launch_costs[device.name]
