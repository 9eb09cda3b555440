"""Loads of language models as they are used: conversations, agents, traces, other wires, adapters, users who leave."""

from __future__ import annotations

import base64
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.benchmarks.serving import trace_metrics
from paceline.benchmarks.serving.prompts import PromptMaker
from paceline.benchmarks.serving.requests import Requests
from paceline.load.arrivals import prefix_share, read_arrivals
from paceline.load.generator import drive
from paceline.load.parameters import LoadParameters, RequestParameters
from paceline.load.request import TEXT_WIRES, Wire
from paceline.load.trace import CANCELLED, OK, WRONG, Trace
from support.ceiling import remember_the_ceiling
from support.cli import Sandbox
from support.language_server import Manner, Served, serving, words_of

SLACK = 1e-3  # s: two clocks of one machine, read one after the other


def sent(
    served: Served,
    load: LoadParameters,
    wire: Wire = "openai-chat",
    *,
    workers: int = 1,
    most: int | None = None,
    **wanted: Any,
) -> tuple[Trace, Requests]:
    endpoint = served.endpoint_of(wire)
    made = PromptMaker(RequestParameters.model_validate(wanted), endpoint, 1, load.requests).made()
    trace = drive(
        endpoint,
        made.prepared,
        load,
        workers=workers,
        streaming=made.is_streaming,
        in_turn=made.in_turn,
        fresh=made.fresh,
        json_keys=made.json_keys,
        most=most,
    )
    return trace, made


def closed(requests: int, users: int = 2) -> LoadParameters:
    return LoadParameters(arrival="closed", users=users, requests=requests)


def roles(body: dict[str, Any]) -> list[str]:
    return [one["role"] for one in body["messages"]]


def conversations(served: Served) -> dict[str, list[int]]:
    """Which requests each has, in the order in which they came, by the text of its first question."""
    found: dict[str, list[int]] = {}
    for number, body in enumerate(served.bodies):
        first = next(one["content"] for one in body["messages"] if one["role"] == "user")
        found.setdefault(str(first), []).append(number)
    return found


# ---- conversations


@pytest.mark.parametrize("load", [closed(6), LoadParameters(arrival="constant", rate=50, requests=6)])
def test_a_conversation_keeps_its_order_and_pauses_and_quotes_what_was_answered(load: LoadParameters) -> None:
    with serving(Manner(numbered=True)) as served:
        trace, made = sent(
            served,
            load,
            workers=2,
            turns=3,
            think_time="uniform(20ms, 60ms)",
            system_tokens=8,
            prompt_tokens=6,
            output_tokens=2,
        )
    assert trace.ok.all() and len(trace) == len(served.bodies) == 18
    talks = conversations(served)
    assert len(talks) == 6, "no two of them say the same"
    waits = sorted(one.turn.wait for one in made.prepared if one.turn.depth > 1)
    thought = []
    for numbers in talks.values():
        first, second, third = (served.bodies[number]["messages"] for number in numbers)
        assert [one["role"] for one in third] == ["system", "user", "assistant", "user", "assistant", "user"]
        assert third[:4] == second and second[:2] == first
        assert third[2]["content"].split() == [f"a{numbers[0]}"] * 2
        assert third[4]["content"].split() == [f"a{numbers[1]}"] * 2
        thought += [served.times[b] - served.ends[a] for a, b in itertools.pairwise(numbers)]
    assert len({body["messages"][0]["content"] for body in served.bodies}) == 1
    # By the server's log nobody asks again before the time was over. Each pause is longer than the one that was drawn.
    assert all(actual >= drawn - SLACK for actual, drawn in zip(sorted(thought), waits, strict=True))
    depth = np.array([one.turn.depth for one in made.prepared])[trace.kind]
    assert [int(np.count_nonzero(depth == turn)) for turn in (1, 2, 3)] == [6, 6, 6]


def test_later_turns_come_from_the_cache_and_the_record_says_so_for_each() -> None:
    with serving(Manner(numbered=True)) as served:
        trace, made = sent(served, closed(20), turns=3, prompt_tokens=20, output_tokens=5)
    found = trace_metrics.by_group(trace, {"turn": [one.turn.depth for one in made.prepared]})
    cached = {one.at["turn"]: one.value for one in found if one.metric.name == "cached_prompt_share"}
    # Turn 2 has 20 known words of 45, turn 3 has 45 of 70.
    assert cached == {
        1: pytest.approx(0.0, abs=8.0),
        2: pytest.approx(100 * 20 / 45, abs=1),
        3: pytest.approx(100 * 45 / 70, abs=1),
    }
    assert {one.at["turn"] for one in found if one.metric.name == "first_token_p50"} == {1, 2, 3}
    assert trace_metrics.lengths(trace, made.prompt_lengths, made.output_lengths, is_fresh=True) == []


