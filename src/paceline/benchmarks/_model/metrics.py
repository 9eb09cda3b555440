"""The metrics of a model's step, and how one timed run becomes all of them."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.core.metric import Better, Merge, Metric
from paceline.core.record import Measurement
from paceline.devices.timeline import Phases
from paceline.measure.memory import Peak

STEP_TIME = Metric(name="step_time", unit="s", better=Better.LOWER, merge=Merge.SLOWEST, description="time of one step")
STEP_TIME_APART = STEP_TIME.model_copy(update={"merge": Merge.POOLED})
THROUGHPUT = Metric(
    name="throughput",
    unit="samples/s",
    better=Better.HIGHER,
    merge=Merge.SUM,
    description="samples over time, all steps together; never a mean of rates",
)
TOKEN_THROUGHPUT = Metric(
    name="token_throughput",
    unit="tokens/s",
    better=Better.HIGHER,
    merge=Merge.SUM,
    description="tokens over time, for sequence models",
)
AUDIO_THROUGHPUT = Metric(
    name="audio_throughput",
    unit="s/s",
    better=Better.HIGHER,
    merge=Merge.SUM,
    description="seconds of audio over time, for models of speech",
)
FLOP_RATE = Metric(
    name="achieved_flops",
    unit="FLOP/s",
    better=Better.HIGHER,
    merge=Merge.SUM,
    description="the model's FLOPs by formula over time; recomputation earns nothing",
)
MFU = Metric(
    name="mfu",
    unit="%",
    better=Better.HIGHER,
    merge=Merge.MEAN,
    description="achieved FLOP/s as a part of the device's peak in this precision; absent for an unknown device",
)
DEVICE_MEMORY = Metric(
    name="peak_device_memory",
    unit="B",
    better=Better.LOWER,
    merge=Merge.MAXIMUM,
    description="most bytes allocated on the device during measured steps",
)
DEVICE_RESERVED = Metric(
    name="peak_device_reserved",
    unit="B",
    better=Better.LOWER,
    merge=Merge.MAXIMUM,
    description="most bytes that the allocator held on the device, graphs included",
)
HOST_MEMORY = Metric(
    name="peak_host_memory",
    unit="B",
    better=Better.LOWER,
    merge=Merge.MAXIMUM,
    description="most resident memory of the process during measured steps",
)
ENERGY = Metric(
    name="energy_per_sample",
    unit="J",
    better=Better.LOWER,
    merge=Merge.MEAN,
    description="energy of the device per sample, from its own counter",
)
FIRST_STEP = Metric(
    name="first_step_time",
    unit="s",
    better=Better.LOWER,
    merge=Merge.MAXIMUM,
    description="time of the very first step: lazy initialisation, autotuning, compilation",
)
COMPILE_TIME = Metric(
    name="compile_time",
    unit="s",
    better=Better.LOWER,
    merge=Merge.MAXIMUM,
    description="what compiling cost: the first step beyond a steady one",
)
PHASES = {
    # The mean over ranks: that they step together makes the sums alike, whoever waits for whom in which phase.
    phase: Metric(name=f"{phase}_time", unit="s", better=Better.LOWER, merge=Merge.MEAN, description=description)
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
    found = [Measurement.of_rate(throughput, work.samples, step_time), step_time]
    if work.tokens:
        found.append(Measurement.of_rate(TOKEN_THROUGHPUT, work.tokens, step_time))
    if work.audio:
        found.append(Measurement.of_rate(AUDIO_THROUGHPUT, work.audio, step_time))
    if work.flops:
        found.append(Measurement.of_rate(FLOP_RATE, work.flops, step_time))
        if work.peak is not None:
            found.append(Measurement.of_rate(MFU, 100.0 * work.flops / work.peak.rate, step_time))
    return found


def phase_measurements(phases: list[Phases]) -> list[Measurement]:
    """The time of each phase of the steps, where they were marked."""
    if not phases or not all(phases):
        return []
    return [Measurement.of_samples(PHASES[name], [step[name] for step in phases]) for name in phases[0]]
