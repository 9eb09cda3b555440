"""Several ranks' results become one: each rank's measurements, and the case's own made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from paceline.core.metric import Merge
from paceline.core.record import Doubt, Measurement, Result
from paceline.core.stats import summarize

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
    names = dict.fromkeys(m.metric.name for result in results for m in result.measurements)
    whole: dict[str, Measurement] = {}
    # Rates need the merged times that they derive from, so those come first.
    for name in sorted(names, key=lambda name: bool(_of_ranks(results, name)[0].derived_from)):
        whole[name] = _merge(_of_ranks(results, name), whole)
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
        measurements=[whole[name] for name in names] + each,
        facts=results[0].facts | {"ranks": len(results)},
        doubts=[doubt for doubts in spoken.values() for doubt in doubts],
    )


def _of_ranks(results: Sequence[Result], name: str) -> list[Measurement]:
    return [m for result in results for m in result.measurements if m.metric.name == name]


def _merge(parts: list[Measurement], whole: dict[str, Measurement]) -> Measurement:
    first = parts[0]
    rule = first.metric.merge
    if first.derived_from:
        work = [part.work or 0.0 for part in parts]
        joined = sum(work) if rule is Merge.SUM else sum(work) / len(work)
        return Measurement.of_rate(first.metric, joined, whole[first.derived_from])
    if rule is Merge.FIRST:
        return first
    if rule is Merge.SLOWEST:
        length = min(len(part.samples) for part in parts)
        samples = np.max([part.samples[:length] for part in parts], axis=0)
        return Measurement.of_samples(first.metric, samples, statistic=first.statistic)
    values = np.array([part.value for part in parts])
    join = _JOINS[rule]
    if len({len(part.samples) for part in parts}) == 1 and len(first.samples) > 1:
        samples = join([part.samples for part in parts], axis=0)
        return first.model_copy(update={"samples": list(map(float, samples)), "summary": summarize(samples)})
    return Measurement.of_value(first.metric, float(join(values)))
