"""A record: what one case yielded, with its samples, statistics, warnings and outcome."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar, cast, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema

from paceline.core.case import Case
from paceline.core.grouping import group_by
from paceline.core.metric import Merge, Metric
from paceline.core.stats import Interval, Samples, Summary, resolves, summarize
from paceline.core.subject import At as At
from paceline.core.subject import Description

Statistic = Literal["median", "mean", "single"]
_Value = TypeVar("_Value")


class Outcome(StrEnum):
    """How a case ended."""

    OK = "ok"
    FAILED = "failed"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out-of-memory"
    UNSUPPORTED = "unsupported"


class CauseKind(StrEnum):
    """Why a case did not end well, for programs; the message is for people."""

    ERROR = "error"  # the case raised
    CRASHED = "crashed"  # the process died by a signal of its own making
    INTERRUPTED = "interrupted"  # killed from outside, or the runner died: the case is still to be done
    TIMEOUT = "timeout"
    HOST_MEMORY = "host-memory"
    DEVICE_MEMORY = "device-memory"
    MISSING_DEPENDENCY = "missing-dependency"
    UNSUPPORTED = "unsupported"
    CORRUPTION = "silent-corruption"


class Cause(BaseModel):
    """Why a case did not end well, in words a person can act on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: CauseKind
    message: str
    detail: str = ""  # a traceback or the last lines the process wrote
    rank: int | None = None  # the first rank that failed


class RecordWarning(BaseModel):
    """A reason to trust a number less, and what to do about it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str  # unsteady, imprecise, drifting, short, throttled, contended, emulated, ...
    message: str
    remedy: str


class Lazy(Generic[_Value]):
    """A dataclass field that may be given as a function, which is called when the field is first read.

    A store holds many more summaries and samples than a question about it looks at.
    """

    def __init__(self, default: Callable[[], _Value] | None = None) -> None:
        self._default = default

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type | None = None) -> _Value:
        if instance is None:  # the dataclass asks for the default
            if self._default is None:
                raise AttributeError(self._name)
            return cast(_Value, self._default)
        value = instance.__dict__[self._name]
        if callable(value):
            value = instance.__dict__[self._name] = value()
        return cast(_Value, value)

    def __set__(self, instance: object, value: _Value | Callable[[], _Value]) -> None:
        instance.__dict__[self._name] = value

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return handler(get_args(source)[0])


class PackedSamples(bytes):
    """Samples as little-endian float64."""

    __slots__ = ()

    def __call__(self) -> list[float]:
        """The samples as a list."""
        values: list[float] = self.array().tolist()
        return values

    def array(self) -> NDArray[np.float64]:
        """The samples for arithmetic, without making a Python float of each."""
        return np.frombuffer(self, dtype="<f8") if self else np.empty(0)


@dataclass(kw_only=True)
class Measurement:
    """One metric of a record: its samples and what they say."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    metric: Metric
    scope: str = ""  # "" for the whole case, "rank 0", ... for one rank
    at: At = field(default_factory=dict)  # which point of a sweep: {"size": 1024}; empty for the case as a whole
    statistic: Statistic = "single"  # which of the summary's figures is the headline
    summary: Lazy[Summary] = Lazy()
    samples: Lazy[list[float]] = Lazy(list)  # raw, in the order they were taken
    derived_from: str = ""  # the metric whose samples this one was computed from, if it has none of its own
    work: float | None = None  # work per sample, for a rate derived from times

    @property
    def value(self) -> float:
        """The headline figure."""
        return self.summary.median if self.statistic == "median" else self.summary.mean

    @property
    def interval(self) -> Interval | None:
        """The interval of the headline figure."""
        if self.statistic == "single":
            return None
        return self.summary.median_interval if self.statistic == "median" else self.summary.mean_interval

    @property
    def name(self) -> str:
        return self.metric.name

    @property
    def unit(self) -> str:
        return self.metric.unit

    @property
    def count(self) -> int:
        """How many samples it rests on."""
        return self.summary.count

    @property
    def relative(self) -> float | None:
        """The interval's larger half-width as a part of the value."""
        relative = self.interval.relative(self.value) if self.interval else math.inf
        return relative if math.isfinite(relative) else None

    @property
    def is_estimate(self) -> bool:
        """Whether it is one value that many observations gave together, and has no spread of its own."""
        is_sure = self.interval is not None and self.interval.low == self.interval.high
        return self.count > 1 and self.summary.minimum == self.summary.maximum and not is_sure

    def percentile(self, name: str) -> float | None:
        """A percentile, unless the samples are too few to distinguish it from their maximum."""
        return self.summary.percentiles.get(name) if resolves(self.count, float(name)) else None

    def sample_array(self) -> NDArray[np.float64]:
        """The samples for arithmetic."""
        samples = vars(self)["samples"]
        return samples.array() if isinstance(samples, PackedSamples) else np.array(self.samples, dtype=np.float64)

    @classmethod
    def of_samples(
        cls,
        metric: Metric,
        samples: Samples,
        *,
        statistic: Statistic = "median",
        scope: str = "",
        at: At | None = None,
    ) -> Self:
        """A metric that was observed many times."""
        values = [float(sample) for sample in samples]
        summary = summarize(values)
        return cls(metric=metric, scope=scope, at=at or {}, statistic=statistic, summary=summary, samples=values)

    @classmethod
    def of_value(cls, metric: Metric, value: float, *, scope: str = "", at: At | None = None) -> Self:
        """A metric that was observed once."""
        return cls(metric=metric, scope=scope, at=at or {}, summary=summarize([value]), samples=[float(value)])

    @classmethod
    def of_rate(cls, metric: Metric, work: float, times: Measurement, *, scope: str = "") -> Self:
        """Work over time, from the samples of a time at the same point; the headline is all work over all time."""
        return cls(
            metric=metric,
            scope=scope,
            at=times.at,
            statistic="mean",
            summary=times.summary.as_rate(work),
            derived_from=times.metric.name,
            work=work,
        )