def test_a_recorded_conversation_is_asked_again_with_the_answers_of_this_server(tmp_path: Path) -> None:
    file = tmp_path / "conversations.jsonl"
    said = [{"from": "human", "value": "one?"}, {"from": "gpt", "value": "old"}, {"from": "human", "value": "two?"}]
    entries = [
        {"conversations": said},
        {"messages": [{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}]},
    ]
    file.write_text("\n".join(map(json.dumps, entries)))
    with serving(Manner(numbered=True)) as served:
        trace, _ = sent(served, closed(2, users=1), turns=9, dataset=file, output_tokens=1)
    assert trace.ok.all()
    assert [[one["content"].strip() for one in body["messages"]] for body in served.bodies] == [
        ["one?"], ["one?", "a0", "two?"], ["be", "hi"]
    ]  # fmt: skip


def test_an_agent_asks_in_parallel_and_waits_for_all_answers() -> None:
    with serving(Manner(numbered=True)) as served:
        trace, made = sent(served, closed(4), turns=2, fan_out=3, think_time="30ms", prompt_tokens=5, output_tokens=1)
    assert trace.ok.all() and len(trace) == 4 * 5
    assert [one.turn.depth for one in made.prepared[:5]] == [1, 2, 2, 2, 3]
    for plan, *parts, last in conversations(served).values():
        assert len(parts) == 3 and roles(served.bodies[last]) == ["user", "assistant", "user"]
        quoted = served.bodies[last]["messages"][2]["content"].split()[:3]
        assert {int(word[1:]) for word in quoted} == set(parts)
        assert all(roles(served.bodies[part]) == ["user", "assistant", "user"] for part in parts)
        assert served.times[last] >= max(served.ends[part] for part in parts) + 0.03 - SLACK
        assert all(served.times[part] >= served.ends[plan] - SLACK for part in parts)


def test_a_turn_without_an_answer_ends_its_conversation() -> None:
    with serving(Manner(cut=True)) as served:
        trace, _ = sent(served, closed(3), turns=4)
    assert trace.status.tolist() == [WRONG] * 3 and len(served.bodies) == 3


@pytest.mark.parametrize("load", [closed(5), LoadParameters(arrival="constant", rate=100, requests=5)])
def test_a_limit_on_requests_holds_within_conversations(load: LoadParameters) -> None:
    with serving() as served:
        trace, _ = sent(served, load, turns=4, most=7)
    assert len(trace) == len(served.bodies) <= 7


# ---- wires


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("wire", TEXT_WIRES)
def test_every_wire_counts_what_the_server_counts(wire: Wire, stream: bool) -> None:
    with serving(Manner(tokens_per_chunk=2)) as served:
        trace, _ = sent(
            served, closed(10), wire, stream=stream, distinct=2, system_tokens=7, prompt_tokens=9, output_tokens=6
        )
    assert trace.ok.all(), trace.causes
    assert trace.prompt_tokens is not None and trace.output_tokens is not None and trace.cached_tokens is not None
    assert trace.prompt_tokens.tolist() == [16] * 10 and int(trace.prompt_tokens.sum()) == served.prompt_tokens
    assert int(trace.output_tokens.sum()) == served.output_tokens == 60
    assert int(trace.cached_tokens.sum()) == served.cached_tokens > 0
    assert not stream or (trace.chunks is not None and {len(one) for one in trace.chunks} == {3})
    if wire == "anthropic-messages":
        assert all(one["system"] and roles(one) == ["user"] for one in served.bodies)
        assert {one["anthropic-version"] for one in served.headers} == {"2023-06-01"}


@pytest.mark.parametrize("wire", TEXT_WIRES)
def test_every_wire_knows_a_conversation_and_a_stream_that_was_cut(wire: Wire) -> None:
    with serving(Manner(numbered=True)) as served:
        trace, _ = sent(served, closed(2, users=1), wire, turns=2, prompt_tokens=4, output_tokens=2)
    assert trace.ok.all() and len(trace) == 4
    assert words_of(served.bodies[1]).split()[4:6] == ["a0", "a0"]
    with serving(Manner(cut=True)) as served:
        trace, _ = sent(served, closed(2), wire)
    assert trace.status.tolist() == [WRONG] * 2


