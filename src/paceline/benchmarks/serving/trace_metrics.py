"""Measurements from a trace of requests."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from paceline.benchmarks.serving.parameters import SHARES, Slo
from paceline.core.metric import Better, Metric
from paceline.core.quantity import show, show_interval
from paceline.core.record import At, Measurement, RecordWarning, Statistic
from paceline.core.stats import summarize
from paceline.core.tails import Tail, fewest, tails
from paceline.load.trace import CLIENT_POST, CLIENT_PRE, OUT_OF_SOCKETS, UNSENT, Times, Trace

METRICS: list[Metric] = []  # in the order in which reports show them


def _metric(name: str, unit: str, description: str, better: Better = Better.NEITHER) -> Metric:
    METRICS.append(Metric(name=name, unit=unit, better=better, description=description))
    return METRICS[-1]


lower = partial(_metric, better=Better.LOWER)
higher = partial(_metric, better=Better.HIGHER)

CAPACITY = higher("capacity", "requests/s", "the largest rate of Poisson arrivals at which the slo holds")
THROUGHPUT = higher("throughput", "requests/s", "requests answered well over time")
GOODPUT = higher("goodput", "requests/s", "requests answered within the slo, over time")
LATENCY = lower(
    "latency", "s", "from the intended time of a request to its whole answer, of every request that was answered well"
)
_ANSWERED = "of the requests were answered within this time; one without an answer counts as late without end"
PERCENTILES = {name: lower(f"latency_{name}", "s", f"{100 * share:g} % {_ANSWERED}") for name, share in SHARES.items()}
SAMPLE_THROUGHPUT = higher("sample_throughput", "samples/s", "samples answered well over time")
OFFERED = _metric("offered_rate", "requests/s", "requests that were to be sent, over time")
ERRORS = lower("error_rate", "%", "requests that failed, without those that the server shed")
SHED = lower("shed_rate", "%", "requests that the server declined because of load")
DELIVERED = higher("delivered", "%", "requests that went out at all; the load generator's own honesty")
LATENESS = lower(
    "send_lateness",
    "s",
    "how long after its intended time a request went; the load generator's own error, within the latency",
)
STAGE = lower(
    "stage_time", "s", "parts of the latency: sending late, transmission, and what the server reports of itself"
)
BATCHES = _metric("batch_share", "%", "part of the batches that were computed with so many samples")
BATCH = _metric("batch_size", "samples", "samples of a batch as it was computed, on average")
COLD_START = lower(
    "cold_start",
    "s",
    "from the process to ready, from ready to the first answer, and from then until answers are steady",
)
CPU = _metric("cpu_utilisation", "%", "processor time of the server over time; 100 % is one core")
GPU = _metric("gpu_utilisation", "%", "part of the time in which the GPU was busy")
HOST_MEMORY = lower("server_memory", "B", "most resident memory of the server's processes")
DEVICE_MEMORY = lower("server_device_memory", "B", "most memory in use on the GPU")
ENERGY = lower("energy_per_request", "J", "energy of the device, from its own counter, per request answered well")
CARBON = lower(
    "co2_per_request",
    "g",
    "energy of the device times the carbon intensity of its electricity, per request answered well",
)
COST = lower("cost_per_thousand", "USD", "price of the machine for as long as a thousand requests took at this rate")
FIRST_TOKEN = lower("time_to_first_token", "s", "from the intended time of a request to the first piece of its stream")
BETWEEN_TOKENS = lower("inter_token_latency", "s", "between one piece of a stream and the next")
TOKEN_THROUGHPUT = higher("token_throughput", "tokens/s", "pieces of all streams over time")

WIDE = 0.05  # part of the throughput that its interval may be
WINDOWS = 20  # parts of a load whose rates show how certain the whole rate is


def traffic(trace: Trace, slo: Slo | None, *, at: At | None = None) -> list[Measurement]:
    """Rates and percentiles of a load, as a whole or at one point of a search."""
    span, moments = seconds_of(trace), trace.done - trace.intended[0]
    ok = trace.ok
    measurements = [rate(THROUGHPUT, moments[ok], span, at=at)]
    offered_span = float(trace.intended[-1] - trace.intended[0])
    if offered_span > 0:  # gaps over the time that they fill; requests that all come at once have no rate
        measurements.append(Measurement.of_value(OFFERED, (len(trace) - 1) / offered_span, at=at))
    if slo is not None:
        measurements.append(rate(GOODPUT, moments[slo.good(trace)], span, at=at))
    failed = np.count_nonzero(~ok & ~trace.shed & (trace.status != UNSENT))
    return [
        *measurements,
        *percentiles(trace, at=at),
        Measurement.of_value(ERRORS, 100.0 * float(failed) / len(trace), at=at),
        Measurement.of_value(SHED, 100.0 * float(trace.shed.mean()), at=at),
    ]


def details(trace: Trace) -> list[Measurement]:
    """The rest of a load that stands alone: every latency, the stages, the batches, the generator's own error."""
    ok = trace.ok
    measurements = []
    if ok.any():
        measurements.append(Measurement.of_samples(LATENCY, trace.latency[ok]))
        if int(trace.samples.max(initial=1)) > 1:
            moments = (trace.done - trace.intended[0])[ok]
            measurements.append(rate(SAMPLE_THROUGHPUT, moments, seconds_of(trace), work=trace.samples[ok]))
    sent = ~np.isin(trace.status, (UNSENT, OUT_OF_SOCKETS))
    measurements.append(Measurement.of_value(DELIVERED, 100.0 * float(sent.mean())))
    late = trace.lateness[sent & np.isfinite(trace.lateness)]
    if late.size:
        measurements.append(Measurement.of_samples(LATENESS, late))
    return [*measurements, *_stages(trace), *_batches(trace), *_tokens(trace)]


