"""Records of served models, from traces of a simulated server that batches, as the benchmark itself makes them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from paceline.benchmarks.serving import trace_metrics
from paceline.benchmarks.serving.parameters import Slo
from paceline.core.record import Measurement, Record, RecordWarning
from paceline.core.run import RunRecords
from paceline.core.stats import Interval, summarize
from paceline.load.trace import OK, SHED, Trace
from support.records import CONDITIONS, case, record, run_of

PROMISE = {"p99": 0.05}
_PARTS = {"process to ready": 3.21, "ready to first answer": 0.118, "first answer to steady": 0.74}


def trace(
    rate: float, *, fixed: float, each: float, most: int = 8, count: int = 1500, seed: int = 1, shed: float = 0.0
) -> Trace:
    """Poisson arrivals at a server that computes whatever waits, at most so many; n take `fixed` + `each` * n."""
    rng = np.random.default_rng(seed)
    intended = np.cumsum(rng.exponential(1.0 / rate, count))
    sent = intended + rng.gamma(2.0, 4e-5, count)
    decode, post, network = (rng.gamma(4.0, scale, count) for scale in (2e-5, 4e-5, 1e-4))
    ready = sent + network / 2 + decode
    begun, took = np.empty(count), np.empty(count)
    sizes = np.empty(count, np.int32)
    free, place = 0.0, 0
    while place < count:
        start = max(free, ready[place] + 0.001)
        end = min(max(place + 1, int(np.searchsorted(ready, start))), place + most)
        time = (fixed + each * (end - place)) * (1 + rng.gamma(1.5, 0.03))
        begun[place:end], took[place:end], sizes[place:end] = start, time, end - place
        free, place = start + time, end
    assembling = np.full(count, 6e-5)
    done = begun + assembling + took + post + network / 2
    status = np.where(rng.random(count) < shed, SHED, OK).astype(np.int32)
    zeros, ones = np.zeros(count, np.int32), np.ones(count, np.int32)
    return Trace(
        intended=intended, sent=sent, first=done, done=done, status=status, kind=zeros, worker=zeros, samples=ones,
        stages={"decode": decode, "queue": begun - ready, "batch": assembling, "inference": took, "post": post},
        batch=sizes,
    )  # fmt: skip


def parameters(engine: str, most: int, **more: Any) -> dict[str, Any]:
    """As a case keeps them, after defaults."""
    server = {"kind": "embedded", "engine": engine, "max_batch": most}
    known = {"model": "resnet18", "scale": "full", "precision": "fp32", "server": server, "slo": PROMISE, "load": None}
    return known | more


def served(
    index: int, engine: str, rate: float, *, fixed: float, each: float, most: int = 8, loop: str = "open", **more: Any
) -> Record:
    """One load at a chosen rate, or by users who wait for their answers."""
    sent = trace(rate, fixed=fixed, each=each, most=most, seed=7 + index, **more)
    slo = Slo(**PROMISE)
    load = {"arrival": "poisson", "rate": rate} if loop == "open" else {"arrival": loop, "users": 8}
    verdict = slo.judge(sent)
    facts = {"loop": loop, "slo": "held" if verdict.holds else f"missed: {verdict.reason}"}
    title = f"resnet18 embedded {engine} max_batch={most} {load['arrival']} {rate:g}/s p99≤50ms"
    about = case(index, "serve", title, **parameters(engine, most, load=load))
    return _record(about, [*trace_metrics.traffic(sent, slo), *trace_metrics.details(sent)], sent, facts)


def searched(index: int, engine: str, *, fixed: float, each: float, most: int = 8, capacity: float) -> Record:
    """A search for the largest rate, with its trials."""
    slo = Slo(**PROMISE)
    points: list[Measurement] = []
    for place, part in enumerate((0.25, 0.5, 1.0, 1.3, 1.12, 1.05, 0.97, 1.02, 0.99, 1.01)):
        rate = part * capacity
        tried = trace(rate, fixed=fixed, each=each, most=most, count=700, seed=100 * index + place)
        points += trace_metrics.traffic(tried, slo, at={"rate": round(rate, 3)})
    sent = trace(0.97 * capacity, fixed=fixed, each=each, most=most, seed=index)
    interval = Interval(low=0.97 * capacity, high=1.02 * capacity, confidence=0.95)
    summary = summarize([capacity]).model_copy(update={"mean_interval": interval, "count": 10})
    found = Measurement(metric=trace_metrics.CAPACITY, statistic="mean", summary=summary)
    facts = {"loop": "open", "slo": "held", "search": "10 trials, 7000 requests"}
    title = f"resnet18 embedded {engine} max_batch={most} search p99≤50ms"
    about = case(index, "serve", title, **parameters(engine, most))
    return _record(
        about, [found, *trace_metrics.traffic(sent, slo), *trace_metrics.details(sent), *points], sent, facts
    )


def _record(about: Any, measurements: list[Measurement], sent: Trace, facts: dict[str, Any]) -> Record:
    rate = int(sent.ok.sum()) / trace_metrics.seconds_of(sent)
    busy = float(sent.stages["inference"][sent.ok].sum()) / trace_metrics.seconds_of(sent)
    measurements += [
        Measurement.of_value(trace_metrics.COLD_START, took, at={"part": part}) for part, took in _PARTS.items()
    ]
    measurements += [
        Measurement.of_value(trace_metrics.CPU, min(190.0, 100 * busy + 9)),
        Measurement.of_value(trace_metrics.HOST_MEMORY, 512 * 1024.0**2),
        Measurement.of_value(trace_metrics.COST, 0.53 / 3600 / rate * 1000),
    ]
    warnings = []
    if sent.shed.any():
        remedy = "look into the server's log"
        warnings = [
            RecordWarning(kind="errors", message=f"{int(sent.shed.sum())} requests were declined", remedy=remedy)
        ]
    served_case = about.model_copy(update={"category": "serving", "target": "cpu"})
    return record(served_case, measurements, facts=facts, warnings=warnings, conditions=CONDITIONS)


ENGINES = {"torch": {"fixed": 0.0052, "each": 0.0021}, "onnxruntime": {"fixed": 0.0021, "each": 0.0016}}


@cache
def rates_run() -> RunRecords:
    """Two engines at three rates each; the slower one cannot keep up with the highest."""
    asked = [(engine, rate) for engine in ENGINES for rate in (50.0, 150.0, 300.0)]
    return run_of([served(place, engine, rate, **ENGINES[engine]) for place, (engine, rate) in enumerate(asked)])


@cache
def capacity_run() -> RunRecords:
    """Two engines whose largest rate was searched, and one of them without batches at a chosen rate."""
    return run_of(
        [
            searched(0, "torch", **ENGINES["torch"], capacity=268.0),
            searched(1, "onnxruntime", **ENGINES["onnxruntime"], capacity=468.0),
            served(2, "onnxruntime", 120.0, **ENGINES["onnxruntime"], most=1, shed=0.004),
        ]
    )