@pytest.mark.parametrize(("wire", "texts"), [("openai-embeddings", 4), ("openai-embeddings", 1), ("rerank", 4)])
def test_embeddings_and_scores_are_counted_in_texts_and_prompt_tokens(wire: Wire, texts: int) -> None:
    with serving() as served:
        trace, _ = sent(served, closed(10), wire, samples=texts, prompt_tokens=8)
    assert trace.ok.all(), trace.causes
    words = 8 * (texts + (wire == "rerank"))
    assert trace.prompt_tokens is not None and trace.prompt_tokens.tolist() == [words] * 10
    assert trace.samples.tolist() == [texts] * 10 and trace.chunks is None
    assert len({words_of(body) for body in served.bodies}) == 10
    with serving(Manner(vectors=2 if texts == 1 else 1)) as served:
        trace, _ = sent(served, closed(3), wire, samples=texts)
    assert trace.status.tolist() == [WRONG] * 3 and f"for {texts} texts" in next(iter(trace.causes))


@pytest.mark.parametrize(("wire", "stream"), [("openai-embeddings", True), ("rerank", True), ("openai-chat", False)])
def test_what_a_server_says_when_it_refuses_is_kept_where_nothing_streams(wire: Wire, stream: bool) -> None:
    refusal = Manner(answer=b'{"error": {"code": 501, "message": "start it with --embeddings"}}', status=501)
    with serving(refusal) as served:
        trace, _ = sent(served, closed(3), wire, stream=stream)
    assert trace.status.tolist() == [501] * 3 and trace.causes == {"start it with --embeddings": 3}


@pytest.mark.parametrize("wire", ["openai-chat", "openai-responses", "anthropic-messages"])
def test_pictures_travel_as_data_of_the_size_that_was_asked_for(wire: Wire) -> None:
    pytest.importorskip("PIL", reason="pictures are read by Pillow: pip install pillow")
    from io import BytesIO

    from PIL import Image

    with serving() as served:
        trace, _ = sent(served, closed(3), wire, images=2, image_size="40x30", prompt_tokens=5)
    assert trace.ok.all(), trace.causes
    key = "input" if wire == "openai-responses" else "messages"
    for body in served.bodies:
        text, *pictures = body[key][0]["content"]
        assert len(str(text["text"]).split()) == 5 and len(pictures) == 2
        for part in pictures:
            url = part["source"]["data"] if "source" in part else part["image_url"]
            data = (url["url"] if isinstance(url, dict) else url).rpartition(",")[2]
            assert Image.open(BytesIO(base64.b64decode(data))).size == (40, 30)


# ---- adapters, structure, users who leave


def test_models_are_asked_by_their_weights_and_have_figures_of_their_own() -> None:
    with serving() as served:
        trace, made = sent(served, closed(200), models={"base": 3, "adapter": 1}, turns=2, output_tokens=1)
    counts = {name: sum(body["model"] == name for body in served.bodies) for name in ("base", "adapter")}
    assert sum(counts.values()) == 400 and 60 <= counts["adapter"] <= 140
    assert all(len({served.bodies[one]["model"] for one in talk}) == 1 for talk in conversations(served).values())
    shares = {
        one.at["model"]: one.value
        for one in trace_metrics.by_group(trace, {"model": made.models})
        if one.metric.name == "request_share"
    }
    assert shares == {name: pytest.approx(count / 4) for name, count in counts.items()}


@pytest.mark.parametrize(
    ("text", "status", "says"),
    [
        ('{"a":1}', OK, ""),
        ('{"b":1}', WRONG, "no key a"),
        ("[1]", WRONG, "not a JSON object"),
        ('{"a":', WRONG, "JSON"),
    ],
)
def test_an_answer_that_is_to_be_json_has_to_parse(text: str, status: int, says: str) -> None:
    schema = {"type": "object", "required": ["a"]}
    with serving(Manner(text=text)) as served:
        trace, _ = sent(served, closed(2), json_schema=schema)
    assert trace.status.tolist() == [status] * 2 and all(says in cause for cause in trace.causes)
    assert served.bodies[0]["response_format"]["json_schema"]["schema"] == schema


def test_users_who_leave_are_counted_apart() -> None:
    with serving(Manner(endless=True)) as served:
        trace, _made = sent(served, closed(4), cancel={"share": 1, "tokens": 3}, output_tokens=5)
    assert trace.status.tolist() == [CANCELLED] * 4 and served.gone == 4
    assert trace.chunks is not None and all(len(one) >= 3 for one in trace.chunks)
    found = {one.metric.name: one.value for one in trace_metrics.traffic(trace, None)}
    assert found["cancelled_rate"] == 100.0 and found["error_rate"] == 0.0
    with serving(Manner(endless=True)) as served:
        trace, _ = sent(served, closed(2), cancel={"share": 1, "time": "50ms"}, output_tokens=5)
    assert trace.status.tolist() == [CANCELLED] * 2
    assert ((trace.done - trace.sent) >= 0.05 - SLACK).all()