def seconds_of(trace: Trace) -> float:
    """From the first intended time to the last answer, or to the last intended time if that is later."""
    last = float(np.nanmax(trace.done)) if np.isfinite(trace.done).any() else 0.0
    return max(last, float(trace.intended[-1]), 1e-9) - float(trace.intended[0])


def percentiles(trace: Trace, *, at: At | None = None) -> list[Measurement]:
    """Latency percentiles with their intervals, as far as there are requests enough; one without an answer is late."""
    latency = np.where(trace.ok, trace.latency, np.inf)
    names = [name for name, share in SHARES.items() if len(latency) >= fewest(share)]
    found = tails(latency, [SHARES[name] for name in names])
    return [
        percentile(PERCENTILES[name], tail, at=at)
        for name, tail in zip(names, found, strict=True)
        if tail.value < math.inf
    ]


def percentile(metric: Metric, tail: Tail, *, at: At | None = None) -> Measurement:
    """One percentile; without an interval where its requests are not worth enough."""
    spread = {"count": tail.count, "effective_count": tail.effective, "mean_interval": tail.interval}
    summary = summarize([tail.value]).model_copy(update=spread)
    statistic: Statistic = "mean" if tail.interval is not None else "single"
    return Measurement(metric=metric, at=at or {}, statistic=statistic, summary=summary, derived_from=LATENCY.name)


def rate(
    metric: Metric, moments: Times, span: float, *, at: At | None = None, work: NDArray[np.int32] | None = None
) -> Measurement:
    """Events over time, by when they were after its begin; how its parts differ shows how certain that is."""
    value = float(len(moments) if work is None else work.sum()) / span
    counts, _ = np.histogram(moments, bins=WINDOWS, range=(0.0, span), weights=work)
    summary = summarize(counts * (WINDOWS / span))
    # The windows cover the whole span, so that their mean is the rate but for rounding.
    summary = summary.model_copy(update={"mean": value})
    return Measurement(metric=metric, at=at or {}, statistic="mean", summary=summary)


def _stages(trace: Trace) -> list[Measurement]:
    """Where the time of a request went: late sending, the client's and the server's stages, and what lies between."""
    ok = trace.ok
    if not ok.any():
        return []
    parts: dict[str, Times] = {"send lateness": trace.lateness[ok]}
    stages = {name: values[ok] for name, values in trace.stages.items() if np.isfinite(values[ok]).any()}
    within = np.nansum(np.column_stack([*stages.values(), np.zeros(int(ok.sum()))]), axis=1)
    rest = "transmission" if stages.keys() - {CLIENT_PRE, CLIENT_POST} else "server and transmission"
    parts[rest] = np.maximum(0.0, (trace.done - trace.sent)[ok] - within)
    parts |= stages
    return [
        Measurement.of_samples(STAGE, values[np.isfinite(values)], at={"stage": name}, statistic="mean")
        for name, values in parts.items()
    ]


def _batches(trace: Trace) -> list[Measurement]:
    """Of the batches, not of the requests in them: one of eight requests counts once."""
    if trace.batch is None or not (reported := trace.ok & (trace.batch > 0)).any():
        return []
    sizes, weights = trace.batch[reported], trace.samples[reported] / trace.batch[reported]
    total = float(weights.sum())
    shares = [
        Measurement.of_value(BATCHES, 100.0 * float(weights[sizes == size].sum()) / total, at={"batch": int(size)})
        for size in np.unique(sizes)
    ]
    return [Measurement.of_value(BATCH, float((sizes * weights).sum()) / total), *shares]


def _tokens(trace: Trace) -> list[Measurement]:
    if trace.tokens is None:
        return []
    requests = zip(trace.intended, trace.tokens, trace.ok, strict=True)
    streams = [(begun, times) for begun, times, ok in requests if ok and len(times)]
    if not streams:
        return []
    every = np.concatenate([times for _, times in streams]) - trace.intended[0]
    gaps = np.concatenate([np.diff(times) for _, times in streams])
    return [
        Measurement.of_samples(FIRST_TOKEN, [float(times[0] - begun) for begun, times in streams]),
        rate(TOKEN_THROUGHPUT, every, seconds_of(trace)),
        *([Measurement.of_samples(BETWEEN_TOKENS, gaps)] if gaps.size else []),
    ]


def imprecise(measurements: Iterable[Measurement]) -> list[RecordWarning]:
    """Where answers did not come evenly enough for their rate to be one number."""
    throughput = next((one for one in measurements if one.metric == THROUGHPUT and not one.at), None)
    if throughput is None:
        return []
    relative = throughput.interval.relative(throughput.value) if throughput.interval is not None else math.inf
    if relative <= WIDE:
        return []
    shown = partial(show, unit=throughput.metric.unit)
    width = show_interval(throughput.value, throughput.interval, shown) or "unknown"
    remedy = "quieten the machine (paceline doctor), or load it for longer"
    return [RecordWarning(kind="imprecise", message=f"the interval of the throughput is {width}", remedy=remedy)]
