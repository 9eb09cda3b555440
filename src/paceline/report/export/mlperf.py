"""The results in the style of MLPerf: LoadGen's summary for served models, `:::MLLOG` lines for training.

For tools that read either. It is not a result of MLPerf: neither its models, its data, its accuracy targets nor its
rules stand behind it. Only what was measured is written, so that a log cannot pass a check of submissions by accident.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import numpy as np

from paceline.analysis.summary import unique_labels
from paceline.core.case import Category
from paceline.core.errors import InputError
from paceline.core.record import Outcome, Record
from paceline.core.run import Run, RunRecords
from paceline.core.subject import ServedLoad
from paceline.report.export import Export
from paceline.report.text import one_line

PERCENTILES = (50.0, 90.0, 95.0, 97.0, 99.0, 99.9)
LEAST_SECONDS, LEAST_QUERIES = 10.0, 100  # LoadGen's own, unless a submission's settings say otherwise
_RULER = "=" * 48
_Latencies = np.ndarray[Any, np.dtype[np.float64]]


def render(records: RunRecords) -> str:
    """A summary for each served case and a log for each trained one, in the order of the run."""
    ordered = sorted(records.records, key=lambda record: record.case.index)
    parts = ["# In the style of MLPerf, by Paceline; neither a result nor a submission of MLPerf."]
    for record, label in zip(ordered, unique_labels([record.case for record in ordered]), strict=True):
        if record.case.category == Category.TRAINING:
            parts.append("\n".join(_training(records.run, record, one_line(label))))
        elif record.case.category == Category.SERVING and record.outcome is Outcome.OK:
            parts.append("\n".join(_serving(record, one_line(label))))
    if len(parts) == 1:
        message = f"run '{records.run.id}' has neither training nor serving, which MLPerf's formats are for"
        raise InputError("no-training-or-serving", message, value=records.run.id)
    return "\n\n".join(parts) + "\n"


def _serving(record: Record, label: str) -> Iterator[str]:
    load = record.load or ServedLoad(loop="")
    # MLPerf has no scenario for several users who wait for their answers.
    closed = "SingleStream" if load.users in (None, 1) else f"Closed loop of {load.users} users (not MLPerf's)"
    scenario = {"open": "Server", "burst": "Offline", "closed": closed}.get(load.loop, load.loop)
    constrained, is_offline = scenario == "Server", scenario == "Offline"
    offered, done = record.measurement("offered_rate"), record.measurement("throughput")
    answered, median = _sorted_samples(record, "latency"), record.measurement("latency_p50")
    queries = max(answered.size, median.summary.count if median else 0)
    latencies = np.concatenate([answered, np.full(queries - answered.size, np.inf)])  # no answer: infinite
    rate = offered or done
    seconds = queries / rate.value if rate is not None and rate.value > 0 else 0.0
    checks = {"Performance constraints satisfied :": load.slo_met is True} if constrained else {}
    checks |= {
        "Min duration satisfied :": seconds >= LEAST_SECONDS,
        "Min queries satisfied :": queries >= LEAST_QUERIES,
    }

    yield from (_RULER, "MLPerf Results Summary", _RULER, f"SUT name : {label}", f"Scenario : {scenario}")
    yield "Mode     : PerformanceOnly"
    if scenario == "SingleStream":
        yield from _nanoseconds("90th percentile latency (ns) : ", _percentile(latencies, 90.0))
    else:
        if done is not None:
            yield f"{'Samples per second: ' if is_offline else 'Completed samples per second    : '}{done.value:.2f}"
        if tokens := record.measurement("token_throughput"):
            yield f"{'Tokens' if is_offline else 'Completed tokens'} per second: {tokens.value:.2f}"
    yield f"Result is : {'VALID' if all(checks.values()) else 'INVALID'}"
    yield from (f"  {name} {'Yes' if passed else 'NO'}" for name, passed in checks.items())
    if constrained and not load.slo_met:
        yield "Recommendations:"
        missed = f" * missed: {one_line(load.slo_missed_because)}" if load.slo_met is not None else ""
        undecided = f" * {load.slo_undecided}" if load.slo_undecided else ""
        yield missed or undecided or " * The load has no SLO: set slo, like {p99: 100ms}."

    yield from ("", _RULER, "Additional Stats", _RULER)
    if constrained and offered is not None:
        yield f"Scheduled samples per second : {offered.value:.2f}"
    if done is not None:
        yield f"Completed samples per second    : {done.value:.2f}"
    yield ""
    yield from _latency_lines(latencies, "latency (ns)", 32)
    names = {"time_to_first_token": "First Token latency (ns)", "inter_token_latency": "Time to Output Token (ns)"}
    for metric, title in names.items():
        if (samples := _sorted_samples(record, metric)).size:
            yield ""
            yield from _latency_lines(samples, title, 44)

    yield from ("", _RULER, "Test Parameters Used", _RULER)
    parameters = {
        "samples_per_query": 1,
        "target_qps": f"{offered.value:g}" if offered is not None else None,
        "target_latency (ns)": round(1e9 * load.slo["p99"]) if "p99" in load.slo else None,
        "min_duration (ms)": round(1000 * LEAST_SECONDS),
        "min_query_count": LEAST_QUERIES,
        "query_count": queries,
        "seed": record.subject.seed,
    }
    yield from (f"{name} : {value}" for name, value in parameters.items() if value is not None)


def _sorted_samples(record: Record, metric: str) -> _Latencies:
    measurement = record.measurement(metric)
    return np.sort(np.asarray(measurement.samples if measurement else [], dtype=np.float64))


def _latency_lines(ordered: _Latencies, title: str, width: int) -> Iterator[str]:
    finite = ordered[np.isfinite(ordered)]
    if not finite.size:
        return
    for name, value in (("Min", finite[0]), ("Max", finite[-1]), ("Mean", finite.mean())):
        yield from _nanoseconds(f"{f'{name} {title}':<{width}}: ", float(value))
    for percentile in PERCENTILES:
        label = f"{percentile:.2f} percentile {title.lower()}   : "
        yield from _nanoseconds(label, _percentile(ordered, percentile))


def _percentile(ordered: _Latencies, percentile: float) -> float:
    """As LoadGen takes it: the value at the index that the percentile points to, without interpolation."""
    return float(ordered[min(int(ordered.size * percentile / 100.0), ordered.size - 1)]) if ordered.size else math.nan


def _nanoseconds(before: str, seconds: float) -> list[str]:
    """An infinite latency is not written: the format has none."""
    return [f"{before}{round(seconds * 1e9)}"] if math.isfinite(seconds) else []


def _training(run: Run, record: Record, label: str) -> Iterator[str]:
    from paceline.analysis.trend.series import machine

    subject = record.subject
    start, end = record.started_at, record.started_at + timedelta(seconds=record.seconds)

    def line(key: str, value: Any, event: str = "POINT_IN_TIME", at: Any = start, **metadata: Any) -> str:
        entry = {
            "namespace": "",
            "time_ms": round(at.timestamp() * 1000),
            "event_type": event,
            "key": key,
            "value": value,
            "metadata": {"file": "paceline", "lineno": 0, "case": label, **metadata},
        }
        return f":::MLLOG {json.dumps(entry, default=str)}"

    yield line("submission_benchmark", subject.model or record.case.benchmark)
    yield line("submission_platform", machine(run.environment, record.case.target))
    settings = {"global_batch_size": subject.batch, "seed": subject.seed, "precision": subject.precision}
    yield from (line(key, value) for key, value in settings.items() if value is not None)
    yield line("run_start", None, "INTERVAL_START", includes="start-up and warm-up")
    whole = [m for m in record.measurements if not m.scope and not m.at and math.isfinite(m.value)]
    if whole:
        stats, units = {m.metric.name: m.value for m in whole}, {m.metric.name: m.metric.unit for m in whole}
        steps = record.measurement("step_time")
        yield line("tracked_stats", stats, at=end, step=steps.summary.count if steps else None, units=units)
    status = "success" if record.outcome is Outcome.OK else "aborted"
    yield line("run_stop", None, "INTERVAL_END", at=end, status=status)


EXPORT = Export(
    "mlperf", "in the style of MLPerf: LoadGen's summary of serving, MLLOG lines of training", render, order=60
)
