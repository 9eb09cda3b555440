"""A load of a language model is what it says: fresh prompts, tokens and not chunks, answers and not pages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.benchmarks.serving import trace_metrics
from paceline.benchmarks.serving.prompts import PromptMaker
from paceline.core.record import Measurement, Outcome, Record
from paceline.load.generator import drive
from paceline.load.parameters import LoadParameters, RequestParameters
from paceline.load.trace import FAILED, WRONG, Trace
from support.ceiling import remember_the_ceiling
from support.cli import Sandbox
from support.language_server import Manner, Served, serving

TWENTY = LoadParameters(arrival="closed", users=2, requests=20)


def sent(served: Served, load: LoadParameters = TWENTY, **wanted: Any) -> Trace:
    """A load of fresh prompts unless others are wanted."""
    made = PromptMaker(RequestParameters(**wanted), served.endpoint, 1, load.requests).made()
    return drive(
        served.endpoint,
        made.prepared,
        load,
        streaming=made.is_streaming,
        in_turn=made.in_turn,
        fresh=made.fresh,
        tokenizer=wanted.get("tokenizer"),
    )


def of(trace: Trace) -> dict[str, Measurement]:
    return {one.metric.name: one for one in [*trace_metrics.traffic(trace, None), *trace_metrics.details(trace)]}


def test_no_prompt_is_sent_twice_and_nothing_comes_from_the_cache() -> None:
    """Not within a load, and not when it is sent again: the first words are new each time."""
    with serving() as served:
        for _ in range(2):
            assert sent(served).ok.all()
        assert len(set(served.prompts())) == 40
        few = [len(one.split()) for one in served.prompts()]
        assert set(few) == {32}
        assert served.cached_tokens < 0.1 * served.prompt_tokens


def test_prompts_that_are_to_repeat_do_and_the_share_of_cached_tokens_is_the_servers() -> None:
    with serving() as served:
        trace = sent(served, distinct=4)
        assert len(set(served.prompts())) == 4
    cached = of(trace)["cached_prompt_share"]
    assert cached.value == pytest.approx(100.0 * served.cached_tokens / served.prompt_tokens)
    assert cached.value >= 75.0


@pytest.mark.parametrize("chunk", [1, 4])
def test_tokens_are_not_chunks(chunk: int) -> None:
    with serving(Manner(tokens_per_chunk=chunk)) as served:
        trace = sent(served, output_tokens=16)
    assert trace.chunks is not None and trace.output_tokens is not None
    assert sum(map(len, trace.chunks)) == served.chunks == 20 * 16 // chunk
    assert int(trace.output_tokens.sum()) == served.output_tokens == 320
    assert trace.prompt_tokens is not None and int(trace.prompt_tokens.sum()) == served.prompt_tokens
    found = of(trace)
    assert found["token_throughput"].value == pytest.approx(320 / trace_metrics.seconds_of(trace))
    between, chunks = found["inter_token_latency"], found["inter_chunk_latency"]
    assert between.value == pytest.approx(chunks.value / chunk)
    assert found["output_tokens"].samples == [16.0] * 20


def test_without_a_stream_there_are_tokens_too() -> None:
    with serving() as served:
        trace = sent(served, stream=False, output_tokens=16)
    found = of(trace)
    assert trace.ok.all() and served.output_tokens == 320
    assert found["token_throughput"].value == pytest.approx(320 / trace_metrics.seconds_of(trace))
    assert "inter_token_latency" not in found and "time_to_first_token" not in found


def test_tokens_that_nobody_counts_are_not_reported() -> None:
    with serving(Manner(tokens_per_chunk=4, usage=False)) as served:
        trace = sent(served)
    found = of(trace)
    assert not {"token_throughput", "inter_token_latency", "output_tokens", "cached_prompt_share"} & found.keys()
    assert {"time_to_first_token", "inter_chunk_latency"} <= found.keys()
    (warning,) = trace_metrics.lengths(trace, [32] * 20, [16] * 20, is_fresh=True)
    assert warning.kind == "tokens-not-counted"


def test_a_tokenizer_counts_where_the_server_does_not(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"word": 0, "?": 1}, unk_token="?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    words.save(str(tmp_path / "tokenizer.json"))
    with serving(Manner(tokens_per_chunk=4, usage=False)) as served:
        trace = sent(served, output_tokens=10, tokenizer=tmp_path)
    assert trace.output_tokens is not None and trace.output_tokens.tolist() == [10] * 20
    assert served.output_tokens == 200


def test_a_server_that_closes_every_connection_loses_no_request() -> None:
    """It does not announce it: a reused connection dies before the first byte of an answer."""
    with serving(Manner(closes=True)) as served:
        trace = sent(served, LoadParameters(arrival="closed", users=2, requests=60))
    assert trace.ok.all()
    assert served.connections == 60
    assert trace.retried <= 58, "each user's first request has a connection of its own"
    assert len(served.bodies) == 60, "what was sent again had never arrived"


@pytest.mark.parametrize(
    ("manner", "stream", "status", "says"),
    [
        (Manner(cut=True), True, WRONG, "without a finish_reason or [DONE]"),
        (Manner(empty=True), True, WRONG, "no text"),
        (Manner(empty=True), False, WRONG, "no text"),
        (Manner(answer=b"<html>Sign in</html>"), True, WRONG, "<html>Sign in</html>"),
        (Manner(answer=b"<html>Sign in</html>"), False, WRONG, "<html>Sign in</html>"),
        (Manner(answer=b'{"error": {"message": "no such model"}}'), True, FAILED, "no such model"),
        (Manner(answer=b'{"error": {"message": "no such model"}}'), False, FAILED, "no such model"),
        (Manner(answer=b""), True, WRONG, "an empty body"),
    ],
)
def test_what_is_not_an_answer_has_failed(manner: Manner, stream: bool, status: int, says: str) -> None:
    with serving(manner) as served:
        trace = sent(served, LoadParameters(arrival="closed", users=1, requests=3), stream=stream)
    assert trace.status.tolist() == [status] * 3
    ((cause, count),) = trace.causes.items()
    assert says in cause and count == 3


def test_answers_of_another_length_are_reported() -> None:
    with serving(Manner(length=5)) as served:
        trace = sent(served, output_tokens=16)
        (warning,) = trace_metrics.lengths(trace, [32] * 20, [16] * 20, is_fresh=True)
        assert warning.kind == "output-length"
        assert "20 of 20 answers" in warning.message and "5 tokens instead of 16" in warning.message
    with serving() as served:
        trace = sent(served, output_tokens=16)
        assert trace_metrics.lengths(trace, [32] * 20, [16] * 20, is_fresh=True) == []


def test_a_trace_hits_the_cache_as_often_as_its_hashes_say(tmp_path: Path) -> None:
    hashes = [[1, 2], [1, 2, 3], [1], [4, 2], [1, 2, 3, 5], []]
    lengths = [1024, 1300, 512, 1024, 2048, 100]
    rows = zip(lengths, hashes, strict=True)
    lines = [
        {"timestamp": 50 * row, "input_length": length, "output_length": row + 1, "hash_ids": blocks}
        for row, (length, blocks) in enumerate(rows)
    ]
    file = tmp_path / "trace.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    load = LoadParameters(arrival="trace", file=file)
    with serving(Manner(block=512)) as served:
        made = PromptMaker(RequestParameters(), served.endpoint, 1, None, load.recorded()).made()
        # One user, so that nothing is asked for before the answer to what it shares has come.
        one = LoadParameters(arrival="closed", users=1, requests=6)
        trace = drive(served.endpoint, made.prepared, one, streaming=True, in_turn=True, fresh=made.fresh)
    assert trace.prompt_tokens is not None and trace.prompt_tokens.tolist() == lengths
    assert trace.output_tokens is not None and trace.output_tokens.tolist() == [1, 2, 3, 4, 5, 6]
    cached = 0 + 1024 + 512 + 0 + 1024 + 0  # the third block of the second prompt is not full
    assert of(trace)["cached_prompt_share"].value == pytest.approx(100.0 * cached / sum(lengths), rel=0.01)


# ---- the whole command


def measured(sandbox: Sandbox, served: Served, *flags: str, code: int = 0) -> Record:
    remember_the_ceiling(sandbox.environment()["XDG_DATA_HOME"])
    server = ("--server", json.dumps({"kind": "url", "url": f"{served.address}/v1", "model": "m"}))
    done = sandbox.ask("run", "serve", *server, "--wire", "openai-chat", "--no-report", *flags)
    assert done.returncode == code, done.stdout + done.stderr
    (record,) = sandbox.load().records
    return record


@pytest.mark.slow
def test_a_load_of_100_requests_sends_104(sandbox: Sandbox) -> None:
    with serving() as served:
        record = measured(sandbox, served, "--load.arrival", "closed", "--load.users", "4", "--load.requests", "100")
        assert len(served.bodies) == 104
        assert len(set(served.prompts())) == 104
    assert record.outcome is Outcome.OK
    assert record.case.sends.startswith("sends 100 requests, after 4 to warm up: about 3,328 prompt tokens")
    assert record.facts["sent"] == {"requests": 104, "prompt_tokens": 3328, "output_tokens": 1664}
    assert record.subject is not None and record.subject.model == "m"
    assert "resnet18" not in record.case.title and record.case.title.startswith("m url")
    assert served.prompt_tokens == 3328 and served.output_tokens == 1664
    cached = record.measurement("cached_prompt_share")
    assert cached is not None and cached.value < 10.0


@pytest.mark.slow
def test_limits_hold_for_everything_that_is_sent(sandbox: Sandbox) -> None:
    flags = ("--load.arrival", "closed", "--load.users", "4", "--load.duration", "60s")
    with serving() as served:
        measured(sandbox, served, *flags, "--limits.requests", "30")
        assert len(served.bodies) == 30
    assert np.diff(served.times).max() < 60.0


@pytest.mark.slow
def test_a_search_that_reaches_a_limit_ends_with_what_was_sent(sandbox: Sandbox) -> None:
    with serving() as served:
        record = measured(sandbox, served, "--slo.p99", "5s", "--limits.requests", "60", code=1)
        assert len(served.bodies) <= 60
    assert record.outcome is Outcome.FAILED and record.cause is not None
    assert f"limits were reached after {len(served.bodies)} requests" in record.cause.message


def test_a_file_that_cannot_be_sent_is_refused_by_a_dry_run(sandbox: Sandbox, tmp_path: Path) -> None:
    good, bad = tmp_path / "sharegpt.json", tmp_path / "bad.json"
    good.write_text(json.dumps([{"id": "a", "conversations": [{"from": "human", "value": "Hello?"}]}]))
    bad.write_text(json.dumps([{"id": "a", "turns": ["Hello?"]}]))
    server = ("--server", '{kind: url, url: "http://127.0.0.1:9/v1", model: m}', "--wire", "openai-chat")
    for file, code in ((good, 0), (bad, 2)):
        asked = sandbox.ask("run", "serve", *server, "--load.rate", "5", "--requests.dataset", str(file), "--dry-run")
        assert asked.returncode == code, asked.stderr
    assert "ShareGPT" in asked.stderr


def test_what_is_known_to_be_beyond_a_limit_is_refused_before_anything_is_sent(sandbox: Sandbox) -> None:
    with serving() as served:
        server = ("--server", json.dumps({"kind": "url", "url": f"{served.address}/v1", "model": "m"}))
        case = ("run", "serve", *server, "--wire", "openai-chat", "--load.rate", "5", "--load.requests", "100")
        shown = sandbox.ask(*case, "--dry-run")
        assert "sends 100 requests, after 4 to warm up: about 3,328 prompt tokens" in shown.stdout
        for flags, says in (
            (("--limits.requests", "50"), "limits.requests = 50"),
            (("--limits.tokens", "4000"), "limits.tokens = 4000"),
            (
                ("--limits", "{usd: 0.001, usd_per_million_prompt_tokens: 1, usd_per_million_output_tokens: 2}"),
                "limits.usd = 0.001",
            ),
        ):
            refused = sandbox.ask(*case, *flags, "--dry-run")
            assert refused.returncode == 2 and says in refused.stderr
        assert served.bodies == []
