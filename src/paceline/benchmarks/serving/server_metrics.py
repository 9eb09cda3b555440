"""What a server reports of itself while it is loaded: queue, running requests, cache and drafts from its /metrics."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from paceline.benchmarks.serving import trace_metrics
from paceline.core.metric import Metric
from paceline.core.record import Measurement
from paceline.load.request import Endpoint
from paceline.servers._program import HTTP_ERRORS, http_get

EVERY = 0.5  # seconds between two looks
PATIENCE = 2.0  # seconds
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

RUNNING, QUEUE, CACHE = trace_metrics.SERVER_RUNNING, trace_metrics.SERVER_QUEUE, trace_metrics.KV_CACHE
DRAFTS = trace_metrics.ACCEPTED_DRAFTS
# What servers call each figure; after a blank, the value of a label that the sample must have. Parts are parts of one.
NAMES: dict[Metric, tuple[str, ...]] = {
    RUNNING: (
        *("paceline_requests_running", "vllm:num_requests_running", "sglang:num_running_reqs"),
        *("llamacpp:requests_processing", "tgi_batch_current_size", "nv_trt_llm_request_metrics scheduled"),
    ),
    QUEUE: (
        *("paceline_requests_waiting", "vllm:num_requests_waiting", "sglang:num_queue_reqs"),
        *("llamacpp:requests_deferred", "tgi_queue_size", "nv_trt_llm_request_metrics waiting"),
        "nv_inference_pending_request_count",
    ),
    CACHE: (
        *("paceline_kv_cache_usage_ratio", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        *("sglang:token_usage", "llamacpp:kv_cache_usage_ratio", "nv_trt_llm_kv_cache_block_metrics fraction"),
    ),
    DRAFTS: ("sglang:spec_accept_rate",),
}
# Counters of speculative decoding, which give the part that was accepted meanwhile.
_DRAFT_COUNTERS = ("vllm:spec_decode_num_accepted_tokens_total", "vllm:spec_decode_num_draft_tokens_total")


def parse(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Prometheus' text: the samples of each name, with their labels."""
    samples: dict[str, list[tuple[dict[str, str], float]]] = {}
    for line in text.splitlines():
        match = _SAMPLE.match(line.strip())
        if match is None:  # a comment, or nothing that we know
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        if math.isfinite(value):
            samples.setdefault(match[1], []).append((dict(_LABEL.findall(match[2] or "")), value))
    return samples


def figures(text: str) -> dict[Metric, float]:
    """The figures that a server reports: requests of all its models and engines, and the fullest of its caches."""
    samples = parse(text)
    found: dict[Metric, float] = {}
    for metric, names in NAMES.items():
        for name, _, label in (one.partition(" ") for one in names):
            values = [value for labels, value in samples.get(name, ()) if not label or label in labels.values()]
            if values:
                found[metric] = 100.0 * max(values) if metric.unit == "%" else sum(values)
                break
    return found


def drafts(text: str) -> tuple[float, float] | None:
    """Accepted and drafted tokens since the server began, where it counts them."""
    samples = parse(text)
    accepted, drafted = (sum(value for _, value in samples.get(name, ())) for name in _DRAFT_COUNTERS)
    return (accepted, drafted) if drafted else None


def source(endpoint: Endpoint, address: str = "") -> Callable[[], str] | None:
    """How to ask a server for its metrics, at an address of their own or its own; None where it has none we know."""
    if not address and (endpoint.is_grpc or endpoint.wire == "http"):
        return None
    where, path, tls, headers = (endpoint.host, endpoint.port), "/metrics", endpoint.tls, dict(endpoint.headers)
    if address:
        parts = urlsplit(address)
        tls, path, headers = parts.scheme == "https", parts.path or path, {}  # a token is for its own server alone
        where = (parts.hostname or "", parts.port or (443 if tls else 80))

    def ask() -> str:
        try:
            status, body = http_get(*where, path, timeout=PATIENCE, tls=tls, headers=headers)
        except HTTP_ERRORS:
            return ""
        return body.decode(errors="replace") if status == 200 else ""

    return ask if figures(ask()) else None


@dataclass
class ServerWatch:
    """What a server reported during a load."""

    seconds: list[float] = field(default_factory=list)  # on the monotonic clock
    values: list[Mapping[Metric, float]] = field(default_factory=list)
    counted: list[tuple[float, float]] = field(default_factory=list)  # accepted and drafted tokens

    def look(self, ask: Callable[[], str]) -> None:
        """Ask once; a server that is too busy to answer is asked again later."""
        text = ask()
        if found := figures(text):
            self.seconds.append(time.monotonic())
            self.values.append(found)
        if (counted := drafts(text)) is not None:
            self.counted.append(counted)

    def measurements(self, begun: float = -math.inf, done: float = math.inf) -> list[Measurement]:
        """The mean of each figure over the load, with every value that was seen from its beginning to its end.

        Before and after it the server has nothing to do; its counters are compared with what they were before.
        """
        made = []
        seen = [found for at, found in zip(self.seconds, self.values, strict=True) if begun <= at <= done]
        for metric in NAMES:
            values = [found[metric] for found in seen if metric in found]
            if values:
                made.append(Measurement.of_samples(metric, values, statistic="mean"))
        if self.counted and (drafted := self.counted[-1][1] - self.counted[0][1]) > 0:
            accepted = self.counted[-1][0] - self.counted[0][0]
            made.append(Measurement.of_value(DRAFTS, 100.0 * accepted / drafted))
        return made

    def over_time(self, start: float) -> list[dict[str, Any]]:
        """Each figure over time, in seconds since the monotonic clock showed `start`."""
        series = []
        for metric in NAMES:
            seen = [(at, found[metric]) for at, found in zip(self.seconds, self.values, strict=True) if metric in found]
            if seen:
                seconds, values = zip(*((round(at - start, 4), value) for at, value in seen), strict=True)
                series.append({"name": metric.name, "unit": metric.unit, "seconds": seconds, "values": values})
        return series


@contextmanager
def watching(ask: Callable[[], str] | None) -> Iterator[ServerWatch]:
    """Ask a server again and again until the end of the block."""
    watch, end = ServerWatch(), threading.Event()
    if ask is None:
        yield watch
        return

    def until_end() -> None:
        while not end.wait(EVERY):
            watch.look(ask)

    watch.look(ask)
    thread = threading.Thread(target=until_end, daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        end.set()
        thread.join()
        watch.look(ask)
