"""Metrics that several micro benchmarks yield."""

from __future__ import annotations

from paceline.core.metric import Better, Merge, Metric

TIME = Metric(name="time", unit="s", better=Better.LOWER, merge=Merge.SLOWEST, description="time of one call")
COMPUTE_RATE = Metric(
    name="compute_rate",
    unit="FLOP/s",
    better=Better.HIGHER,
    merge=Merge.SUM,
    description="operations of the mathematical definition over time (OP/s for integers)",
)
BANDWIDTH = Metric(
    name="bandwidth",
    unit="B/s",
    better=Better.HIGHER,
    merge=Merge.SUM,
    description="bytes over time, all calls together; never a mean of rates",
)
PEAK_SHARE = Metric(
    name="peak_share",
    unit="%",
    better=Better.HIGHER,
    merge=Merge.MEAN,
    description="part of what the vendor promises; absent for a device whose datasheet is not known",
)
