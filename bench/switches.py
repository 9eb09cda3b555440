"""What `explain` predicts of each switch beside what switching gives, in turns in one process.

`python -m bench switches --target cuda:0 --results switches.jsonl` mends the planted kinds of slowness, then switches
settings of five models that begin slow. A line for each goes to the terminal and to the file as soon as it is known;
what the file has is not measured again, so that the same command goes on after any end.
"""

from __future__ import annotations

import gc
import json
import math
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING, Any

import click

from bench import planted
from bench.idle import Prepared, prepared
from paceline.analysis.explain import MOST_GAIN, Candidate, candidates, traced_case
from paceline.analysis.roofline import KnownCeilings, shown_by
from paceline.core.benchmark import BENCHMARKS, Context, described
from paceline.core.case import Case
from paceline.core.environment import Environment
from paceline.core.profile import Ceiling
from paceline.core.quantity import show_duration
from paceline.core.record import Outcome, Record
from paceline.core.run import Run, RunRecords
from paceline.core.stats import student_quantile
from paceline.devices import Device, open_device
from paceline.measure.loop import quiet_collector

if TYPE_CHECKING:
    from torch import Tensor

NEAR = 0.3  # how far prediction and measurement may be apart
ENOUGH = 5  # switches that are to be near
ROUNDS = 8
SHORT = {"budget": "1s", "warm_up": "1s", "span": "0s"}
UNPREDICTED = ("recompilation",)  # nothing tells what it costs
SLOW = {"compile": "off", "graph": "off", "channels_last": "off"}
MODELS: tuple[dict[str, Any], ...] = (  # those of a GPU; on a CPU they are tiny, in fp32, with the second batch
    {"benchmark": "train", "model": "gpt2-medium", "precision": "bf16", "batch_size": (32, 2)},
    {"benchmark": "train", "model": "bert-large", "precision": "tf32", "batch_size": (24, 2)},
    {"benchmark": "train", "model": "resnet50", "precision": "fp16", "batch_size": (192, 8)},
    {"benchmark": "inference", "model": "resnet50", "precision": "fp16", "batch_size": (64, 8)},
    {"benchmark": "inference", "model": "gpt2-small", "precision": "fp16", "batch_size": (8, 2)},
    {"benchmark": "inference", "model": "resnet50", "precision": "fp16", "batch_size": (64, 8), "compile": "on",
     "frozen": "off"},
)  # fmt: skip


@dataclass(frozen=True)
class Switched:
    """One switch: what was predicted and what was measured, both as how many times as fast."""

    name: str
    switch: str
    target: str
    device: str
    predicted: float | None
    measured: float | None = None
    low: float | None = None
    high: float | None = None
    agreement: str = ""  # whether it still computes the same, or why it was not measured
    explained: float | None = None  # seconds of the step from which it was predicted
    slow: float | None = None  # and of the same step beside the switched one
    at: str = ""

    @property
    def apart(self) -> float | None:
        """Predicted over measured."""
        return self.predicted / self.measured if self.predicted and self.measured else None

    @property
    def is_near(self) -> bool:
        if self.predicted == MOST_GAIN and (self.measured or 0.0) > MOST_GAIN:
            return True  # no more than that is predicted
        return self.apart is not None and 1.0 / (1.0 + NEAR) <= self.apart <= 1.0 + NEAR

    @property
    def is_near_in_time(self) -> bool:
        """Whether the part of the step that is saved is near: a factor of nearly one is easily predicted."""
        if self.predicted is None or self.measured is None or (self.low or 0.0) <= 1.0:
            return False  # nothing is shown to be saved
        return abs((1.0 - 1.0 / self.predicted) / (1.0 - 1.0 / self.measured) - 1.0) <= NEAR

    def __str__(self) -> str:
        start = f"{self.name:34} {self.switch:42}"
        if self.measured is None:
            return f"{start} predicted {_times(self.predicted)}, not measured: {self.agreement}"
        interval = f"({_times(self.low)} to {_times(self.high)})"
        ways = {"near as a factor": self.is_near, "near in time saved": self.is_near_in_time}
        found = [way for way, is_so in ways.items() if is_so]
        near = "near" if len(found) == len(ways) else found[0] if found else "apart"
        ratio = f"{self.apart:5.2f} {near}" if self.apart is not None else "not predicted"
        figures = f"predicted {_times(self.predicted)}  measured {_times(self.measured)} {interval}"
        steps = f"; a step of {_shown(self.explained)} explained, {_shown(self.slow)} measured"
        return f"{start} {figures}  {ratio}; {self.agreement}{steps}"


