"""How well the load generator keeps its schedule, and what a request costs it, beside wrk, aiohttp and GuideLLM.

A null server has the last core, the load generator the first. What is compared with wrk is measured in turns with it;
everything else a few times, and the best is told, because whatever else runs on the machine can only make it worse.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from statistics import median

import click
import numpy as np

from bench import guidellm, wrk
from bench.ratio import Ratio
from paceline.load import native_client
from paceline.load.generator import drive
from paceline.load.null_server import started
from paceline.load.parameters import LoadParameters
from paceline.load.quality import delivered
from paceline.load.request import ClientName, Endpoint, Prepared
from paceline.load.trace import Trace

REQUEST = Prepared(b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[0.0,0.0,0.0,0.0]}]}')
CHAT = Prepared(b'{"model":"any","messages":[{"role":"user","content":"say a word about 7"}],"stream":false}')
CHAT_ANSWER = (
    b'{"id":"null","object":"chat.completion","created":0,"model":"null","choices":[{"index":0,"finish_reason":"stop",'
    b'"message":{"role":"assistant","content":"word"}}],'
    b'"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}'
)
TIMES = 3
TURNS = 5
SECONDS = 3.0
USERS = 16


def load_ratios() -> list[Ratio]:
    """All lines about the load generator."""
    cores = sorted(os.sched_getaffinity(0))
    own, servers = cores[0], cores[-1]
    with started(servers) as (endpoint, _):
        ratios = []
        for client in _clients():
            ratios += _kept(endpoint, own, client, 500, {50: 0.3e-3, 99: 2e-3})
            ratios += _kept(endpoint, own, client, 2000, {50: 0.5e-3})
        if importlib.util.find_spec("aiohttp") is None:
            click.echo("bench: aiohttp is not installed, so that nothing is compared with it", err=True)
        else:
            ratios.append(_against_aiohttp(endpoint, own))
    return [*ratios, *_against_wrk(own, servers), *_against_guidellm(own, servers)]


def _clients() -> list[ClientName]:
    if why := native_client.missing():
        click.echo(f"bench: the client in C cannot be measured: {why}", err=True)
        return ["python"]
    return ["c", "python"]


def _kept(endpoint: Endpoint, cpu: int, client: ClientName, rate: int, bounds: dict[int, float]) -> list[Ratio]:
    load = LoadParameters(arrival="poisson", rate=rate, duration=SECONDS)
    traces = [
        drive(endpoint, [REQUEST], load, seed=seed, workers=1, cpus=[cpu], client=client) for seed in range(TIMES)
    ]
    best = min(traces, key=lambda trace: float(np.nanpercentile(trace.lateness, 99)))
    part = max(delivered(trace) for trace in traces)
    late = {percent: float(np.nanpercentile(best.lateness, percent)) for percent in (50, 99)}
    name = f"load: client in {client} {rate}/s"
    made_of = f"late by {late[50] * 1e3:.3f} ms at p50, {late[99] * 1e3:.2f} ms at p99"
    found = [Ratio(f"{name} sent / asked for", part, ">= 0.999", part >= 0.999, f"{len(best)} requests")]
    for percent, most in bounds.items():
        ratio = late[percent] / most
        found.append(Ratio(f"{name} p{percent} late / {most * 1e3:g} ms", ratio, "<= 1", ratio <= 1, made_of))
    return found


def _against_aiohttp(endpoint: Endpoint, cpu: int) -> Ratio:
    """Requests per second of the client's own CPU time, in a closed loop."""
    own = _own_per_cpu_second(endpoint, REQUEST, cpu)
    url = f"http://{endpoint.host}:{endpoint.port}{endpoint.path}"
    command = [sys.executable, "-m", "bench.aiohttp_client", url, str(USERS), str(SECONDS), str(cpu)]
    theirs = 0.0
    for _ in range(TIMES):
        done = subprocess.run(command, input=REQUEST.body, check=True, capture_output=True)
        theirs = max(theirs, float(json.loads(done.stdout)["per_cpu_second"]))
    ratio = own / theirs
    made_of = f"{own:,.0f} / {theirs:,.0f} requests per CPU-second"
    return Ratio("load: per CPU-second / aiohttp's", ratio, ">= 4", ratio >= 4, made_of)


