"""What servers report of themselves, under their own names, and how it becomes figures of a load."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from paceline.benchmarks.serving import server_metrics
from paceline.benchmarks.serving.server_metrics import CACHE, DRAFTS, QUEUE, RUNNING, ServerWatch, figures, watching
from paceline.load.request import Endpoint

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 7.0
vllm:num_requests_running{engine="1",model_name="m"} 5.0
vllm:num_requests_waiting{engine="0",model_name="m"} 3.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.5
vllm:spec_decode_num_draft_tokens_total{engine="0"} 200.0
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 120.0
vllm:time_to_first_token_seconds_bucket{le="+Inf",model_name="m"} 9.0
"""
SGLANG = """\
sglang:num_running_reqs{model_name="meta/x"} 12.0
sglang:num_queue_reqs{model_name="meta/x"} 4.0
sglang:token_usage{model_name="meta/x"} 0.28
sglang:spec_accept_rate{model_name="meta/x"} 0.6
"""
LLAMA_CPP = "llamacpp:requests_processing 4\nllamacpp:requests_deferred 46\nllamacpp:predicted_tokens_seconds 0\n"
TGI = "tgi_queue_size 7\ntgi_batch_current_size 4\n"
TRITON = """\
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled",version="1"} 6
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 2
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="tensorrt_llm",version="1"} 0.4
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="tensorrt_llm",version="1"} 64
nv_inference_pending_request_count{model="tensorrt_llm",version="1"} 9
"""
PLAIN_TRITON = 'nv_inference_pending_request_count{model="resnet",version="1"} 9\n'
EMBEDDED = "paceline_requests_running 3\npaceline_requests_waiting 1\npaceline_kv_cache_usage_ratio 0.125\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (VLLM, {RUNNING: 12.0, QUEUE: 3.0, CACHE: 50.0}),
        (SGLANG, {RUNNING: 12.0, QUEUE: 4.0, CACHE: 28.0, DRAFTS: 60.0}),
        (LLAMA_CPP, {RUNNING: 4.0, QUEUE: 46.0}),
        (TGI, {RUNNING: 4.0, QUEUE: 7.0}),
        (TRITON, {RUNNING: 6.0, QUEUE: 2.0, CACHE: 40.0}),
        (PLAIN_TRITON, {QUEUE: 9.0}),
        (EMBEDDED, {RUNNING: 3.0, QUEUE: 1.0, CACHE: 12.5}),
        ("<html>nothing here</html>\n{}", {}),
        ("vllm:num_requests_running NaN\nvllm:num_requests_waiting many\n", {}),
    ],
)
def test_every_server_has_its_own_names_for_the_same_figures(text: str, expected: dict[object, float]) -> None:
    found = figures(text)
    assert found.keys() == expected.keys()
    assert all(found[metric] == pytest.approx(expected[metric]) for metric in found)


def test_labels_may_hold_anything_in_their_quotes() -> None:
    (sample,) = server_metrics.parse('a_total{x="1, } b",y="say \\"hi\\""} 2.5 1700000000\n')["a_total"]
    assert sample == ({"x": "1, } b", "y": 'say \\"hi\\"'}, 2.5)


def test_counters_of_drafts_give_what_was_accepted_meanwhile() -> None:
    watch = ServerWatch()
    watch.look(lambda: VLLM)
    watch.look(lambda: VLLM.replace("200.0", "300.0").replace("120.0", "200.0"))
    measured = {one.metric: one.value for one in watch.measurements()}
    assert measured[DRAFTS] == pytest.approx(80.0)
    assert measured[RUNNING] == 12.0


def test_a_server_that_is_too_busy_to_answer_loses_nothing_but_that_look() -> None:
    texts = iter([EMBEDDED, "", EMBEDDED.replace("waiting 1", "waiting 3")])
    watch = ServerWatch()
    for _ in range(3):
        watch.look(lambda: next(texts))
    queue = next(one for one in watch.measurements() if one.metric == QUEUE)
    assert (queue.samples, queue.value) == ([1.0, 3.0], 2.0)
    series = {one["name"]: one for one in watch.over_time(watch.seconds[0])}
    assert series["server_queue"]["values"] == (1.0, 3.0) and series["server_queue"]["seconds"][0] == 0.0


def test_what_it_did_before_and_after_a_load_is_not_of_the_load() -> None:
    watch = ServerWatch()
    for text in (VLLM, EMBEDDED, VLLM.replace("200.0", "300.0").replace("120.0", "200.0")):
        watch.look(lambda text=text: text)  # type: ignore[misc]
    _, meanwhile, _ = watch.seconds
    measured = {one.metric: one.samples for one in watch.measurements(meanwhile, meanwhile)}
    assert measured[QUEUE] == [1.0]
    assert measured[DRAFTS] == pytest.approx([80.0])  # counters grow from before it to after it


@contextmanager
def answering(text: str, status: int = 200) -> Iterator[Endpoint]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = text.encode() if self.path == "/metrics" else b""
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield Endpoint("openai-chat", "127.0.0.1", server.server_address[1], "/v1/chat/completions", "m")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_server_is_watched_from_the_begin_of_a_load_to_its_end() -> None:
    with answering(SGLANG) as endpoint:
        ask = server_metrics.source(endpoint)
        assert ask is not None
        with watching(ask) as watch:
            pass
    assert len(watch.values) >= 2
    assert {one.metric for one in watch.measurements()} == {RUNNING, QUEUE, CACHE, DRAFTS}


@pytest.mark.parametrize(("text", "status"), [("", 200), ("python_info 1\n", 200), (VLLM, 404)])
def test_a_server_without_such_figures_is_not_asked_again(text: str, status: int) -> None:
    with answering(text, status) as endpoint:
        assert server_metrics.source(endpoint) is None
    assert server_metrics.source(endpoint) is None  # nobody answers any more
    with watching(None) as watch:
        pass
    assert watch.measurements() == []