def _shown(seconds: float | None) -> str:
    return "unknown" if seconds is None else show_duration(seconds)


def _times(value: float | None) -> str:
    return "unknown" if value is None else f"{value:5.2f}"


@dataclass(frozen=True)
class Side:
    """A step, how many samples it takes, and what has to be set in the process before it runs."""

    step: Callable[[], object]
    samples: int = 1
    waits: bool = False  # whether each step is waited for
    before: Callable[[], None] = lambda: None

    def pace(self, device: Device, seconds: float) -> float:
        """Seconds of a sample, over some steps."""
        self.before()
        each = device.seconds_of(self.step)
        count = max(1, round(seconds / max(each, 1e-6)))

        def several() -> None:
            for _ in range(count):
                self.step()
                if self.waits:
                    device.synchronize()

        return device.seconds_of(several) / count / self.samples


def measured(row: Switched, slow: Side, fast: Side, device: Device, turn: float) -> Switched:
    """How many times as fast, with its 95 % interval; the order changes from round to round."""
    logs, steps = [], []
    with quiet_collector():  # as steps are measured otherwise
        for number in range(ROUNDS):
            first, second = (slow, fast) if number % 2 else (fast, slow)
            paces = {id(one): one.pace(device, turn) for one in (first, second)}
            logs.append(math.log(paces[id(slow)] / paces[id(fast)]))
            steps.append(paces[id(slow)] * slow.samples)
    middle = fmean(logs)
    reach = student_quantile(0.975, ROUNDS - 1) * stdev(logs) / math.sqrt(ROUNDS)
    low, high = math.exp(middle - reach), math.exp(middle + reach)
    return replace(row, measured=math.exp(middle), low=low, high=high, slow=median(steps))


@dataclass
class Book:
    """What is done, in a file that is whole after each line; and until when something may begin."""

    path: Path | None
    target: str
    ends: float  # of the monotonic clock
    rows: list[Switched]
    finished: set[str]

    @classmethod
    def read(cls, path: Path | None, target: str, seconds: float) -> Book:
        lines = path.read_text(encoding="utf-8").splitlines() if path is not None and path.exists() else []
        found = [one for line in lines if (one := json.loads(line))["target"] == target]
        rows = [Switched(**one) for one in found if "switch" in one]
        finished = {one["finished"] for one in found if "finished" in one}
        return cls(path, target, time.monotonic() + seconds, rows, finished)

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self.ends

    def has(self, name: str, switch: str) -> bool:
        return any((one.name, one.switch) == (name, switch) for one in self.rows)

    def add(self, row: Switched) -> None:
        row = replace(row, at=datetime.now(UTC).isoformat(timespec="seconds"))
        self.rows.append(row)
        self._write(asdict(row))
        click.echo(str(row))

    def finish(self, name: str) -> None:
        """Nothing of it is left to do."""
        self.finished.add(name)
        self._write({"target": self.target, "finished": name})

    def sum_up(self, left: list[str]) -> None:
        measured = [row for row in self.rows if row.apart is not None]
        factor, saved = sum(row.is_near for row in measured), sum(row.is_near_in_time for row in measured)
        click.echo(
            f"of {len(measured)} switches, {factor} are predicted within {NEAR:.0%} as a factor, {saved} in time saved"
        )
        if left:
            click.echo(
                f"left: {'; '.join(left)}: run the same command again" + ("" if self.path else " with --results FILE")
            )

    def _write(self, line: dict[str, Any]) -> None:
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def mend(plant: planted.Plant, device: Device, turn: float, book: Book, ceilings: KnownCeilings) -> bool:
    """A planted kind of slowness beside the same step without it."""
    import torch

    found = planted.found_in(plant, device, ceilings)
    predicted = next((one.gain for one in found if one.what.startswith(plant.expected)), None)
    steps = []
    for is_mended in (False, True):
        torch.manual_seed(0)
        steps.append(plant.make(planted.Bed(device, mended=is_mended)))
    slow, fast = steps
    agreement = "not compared: other data"
    if plant.grown == 1:
        for one in steps:
            one()
        (loss, gradient), (other_loss, other_gradient) = (one.computed() for one in steps)
        agreement = (
            f"loss apart by {_apart(loss, other_loss):.2%}, a gradient's norm by {_apart(gradient, other_gradient):.2%}"
        )
    name, explained = f"planted {plant.kind}", found[0].step if found else None
    row = Switched(name, plant.expected, book.target, device.name, predicted, agreement=agreement, explained=explained)
    book.add(measured(row, Side(slow), Side(fast, plant.grown), device, turn))
    return True


