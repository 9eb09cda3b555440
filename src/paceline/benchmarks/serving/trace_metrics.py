"""What a trace of requests says, as measurements."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from paceline.benchmarks.serving.parameters import Slo
from paceline.core.metric import Better, Metric
from paceline.core.record import At, Measurement, RecordWarning, Statistic
from paceline.core.stats import CONFIDENCE, Interval, Summary, effective_count, summarize
from paceline.load.trace import CLIENT_POST, CLIENT_PRE, OUT_OF_SOCKETS, UNSENT, Times, Trace

LATENCY = Metric(
    name="latency",
    unit="s",
    better=Better.LOWER,
    description="from the intended time of a request to its whole answer, of every request that was answered well",
)
SHARES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
PERCENTILES = {
    name: Metric(
        name=f"latency_{name}",
        unit="s",
        better=Better.LOWER,
        description=f"{100 * share:g} % of the requests were answered within this time; one without an answer counts "
        "as late without end",
    )
    for name, share in SHARES.items()
}
CAPACITY = Metric(
    name="capacity",
    unit="requests/s",
    better=Better.HIGHER,
    description="the largest rate of Poisson arrivals at which the slo holds",
)
THROUGHPUT = Metric(
    name="throughput", unit="requests/s", better=Better.HIGHER, description="requests answered well over time"
)
SAMPLE_THROUGHPUT = Metric(
    name="sample_throughput", unit="samples/s", better=Better.HIGHER, description="samples answered well over time"
)
GOODPUT = Metric(
    name="goodput", unit="requests/s", better=Better.HIGHER, description="requests answered within the slo, over time"
)
OFFERED = Metric(name="offered_rate", unit="requests/s", description="requests that were to be sent, over time")
ERRORS = Metric(
    name="error_rate",
    unit="%",
    better=Better.LOWER,
    description="requests that failed, without those that the server shed",
)
SHED = Metric(
    name="shed_rate", unit="%", better=Better.LOWER, description="requests that the server declined because of load"
)
DELIVERED = Metric(
    name="delivered",
    unit="%",
    better=Better.HIGHER,
    description="requests that went out at all; the load generator's own honesty",
)
LATENESS = Metric(
    name="send_lateness",
    unit="s",
    better=Better.LOWER,
    description="how long after its intended time a request went; the load generator's own error, within the latency",
)
STAGE = Metric(
    name="stage_time",
    unit="s",
    better=Better.LOWER,
    description="parts of the latency: sending late, transmission, and what the server tells of itself",
)
BATCHES = Metric(
    name="batch_share", unit="%", description="part of the batches that were computed with so many samples"
)
BATCH = Metric(name="batch_size", unit="samples", description="samples of a batch as it was computed, on average")
COLD_START = Metric(
    name="cold_start",
    unit="s",
    better=Better.LOWER,
    description="from the process to ready, from ready to the first answer, and from then until answers are steady",
)
CPU = Metric(name="cpu_utilisation", unit="%", description="processor time of the server over time; 100 % is one core")
GPU = Metric(name="gpu_utilisation", unit="%", description="part of the time in which the GPU was busy")
HOST_MEMORY = Metric(
    name="server_memory", unit="B", better=Better.LOWER, description="most resident memory of the server's processes"
)
DEVICE_MEMORY = Metric(
    name="server_device_memory", unit="B", better=Better.LOWER, description="most memory in use on the GPU"
)
ENERGY = Metric(
    name="energy_per_request",
    unit="J",
    better=Better.LOWER,
    description="energy of the device, from its own counter, per request answered well",
)
CARBON = Metric(
    name="co2_per_request",
    unit="g",
    better=Better.LOWER,
    description="energy of the device times the carbon intensity of its electricity, per request answered well",
)
COST = Metric(
    name="cost_per_thousand",
    unit="USD",
    better=Better.LOWER,
    description="price of the machine for as long as a thousand requests took at this rate",
)
FIRST_TOKEN = Metric(
    name="time_to_first_token",
    unit="s",
    better=Better.LOWER,
    description="from the intended time of a request to the first piece of its stream",
)
BETWEEN_TOKENS = Metric(
    name="inter_token_latency", unit="s", better=Better.LOWER, description="between one piece of a stream and the next"
)
TOKEN_THROUGHPUT = Metric(
    name="token_throughput", unit="tokens/s", better=Better.HIGHER, description="pieces of all streams over time"
)

METRICS = (
    CAPACITY,
    THROUGHPUT,
    GOODPUT,
    LATENCY,
    *PERCENTILES.values(),
    SAMPLE_THROUGHPUT,
    OFFERED,
    ERRORS,
    SHED,
    DELIVERED,
    LATENESS,
    STAGE,
    BATCHES,
    BATCH,
    COLD_START,
    CPU,
    GPU,
    HOST_MEMORY,
    DEVICE_MEMORY,
    ENERGY,
    CARBON,
    COST,
    FIRST_TOKEN,
    BETWEEN_TOKENS,
    TOKEN_THROUGHPUT,
)


FEWEST_BEYOND = 5  # requests beyond a percentile for it to be told
WIDE = 0.05  # part of the throughput that its interval may be
WINDOWS = 20  # parts of a load whose rates tell how sure the whole rate is


def traffic(trace: Trace, slo: Slo | None, *, at: At | None = None) -> list[Measurement]:
    """Rates and percentiles of a load, as a whole or at one point of a search."""
    span, moments = seconds_of(trace), trace.done - trace.intended[0]
    ok = trace.ok
    found = [
        rate(THROUGHPUT, moments[ok], span, at=at),
        *_offered(trace, at),
    ]
    if slo is not None:
        found.append(rate(GOODPUT, moments[slo.good(trace)], span, at=at))
    found += percentiles(trace, at=at)
    failed = np.count_nonzero(~ok & ~trace.shed & (trace.status != UNSENT))
    return [
        *found,
        Measurement.of_value(ERRORS, 100.0 * float(failed) / len(trace), at=at),
        Measurement.of_value(SHED, 100.0 * float(trace.shed.mean()), at=at),
    ]


def details(trace: Trace) -> list[Measurement]:
    """What is worth telling of a load alone: every latency, the stages, the batches, the generator's own error."""
    ok = trace.ok
    found = []
    if ok.any():
        found.append(Measurement.of_samples(LATENCY, trace.latency[ok]))
        if int(trace.samples.max(initial=1)) > 1:
            moments = (trace.done - trace.intended[0])[ok]
            found.append(rate(SAMPLE_THROUGHPUT, moments, seconds_of(trace), work=trace.samples[ok]))
    sent = ~np.isin(trace.status, (UNSENT, OUT_OF_SOCKETS))
    found.append(Measurement.of_value(DELIVERED, 100.0 * float(sent.mean())))
    late = trace.lateness[sent & np.isfinite(trace.lateness)]
    if late.size:
        found.append(Measurement.of_samples(LATENESS, late))
    return [*found, *_stages(trace), *_batches(trace), *_tokens(trace)]


