"""Which events of a stream are pieces of an answer, what they say of tokens, and which answers are none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from paceline.load.language import UNKNOWN, json_problem, read_stream, read_vectors, read_whole
from paceline.load.trace import FAILED, OK, WRONG

DONE = (9, b"[DONE]")


def event(text: str, **more: Any) -> bytes:
    return json.dumps({"choices": [{"delta": {"content": text}}], **more}).encode()


@pytest.mark.parametrize(
    ("event", "carries"),
    [
        (b"[DONE]", False),
        (b'{"choices":[{"delta":{"role":"assistant","content":""}}]}', False),
        (b'{"choices":[{"delta":{"content":"a"}}]}', True),
        (b'{"choices":[{"text":"a"}]}', True),
        (b'{"choices":[{"text":"error"}],"error":null}', True),
        (b'{"choices":[],"usage":{"completion_tokens":5}}', False),
        (b'{"choices":[{"delta":{"reasoning_content":"hm"}}]}', True),
        (b"an error of plain words", True),
        (b"", False),
        (b"[1]", True),
        (b'{"text":"a"}', True),
        (b'{"choices":null}', False),
        (b'{"choices":[null,{"text":"a"}]}', True),
        (b'{"choices":[{"delta":null,"text":"a"}]}', True),
        (b'{"choices":[{"delta":{},"text":"a"}]}', False),
        (b'{"choices":[{"finish_reason":"stop"},{"delta":{"tool_calls":[1]}}]}', True),
        (b'{"error":{"message":"no memory","code":500}}', False),
        (b'{"object":"error","message":"no memory"}', False),
    ],
)
def test_only_events_with_text_are_pieces(event: bytes, carries: bool) -> None:
    assert read_stream([(7, event)]).chunks == ([7] if carries else [])


def test_tokens_are_counted_by_the_server_and_not_by_the_pieces() -> None:
    usage = {"prompt_tokens": 30, "completion_tokens": 8, "prompt_tokens_details": {"cached_tokens": 12}}
    last = json.dumps({"choices": [], "usage": usage}).encode()
    answer = read_stream([(1, event("four tokens of text ")), (2, event("and four more tokens")), (3, last), DONE])
    assert answer.chunks == [1, 2]
    assert (answer.prompt_tokens, answer.output_tokens, answer.cached_tokens) == (30, 8, 12)
    assert (answer.status, answer.problem, answer.text) == (OK, "", "four tokens of text and four more tokens")


def test_llama_cpp_counts_cached_tokens_in_its_timings() -> None:
    last = json.dumps({"choices": [], "timings": {"cache_n": 5, "prompt_n": 1}}).encode()
    assert read_stream([(1, event("a")), (2, last), DONE]).cached_tokens == 5


@pytest.mark.parametrize("usage", [None, {}, {"completion_tokens": None}, {"completion_tokens": "8"}, [1]])
def test_what_nobody_counted_is_not_known(usage: Any) -> None:
    answer = read_stream([(1, event("a", usage=usage)), DONE])
    assert (answer.prompt_tokens, answer.output_tokens, answer.cached_tokens) == (UNKNOWN, UNKNOWN, UNKNOWN)


def test_an_answer_without_a_stream_has_tokens_too() -> None:
    body = {"choices": [{"message": {"content": "words"}}], "usage": {"prompt_tokens": 3, "completion_tokens": 16}}
    answer = read_whole(json.dumps(body).encode())
    assert (answer.status, answer.prompt_tokens, answer.output_tokens) == (OK, 3, 16)


@pytest.mark.parametrize(
    ("events", "other", "status", "says"),
    [
        ([(1, event("a"))], b"", WRONG, "without a finish_reason or [DONE]"),
        ([(1, event("")), DONE], b"", WRONG, "no text"),
        ([], b"<html><body>Sign in</body></html>", WRONG, "Sign in"),
        ([], b'{"error": {"message": "no such model"}}', FAILED, "no such model"),
        ([(1, event("a")), (2, b'{"error":{"message":"no memory"}}')], b"", FAILED, "no memory"),
        ([], b"", WRONG, "an empty body"),
    ],
)
def test_streams_that_are_no_answers(events: Any, other: bytes, status: int, says: str) -> None:
    answer = read_stream(events, other)
    assert answer.status == status
    assert says in answer.problem


def test_a_finish_reason_ends_a_stream_as_well_as_the_mark_does() -> None:
    last = json.dumps({"choices": [{"delta": {}, "finish_reason": "length"}]}).encode()
    assert read_stream([(1, event("a")), (2, last)]).status == OK


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b'{"error": "overloaded"}', FAILED, "overloaded"),
        (b'{"choices": [{"message": {"content": ""}}]}', WRONG, "no text"),
        (b'{"choices": []}', WRONG, "no text"),
        (b"<html>busy</html>", WRONG, "<html>busy"),
        (b"", WRONG, "an empty body"),
        (b"[]", WRONG, "not a JSON object"),
    ],
)
def test_whole_answers_that_are_none(body: bytes, status: int, says: str) -> None:
    answer = read_whole(body)
    assert answer.status == status
    assert says in answer.problem


def typed(kind: str, **more: Any) -> bytes:
    return json.dumps({"type": kind, **more}).encode()


def delta(text: str) -> bytes:
    return typed("content_block_delta", index=0, delta={"type": "text_delta", "text": text})


def test_the_events_of_anthropics_messages() -> None:
    usage = {"input_tokens": 5, "cache_read_input_tokens": 30, "cache_creation_input_tokens": 2, "output_tokens": 1}
    thought = typed("content_block_delta", delta={"type": "thinking_delta", "thinking": "hm "})
    last = typed("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 7})
    start = typed("message_start", message={"type": "message", "content": [], "usage": usage})
    events = [start, typed("ping"), thought, delta("Hel"), delta("lo"), last, typed("message_stop")]
    answer = read_stream(list(enumerate(events)))
    assert (answer.problem, answer.chunks, answer.text, answer.said) == ("", [2, 3, 4], "hm Hello", "Hello")
    assert (answer.prompt_tokens, answer.output_tokens, answer.cached_tokens) == (37, 7, 30)
    assert read_stream(list(enumerate(events[:-2]))).status == WRONG
    broken = typed("error", error={"type": "overloaded_error", "message": "too busy"})
    failed = read_stream([(1, start), (2, delta("a")), (3, broken)])
    assert failed.status == FAILED and "too busy" in failed.problem


def test_the_events_of_openais_responses() -> None:
    usage = {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 3}
    events = [
        typed("response.created", response={"status": "in_progress", "output": [], "usage": None}),
        typed("response.reasoning_text.delta", delta="hm "),
        typed("response.output_text.delta", delta="Hello"),
        typed("response.output_text.done", text="Hello"),
        typed("response.incomplete", response={"status": "incomplete", "usage": usage}),
    ]
    answer = read_stream(list(enumerate(events)))
    assert (answer.problem, answer.chunks, answer.said) == ("", [1, 2], "Hello")
    assert (answer.prompt_tokens, answer.output_tokens, answer.cached_tokens) == (9, 3, 4)
    assert read_stream(list(enumerate(events[:-1]))).status == WRONG
    failed = typed("response.failed", response={"error": {"code": "server_error", "message": "no memory"}})
    ended = read_stream([(1, events[2]), (2, failed)])
    assert ended.status == FAILED and "no memory" in ended.problem


def test_whole_answers_of_both() -> None:
    blocks = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Hello"}]
    message = {
        "type": "message",
        "content": blocks,
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 2, "output_tokens": 3},
    }
    output = [
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "content": [{"type": "output_text", "text": "Hello"}]},
    ]
    response = {
        "object": "response",
        "status": "completed",
        "output": output,
        "usage": {"input_tokens": 2, "output_tokens": 3},
    }
    for whole in (message, response):
        answer = read_whole(json.dumps(whole).encode())
        assert (answer.problem, answer.said, answer.prompt_tokens, answer.output_tokens) == ("", "Hello", 2, 3)
    assert read_whole(json.dumps(message | {"content": []}).encode()).status == WRONG
    assert read_whole(json.dumps({"type": "error", "error": {"message": "no"}}).encode()).status == FAILED


@pytest.mark.parametrize(
    ("wire", "body", "status"),
    [
        ("openai-embeddings", {"data": [{"embedding": [0.1]}, {"embedding": "AAAA"}]}, OK),
        ("openai-embeddings", {"data": [{"embedding": [0.1]}]}, WRONG),
        ("openai-embeddings", {"data": [{"embedding": [0.1]}, {"embedding": []}]}, WRONG),
        ("openai-embeddings", {"error": {"message": "no"}}, FAILED),
        ("rerank", {"results": [{"index": 0, "relevance_score": 0.0}, {"index": 1, "relevance_score": -2}]}, OK),
        ("rerank", {"results": [{"index": 0, "relevance_score": None}, {"index": 1}]}, WRONG),
        ("rerank", [1], WRONG),
    ],
)
def test_there_are_as_many_vectors_or_scores_as_texts(wire: str, body: Any, status: int) -> None:
    assert read_vectors(json.dumps(body).encode(), wire, 2).status == status


def test_a_text_that_is_to_be_json() -> None:
    assert json_problem('{"a": 1}', ["a"]) == "" == json_problem("{}", [])
    assert "no key b" in json_problem('{"a": 1}', ["a", "b"])
    assert all("not a JSON object" in json_problem(text, []) for text in ("", "[1]", '{"a":', "word"))