def _apart(one: float, other: float) -> float:
    return abs(other - one) / max(abs(one), 1e-12)


def switch_all(start: dict[str, Any], device: Device, turn: float, book: Book, ceilings: KnownCeilings) -> bool:
    """Every setting that `explain` proposes for a case, each beside it as it is; whether there was time for all."""
    import torch

    from paceline.machine import describe

    base = _case(start, book.target)
    name = _name(base)
    found = _explained(base, ceilings, describe())
    for one in found:
        if book.is_over:
            return False
        if not book.has(name, one.setting):
            torch._dynamo.reset()
            _release(device)
            row = Switched(name, one.setting, book.target, device.name, one.gain, explained=one.step)
            try:
                changed = _case(start | dict([one.setting.split("=", 1)]), book.target)
                row = _switched(row, base, changed, device, turn)
            except Exception as error:  # one switch must not cost the others
                row = replace(row, agreement=f"{type(error).__name__}: {error}".splitlines()[0][:200])
            book.add(row)
    return True


def _name(case: Case) -> str:
    frozen = " not frozen" if case.parameters.get("frozen") == "off" else ""
    return f"{case.benchmark} {case.title}{frozen}"


def _case(parameters: dict[str, Any], target: str) -> Case:
    from paceline.api.cases import expand_here
    from paceline.core.suite import Suite

    (case,) = expand_here(Suite(name="switches", cases=[parameters]), {"target": target})
    return case


def _explained(case: Case, ceilings: KnownCeilings, environment: Environment) -> list[Candidate]:
    """The settings that are proposed for a case, which is measured and traced for this as it always is."""
    with tempfile.TemporaryDirectory() as folder:
        record = _recorded(case.model_copy(update={"trace": str(Path(folder) / "trace.json.gz")}), environment)
    run = Run(
        id="switches", name="switches", status="finished", started_at=record.started_at, version="", cases=[case],
        environment=environment,
    )  # fmt: skip
    found = candidates(traced_case(RunRecords(run=run, records=[record]), ceilings, record))
    return [one for one in found if one.setting]


def _recorded(case: Case, environment: Environment) -> Record:
    """A case measured in this process."""
    began, benchmark = datetime.now(UTC), BENCHMARKS.get(case.benchmark)
    result = benchmark().measure(benchmark.Parameters.read(case.parameters), Context(case=case))
    result.facts.pop("conditions", None)
    record = Record(
        run_id="switches", case=case, outcome=Outcome.OK, started_at=began, seconds=0.0,
        measurements=result.measurements, facts=result.facts, warnings=result.warnings,
    )  # fmt: skip
    return described(record, environment)


def _switched(row: Switched, base: Case, changed: Case, device: Device, turn: float) -> Switched:
    with ExitStack() as stack:
        slow, fast = (stack.enter_context(prepared(case)) for case in (base, changed))
        agreement = _agreement(slow.first, fast.first, base, changed)
        return measured(replace(row, agreement=agreement), _side(slow), _side(fast), device, turn)


def _side(made: Prepared) -> Side:
    import torch

    from paceline.models.base import set_fp32_mode

    session = made.session

    def before() -> None:
        set_fp32_mode(session.parameters.precision)
        torch.backends.cudnn.benchmark = session.facts["autotuned"]

    size = session.parameters.batch_size or session.spec.batch_size
    return Side(made.step, size, session.in_flight == 1, before)