def seconds_of(trace: Trace) -> float:
    """From the first intended time to the last answer, or to the last intended time if that is later."""
    last = float(np.nanmax(trace.done)) if np.isfinite(trace.done).any() else 0.0
    return max(last, float(trace.intended[-1]), 1e-9) - float(trace.intended[0])


def percentiles(trace: Trace, *, at: At | None = None) -> list[Measurement]:
    """Latency percentiles with their intervals, as far as there are requests enough; one without an answer is late."""
    latency = np.where(trace.ok, trace.latency, np.inf)
    found = []
    for name, share in SHARES.items():
        told = percentile(PERCENTILES[name], latency, share, at=at)
        if told is not None:
            found.append(told)
    return found


def percentile(metric: Metric, values: Times, share: float, *, at: At | None = None) -> Measurement | None:
    """One percentile with an interval from order statistics that allows for lateness in clusters."""
    if round(len(values) * (1.0 - share), 6) < FEWEST_BEYOND:  # a tenth of 50 is five, whatever floating point says
        return None
    ordered = np.sort(values)
    value = float(np.quantile(ordered, share, method="inverted_cdf"))
    if not math.isfinite(value):
        return None
    independent = max(1.0, min(effective_count(np.where(np.isfinite(values), values, value)), float(len(values))))
    reach = 1.96 * math.sqrt(share * (1.0 - share) / independent)
    low, high = (_order(ordered, part) for part in (share - reach, share + reach))
    interval = Interval(low=min(low, value), high=max(high, value), confidence=CONFIDENCE) if high < math.inf else None
    base = summarize([value])
    known = {"count": len(values), "effective_count": independent, "mean_interval": interval}
    summary: Summary = base.model_copy(update=known)
    statistic: Statistic = "mean" if interval is not None else "single"
    return Measurement(metric=metric, at=at or {}, statistic=statistic, summary=summary, derived_from=LATENCY.name)


