"""Paceline and an independent client of plain sockets load one server of a language model in the same seconds.

One schedule of Poisson arrivals is divided at random, request by request, so that what the two measure differs only by
chance and by what the clients themselves add. How large chance is, the intervals say. Without it: a relay between
Paceline and the server notes when each byte passes, and what Paceline says of the same requests is held against that.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from paceline.benchmarks.serving.parameters import ServeParameters
from paceline.benchmarks.serving.session import opened
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.load.arrivals import Schedule
from paceline.load.generator import drive
from paceline.load.request import Endpoint, Prepared
from paceline.load.trace import Trace
from paceline.servers import SERVERS

COUNT, RATE = 900, 8.0  # requests of both together, and how many a second
WITNESSED = 400  # requests that a relay sees
LARGER = "generated/llama:layers=6,width=512,heads=8"  # slow enough that a client's own cost is small beside it
PROMPT, SHARED, OUTPUT = 40, 20, 12  # tokens; of each prompt so many are the same
DRAWS = 1000
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Both:
    """What each client saw of its share of the requests."""

    own: Trace
    reference: Sequence[dict[str, Any]]

    @property
    def figures(self) -> dict[str, tuple[Floats, Floats]]:
        """Times of each request by name: Paceline's, and the reference's."""
        return {"TTFT": (self.own.first_token[self.own.ok], _first(self.reference)), **self.between}

    @property
    def witnessed(self) -> dict[str, tuple[Floats, Floats]]:
        """The same where both saw the same requests, which the other side counts from when they were sent."""
        own = self.own
        return {"TTFT": (own.first_token[own.ok] - own.lateness[own.ok], _first(self.reference)), **self.between}

    @property
    def between(self) -> dict[str, tuple[Floats, Floats]]:
        good = _good(self.reference)
        spans = np.array([one["chunks"][-1] - one["chunks"][0] for one in good])
        gaps = np.array([one["usage"]["completion_tokens"] - 1 for one in good])
        return {"ITL": (self.own.between_tokens[self.own.ok], spans / gaps)}

    @property
    def tokens(self) -> dict[str, int]:
        """Of both together: those of prompts, of answers, and those that came from the cache."""
        usages = [one["usage"] for one in self.reference]
        own = self.own
        assert own.prompt_tokens is not None and own.output_tokens is not None and own.cached_tokens is not None
        cached = sum((usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0) for usage in usages)
        return {
            "prompt": int(own.prompt_tokens.sum()) + sum(usage["prompt_tokens"] for usage in usages),
            "output": int(own.output_tokens.sum()) + sum(usage["completion_tokens"] for usage in usages),
            "cached": int(own.cached_tokens.sum()) + cached,
        }


def _good(answers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in answers if one["status"] == 200 and len(one["chunks"]) > 1]


def _first(answers: Sequence[dict[str, Any]]) -> Floats:
    return np.array([one["chunks"][0] for one in _good(answers)])


def send_witnessed(endpoint: Endpoint, words: Sequence[str], count: int, rate: float) -> Both:
    """Paceline alone, through a relay that notes when each byte passes."""
    draw, choose = np.random.default_rng(2), random.Random(2)
    bodies = [_body(endpoint, choose.choices(words, k=PROMPT)) for _ in range(count)]
    command = [sys.executable, "-m", "bench.witness", endpoint.host, str(endpoint.port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        relayed = replace(endpoint, host="127.0.0.1", port=int(process.stdout.readline()))
        schedule = Schedule(np.cumsum(draw.exponential(1.0 / rate, count)), np.arange(count, dtype=np.int32))
        prepared = [Prepared(body.encode()) for body in bodies]
        trace = drive(relayed, prepared, schedule, streaming=True, timeout=300.0, workers=1)
        said, _ = process.communicate()
    return Both(trace, json.loads(said))


def send_both(endpoint: Endpoint, words: Sequence[str], count: int, rate: float, seed: int = 1) -> Both:
    """Load a server with one schedule whose requests are divided at random between the two clients."""
    draw, choose = np.random.default_rng(seed), random.Random(seed)
    times = np.cumsum(draw.exponential(1.0 / rate, count))
    shared = choose.choices(words, k=SHARED)
    bodies = [_body(endpoint, [*shared, *choose.choices(words, k=PROMPT - SHARED)]) for _ in range(count)]
    is_own = draw.random(count) < 0.5
    own, others = np.flatnonzero(is_own), np.flatnonzero(~is_own)
    url = f"http://{endpoint.host}:{endpoint.port}{endpoint.path}"
    asked = {"url": url, "times": times[others].tolist(), "bodies": [bodies[one] for one in others]}
    client = [sys.executable, str(Path(__file__).with_name("reference_stream.py"))]
    with subprocess.Popen(client, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps(asked))
        process.stdin.close()
        process.stdin = None
        schedule = Schedule(times[own], np.arange(len(own), dtype=np.int32))
        prepared = [Prepared(bodies[one].encode()) for one in own]
        trace = drive(endpoint, prepared, schedule, streaming=True, timeout=300.0, workers=1)
        said, _ = process.communicate()
    return Both(trace, json.loads(said))


def _body(endpoint: Endpoint, words: Sequence[str]) -> str:
    body = {"model": endpoint.model, "max_tokens": OUTPUT, "stream": True, "temperature": 0, "ignore_eos": True}
    messages = [{"role": "user", "content": " ".join(words)}]
    return json.dumps(body | {"messages": messages, "stream_options": {"include_usage": True}})


def ratio(own: Floats, reference: Floats, share: float) -> tuple[float, float, float]:
    """The ratio of a percentile, and where it lies with 95 % by drawing requests again."""
    draw = np.random.default_rng(0)
    drawn = [
        np.quantile(draw.choice(own, own.size), share) / np.quantile(draw.choice(reference, reference.size), share)
        for _ in range(DRAWS)
    ]
    low, high = np.quantile(drawn, (0.025, 0.975))
    return float(np.quantile(own, share) / np.quantile(reference, share)), float(low), float(high)


def main() -> None:
    """Start a server, load it with both, and print how they compare."""
    kind = "llama-cpp" if SERVERS.registry().get("llama-cpp").missing() is None else "embedded"
    model = {"model": LARGER} if kind == "llama-cpp" else {"model": "llama3.2-1b"}
    asked = model | {"scale": "tiny", "server": {"kind": kind}, "wire": "openai-chat", "warm_up": 1.0}
    asked |= {"load": {"arrival": "closed", "users": 1, "requests": 1}}
    case = Case(index=0, benchmark="serve", parameters={}, title="bench")
    with opened(ServeParameters.read(asked), Context(case=case)) as session:
        words = session.server.prompt_words or [f"word{number}" for number in range(500)]
        both = send_both(session.endpoint, words, COUNT, RATE)
        same = send_witnessed(session.endpoint, words, WITNESSED, RATE)
    good = len(_good(both.reference))
    click.echo(f"{kind}: {int(both.own.ok.sum())} of {len(both.own)} requests of Paceline were answered, ", nl=False)
    click.echo(f"{good} of {len(both.reference)} of the reference")
    if not (both.own.ok.any() and good and same.own.ok.any()):
        raise LookupError(f"nothing can be compared: {dict(both.own.causes)} {dict(same.own.causes)}")
    _show("reference", both.figures)
    click.echo(f"\nthe same {int(same.own.ok.sum())} requests as a relay saw them pass")
    _show("relay", same.witnessed)


def _show(name: str, figures: dict[str, tuple[Floats, Floats]]) -> None:
    click.echo(f"{'':10} {'Paceline':>12} {name:>12} {'ratio':>8}  95 %")
    for figure, (own, reference) in figures.items():
        for label, share in (("p50", 0.5), ("p99", 0.99)):
            value, low, high = ratio(own, reference, share)
            pair = (float(np.quantile(own, share)) * 1e3, float(np.quantile(reference, share)) * 1e3)
            line = f"{figure} {label:5} {pair[0]:9.3f} ms {pair[1]:9.3f} ms {value:8.3f}"
            interval = f"  {low:.3f} to {high:.3f}" if name == "reference" else ""
            click.echo(f"{line}{interval}{'' if abs(value - 1) <= 0.03 else '  beyond 3 %'}")