def test_only_the_share_that_was_asked_for_leaves_and_percentiles_are_of_the_others() -> None:
    with serving() as served:
        trace, made = sent(served, closed(100), cancel={"share": "20%", "time": "60s"}, output_tokens=1)
    assert trace.ok.all(), "each had its answer before its user left"
    leaving = sum(one.turn.close_after == 60.0 for one in made.prepared)
    assert 8 <= leaving <= 35
    assert len(trace.kept) == 100


# ---- traces


@pytest.mark.slow
def test_hash_blocks_give_the_share_of_the_trace_on_a_server_with_a_cache(tmp_path: Path, sandbox: Sandbox) -> None:
    file = tmp_path / "trace.jsonl"
    asked = ("--prefix-share", "40%", "--prompt-tokens", "lognormal(1200, 0.6)", "--output-tokens", "2")
    made = sandbox.ask("simulate", "trace", *asked, "--requests", "60", "--rate", "50", "-o", str(file))
    assert made.returncode == 0, made.stderr
    schedule = read_arrivals(file)
    assert schedule.blocks is not None and schedule.prompt_tokens is not None
    share = prefix_share(schedule.blocks, schedule.prompt_tokens.tolist())
    assert share == pytest.approx(0.4, abs=0.02)
    for block in (512, 16):
        with serving(Manner(block=block)) as served:
            prompts = PromptMaker(RequestParameters(), served.endpoint, 1, None, schedule).made()
            # One user, so that nothing is asked for before what it shares is known.
            trace = drive(served.endpoint, prompts.prepared, closed(60, users=1), streaming=True, in_turn=True)
        assert trace.ok.all() and served.prompt_tokens == int(schedule.prompt_tokens.sum())
        assert served.cached_tokens / served.prompt_tokens == pytest.approx(share, abs=0.01)


@pytest.mark.slow
def test_the_whole_command_reports_turns_models_and_users_who_leave(sandbox: Sandbox) -> None:
    remember_the_ceiling(sandbox.environment()["XDG_DATA_HOME"])
    with serving(Manner(numbered=True)) as served:
        server = ("--server", json.dumps({"kind": "url", "url": f"{served.address}/v1", "model": "m"}))
        requests = "{turns: 2, think_time: 10ms, models: {m: 1, n: 1}, cancel: {share: 50%, time: 20s}}"
        flags = (
            "--wire",
            "anthropic-messages",
            "--requests",
            requests,
            "--load",
            "{arrival: closed, users: 2, requests: 20}",
        )
        shown = sandbox.ask("run", "serve", *server, *flags, "--dry-run")
        assert "sends 40 requests of 20 conversations, after 4 to warm up" in shown.stdout
        done = sandbox.ask("run", "serve", *server, *flags, "--no-report")
        assert done.returncode == 0, done.stdout + done.stderr
        assert len(served.bodies) == 44 and set(served.paths) == {"/v1/messages"}
    (record,) = sandbox.load().records
    at = [tuple(one.at.items()) for one in record.measurements if one.metric.name == "first_token_p50"]
    assert set(at) == {(), (("turn", 1),), (("turn", 2),), (("model", "m"),), (("model", "n"),)}
    assert record.facts["sent"]["requests"] == 44


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--wire", "rerank", "--requests", "{turns: 2}"), "requests.turns is not for wire rerank"),
        (("--wire", "openai-completions", "--requests", "{images: 1}"), "requests.images is not for wire"),
        (("--wire", "openai-chat", "--requests", "{think_time: 1s}"), "think_time is of conversations"),
        (("--wire", "openai-chat", "--requests", "{cancel: {share: 0.1}}"), "say when a request is closed"),
        (("--wire", "openai-chat", "--requests", "{models: {a: -1}}"), "weights are positive"),
        (("--wire", "openai-chat", "--requests", "{samples: 4}"), "requests.samples is how many texts"),
        (("--wire", "openai-embeddings", "--slo", "{first_token: 1s}"), "token by token"),
    ],
)
def test_what_does_not_go_together_is_refused(sandbox: Sandbox, flags: tuple[str, ...], says: str) -> None:
    server = ("--server", '{kind: url, url: "http://127.0.0.1:9/v1", model: m}', "--load", "{rate: 5}")
    refused = sandbox.ask("run", "serve", *server, *flags, "--dry-run")
    assert refused.returncode == 2 and says in refused.stderr, refused.stderr
