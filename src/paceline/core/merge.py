"""Several ranks' results become one: each rank's measurements, and the case's own made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from paceline.core.metric import Merge
from paceline.core.record import At, Doubt, Measurement, Result
from paceline.core.stats import summarize

_Key = tuple[str, tuple[tuple[str, int | float | str], ...]]  # a metric at a point of a sweep

_JOINS: dict[Merge, Callable[..., Any]] = {
    Merge.SUM: np.sum,
    Merge.MAXIMUM: np.max,
    Merge.MINIMUM: np.min,
    Merge.MEAN: np.mean,
}


def merge_ranks(results: Sequence[Result]) -> Result:
    """The result of a case from those of its ranks, in order; one rank's result is the case's."""
    if len(results) == 1:
        return results[0]
    parts: dict[_Key, list[Measurement]] = {}
    for result in results:
        for measurement in result.measurements:
            parts.setdefault(_key(measurement.metric.name, measurement.at), []).append(measurement)
    whole: dict[_Key, Measurement] = {}
    # Rates need the merged times that they derive from, so those come first.
    for key in sorted(parts, key=lambda key: bool(parts[key][0].derived_from)):
        whole[key] = _merge(parts[key], whole)
    each = [
        m.model_copy(update={"scope": f"rank {rank}"})
        for rank, result in enumerate(results)
        for m in result.measurements
        if m.metric.merge is not Merge.FIRST
    ]
    # Ranks see the same trouble with slightly different figures: of each kind, what the first rank that has it says.
    spoken: dict[str, list[Doubt]] = {}
    for result in results:
        kinds = dict.fromkeys(doubt.kind for doubt in result.doubts if doubt.kind not in spoken)
        spoken |= {kind: [doubt for doubt in result.doubts if doubt.kind == kind] for kind in kinds}
    return Result(
        measurements=[whole[key] for key in parts] + each,
        facts=results[0].facts | {"ranks": len(results)},
        doubts=[doubt for doubts in spoken.values() for doubt in doubts],
    )


def _key(name: str, at: At) -> _Key:
    return name, tuple(sorted(at.items()))


def _merge(parts: list[Measurement], whole: dict[_Key, Measurement]) -> Measurement:
    first = parts[0]
    rule = first.metric.merge
    if first.derived_from:
        return _merge_rates(parts, whole[_key(first.derived_from, first.at)])
    if rule is Merge.FIRST:
        return first
    if rule is Merge.SLOWEST:
        # Not the largest of each step: noise that hits one rank here and another there would count as slowness twice.
        return max(parts, key=lambda part: part.summary.mean)
    if rule is Merge.POOLED:
        pooled = [sample for part in parts for sample in part.samples]
        return Measurement.of_samples(first.metric, pooled, statistic=first.statistic, at=first.at)
    values = np.array([part.value for part in parts])
    join = _JOINS[rule]
    if len({len(part.samples) for part in parts}) == 1 and len(first.samples) > 1:
        samples = join([part.samples for part in parts], axis=0)
        return first.model_copy(update={"samples": list(map(float, samples)), "summary": summarize(samples)})
    return Measurement.of_value(first.metric, float(join(values)), at=first.at)


def _merge_rates(parts: list[Measurement], times: Measurement) -> Measurement:
    """Together, all work over the time of the slowest; apart, the sum of what each does."""
    metric = parts[0].metric
    if times.metric.merge is Merge.POOLED:
        rates = [part.summary.mean for part in parts]
        joined = sum(rates) if metric.merge is Merge.SUM else sum(rates) / len(rates)
        return Measurement.of_rate(metric, joined * times.summary.mean, times)
    work = [part.work or 0.0 for part in parts]
    return Measurement.of_rate(metric, sum(work) if metric.merge is Merge.SUM else sum(work) / len(work), times)
