"""What the harness itself costs: its loop against a bare loop of the same work, in the same run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from pydantic import Field

from paceline.benchmarks._micro.parameters import TorchBenchmark, time_metric
from paceline.core.benchmark import Context, Progress
from paceline.core.metric import Better, Merge, Metric
from paceline.core.parameters import MeasuringParameters, Parameters
from paceline.core.quantity import Duration
from paceline.core.record import Measurement, Result
from paceline.devices import Device, open_device
from paceline.devices.timeline import monotonic
from paceline.measure import loop

RATIO = Metric(
    name="overhead_ratio",
    unit="x",
    better=Better.LOWER,
    description="time per step in the harness over time per step in a bare loop",
)
PER_STEP = time_metric("overhead_per_step", "what the harness adds to each step", Merge.FIRST)
BARE = Metric(name="bare_step_time", unit="s", description="time per step in the bare loop")


class OverheadParameters(Parameters):
    """How long a step is, and how often the two loops alternate."""

    step: Duration = Field(default=1e-3, gt=0)
    """How long the work of one step takes"""
    turn_steps: int = Field(default=500, ge=10)
    """Steps of each loop before the other one runs; as many as the shortest real measurement of such steps has"""
    turns: int = Field(default=11, ge=3)
    """How many times each loop runs; they alternate, so that drift hits both"""


class Overhead(TorchBenchmark[OverheadParameters]):
    """The measuring loop around work of a known size."""

    name = "overhead"
    category = "harness"
    summary = "what the harness adds to a step, against a bare loop of the same work"
    metrics = (RATIO, PER_STEP, BARE)

    @classmethod
    def title(cls, parameters: OverheadParameters) -> str:
        return f"{parameters.step * 1e3:g} ms steps"

    def measure(self, parameters: OverheadParameters, context: Context) -> Result:
        device = open_device(context.target)
        work = _calibrated_work(device, parameters.step)
        bare: list[float] = []
        harness: list[float] = []

        def bare_loop(counted: Callable[[], object]) -> None:
            for _ in range(parameters.turn_steps):
                counted()

        def harness_loop(counted: Callable[[], object]) -> None:
            # An interval that is never reached: the rule is asked as often as in a real measurement.
            limits = MeasuringParameters(
                interval=1e-12, budget=1e6, max_steps=parameters.turn_steps, min_steps=min(10, parameters.turn_steps)
            )

            def report(phase: str, samples: list[float]) -> None:
                context.report(Progress(phase="alternating", samples=tuple(samples), unit="s"))

            loop.measure(counted, device.timeline(in_flight=2), limits, report=report)

        for turn in range(parameters.turns):
            # Which loop goes first alternates too: whoever is second finds warmer caches or a hotter device.
            pair = ((bare, bare_loop), (harness, harness_loop))
            for times, run in pair if turn % 2 == 0 else reversed(pair):
                times.append(_per_step(device, work, run))
        return Result(
            measurements=[
                Measurement.of_samples(RATIO, [h / b for h, b in zip(harness, bare, strict=True)]),
                Measurement.of_samples(PER_STEP, [h - b for h, b in zip(harness, bare, strict=True)]),
                Measurement.of_samples(BARE, bare),
            ],
            facts={"device": device.name, "timing": device.timeline(2).description, "steps": parameters.turn_steps},
        )


def _per_step(device: Device, work: Callable[[], object], run: Callable[[Callable[[], object]], object]) -> float:
    """Wall time per call of the work, from the first call to the end of the last."""
    calls = 0
    begun = ended = 0.0

    def counted() -> object:
        nonlocal calls, begun, ended
        if calls == 0:
            begun = monotonic()
        calls += 1
        done = work()
        ended = monotonic()
        return done

    device.synchronize()
    run(counted)
    if device.kind.is_accelerator:
        device.synchronize()
        ended = monotonic()
    return (ended - begun) / calls


def _calibrated_work(device: Device, seconds: float) -> Callable[[], object]:
    """Work that takes about this long: hashing on a CPU, a spinning kernel on a GPU."""

    def make(size: int) -> Callable[[], object]:
        if device.kind.is_accelerator:
            return device.spin(size)
        data = bytes(size)
        return lambda: hashlib.sha256(data).digest()

    size = 1 << 12
    work = make(size)
    for _ in range(8):
        took = min(device.seconds_of(work) for _ in range(5))
        if abs(took / seconds - 1.0) < 0.05:
            break
        size = max(64, int(size * min(16.0, seconds / took)))
        work = make(size)
    return work
