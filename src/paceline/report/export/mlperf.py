"""The results in the style of MLPerf: LoadGen's summary for served models, `:::MLLOG` lines for training.

For tools that read either. It is no result of MLPerf: neither its models, its data, its accuracy targets nor its rules
stand behind it. Only what was measured is written, so that a log cannot pass a check of submissions by accident.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import numpy as np

from paceline.analysis.figures import unique_labels
from paceline.analysis.trend.series import machine
from paceline.core.case import Category
from paceline.core.errors import InputError
from paceline.core.record import Measurement, Outcome, Record
from paceline.core.run import Run, RunRecords
from paceline.core.subject import ServedLoad
from paceline.report.export import Export
from paceline.report.text import one_line

FILE_NAME = "mlperf_log_summary.txt"
PERCENTILES = (50.0, 90.0, 95.0, 97.0, 99.0, 99.9)
LEAST_SECONDS, LEAST_QUERIES = 10.0, 100  # LoadGen's own, unless a submission's settings say otherwise
_RULER = "=" * 48
_SCENARIOS = {"open": "Server", "burst": "Offline"}
_PREFACE = "# In the style of MLPerf, by Paceline; neither a result nor a submission of MLPerf."


def render(records: RunRecords) -> str:
    """A summary for each served case and a log for each trained one, in the order of the run."""
    ordered = sorted(records.records, key=lambda record: record.case.index)
    parts = [_PREFACE]
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
    scenario = _scenario(record)
    latencies, queries = _latencies(record)
    load = record.load or ServedLoad(loop="")
    constrained = scenario == "Server"
    checks = {
        "Performance constraints satisfied :": load.slo_met is True,
        "Min duration satisfied :": _seconds(record, queries) >= LEAST_SECONDS,
        "Min queries satisfied :": queries >= LEAST_QUERIES,
    }
    if not constrained:
        del checks["Performance constraints satisfied :"]
    yield from (_RULER, "MLPerf Results Summary", _RULER, f"SUT name : {label}", f"Scenario : {scenario}")
    yield "Mode     : PerformanceOnly"
    yield from _leading(record, scenario, latencies)
    yield f"Result is : {'VALID' if all(checks.values()) else 'INVALID'}"
    yield from (f"  {name} {'Yes' if passed else 'NO'}" for name, passed in checks.items())
    if constrained and not load.slo_met:
        yield "Recommendations:"
        missed = f" * missed: {one_line(load.slo_missed_because)}"
        yield missed if load.slo_met is not None else " * No latency was promised: set slo, like {p99: 100ms}."
    yield from ("", _RULER, "Additional Stats", _RULER)
    offered, done = record.measurement("offered_rate"), record.measurement("throughput")
    if constrained and offered is not None:
        yield f"Scheduled samples per second : {offered.value:.2f}"
    if done is not None:
        yield f"Completed samples per second    : {done.value:.2f}"
    yield ""
    yield from _latency_lines(latencies, "latency (ns)", 32)
    yield from _token_lines(record)
    yield from ("", _RULER, "Test Parameters Used", _RULER)
    yield from _parameters(record, queries)


def _scenario(record: Record) -> str:
    """MLPerf's name for the way the load was sent; several users who wait have none there."""
    load = record.load or ServedLoad(loop="")
    if load.loop == "closed":
        return "SingleStream" if load.users in (None, 1) else f"Closed loop of {load.users} users (not MLPerf's)"
    return _SCENARIOS.get(load.loop, load.loop)


def _latencies(record: Record) -> tuple[np.ndarray[Any, np.dtype[np.float64]], int]:
    """The latency of every request in seconds, sorted, without end for those without an answer; and how many."""
    told, middle = record.measurement("latency"), record.measurement("latency_p50")
    answered = np.sort(np.asarray(told.samples if told else [], dtype=np.float64))
    queries = max(answered.size, middle.summary.count if middle else 0)
    return np.concatenate([answered, np.full(queries - answered.size, np.inf)]), queries


def _seconds(record: Record, queries: int) -> float:
    rate = record.measurement("offered_rate") or record.measurement("throughput")
    return queries / rate.value if rate is not None and rate.value > 0 else 0.0


