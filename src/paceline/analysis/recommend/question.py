"""What is asked of a recommendation: the SLO, the budget, the rate to serve, and what counts as better."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Literal

from paceline.analysis.cost import Budget
from paceline.core.errors import InputError, unknown
from paceline.core.quantity import parse_fraction, parse_latency

Objective = Literal["goodput", "cost", "energy", "latency"]
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
ERRORS = "error_rate"
TOKENS = ("first_token", "between_tokens")  # of 99 % of the requests, or of as many as follows the name
TOKEN_BOUNDS = tuple(f"{name}_{tail}" for name in TOKENS for tail in PERCENTILES if tail != "p99.9")
USUAL_ERRORS = 0.01  # as a served case allows by default
_SPELLINGS = {"p99_9": "p99.9", "p999": "p99.9", "errors": ERRORS}
_SPELLINGS |= {name: f"{name}_p99" for name in TOKENS} | {"ttft": "first_token_p99", "itl": "between_tokens_p99"}


@dataclass(frozen=True)
class SloLimit:
    """The most that a metric may be: seconds, or a part of the requests."""

    metric: str
    limit: float
    is_explicit: bool = True  # a default one is judged without its uncertainty


@dataclass(frozen=True)
class Question:
    """All that is asked."""

    bounds: tuple[SloLimit, ...] = ()
    by: Objective = "goodput"
    rate: float | None = None  # requests/s that all replicas together must answer
    budget: Budget | None = None
    strict: bool = False
    carbon: float | None = None  # g/kWh
    origin: str = ""  # where the SLO is from, if it was not given

    def with_limit(self, metric: str, limit: float) -> Question:
        """The same with another bound on one metric."""
        bounds = [replace(bound, limit=limit) if bound.metric == metric else bound for bound in self.bounds]
        return replace(self, bounds=tuple(bounds))

    @property
    def percentile(self) -> str:
        """The latency that counts: the highest percentile of the SLO."""
        percentiles = [bound.metric for bound in self.bounds if bound.metric in PERCENTILES]
        return max(percentiles, key=lambda name: PERCENTILES[name], default="p99")


def read_bounds(texts: Iterable[str]) -> tuple[SloLimit, ...]:
    """Bounds as people write them: `p99=50ms`, `error_rate=0.1%`, several with commas."""
    limits: dict[str, float] = {}
    for text in chain.from_iterable(several.split(",") for several in texts):
        name, separator, value = (part.strip() for part in text.partition("="))
        metric = _SPELLINGS.get(name, name)
        if metric not in (*PERCENTILES, *TOKEN_BOUNDS, ERRORS):
            raise unknown("metric in --slo", name, [*PERCENTILES, *TOKENS, *TOKEN_BOUNDS, ERRORS], key="--slo")
        if not separator or not value:
            message = "give a bound, like p99=50ms or error_rate=0.1%"
            raise InputError("missing-bound", message, where=f"--slo '{text}'", key="--slo", value=text)
        if metric in limits:
            raise InputError("duplicate-key", f"--slo {metric} is given twice", key="--slo", value=metric)
        try:
            limit = parse_fraction(value) if metric == ERRORS else parse_latency(value)
        except ValueError as error:
            raise InputError("not-a-bound", str(error), where=f"--slo {name}", key="--slo", value=value) from None
        if metric != ERRORS and limit <= 0:
            message = "a latency must be above 0"
            raise InputError("out-of-range", message, where=f"--slo {name}={value}", key="--slo", value=value)
        limits[metric] = limit
    return bounds_of(limits)


def bounds_of(limits: Mapping[str, float]) -> tuple[SloLimit, ...]:
    """Percentiles from the lowest, then the errors; a higher percentile cannot come sooner than a lower one."""
    ordered = [SloLimit(name, limits[name]) for name in PERCENTILES if name in limits]
    for lower, higher in pairwise(ordered):
        if higher.limit < lower.limit:
            message = f"--slo {higher.metric} is shorter than {lower.metric}: a higher percentile is never sooner"
            raise InputError("conflicting-bounds", message, key="--slo", value=higher.metric)
    ordered += [SloLimit(name, limits[name]) for name in TOKEN_BOUNDS if name in limits]
    errors = limits.get(ERRORS)
    return (*ordered, SloLimit(ERRORS, USUAL_ERRORS, is_explicit=False) if errors is None else SloLimit(ERRORS, errors))
