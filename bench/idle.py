"""How long the device is idle in a step of each 16-bit row of the suite `zoo`, by a trace, all in one process.

`python -m bench idle --results idle.jsonl` prints a line for each row as it goes and keeps it in the file; what the
file has is not done again, so that the same command goes on where the last one ended, and in the end it says which rows
are left. Each row is made as `paceline run zoo --graph auto` makes it, with the suite's own settings.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import click

from paceline.core.case import Case

IDLE_LIMIT = 0.05  # of a step
TRACED = 2  # steps
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
    took: float = 0.0  # seconds, all of it

    @property
    def is_busy(self) -> bool:
        return self.idle < IDLE_LIMIT

    def __str__(self) -> str:
        graph = "graph" if self.is_graph else "no graph"
        told = f"  {self.why}" if self.why else ""
        return (
            f"{self.name:44} {self.step * 1e3:9.3f} ms  idle {self.idle:6.1%}  (traced {self.traced_idle:6.1%})"
            f"  {graph:8} [{self.took:.1f} s]{told}"
        )


@click.command()
@click.option("--target", default=None, help="the device; the first GPU, otherwise the CPU")
@click.option("--only", multiple=True, help="words in the name of a row; may be given again")
@click.option("--seconds", default=500.0, show_default=True, help="no row begins after so many")
@click.option("--set", "settings", multiple=True, help="NAME=VALUE of a parameter: compile=on, scale=tiny")
@click.option(
    "--results", type=click.Path(path_type=Path, dir_okay=False),
    help="a file of JSON lines; rows that it has are not done again, those that failed are",
)  # fmt: skip
@click.option("--left", "is_asked", is_flag=True, help="only say which rows are left")
def main(
    target: str | None,
    only: tuple[str, ...],
    seconds: float,
    settings: tuple[str, ...],
    results: Path | None,
    is_asked: bool,
) -> None:
    """A line for each row; the exit code is 1 where the device is idle for 5 % of a step or more, or rows are left."""
    from paceline.api.cases import expand_here, find_suite
    from paceline.devices import open_device

    begun = time.monotonic()
    overrides: dict[str, Any] = {"graph": "auto"} | dict(one.split("=", 1) for one in settings)
    overrides |= {"target": target} if target else {}
    cases = {
        _name(case): case for case in expand_here(find_suite("zoo"), overrides, filters=only)
        if case.parameters["precision"] in SIXTEEN_BITS
    }  # fmt: skip
    if not cases:
        raise click.BadParameter(f"'{' '.join(only)}' is in the name of no row of 16 bits")
    lines = results.read_text(encoding="utf-8").splitlines() if results is not None and results.exists() else []
    rows = {row.name: row for row in (Row(**json.loads(line)) for line in lines) if row.name in cases}
    some = next(iter(cases.values()))
    device = open_device(some.target)
    compiled = sorted({case.parameters["compile"] for case in cases.values()})
    click.echo(
        f"{len(cases)} rows on {device.name}, compile {' and '.join(compiled)}, graph auto; {len(rows)} done before"
    )
    failed = {}
    for name, case in cases.items():
        if is_asked or time.monotonic() - begun > seconds:
            break
        if name in rows:
            continue
        since = time.monotonic()
        try:
            row = replace(idle_row(case), took=time.monotonic() - since)
        except Exception as error:  # one row must not cost the others
            failed[name] = f"{type(error).__name__}: {str(error)[:200]}"
            click.echo(f"{name:44} failed: {failed[name]}")
        else:
            rows[name] = row
            click.echo(str(row))
            if results is not None:
                with results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(row)) + "\n")
        gc.collect()
        device.release_memory()
    busy = [row for row in rows.values() if row.is_busy]
    click.echo(f"idle below {IDLE_LIMIT:.0%} in {len(busy)} of {len(rows)} rows, {len(failed)} failed now")
    for row in rows.values():
        if not row.is_busy:
            click.echo(f"above: {row.name} {row.idle:.1%}: {row.why or 'no reason is known'}")
    left = [name for name in cases if name not in rows]
    if left:
        again = "the same command goes on" if results else "with --results FILE, the same command goes on"
        click.echo(f"left are {len(left)} rows; {again}: {', '.join(left)}")
    raise SystemExit(1 if left or len(busy) < len(rows) else 0)


def _name(case: Case) -> str:
    return f"{case.benchmark} {case.title}"


def idle_row(case: Case) -> Row:
    """A row of the suite; one that is idle for long also with twice the batch."""
    row, batch = _idle(case)
    if row.is_busy or case.target == "cpu":
        return row
    gc.collect()
    try:
        larger, size = _idle(case.model_copy(update={"parameters": case.parameters | {"batch_size": 2 * batch}}))
    except Exception as error:  # the row itself is measured
        return replace(row, why=f"{row.why}; with a batch of {2 * batch}: {type(error).__name__}")
    return replace(row, why=f"{row.why}; with a batch of {size} {larger.idle:.1%}")


def _idle(case: Case) -> tuple[Row, int]:
    """Make the step of a case as its benchmark does, time it, and trace it; with the size of its batch."""
    from paceline.core.subject import StepTrace
    from paceline.core.trace_events import IDLE, TimeSpent, read_events, time_spent
    from paceline.measure import loop, trace

    with prepared(case) as made:
        session, step = made.session, made.step
        device, in_flight = session.device, session.in_flight
        quick = session.parameters.model_copy(update={"budget": MEASURED, "span": 0.0})
        measured = median(loop.measure(step, device.timeline(in_flight), quick).samples)
        on_device = device.kind.is_accelerator

        def traced(in_flight: int) -> TimeSpent:
            steps = min(TRACED, trace.steps_to_trace(measured))
            taken = trace.take(step, device, steps=steps, in_flight=in_flight)
            queue = on_device and in_flight > 1
            spent = time_spent(read_events(taken), on_device=on_device, steps_queue=queue)
            if spent is None:
                raise LookupError("the profiler saw no work")
            return spent

        cost = _launch_cost(device) if session.is_graph else 0.0
        spent = traced(in_flight)
        idle = StepTrace(spent=spent, launch_cost=cost).idle(measured) / measured
        reasons = [f"{spent.launches:.0f} kernels of {(1.0 - idle) * measured / max(1.0, spent.launches) * 1e6:.1f} us"]
        if not session.is_graph:
            reasons.append(f"no graph because {session.facts.get('no_graph_because', 'it is off')}")
        if idle >= IDLE_LIMIT and in_flight == 1 and on_device:
            queued = StepTrace(spent=traced(2), launch_cost=cost)
            assert queued.spent is not None
            part = queued.gaps / queued.spent.step_seconds
            reasons.append(f"each step is waited for before the next is issued; with two in flight {part:.1%}")
        why = "; ".join(reasons) if idle >= IDLE_LIMIT else ""
        row = Row(_name(case), measured, idle, spent.shares.get(IDLE, 0.0), session.is_graph, why)
        return row, session.parameters.batch_size or session.spec.batch_size


@dataclass(frozen=True)
class Prepared:
    """The session of a case, the step that it would measure, and what its first steps gave."""

    session: Any
    step: Step
    first: Any  # losses of training, the output of inference


@contextmanager
def prepared(case: Case) -> Iterator[Prepared]:
    """A case made as its benchmark makes it, up to the measurement."""
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
        first = [taker.step() for _ in range(FIRST_STEPS)]
        capture = taker.capture if is_training else lambda: device.capture(taker.step)
        yield Prepared(session, as_graph(session, taker.step, capture), first if is_training else first[-1])


_launch_costs: dict[str, float] = {}


def _launch_cost(device: Any) -> float:
    """What tracing adds before each kernel of a graph, measured once for a device."""
    from paceline.measure import trace

    if device.name not in _launch_costs:
        _launch_costs[device.name] = trace.launch_cost(device)
    return _launch_costs[device.name]
