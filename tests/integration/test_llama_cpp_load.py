"""A real llama.cpp server with a small random model: what is measured is what the server itself has counted."""

from __future__ import annotations

import re
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.reference_client import OUTPUT, send_both

from paceline.benchmarks.serving import trace_metrics
from paceline.benchmarks.serving.prompts import PromptMaker
from paceline.load.generator import drive
from paceline.load.parameters import LoadParameters, RequestParameters
from paceline.load.request import Endpoint
from paceline.load.trace import Trace
from paceline.servers._language_model import SPECIAL, parse, write_gguf
from support.other_tools import tool_environment

pytestmark = pytest.mark.long

PACKAGE = "xllamacpp==2026.10.11549"  # llama.cpp's server in a wheel
SHAPE = parse("generated/llama:layers=2,width=64,context=4096")
SERVE = """
import sys, xllamacpp
settings = xllamacpp.CommonParams()
settings.model.path, settings.hostnames, settings.port = sys.argv[1], ["127.0.0.1"], int(sys.argv[2])
settings.n_ctx, settings.n_parallel, settings.endpoint_metrics, settings.warmup = 8192, 4, True, False
server = xllamacpp.Server(settings)
print(server.listening_address, flush=True)
sys.stdin.read()
"""


class LlamaCpp:
    """The server, and its own counters."""

    def __init__(self, port: int) -> None:
        self.endpoint = Endpoint("openai-chat", "127.0.0.1", port, "/v1/chat/completions", "m")

    def counted(self) -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.endpoint.port}/metrics", timeout=60) as answer:
            found = re.findall(r"^llamacpp:(\w+) ([\d.e+-]+)$", answer.read().decode(), re.MULTILINE)
        return {name: float(value) for name, value in found}

    def sent(self, load: LoadParameters, **wanted: Any) -> tuple[Trace, dict[str, float]]:
        """A load, and by how much it raised the counters."""
        words = tuple(SHAPE.words[len(SPECIAL) :])
        made = PromptMaker(RequestParameters(**wanted), self.endpoint, 1, load.requests, None, words).made()
        before = self.counted()
        trace = drive(
            self.endpoint, made.prepared, load, streaming=made.is_streaming, in_turn=True, fresh=made.fresh, timeout=120
        )
        return trace, {name: value - before.get(name, 0.0) for name, value in self.counted().items()}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaCpp]:
    environment = tool_environment("llama-cpp", PACKAGE)
    model: Path = tmp_path_factory.mktemp("llama") / "model.gguf"
    write_gguf(model, SHAPE, dtype="F32", seed=1)
    with socket.socket() as handle:
        handle.bind(("127.0.0.1", 0))
        port = handle.getsockname()[1]
    command = [str(environment.python), "-c", SERVE, str(model), str(port)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **pipes) as process:  # type: ignore[call-overload]
        try:
            assert process.stdout.readline(), "it did not start"
            yield LlamaCpp(port)
        finally:
            process.kill()


THIRTY = LoadParameters(arrival="closed", users=2, requests=30)


def share(trace: Trace) -> float:
    (cached,) = [one for one in trace_metrics.details(trace) if one.metric.name == "cached_prompt_share"]
    return cached.value / 100.0


def test_fresh_prompts_are_computed_and_repeated_ones_come_from_the_cache(llama: LlamaCpp) -> None:
    for _ in range(2):  # the second load would find everything in the cache that the first one left
        trace, counted = llama.sent(THIRTY, prompt_tokens=200)
        assert trace.ok.all()
        assert share(trace) < 0.05
        assert counted["prompt_tokens_total"] > 0.95 * 30 * 200
    trace, counted = llama.sent(THIRTY, prompt_tokens=200, distinct=1)
    total = counted["prompt_tokens_total"] + counted["prompt_tokens_cached_total"]
    assert share(trace) > 0.8
    assert share(trace) == pytest.approx(counted["prompt_tokens_cached_total"] / total, abs=0.01)


@pytest.mark.parametrize("stream", [True, False])
def test_tokens_are_those_that_the_server_counts(llama: LlamaCpp, stream: bool) -> None:
    trace, counted = llama.sent(
        THIRTY, prompt_tokens="uniform(50, 100)", output_tokens="uniform(1, 20)", stream=stream, ignore_eos=True
    )
    assert trace.ok.all()
    assert trace.output_tokens is not None and trace.prompt_tokens is not None
    assert int(trace.output_tokens.sum()) == counted["tokens_predicted_total"]
    prompts = counted["prompt_tokens_total"] + counted["prompt_tokens_cached_total"]
    assert int(trace.prompt_tokens.sum()) == prompts


def test_connections_that_the_server_closes_now_and_then_cost_no_request(llama: LlamaCpp) -> None:
    """It closes a connection after a hundred answers, and one that nobody used for some seconds."""
    trace, _ = llama.sent(LoadParameters(arrival="closed", users=2, requests=500), prompt_tokens=5, output_tokens=1)
    assert trace.ok.all()
    time.sleep(8)
    trace, _ = llama.sent(LoadParameters(arrival="closed", users=1, requests=3, think_time="6s"), output_tokens=1)
    assert trace.ok.all()


def test_beside_a_reference_client_all_tokens_are_accounted_for(llama: LlamaCpp) -> None:
    """One schedule divided at random: what the two clients count together is what the server has counted."""
    before = llama.counted()
    both = send_both(llama.endpoint, SHAPE.words[len(SPECIAL) :], 60, 20.0)
    counted = {name: value - before.get(name, 0.0) for name, value in llama.counted().items()}
    assert both.own.ok.all()
    assert all(one["status"] == 200 for one in both.reference)
    assert 0 < len(both.own) < 60
    tokens = both.tokens
    assert tokens["output"] == counted["tokens_predicted_total"] == 60 * OUTPUT
    assert both.own.output_tokens is not None and both.own.output_tokens.tolist() == [OUTPUT] * len(both.own)
    total = counted["prompt_tokens_total"] + counted["prompt_tokens_cached_total"]
    assert tokens["prompt"] == total
    assert tokens["cached"] > 0
    assert tokens["cached"] == pytest.approx(counted["prompt_tokens_cached_total"], rel=0.01)
