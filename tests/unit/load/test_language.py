"""Which events of a stream are pieces of an answer, what they say of tokens, and which answers are none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from paceline.load.language import UNKNOWN, read_stream, read_whole
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