def _agreement(first: Any, second: Any, base: Case, changed: Case) -> str:
    if base.parameters["batch_size"] != changed.parameters["batch_size"]:
        return "not compared: other data"
    if base.benchmark == "train":
        most = max(_apart(float(one), float(other)) for one, other in zip(first, second, strict=True))
        return f"the first losses differ by at most {most:.2%}"
    one, other = _flat(first), _flat(second)
    return f"the output differs by {float((other - one).norm() / one.norm()):.2%} of its norm"


MOST_COMPARED = 2**26  # numbers


def _flat(output: Any) -> Tensor:
    import torch

    from paceline.benchmarks._model.checks import float_tensors

    return torch.cat([one.flatten()[:MOST_COMPARED].float() for one in float_tensors(output)])


def _release(device: Device) -> None:
    gc.collect()
    device.release_memory()


def measured_ceilings(target: str, environment: Environment, *, on_gpu: bool) -> KnownCeilings:
    """What products and memory sustain here, so that predictions rest on what was measured beside them."""
    formats = ("fp32", "tf32", "fp16", "bf16", "fp8") if on_gpu else ("fp32", "bf16")
    cases = [{"benchmark": "gemm", "precision": one} for one in formats] + [{"benchmark": "stream"}]
    found: list[Ceiling] = []
    for parameters in cases:
        try:
            found += shown_by(_recorded(_case(parameters | SHORT, target), environment), environment)
        except Exception as error:  # predictions then do without it
            click.echo(f"no ceiling of {parameters}: {type(error).__name__}: {str(error)[:200]}")
    for one in found:
        click.echo(f"ceiling: {one.name} {one.value:.4g} {one.unit}")
    return KnownCeilings(measured=tuple(found), source="measured beside it")


@click.command()
@click.option("--target", default="cpu", show_default=True, help="the device")
@click.option("--only", multiple=True, help="words in the name of what is to be switched; may be given again")
@click.option("--seconds", default=540.0, show_default=True, help="nothing begins after so many")
@click.option("--turn", default=0.4, show_default=True, help=f"seconds of each side in each of {ROUNDS} rounds")
@click.option(
    "--results", type=click.Path(path_type=Path, dir_okay=False),
    help="a file of JSON lines; what it has is not done again",
)  # fmt: skip
def main(target: str, only: tuple[str, ...], seconds: float, turn: float, results: Path | None) -> None:
    """A line for each switch; the exit code is 0 where five or more are predicted within 30 %."""
    from paceline.machine import describe

    book = Book.read(results, target, seconds)
    device, environment = open_device(target), describe()
    on_gpu = device.kind.is_accelerator
    plants = [one for one in planted.PLANTS if on_gpu or not one.needs_gpu]
    work: dict[str, Callable[[KnownCeilings], bool]] = {
        f"planted {one.kind}": partial(mend, one, device, turn, book) for one in plants if one.kind not in UNPREDICTED
    }
    starts = [_start(one, on_gpu=on_gpu) for one in MODELS]
    work |= {_name(_case(one, target)): partial(switch_all, one, device, turn, book) for one in starts}
    chosen = {name: one for name, one in work.items() if not only or any(words in name for words in only)}
    if not chosen:
        raise click.BadParameter(f"{', '.join(only)}: known are {'; '.join(work)}")
    click.echo(f"switches on {device.name}, {ROUNDS} rounds of {turn:g} s for each side")
    for row in book.rows:
        click.echo(f"(before) {row}")
    left = [name for name in chosen if name not in book.finished]
    ceilings = measured_ceilings(target, environment, on_gpu=on_gpu) if left else KnownCeilings()
    for name in left:
        if book.is_over:
            break
        try:
            if chosen[name](ceilings):
                book.finish(name)
        except Exception as error:  # one must not cost the others
            click.echo(f"{name}: failed: {type(error).__name__}: {str(error)[:300]}")
        _release(device)
    book.sum_up([name for name in chosen if name not in book.finished])
    raise SystemExit(0 if sum(row.is_near for row in book.rows) >= min(ENOUGH, len(book.rows)) else 1)


def _start(model: dict[str, Any], *, on_gpu: bool) -> dict[str, Any]:
    on_a_gpu, on_a_cpu = model["batch_size"]
    start = SLOW | model | SHORT | {"batch_size": on_a_gpu if on_gpu else on_a_cpu}
    return start if on_gpu else start | {"scale": "tiny", "precision": "fp32"}
