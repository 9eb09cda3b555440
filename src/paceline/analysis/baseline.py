"""A baseline: for each metric the value that a healthy node has, from many nodes, of which nearly half may be bad.

The value is the median and the spread the scaled median absolute deviation: fewer than half of the nodes, however far
off, cannot move either beyond what the others measured. A mean that drops outliers round by round, as SuperBench's
does, begins from an average that they have already moved.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from paceline.analysis.diagnose.superbench import column_of
from paceline.analysis.diagnose.table import WATCH, MetricColumn, NodeTable
from paceline.core.errors import InputError
from paceline.core.files import read_text
from paceline.core.metric import Better
from paceline.core.parameters import refusal
from paceline.core.stats import Interval, median_interval
from paceline.core.text import parse_json

SCALE = 1.4826  # of the median absolute deviation, so that it equals the deviation of normal noise
MEDIAN_DEVIATION_EFFICIENCY = 0.37  # nodes whose standard deviation would be as sure, for each that it is made of
FEW_NODES = 5  # below it, the spread between nodes is not known
FORMAT = 1


class Reference(BaseModel):
    """What a metric is on healthy nodes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    value: float = Field(allow_inf_nan=False)
    unit: str = ""
    better: Better = Better.NEITHER
    nodes: int = Field(default=0, ge=0)  # how many measured it; 0 where that is not known
    spread: float | None = Field(default=None, ge=0)  # scaled median absolute deviation over them
    interval: Interval | None = None  # of the value


class Baseline(BaseModel):
    """References by the name of their metric."""

    model_config = ConfigDict(extra="forbid")

    paceline_baseline: int = FORMAT
    names: str = "paceline"  # whose names of metrics these are: paceline or superbench
    nodes: int = 0
    sources: list[str] = Field(default_factory=list)
    metrics: dict[str, Reference]

    def reference(self, column: MetricColumn) -> Reference | None:
        """The reference of a metric, by the first of its names that has one."""
        return next((self.metrics[name] for name in column.reference_names if name in self.metrics), None)

    def noise(self, column: MetricColumn) -> tuple[float, float]:
        """Spread as a part of the value, and its degrees of freedom; not numbers where too few nodes showed it."""
        reference = self.reference(column)
        if reference is None or reference.spread is None or reference.nodes < FEW_NODES or not reference.value:
            return math.nan, math.nan
        return abs(reference.spread / reference.value), MEDIAN_DEVIATION_EFFICIENCY * reference.nodes


