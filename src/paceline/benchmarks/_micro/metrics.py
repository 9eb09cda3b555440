"""Metrics that several micro benchmarks have."""

from __future__ import annotations

from typing import Any

from paceline.core.metric import Better, Merge, Metric
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
