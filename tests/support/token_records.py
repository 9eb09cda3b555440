"""Records of served language models, from traces of a simulated server, as the benchmark itself makes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paceline.benchmarks.serving import trace_metrics
from paceline.benchmarks.serving.sweep import SweepPoint, together
from paceline.core.record import Measurement, Record, Result
from paceline.core.run import RunRecords
from paceline.load.trace import OK, Trace
from support.records import case, record, run_of

MODEL = "llama3.2-1b"


def token_trace(users: int, *, each: int = 60, tokens: int = 16, most: int = 16, seed: int = 1) -> Trace:
    """Users who wait for their answers; beyond so many at a time, the others wait for their first token."""
    rng = np.random.default_rng(seed + users)
    together_now = min(users, most)
    between = 0.010 + 0.0004 * together_now
    waiting = between * tokens * max(0, users - most) / most
    rows: list[tuple[float, np.ndarray]] = []
    for user in range(users):
        now = 0.001 * user
        for _ in range(each):
            first = now + waiting + 0.020 + rng.gamma(2.0, 0.004)
            gaps = rng.gamma(20.0, between / 20.0, tokens - 1)
            times = np.concatenate([[first], first + np.cumsum(gaps)])
            rows.append((now, times))
            now = float(times[-1])
    rows.sort(key=lambda row: row[0])
    intended = np.array([start for start, _ in rows])
    done = np.array([times[-1] for _, times in rows])
    count = len(rows)
    zeros = np.zeros(count, np.int32)
    return Trace(
        intended=intended, sent=intended, first=np.array([times[0] for _, times in rows]), done=done,
        status=np.full(count, OK, np.int32), kind=zeros, worker=zeros, samples=np.ones(count, np.int32),
        chunks=[times for _, times in rows], prompt_tokens=np.full(count, 32, np.int32),
        output_tokens=np.full(count, tokens, np.int32), begun=100.0 + users,
    )  # fmt: skip


def result_of(trace: Trace, *, joules: float | None = None, facts: Mapping[str, Any] | None = None) -> Result:
    """What a load came to; each second of it took so many joules."""
    made = [*trace_metrics.traffic(trace, None), *trace_metrics.details(trace)]
    tokens, seconds = trace_metrics.output_tokens(trace), trace_metrics.seconds_of(trace)
    if joules is not None:
        made.append(Measurement.of_value(trace_metrics.ENERGY_PER_TOKEN, joules * seconds / tokens))
        made.append(Measurement.of_value(trace_metrics.COST_PER_MILLION, 2.0 / 3600 * seconds / tokens * 1e6))
    return Result(measurements=made, facts={"loop": "closed"} | dict(facts or {}))


def parameters(load: dict[str, Any]) -> dict[str, Any]:
    """As a case keeps them."""
    server = {"kind": "embedded"}
    known = {"model": MODEL, "scale": "tiny", "precision": "fp32", "server": server, "wire": "openai-chat"}
    return known | {"slo": None, "load": load}


def of_users(index: int, users: int, **more: Any) -> Record:
    """A case of its own for so many users."""
    made = result_of(token_trace(users, **more))
    title = f"{MODEL} tiny embedded openai-chat closed users={users}"
    about = case(index, "serve", title, **parameters({"arrival": "closed", "users": users}))
    return _record(about, made)


def at_rate(index: int, rate: float) -> Record:
    """A case of its own at a chosen rate."""
    made = result_of(token_trace(4), facts={"loop": "open"})
    title = f"{MODEL} tiny embedded openai-chat poisson {rate:g}/s"
    return _record(case(index, "serve", title, **parameters({"arrival": "poisson", "rate": rate})), made)


def swept(index: int = 0, users: Sequence[int] = (1, 2, 4, 8, 16, 32), *, joules: float | None = 300.0) -> Record:
    """A sweep over users, with what the server reported meanwhile."""
    points = []
    for amount in users:
        sent, start = token_trace(amount), float(amount - users[0])
        seconds = [start, start + 0.4, start + 0.8]
        waiting = [0.0, amount / 2, 0.0]
        queue = {"name": "server_queue", "unit": "requests", "seconds": seconds, "values": waiting}
        cache = {"name": "kv_cache_use", "unit": "%", "seconds": seconds, "values": [1.0, 50.0, 2.0]}
        series = [*trace_metrics.over_time(sent, start), queue, cache]
        result = result_of(sent, joules=joules, facts={"series": series})
        result.measurements.append(Measurement.of_samples(trace_metrics.SERVER_QUEUE, waiting))
        points.append(SweepPoint.of("users", amount, sent, result))
    about = case(index, "serve", f"{MODEL} tiny embedded openai-chat sweep", **parameters({"arrival": "sweep"}))
    return _record(about, together(points, "users", ""))


def _record(about: Any, made: Result) -> Record:
    served = about.model_copy(update={"category": "serving"})
    return record(served, made.measurements, facts=made.facts, warnings=made.warnings)


def sweep_run() -> RunRecords:
    """One sweep."""
    return run_of([swept()])


def users_run() -> RunRecords:
    """The same as cases of their own."""
    return run_of([of_users(place, users) for place, users in enumerate((1, 4, 16))])
