"""What a request costs Paceline's own server, beside other servers that run the same model, and what batching gains.

The model of the first does next to nothing, so that the servers themselves are compared. Each has the cores that the
load generator leaves, one worker and no batching, and the same JSON. The best of a few is told, as for the load.
"""

from __future__ import annotations

from typing import Any

import click

from bench.ratio import Ratio
from paceline.benchmarks.serving import trace_metrics
from paceline.benchmarks.serving.parameters import ServeParameters
from paceline.benchmarks.serving.session import opened, watched
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.load.parameters import LoadParameters
from paceline.servers import SERVERS

NULL = "generated/fc:layers=1,width=16"
SMALL = "generated/transformer:layers=2,width=128,heads=4,sequence=16"
OTHERS = ("mlserver", "litserve")
TIMES = 3
SECONDS = 3.0
USERS = 16  # enough to keep a server busy
SATURATING = 64
BATCH = 16


def serving_ratios() -> list[Ratio]:
    """All lines about servers."""
    own = _per_cpu_second({"kind": "embedded", "engine": "onnxruntime", "max_batch": 1})
    return [*(ratio for kind in OTHERS for ratio in _beside(kind, own)), _batching_gain()]


def _beside(kind: str, own: float) -> list[Ratio]:
    reason = SERVERS.registry().get(kind).missing()
    if reason is not None:
        click.echo(f"bench: {kind} is not compared: {reason}", err=True)
        return []
    theirs = _per_cpu_second({"kind": kind, "max_batch": 1})
    made_of = f"{own:,.0f} / {theirs:,.0f} requests per CPU-second"
    return [Ratio(f"server: per CPU-second / {kind}'s", own / theirs, ">= 3", own / theirs >= 3, made_of)]


def _batching_gain() -> Ratio:
    """Requests answered over time by a server that has always more to do than it can."""
    together, alone = (_throughput({"kind": "embedded", "max_batch": most}) for most in (BATCH, 1))
    made_of = f"{together:,.0f} / {alone:,.0f} requests/s with batches of {BATCH} and without"
    return Ratio("server: with batches / without", together / alone, ">= 1.5", together / alone >= 1.5, made_of)


def _per_cpu_second(server: dict[str, Any]) -> float:
    best = 0.0
    with opened(*_case(NULL, server, USERS)) as session:
        for _ in range(TIMES):
            with watched(session.server.processes, "cpu") as use:
                trace = session.send(_closed(USERS), "measuring")
            best = max(best, float(trace.ok.sum()) / (use.cpu_seconds or 0.0))
    return best


def _throughput(server: dict[str, Any]) -> float:
    with opened(*_case(SMALL, server, SATURATING)) as session:
        traces = [session.send(_closed(SATURATING), "measuring") for _ in range(TIMES)]
    return max(float(trace.ok.sum()) / trace_metrics.seconds_of(trace) for trace in traces)


def _closed(users: int) -> LoadParameters:
    return LoadParameters(arrival="closed", users=users, duration=SECONDS)


def _case(model: str, server: dict[str, Any], users: int) -> tuple[ServeParameters, Context]:
    asked = {"model": model, "server": server, "wire": "kserve-json", "load": _closed(users), "warm_up": 1.0}
    case = Case(index=0, benchmark="serve", parameters={}, title="bench")
    return ServeParameters.read(asked), Context(case=case)