def column_medians(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The median of each column, without the values that are not a number; of none, not a number."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of a column without any value
        return np.asarray(np.nanmedian(values, axis=0))


def column_spreads(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The scaled median absolute deviation of each column."""
    return SCALE * column_medians(np.abs(values - column_medians(values)))


def medians_of_others(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each value the median of its column without it: what the other nodes say.

    A node must not vote on its own reference: of two nodes it would halve its own distance.
    """
    result = np.full(values.shape, np.nan)
    for column in range(values.shape[1]):
        measured = np.flatnonzero(~np.isnan(values[:, column]))
        others = measured.size - 1
        if others < 1:
            continue
        column_values = values[measured, column]
        order = np.argsort(column_values, kind="stable")
        ordered = column_values[order]
        rank = np.empty(measured.size, dtype=np.int64)
        rank[order] = np.arange(measured.size)
        # Without the value at a rank, the ranks above it move down by one.
        low, high = (others - 1) // 2, others // 2
        below = ordered[np.where(rank <= low, low + 1, low)]
        above = ordered[np.where(rank <= high, high + 1, high)]
        result[measured, column] = (below + above) / 2.0
    return result


def make_baseline(table: NodeTable, sources: Sequence[str] = (), *, names: str = "paceline") -> Baseline:
    """The references of a table; a metric of several ranks also has one for all of them, by its name without a rank."""
    metrics: dict[str, Reference] = {}
    ranked: dict[str, list[int]] = {}
    for index, column in enumerate(table.columns):
        if table.present[:, index].any() and column.component != WATCH:
            metrics[column.name] = _reference(column, table.values[:, index])
            if column.unranked != column.name:
                ranked.setdefault(column.unranked, []).append(index)
    for name, indices in ranked.items():
        if name not in metrics:
            pooled = table.values[:, indices]
            nodes = int((~np.isnan(pooled)).any(axis=1).sum())
            metrics[name] = _reference(table.columns[indices[0]], pooled.ravel(), nodes)
    if not metrics:
        raise InputError("no-results", "there is nothing to make a baseline of: no node measured anything")
    return Baseline(names=names, nodes=len(table.nodes), sources=list(sources), metrics=dict(sorted(metrics.items())))


def _reference(column: MetricColumn, values: NDArray[np.float64], nodes: int | None = None) -> Reference:
    measured = values[~np.isnan(values)]
    middle = float(np.median(measured))
    return Reference(
        value=middle,
        unit=column.unit,
        better=column.better,
        nodes=int(measured.size) if nodes is None else nodes,
        spread=SCALE * float(np.median(np.abs(measured - middle))) if measured.size > 1 else None,
        interval=median_interval(measured, independent=nodes is None),  # ranks of one node resemble each other
    )


def extend(previous: Baseline, new: Baseline) -> Baseline:
    """The previous references as they are, and of the new ones those that it lacks."""
    if previous.names != new.names:
        message = (
            f"the previous baseline has the names of {previous.names}, the new one those of {new.names}: "
            "they cannot be one"
        )
        raise InputError("mismatched-names", message, key="--extend", value=previous.names)
    return Baseline(
        names=new.names,
        nodes=max(previous.nodes, new.nodes),
        sources=[*previous.sources, *new.sources],
        metrics=dict(sorted({**new.metrics, **previous.metrics}.items())),
    )


def read_baseline(path: Path) -> Baseline:
    """A baseline of ours, or SuperBench's: an object of numbers by metric."""
    text = read_text(path, "the baseline")
    try:
        document: Any = parse_json(text)
    except ValueError as error:
        message = f"the baseline '{path}' is not valid JSON: {error}"
        raise InputError("not-json", message, value=str(path)) from None
    if not isinstance(document, Mapping):
        message = f"the baseline '{path}' must be an object; make one with `paceline baseline RUN...`"
        raise InputError("not-a-baseline", message, value=str(path))
    if "paceline_baseline" in document:
        version = document["paceline_baseline"]
        if version != FORMAT:
            message = f"the baseline '{path}' is of another version of Paceline; make it again"
            raise InputError("other-version", message, key="paceline_baseline", value=version)
        try:
            return Baseline.model_validate(document)
        except ValidationError as error:
            raise refusal(error.errors(), Baseline).within(f"the baseline '{path}'") from None
    metrics = {}
    for key, value in document.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            message = f"the baseline '{path}' has {value!r} for '{key[:80]}', which is not a number"
            raise InputError("not-a-number", message, key=key, value=value)
        column = column_of(key)
        metrics[key] = Reference(value=float(value), unit=column.unit, better=column.better)
    return Baseline(names="superbench", metrics=metrics)


def as_superbench(baseline: Baseline) -> str:
    """SuperBench's form: a number for each metric, with all its digits."""
    if baseline.names != "superbench":
        message = "this baseline has Paceline's names of metrics, which SuperBench does not know"
        raise InputError("mismatched-names", message, value=baseline.names)
    plain = {name: reference.value for name, reference in baseline.metrics.items()}
    return json.dumps(plain, indent=2, sort_keys=True) + "\n"


def as_json(baseline: Baseline) -> str:
    """Our form, with units, directions, counts and spread."""
    return json.dumps(baseline.model_dump(mode="json"), indent=2) + "\n"