def rate(
    metric: Metric, moments: Times, span: float, *, at: At | None = None, work: NDArray[np.int32] | None = None
) -> Measurement:
    """Events over time, by when they were after its begin; how its parts differ tells how sure that is."""
    amount = float(len(moments) if work is None else work.sum())
    value = amount / span
    counts, _ = np.histogram(moments, bins=WINDOWS, range=(0.0, span), weights=work)
    summary = summarize(counts * (WINDOWS / span))
    # The windows cover the whole span, so that their mean is the rate but for rounding.
    summary = summary.model_copy(update={"mean": value})
    return Measurement(metric=metric, at=at or {}, statistic="mean", summary=summary)


def _offered(trace: Trace, at: At | None) -> list[Measurement]:
    """Gaps over the time that they fill; requests that all come at once have no rate."""
    span = float(trace.intended[-1] - trace.intended[0])
    return [Measurement.of_value(OFFERED, (len(trace) - 1) / span, at=at)] if span > 0 else []


def _order(ordered: Times, share: float) -> float:
    place = math.ceil(share * len(ordered)) - 1
    return float(ordered[min(max(place, 0), len(ordered) - 1)])


def _stages(trace: Trace) -> list[Measurement]:
    """Where the time of a request went: late sending, the client's and the server's stages, and what lies between."""
    ok = trace.ok
    if not ok.any():
        return []
    parts: dict[str, Times] = {"send lateness": trace.lateness[ok]}
    told = {name: values[ok] for name, values in trace.stages.items() if np.isfinite(values[ok]).any()}
    within = np.nansum(np.column_stack([*told.values(), np.zeros(int(ok.sum()))]), axis=1)
    rest = "transmission" if told.keys() - {CLIENT_PRE, CLIENT_POST} else "server and transmission"
    parts[rest] = np.maximum(0.0, (trace.done - trace.sent)[ok] - within)
    parts |= told
    return [
        Measurement.of_samples(STAGE, values[np.isfinite(values)], at={"stage": name}, statistic="mean")
        for name, values in parts.items()
    ]


def _batches(trace: Trace) -> list[Measurement]:
    """Of the batches, not of the requests in them: one of eight requests counts once."""
    if trace.batch is None:
        return []
    known = trace.ok & (trace.batch > 0)
    if not known.any():
        return []
    sizes, weights = trace.batch[known], trace.samples[known] / trace.batch[known]
    total = float(weights.sum())
    shares = [
        Measurement.of_value(BATCHES, 100.0 * float(weights[sizes == size].sum()) / total, at={"batch": int(size)})
        for size in np.unique(sizes)
    ]
    return [Measurement.of_value(BATCH, float((sizes * weights).sum()) / total), *shares]


def _tokens(trace: Trace) -> list[Measurement]:
    if trace.tokens is None:
        return []
    streams = [(begun, times) for begun, times, ok in zip(trace.intended, trace.tokens, trace.ok, strict=True) if ok]
    streams = [(begun, times) for begun, times in streams if len(times)]
    if not streams:
        return []
    every = np.concatenate([times for _, times in streams]) - trace.intended[0]
    gaps = np.concatenate([np.diff(times) for _, times in streams])
    found = [
        Measurement.of_samples(FIRST_TOKEN, [float(times[0] - begun) for begun, times in streams]),
        rate(TOKEN_THROUGHPUT, every, seconds_of(trace)),
    ]
    return [*found, Measurement.of_samples(BETWEEN_TOKENS, gaps)] if gaps.size else found


def imprecise(measurements: Iterable[Measurement]) -> list[RecordWarning]:
    """Where answers did not come evenly enough for their rate to be one number."""
    found = next((one for one in measurements if one.metric == THROUGHPUT and not one.at), None)
    if found is None:
        return []
    relative = found.interval.relative(found.value) if found.interval is not None else math.inf
    if relative <= WIDE:
        return []
    width = f"±{relative:.1%}" if math.isfinite(relative) else "unknown"
    remedy = "quieten the machine (paceline doctor), or load it for longer"
    return [RecordWarning(kind="imprecise", message=f"the interval of the throughput is {width}", remedy=remedy)]
