"""Measurements from a trace of requests."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.benchmarks.serving.parameters import SHARES, Slo
from paceline.core.metric import Better, Metric
from paceline.core.quantity import show, show_interval
from paceline.core.record import At, Measurement, RecordWarning, Statistic
from paceline.core.stats import summarize
from paceline.core.tails import Tail, fewest, tails
from paceline.load.trace import CANCELLED, CLIENT_POST, CLIENT_PRE, OUT_OF_SOCKETS, UNSENT, Times, Trace

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
LEFT = _metric("cancelled_rate", "%", "requests that their users closed before the answer was whole, as was asked for")
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
ENERGY_PER_TOKEN = lower("energy_per_token", "J", "energy of the device, from its own counter, per output token")
COST_PER_MILLION = lower(
    "cost_per_million_tokens", "USD", "price of the machine for as long as a million output tokens took at this rate"
)
FIRST_TOKEN = lower("time_to_first_token", "s", "from the intended time of a request to the first chunk of its text")
BETWEEN_TOKENS = lower(
    "inter_token_latency",
    "s",
    "between one token and the next: between two chunks, divided by the tokens that a chunk of this answer carries",
)
BETWEEN_CHUNKS = lower("inter_chunk_latency", "s", "between two chunks of a stream, of one token or several each")
TOKEN_THROUGHPUT = higher("token_throughput", "tokens/s", "tokens of all answers over time")
TOKENS_PER_USER = higher(
    "tokens_per_user", "tokens/s/user", "how fast an answer comes to its user: 1 over the median time between tokens"
)
PROMPT_TOKENS = _metric("prompt_tokens", "tokens", "length of a prompt, as the server counted it")
OUTPUT_TOKENS = _metric("output_tokens", "tokens", "length of an answer, as the server or the tokenizer counted it")
SERVER_RUNNING = _metric("server_running", "requests", "requests that the server computes at a time, as it reports")
SERVER_QUEUE = _metric("server_queue", "requests", "requests that wait in the server, as it reports")
KV_CACHE = _metric("kv_cache_use", "%", "part of the KV cache that is in use, as the server reports")
ACCEPTED_DRAFTS = _metric(
    "accepted_drafts", "%", "part of the drafted tokens that speculative decoding accepted, as the server reports"
)
CACHED = _metric("cached_prompt_share", "%", "part of the prompts' tokens that the server had computed before")
SHARE = _metric("request_share", "%", "part of the requests that are of this turn of a conversation, or ask this model")
_TOKEN_SHARES = {name: share for name, share in SHARES.items() if share <= 0.99}
_WITHIN = "of the requests have this or less"
FIRST_TOKEN_PERCENTILES = {
    name: lower(f"first_token_{name}", "s", f"time to the first token: {100 * share:g} % {_WITHIN}")
    for name, share in _TOKEN_SHARES.items()
}
BETWEEN_TOKENS_PERCENTILES = {
    name: lower(
        f"between_tokens_{name}", "s", f"mean time between the tokens of a request: {100 * share:g} % {_WITHIN}"
    )
    for name, share in _TOKEN_SHARES.items()
}

WIDE = 0.05  # part of the throughput that its interval may be
FEW = 0.01  # of the answers that may have another length
FAR = 0.2  # of the length of prompts that they may be off: a chat's template adds some tokens
FEW_TOKENS = 16
WINDOWS = 20  # parts of a load whose rates show how certain the whole rate is


def traffic(trace: Trace, slo: Slo | None, *, at: At | None = None) -> list[Measurement]:
    """Rates and percentiles of a load, as a whole or at one point of a search."""
    span, moments = seconds_of(trace), trace.done - trace.intended[0]
    ok, cancelled = trace.ok, trace.status == CANCELLED
    measurements = [rate(THROUGHPUT, moments[ok], span, at=at)]
    offered_span = float(trace.intended[-1] - trace.intended[0])
    if offered_span > 0:  # gaps over the time that they fill; requests that all come at once have no rate
        measurements.append(Measurement.of_value(OFFERED, (len(trace) - 1) / offered_span, at=at))
    if slo is not None:
        measurements.append(rate(GOODPUT, moments[slo.good(trace)], span, at=at))
    failed = np.count_nonzero(~ok & ~trace.shed & ~cancelled & (trace.status != UNSENT))
    measurements += [Measurement.of_value(LEFT, 100.0 * float(cancelled.mean()), at=at)] if cancelled.any() else []
    return [
        *measurements,
        *percentiles(trace.kept, at=at),
        *_token_rate(trace, at),
        *token_percentiles(trace.kept, at=at),
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


def by_group(trace: Trace, groups: Mapping[str, Sequence[str | int]]) -> list[Measurement]:
    """Where requests differ by the turn of a conversation or the model that they ask: the figures of each."""
    kept, measurements = trace.kept, list[Measurement]()
    for name, values in groups.items():
        of_row = np.array(values)[kept.kind]
        for value in np.unique(of_row).tolist():
            part, at = kept.taken(np.flatnonzero(of_row == value)), {name: value}
            own = [*percentiles(part, at=at), *token_percentiles(part, at=at), *_cached(part, at)]
            measurements += [one for one in own if one.metric.name.endswith(("_p50", "_p99", CACHED.name))]
            measurements.append(Measurement.of_value(SHARE, 100.0 * len(part) / len(kept), at=at))
    return measurements


def seconds_of(trace: Trace) -> float:
    """From the first intended time to the last answer, or to the last intended time if that is later."""
    last = float(np.nanmax(trace.done)) if np.isfinite(trace.done).any() else 0.0
    return max(last, float(trace.intended[-1]), 1e-9) - float(trace.intended[0])


def percentiles(trace: Trace, *, at: At | None = None) -> list[Measurement]:
    """Latency percentiles with their intervals, as far as there are requests enough; one without an answer is late."""
    return _percentiles(PERCENTILES, np.where(trace.ok, trace.latency, np.inf), LATENCY, at)


def token_percentiles(trace: Trace, *, at: At | None = None) -> list[Measurement]:
    """The same of the first token and of the time between tokens; a request without them is late."""
    if trace.chunks is None:
        return []
    first = np.where(trace.ok, np.nan_to_num(trace.first_token, nan=np.inf), np.inf)
    measurements = _percentiles(FIRST_TOKEN_PERCENTILES, first, FIRST_TOKEN, at)
    if _are_counted(trace):  # an answer of one chunk has no time between tokens
        several = ~(trace.ok & np.isnan(trace.between_tokens))
        between = np.where(trace.ok, trace.between_tokens, np.inf)[several]
        found = _percentiles(BETWEEN_TOKENS_PERCENTILES, between, BETWEEN_TOKENS, at)
        medians = (one for one in found if one.metric == BETWEEN_TOKENS_PERCENTILES["p50"] and one.value > 0)
        measurements += [*map(_per_user, medians), *found]
    return measurements


def _per_user(median: Measurement) -> Measurement:
    summary = summarize([1.0 / median.value]).model_copy(update={"count": median.count})
    if (interval := median.interval) is not None:
        ends = {"low": 1.0 / interval.high, "high": 1.0 / interval.low if interval.low > 0 else math.inf}
        summary = summary.model_copy(update={"mean_interval": interval.model_copy(update=ends)})
    return Measurement(metric=TOKENS_PER_USER, at=median.at, statistic=median.statistic, summary=summary,
                       derived_from=BETWEEN_TOKENS.name)  # fmt: skip


def _percentiles(metrics: Mapping[str, Metric], times: Times, of: Metric, at: At | None) -> list[Measurement]:
    names = [name for name in metrics if len(times) >= fewest(SHARES[name])]
    if not times.size:
        return []
    found = tails(times, [SHARES[name] for name in names])
    return [
        percentile(metrics[name], tail, at=at, of=of)
        for name, tail in zip(names, found, strict=True)
        if tail.value < math.inf
    ]


def percentile(metric: Metric, tail: Tail, *, at: At | None = None, of: Metric = LATENCY) -> Measurement:
    """One percentile; without an interval where its requests are not worth enough."""
    spread = {"count": tail.count, "effective_count": tail.effective, "mean_interval": tail.interval}
    summary = summarize([tail.value]).model_copy(update=spread)
    statistic: Statistic = "mean" if tail.interval is not None else "single"
    return Measurement(metric=metric, at=at or {}, statistic=statistic, summary=summary, derived_from=of.name)


def rate(
    metric: Metric, moments: Times, span: float, *, at: At | None = None, work: NDArray[np.int32] | Times | None = None
) -> Measurement:
    """Events over time, by when they were after its begin; how its parts differ shows how certain that is."""
    value = float(len(moments) if work is None else work.sum()) / span
    counts, _ = np.histogram(moments, bins=WINDOWS, range=(0.0, span), weights=work)
    summary = summarize(counts * (WINDOWS / span))
    # The windows cover the whole span, so that their mean is the rate but for rounding.
    changes: dict[str, object] = {"mean": value}
    if (interval := summary.mean_interval) is not None and interval.low < 0:  # of few events
        changes["mean_interval"] = interval.model_copy(update={"low": 0.0})
    summary = summary.model_copy(update=changes)
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


def _are_counted(trace: Trace) -> bool:
    """Whether somebody has counted the tokens of the answers."""
    return trace.output_tokens is not None and bool((trace.output_tokens[trace.ok] > 0).any())


def _have_chunks(trace: Trace) -> NDArray[np.bool_]:
    return trace.ok & np.array([len(times) > 0 for times in trace.chunks or [np.empty(0)] * len(trace)], np.bool_)


def output_tokens(trace: Trace) -> float:
    """Of the good answers altogether; 0 where nobody has counted them."""
    return float(np.maximum(0, trace.output_tokens[trace.ok]).sum()) if trace.output_tokens is not None else 0.0


def _token_rate(trace: Trace, at: At | None) -> list[Measurement]:
    """Tokens over time, as far as somebody has counted them; those of a stream when they came."""
    if not _are_counted(trace) or trace.output_tokens is None:
        return []
    span, begin, has_chunks = seconds_of(trace), trace.intended[0], _have_chunks(trace)
    if trace.chunks is None or not has_chunks.any():
        return [rate(TOKEN_THROUGHPUT, (trace.done - begin)[trace.ok], span, at=at, work=trace.output_tokens[trace.ok])]
    streams = [trace.chunks[row] for row in np.flatnonzero(has_chunks)]
    work = np.repeat(trace.tokens_per_chunk[has_chunks], [len(times) for times in streams])
    return [rate(TOKEN_THROUGHPUT, np.concatenate(streams) - begin, span, at=at, work=work)]


def over_time(trace: Trace, start: float) -> list[dict[str, Any]]:
    """Medians of the requests that began in each part of a load, which began so many seconds after the first one."""
    if trace.chunks is None or not _have_chunks(trace).any():
        return []
    begin, span = float(trace.intended[0]), max(1e-9, float(trace.intended[-1] - trace.intended[0]))
    parts = np.minimum(WINDOWS - 1, ((trace.intended - begin) / span * WINDOWS).astype(int))
    series = []
    for metric, values in ((FIRST_TOKEN, trace.first_token), (BETWEEN_TOKENS, trace.between_tokens)):
        usable = trace.ok & np.isfinite(values)
        rows = [usable & (parts == part) for part in np.unique(parts[usable])]
        seconds = [round(start + float(trace.intended[row].mean()), 4) for row in rows]
        medians = [float(np.median(values[row])) for row in rows]
        series.append({"name": metric.name, "unit": metric.unit, "seconds": seconds, "values": medians})
    return series


def _tokens(trace: Trace) -> list[Measurement]:
    ok = trace.ok
    measurements = []
    for metric, column in ((PROMPT_TOKENS, trace.prompt_tokens), (OUTPUT_TOKENS, trace.output_tokens)):
        if column is not None and (lengths := column[ok & (column >= 0)]).size:
            measurements.append(Measurement.of_samples(metric, lengths.astype(np.float64)))
    measurements += _cached(trace)
    has_chunks = _have_chunks(trace)
    if trace.chunks is None or not has_chunks.any():
        return measurements
    gaps = [np.diff(trace.chunks[row]) for row in np.flatnonzero(has_chunks)]
    measurements.append(Measurement.of_samples(FIRST_TOKEN, trace.first_token[has_chunks]))
    if any(one.size for one in gaps):
        measurements.append(Measurement.of_samples(BETWEEN_CHUNKS, np.concatenate(gaps)))
    if not _are_counted(trace):
        return measurements
    if any(one.size for one in gaps):
        carried = trace.tokens_per_chunk[has_chunks]
        scaled = np.concatenate([one / each for one, each in zip(gaps, carried, strict=True)])
        measurements.append(Measurement.of_samples(BETWEEN_TOKENS, scaled))
    return measurements


def _cached(trace: Trace, at: At | None = None) -> list[Measurement]:
    if trace.prompt_tokens is None or trace.cached_tokens is None:
        return []
    counted = trace.ok & (trace.cached_tokens >= 0) & (trace.prompt_tokens > 0)
    if not counted.any():
        return []
    part = trace.cached_tokens[counted].sum() / trace.prompt_tokens[counted].sum()
    return [Measurement.of_value(CACHED, 100.0 * float(part), at=at)]


def lengths(trace: Trace, prompts: Sequence[int], outputs: Sequence[int], *, is_fresh: bool) -> list[RecordWarning]:
    """Where prompts and answers were not what was asked for, or nobody counted their tokens."""
    ok = trace.ok
    if not outputs or not ok.any():
        return []
    warnings = []
    if not is_fresh and len(trace) > len(outputs):
        message = f"{len(trace)} requests share {len(outputs)} prompts: a server that caches prefixes computes less"
        remedy = "leave out requests.distinct, or use a file with more prompts"
        warnings.append(RecordWarning(kind="repeated-prompts", message=message, remedy=remedy))
    if not any(outputs):  # embeddings and the like
        return warnings
    if not _are_counted(trace) or trace.output_tokens is None:
        message = "the server does not count tokens, and a chunk may hold several: there are no figures of tokens"
        remedy = "name a tokenizer (requests.tokenizer), or let the server report usage"
        return [*warnings, RecordWarning(kind="tokens-not-counted", message=message, remedy=remedy)]
    asked = np.array(outputs)[trace.kind % len(outputs)]
    other = ok & (trace.output_tokens >= 0) & (trace.output_tokens != asked)
    if np.count_nonzero(other) > FEW * np.count_nonzero(ok):
        medians = np.median(trace.output_tokens[ok]), np.median(asked[ok])
        message = f"{np.count_nonzero(other)} of {np.count_nonzero(ok)} answers are not as long as was asked for: "
        message += f"{medians[0]:g} tokens instead of {medians[1]:g} in the median"
        remedy = "set requests.ignore_eos, requests.min_tokens or what your server takes instead (requests.extra)"
        warnings.append(RecordWarning(kind="output-length", message=message, remedy=remedy))
    if prompts and trace.prompt_tokens is not None and (counted := ok & (trace.prompt_tokens > 0)).any():
        wanted = float(np.array(prompts)[trace.kind % len(prompts)][counted].mean())
        actual = float(trace.prompt_tokens[counted].mean())
        if abs(actual - wanted) > max(FAR * wanted, FEW_TOKENS):
            message = f"prompts have {actual:.0f} tokens on average, {wanted:.0f} were asked for"
            remedy = "set requests.prompt_tokens to what gives the length that you want"
            warnings.append(RecordWarning(kind="prompt-length", message=message, remedy=remedy))
    return warnings


def imprecise(measurements: Iterable[Measurement]) -> list[RecordWarning]:
    """Where answers did not come evenly enough for their rate to be one number: of tokens, where it is known."""
    found = {one.metric: one for one in measurements if not one.at}
    throughput = found.get(TOKEN_THROUGHPUT) or found.get(THROUGHPUT)
    if throughput is None:
        return []
    relative = throughput.interval.relative(throughput.value) if throughput.interval is not None else math.inf
    if relative <= WIDE:
        return []
    shown = partial(show, unit=throughput.metric.unit)
    width = show_interval(throughput.value, throughput.interval, shown) or "unknown"
    remedy = "quieten the machine (paceline doctor), or load it for longer"
    message = f"the interval of the {throughput.metric.name.replace('_', ' ')} is {width}"
    return [RecordWarning(kind="imprecise", message=message, remedy=remedy)]
