"""The metrics of a model's step, and how one timed run becomes all of them."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.core.metric import Better, Merge, Metric
from paceline.core.record import Measurement
from paceline.measure.peak import Peak

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
LOSS = Metric(name="loss", unit="", merge=Merge.MEAN, description="loss of the first steps from the seed")

COMMON = (
    THROUGHPUT,
    STEP_TIME,
    TOKEN_THROUGHPUT,
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

    samples: int
    sample_name: str
    tokens: int | None
    flops: float
    peak: Peak | None
    together: bool = True  # whether the ranks step together, as data-parallel training does


def step_measurements(times: list[float], work: StepWork) -> list[Measurement]:
    """Throughput, step time and everything else that is work over the same times."""
    step_time = Measurement.of_samples(STEP_TIME if work.together else STEP_TIME_APART, times)
    throughput = THROUGHPUT.model_copy(update={"unit": f"{work.sample_name}s/s"})
    found = [Measurement.of_rate(throughput, work.samples, step_time), step_time]
    if work.tokens:
        found.append(Measurement.of_rate(TOKEN_THROUGHPUT, work.tokens, step_time))
    if work.flops:
        found.append(Measurement.of_rate(FLOP_RATE, work.flops, step_time))
        if work.peak is not None:
            found.append(Measurement.of_rate(MFU, 100.0 * work.flops / work.peak.flops, step_time))
    return found
