"""The metrics of a model's step, and how one timed run becomes all of them."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.core.metric import Better, Merge, Metric
from paceline.core.record import Measurement
from paceline.devices.timeline import Phases
from paceline.measure.memory import Peak


def lower(name: str, unit: str, merge: Merge, description: str) -> Metric:
    """A metric of which less is better."""
    return Metric(name=name, unit=unit, better=Better.LOWER, merge=merge, description=description)


def higher(name: str, unit: str, merge: Merge, description: str) -> Metric:
    """A metric of which more is better."""
    return Metric(name=name, unit=unit, better=Better.HIGHER, merge=merge, description=description)


STEP_TIME = lower("step_time", "s", Merge.SLOWEST, "time of one step")
STEP_TIME_APART = STEP_TIME.model_copy(update={"merge": Merge.POOLED})
THROUGHPUT = higher(
    "throughput", "samples/s", Merge.SUM, "samples over time, all steps together; never a mean of rates"
)
TOKEN_THROUGHPUT = higher("token_throughput", "tokens/s", Merge.SUM, "tokens over time, for sequence models")
AUDIO_THROUGHPUT = higher("audio_throughput", "s/s", Merge.SUM, "seconds of audio over time, for models of speech")
FLOP_RATE = higher(
    "achieved_flops", "FLOP/s", Merge.SUM, "the model's FLOPs by formula over time; recomputation earns nothing"
)
MFU = higher(
    "mfu",
    "%",
    Merge.MEAN,
    "achieved FLOP/s as a part of the device's peak in this precision; absent for an unknown device",
)
DEVICE_MEMORY = lower(
    "peak_device_memory", "B", Merge.MAXIMUM, "most bytes allocated on the device during measured steps"
)
DEVICE_RESERVED = lower(
    "peak_device_reserved", "B", Merge.MAXIMUM, "most bytes that the allocator held on the device, graphs included"
)
HOST_MEMORY = lower("peak_host_memory", "B", Merge.MAXIMUM, "most resident memory of the process during measured steps")
ENERGY = lower("energy_per_sample", "J", Merge.MEAN, "energy of the device per sample, from its own counter")
FIRST_STEP = lower(
    "first_step_time", "s", Merge.MAXIMUM, "time of the very first step: lazy initialisation, autotuning, compilation"
)
COMPILE_TIME = lower("compile_time", "s", Merge.MAXIMUM, "what compiling cost: the first step beyond a steady one")
PHASES = {
    # The mean over ranks: that they step together makes the sums alike, whoever waits for whom in which phase.
    phase: lower(f"{phase}_time", "s", Merge.MEAN, description)
    for phase, description in {
        "forward": "the model's forward pass, from the end of the step before",
        "matcher": "matching predictions to targets, where the loss has to",
        "criterion": "the loss",
        "backward": "the backward pass; with several ranks until gradients are reduced",
        "optimizer": "the optimizer's step",
    }.items()
}
LOSS = Metric(name="loss", unit="", merge=Merge.MEAN, description="loss of the first steps from the seed")

COMMON = (
    THROUGHPUT,
    STEP_TIME,
    TOKEN_THROUGHPUT,
    AUDIO_THROUGHPUT,
    MFU,
    FLOP_RATE,
    DEVICE_MEMORY,
    DEVICE_RESERVED,
    HOST_MEMORY,
    ENERGY,
    FIRST_STEP,
    COMPILE_TIME,
)


@dataclass(frozen=True)
class StepWork:
    """What one step of one rank does."""

    samples: float  # its share, where several ranks work on the same samples
    sample_name: str
    tokens: float | None
    flops: float
    peak: Peak | None
    audio: float | None = None  # seconds of it
    together: bool = True  # whether the ranks step together, as data-parallel training does


def step_measurements(times: list[float], work: StepWork) -> list[Measurement]:
    """Throughput, step time and everything else that is work over the same times."""
    step_time = Measurement.of_samples(STEP_TIME if work.together else STEP_TIME_APART, times)
    throughput = THROUGHPUT.model_copy(update={"unit": f"{work.sample_name}s/s"})
    rates = {
        TOKEN_THROUGHPUT: work.tokens,
        AUDIO_THROUGHPUT: work.audio,
        FLOP_RATE: work.flops,
        MFU: 100.0 * work.flops / work.peak.rate if work.peak is not None else None,
    }
    return [
        Measurement.of_rate(throughput, work.samples, step_time),
        step_time,
        *(Measurement.of_rate(metric, amount, step_time) for metric, amount in rates.items() if amount),
    ]


def phase_measurements(phases: list[Phases]) -> list[Measurement]:
    """The time of each phase of the steps, where they were marked."""
    if not phases or not all(phases):
        return []
    return [Measurement.of_samples(PHASES[name], [step[name] for step in phases]) for name in phases[0]]
