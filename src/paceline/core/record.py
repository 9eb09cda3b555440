"""A record: what one case yielded, with its samples, statistics, doubts and outcome."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from paceline.core.case import Case
from paceline.core.metric import Metric
from paceline.core.stats import Interval, Samples, Summary, summarize
from paceline.core.subject import At as At
from paceline.core.subject import Description

Statistic = Literal["median", "mean", "single"]


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


class Doubt(BaseModel):
    """A reason to trust a number less, and what to do about it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str  # unsteady, imprecise, drifting, short, throttled, contended, emulated, ...
    message: str
    remedy: str


class Measurement(BaseModel):
    """One metric of a record: its samples and what they say."""

    model_config = ConfigDict(extra="forbid")

    metric: Metric
    scope: str = ""  # "" for the whole case, "rank 0", ... for one rank
    at: At = Field(default_factory=dict)  # which point of a sweep: {"size": 1024}; empty for the case as a whole
    statistic: Statistic = "single"  # which of the summary's figures is the headline
    summary: Summary
    samples: list[float] = Field(default_factory=list)  # raw, in the order they were taken
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

    def sample_array(self) -> NDArray[np.float64]:
        """The samples for arithmetic."""
        return np.array(self.samples, dtype=np.float64)

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
    doubts: list[Doubt] = Field(default_factory=list)


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
    doubts: list[Doubt] = Field(default_factory=list)
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
        """Whether nothing went wrong; what a machine cannot do is no failure unless the suite requires it."""
        return self.outcome is Outcome.OK or (self.outcome is Outcome.UNSUPPORTED and not self.case.require)

    @property
    def is_final(self) -> bool:
        """Whether a resumed run has nothing left to do here."""
        return self.cause is None or self.cause.kind is not CauseKind.INTERRUPTED