def _against_wrk(cpu: int, servers: int) -> list[Ratio]:
    """Requests per CPU-second and per second of one core, with and without the client in C, in turns with wrk."""
    if wrk.program() is None:
        click.echo("bench: wrk IS NOT INSTALLED, so that nothing is compared with it: apt-get install wrk", err=True)
        return []
    clients = _clients()
    with started(servers, in_c="c" in clients) as (endpoint, _):
        turns = [
            (wrk.pace(endpoint, REQUEST, USERS, SECONDS, cpu), [_own_pace(endpoint, one, cpu) for one in clients])
            for _ in range(TURNS)
        ]
    return [_beside(client, [(own[number], theirs) for theirs, own in turns]) for number, client in enumerate(clients)]


def _own_pace(endpoint: Endpoint, client: ClientName, cpu: int) -> wrk.Pace:
    closed = LoadParameters(arrival="closed", users=USERS, duration=SECONDS)
    trace = drive(endpoint, [REQUEST], closed, workers=1, cpus=[cpu], client=client)
    return wrk.Pace(_per_cpu_second(trace), float(trace.ok.sum() / np.nanmax(trace.done)))


def _beside(client: ClientName, turns: list[tuple[wrk.Pace, wrk.Pace]]) -> Ratio:
    """The median of the turns' ratios: what else runs on the machine slows both sides of a turn."""
    ratios = sorted(own.per_cpu_second / theirs.per_cpu_second for own, theirs in turns)
    rates = sorted(own.per_second / theirs.per_second for own, theirs in turns)
    ratio, least = median(ratios), 0.5 if client == "c" else 0.1
    own, theirs = (
        wrk.Pace(median(one.per_cpu_second for one in side), median(one.per_second for one in side))
        for side in zip(*turns, strict=True)
    )
    made_of = (
        f"{own.per_cpu_second:,.0f} / {theirs.per_cpu_second:,.0f} requests per CPU-second, "
        f"{ratios[0]:.2f} to {ratios[-1]:.2f} in {len(turns)} turns; "
        f"{own.per_second:,.0f} / {theirs.per_second:,.0f} requests/s from one core, "
        f"{rates[0]:.2f} to {rates[-1]:.2f}"
    )
    return Ratio(f"load: client in {client} / wrk", ratio, f">= {least}", ratio >= least, made_of)


def _against_guidellm(cpu: int, servers: int) -> list[Ratio]:
    """The same with chats, which is what a load generator for language models sends."""
    peer = guidellm.program()
    if peer is None:
        click.echo(f"bench: guidellm is not compared: {guidellm.PEERS} names no environment that has it", err=True)
        return []
    with started(servers, body=CHAT_ANSWER) as (endpoint, _):
        own = _own_per_cpu_second(endpoint, CHAT, cpu)
        theirs = guidellm.per_cpu_second(peer, endpoint, USERS, cpu)
    made_of = f"{own:,.0f} / {theirs:,.0f} requests per CPU-second"
    return [Ratio("load: per CPU-second / guidellm's", own / theirs, ">= 20", own / theirs >= 20, made_of)]


def _own_per_cpu_second(endpoint: Endpoint, request: Prepared, cpu: int) -> float:
    closed = LoadParameters(arrival="closed", users=USERS, duration=SECONDS)
    return max(
        _per_cpu_second(drive(endpoint, [request], closed, workers=1, cpus=[cpu], client="python"))
        for _ in range(TIMES)
    )


def _per_cpu_second(trace: Trace) -> float:
    return float(trace.ok.sum()) / trace.cpu_seconds