class Result(BaseModel):
    """What a benchmark's `measure()` returns; the runner makes a record of it."""

    model_config = ConfigDict(extra="forbid")

    measurements: list[Measurement] = Field(default_factory=list)
    facts: dict[str, Any] = Field(default_factory=dict)  # parameter count, formula of FLOPs, how it was timed, ...
    warnings: list[RecordWarning] = Field(default_factory=list)


class Attempt(BaseModel):
    """What happened in one attempt at one case of a run."""

    run_id: str
    case: Case
    attempt: int = 1
    outcome: Outcome
    cause: Cause | None = None
    started_at: datetime
    seconds: float  # of the whole case, start-up included
    measurements: list[Measurement] = Field(default_factory=list)
    facts: dict[str, Any] = Field(default_factory=dict)  # for people
    warnings: list[RecordWarning] = Field(default_factory=list, validation_alias=AliasChoices("warnings", "doubts"))
    conditions: dict[str, Any] = Field(default_factory=dict)  # load, clocks, temperatures before and after


class Record(Description, Attempt):
    """One attempt at one case of a run, and what it says of itself."""

    model_config = ConfigDict(extra="forbid")

    def measurement(self, name: str, scope: str = "", at: At | None = None) -> Measurement | None:
        """The measurement of one metric, of the case as a whole or at one point of its sweep, if the record has it."""
        return next(
            (m for m in self.measurements if m.metric.name == name and m.scope == scope and m.at == (at or {})), None
        )

    @property
    def is_described(self) -> bool:
        """Whether its benchmark has said what it is; an old version's record, or one saved from a crash, is not."""
        return bool(self.primary or self.aliases or self.load)

    @property
    def is_success(self) -> bool:
        """Whether nothing went wrong; what a machine cannot do is not a failure unless the suite requires it."""
        return self.outcome is Outcome.OK or (self.outcome is Outcome.UNSUPPORTED and not self.case.require)

    @property
    def is_final(self) -> bool:
        """Whether a resumed run has nothing left to do here."""
        return self.cause is None or self.cause.kind is not CauseKind.INTERRUPTED


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
    measured = (measurement for result in results for measurement in result.measurements)
    parts = group_by(measured, lambda one: _key(one.metric.name, one.at))
    whole: dict[_Key, Measurement] = {}
    # Rates need the merged times that they derive from, so those come first.
    for key in sorted(parts, key=lambda key: bool(parts[key][0].derived_from)):
        whole[key] = _merge(parts[key], whole)
    each = [
        replace(m, scope=f"rank {rank}")
        for rank, result in enumerate(results)
        for m in result.measurements
        if m.metric.merge is not Merge.FIRST
    ]
    # Ranks see the same trouble with slightly different figures: of each kind, what the first rank that has it says.
    spoken: dict[str, list[RecordWarning]] = {}
    for result in results:
        for kind, warnings in group_by(result.warnings, lambda warning: warning.kind).items():
            spoken.setdefault(kind, warnings)
    return Result(
        measurements=[whole[key] for key in parts] + each,
        facts=results[0].facts | {"ranks": len(results)},
        warnings=[warning for warnings in spoken.values() for warning in warnings],
    )


def _key(name: str, at: At) -> _Key:
    return name, tuple(sorted(at.items()))


def _merge(parts: list[Measurement], whole: dict[_Key, Measurement]) -> Measurement:
    first = parts[0]
    rule = first.metric.merge
    if first.derived_from:
        # Together, all work over the time of the slowest; apart, the sum of what each does.
        times = whole[_key(first.derived_from, first.at)]
        is_pooled = times.metric.merge is Merge.POOLED
        amounts = [part.summary.mean if is_pooled else part.work or 0.0 for part in parts]
        joined = sum(amounts) if rule is Merge.SUM else sum(amounts) / len(amounts)
        return Measurement.of_rate(first.metric, joined * times.summary.mean if is_pooled else joined, times)
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
        return replace(first, samples=list(map(float, samples)), summary=summarize(samples))
    return Measurement.of_value(first.metric, float(join(values)), at=first.at)
