"""What micro benchmarks declare alike: metrics, parameters, titles, and that torch is imported for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field

from paceline.core.benchmark import Benchmark
from paceline.core.metric import Better, Merge, Metric
from paceline.core.parameters import MeasuringParameters, Parameters
from paceline.core.quantity import Duration, Size, show_size
from paceline.core.record import Measurement, Record
from paceline.core.subject import Work
from paceline.measure.memory import Peak


def time_metric(name: str, description: str, merge: Merge = Merge.SLOWEST) -> Metric:
    """A time in seconds."""
    return Metric(name=name, unit="s", better=Better.LOWER, merge=merge, description=description)


def rate_metric(name: str, description: str, merge: Merge = Merge.SUM, unit: str = "B/s") -> Metric:
    """Work per second; bytes, unless another unit is given."""
    return Metric(name=name, unit=unit, better=Better.HIGHER, merge=merge, description=description)


TIME = time_metric("time", "time of one call")
COMPUTE_RATE = rate_metric(
    "compute_rate", "operations of the mathematical definition over time (OP/s for integers)", unit="FLOP/s"
)
POWER = Metric(
    name="power",
    unit="W",
    better=Better.LOWER,
    merge=Merge.SUM,
    description="what the device draws under this load, averaged by its driver",
)
CLOCK = rate_metric("clock", "of the device's units under this load, as its driver reports it", Merge.MEAN, unit="MHz")
BANDWIDTH = rate_metric("bandwidth", "bytes over time, all calls together; never a mean of rates")
PEAK_SHARE = rate_metric(
    "peak_share",
    "part of the peak in the vendor's datasheet; absent for a device without one",
    Merge.MEAN,
    unit="%",
)

PRODUCT_SHARE = rate_metric(
    "product_share",
    "part of the rate of a plain matrix product in this format, measured in the same case",
    Merge.MEAN,
    unit="%",
)


def product_share(product: Peak, work: float, time: Measurement) -> Measurement:
    """Work over time as a percentage of what a matrix product reached."""
    return Measurement.of_rate(PRODUCT_SHARE, 100.0 * work / product.rate, time)


def counted_work(record: Record) -> Work | None:
    """What one call does, of a record whose facts have its bytes, how they were counted, and its number format."""
    rate, facts = record.measurement(COMPUTE_RATE.name), record.facts
    if rate is None or not rate.work or "bytes" not in facts:
        return None
    return Work(
        flops=rate.work,
        bytes=float(facts["bytes"]),
        rate=rate.value,
        unit=rate.unit,
        number_format=facts["precision"],
        formula=facts["counted"],
    )


def peak_share(
    peak: Peak | None, work: float, time: Measurement, unknown: str = "no datasheet for this device"
) -> tuple[list[Measurement], dict[str, Any]]:
    """Work over time as a percentage of the peak, where it is known, and the facts about that peak."""
    if peak is None:
        return [], {"peak": None, "peak_source": unknown}
    share = Measurement.of_rate(PEAK_SHARE, 100.0 * work / peak.rate, time)
    return [share], {"peak": peak.rate, "peak_source": peak.source}


P = TypeVar("P", bound=Parameters)


# For a parameter that is a list: a single value means a list of one.
OneOrMore = BeforeValidator(lambda value: value if value is None or isinstance(value, list | tuple) else [value])

# A sweep goes upwards, each size once.
Upwards = AfterValidator(lambda sizes: sorted(set(sizes)))
Sizes = Annotated[list[Annotated[Size, Field(ge=1)]], OneOrMore, Field(min_length=1), Upwards]


def show_sizes(sizes: Sequence[int] | None) -> str:
    """A sweep in a title: where it begins and ends."""
    if not sizes:
        return ""
    return show_size(sizes[0]) if len(sizes) == 1 else f"{show_size(sizes[0])} to {show_size(sizes[-1])}"


class MicroParameters(MeasuringParameters):
    """How long to measure one point; a sweep of sizes has many of them."""

    budget: Duration = Field(default=1.0, gt=0)
    """Time to spend on measuring each point, at most"""
    warm_up: Duration = 0.5
    """Time to spend on warming up each point, at most; it ends sooner when the time is steady"""
    span: Duration = 0.0
    """Time to be under load at each point, at least, of which a quarter is warm-up; 0 does not look for settling slower
    than what is measured"""
    max_steps: int = Field(default=2_000, ge=1)
    """Take at most this many samples of each point"""
    seed: int = Field(default=1234, ge=0, lt=2**63)
    """Seed of the data"""


class TorchBenchmark(Benchmark[P]):
    """Base of benchmarks that run in torch, which is imported once, before the cases are forked."""

    without_torch: ClassVar[tuple[str, str]] = ("", "")  # a parameter, and its value with which torch is not needed

    @classmethod
    def imports(cls, parameters: Mapping[str, Any]) -> tuple[str, ...]:
        name, value = cls.without_torch
        return () if parameters.get(name) == value else ("torch",)


def join_words(*words: str | None) -> str:
    """The words of a title, without the empty ones."""
    return " ".join(word for word in words if word)