def _leading(record: Record, scenario: str, latencies: np.ndarray[Any, np.dtype[np.float64]]) -> Iterator[str]:
    done, tokens = record.measurement("throughput"), record.measurement("token_throughput")
    if scenario == "SingleStream":
        yield from _nanoseconds("90th percentile latency (ns) : ", _at(latencies, 90.0))
        return
    name = "Samples per second: " if scenario == "Offline" else "Completed samples per second    : "
    if done is not None:
        yield f"{name}{done.value:.2f}"
    if tokens is not None:
        yield f"{'Tokens' if scenario == 'Offline' else 'Completed tokens'} per second: {tokens.value:.2f}"


def _at(ordered: np.ndarray[Any, np.dtype[np.float64]], percentile: float) -> float:
    """As LoadGen takes it: the value at the place that the percentile points to, without interpolation."""
    return float(ordered[min(int(ordered.size * percentile / 100.0), ordered.size - 1)]) if ordered.size else math.nan


def _latency_lines(ordered: np.ndarray[Any, np.dtype[np.float64]], what: str, width: int) -> Iterator[str]:
    known = ordered[np.isfinite(ordered)]
    if not known.size:
        return
    for name, value in (("Min", known[0]), ("Max", known[-1]), ("Mean", known.mean())):
        yield from _nanoseconds(f"{f'{name} {what}':<{width}}: ", float(value))
    for percentile in PERCENTILES:
        yield from _nanoseconds(f"{percentile:.2f} percentile {what.lower()}   : ", _at(ordered, percentile))


def _token_lines(record: Record) -> Iterator[str]:
    names = {"time_to_first_token": "First Token latency (ns)", "inter_token_latency": "Time to Output Token (ns)"}
    for metric, what in names.items():
        told = record.measurement(metric)
        if told is not None and told.samples:
            yield ""
            yield from _latency_lines(np.sort(np.asarray(told.samples, dtype=np.float64)), what, 44)


def _nanoseconds(before: str, seconds: float) -> list[str]:
    """A latency without end is not written: the format knows none."""
    return [f"{before}{round(seconds * 1e9)}"] if math.isfinite(seconds) else []


def _parameters(record: Record, queries: int) -> Iterator[str]:
    offered = record.measurement("offered_rate")
    bounds = record.load.slo if record.load else {}
    shown = {
        "samples_per_query": 1,
        "target_qps": f"{offered.value:g}" if offered is not None else None,
        "target_latency (ns)": round(1e9 * bounds["p99"]) if "p99" in bounds else None,
        "min_duration (ms)": round(1000 * LEAST_SECONDS),
        "min_query_count": LEAST_QUERIES,
        "query_count": queries,
        "seed": record.subject.seed,
    }
    yield from (f"{name} : {value}" for name, value in shown.items() if value is not None)


def _training(run: Run, record: Record, label: str) -> Iterator[str]:
    subject = record.subject
    start, end = record.started_at, record.started_at + timedelta(seconds=record.seconds)

    def line(key: str, value: Any, event: str = "POINT_IN_TIME", at: Any = start, **metadata: Any) -> str:
        told = {
            "namespace": "",
            "time_ms": round(at.timestamp() * 1000),
            "event_type": event,
            "key": key,
            "value": value,
            "metadata": {"file": "paceline", "lineno": 0, "case": label, **metadata},
        }
        return f":::MLLOG {json.dumps(told, default=str)}"

    yield line("submission_benchmark", subject.model or record.case.benchmark)
    yield line("submission_platform", machine(run.environment, record.case.target))
    known = {"global_batch_size": subject.batch, "seed": subject.seed, "precision": subject.precision}
    yield from (line(key, value) for key, value in known.items() if value is not None)
    yield line("run_start", None, "INTERVAL_START", includes="start-up and warm-up")
    stats = {m.metric.name: m.value for m in record.measurements if _is_told(m)}
    units = {m.metric.name: m.metric.unit for m in record.measurements if _is_told(m)}
    steps = record.measurement("step_time")
    if stats:
        yield line("tracked_stats", stats, at=end, step=steps.summary.count if steps else None, units=units)
    status = "success" if record.outcome is Outcome.OK else "aborted"
    yield line("run_stop", None, "INTERVAL_END", at=end, status=status)


def _is_told(measurement: Measurement) -> bool:
    return not measurement.scope and not measurement.at and math.isfinite(measurement.value)


EXPORT = Export(
    "mlperf", "in the style of MLPerf: LoadGen's summary of serving, MLLOG lines of training", render, order=60
)
