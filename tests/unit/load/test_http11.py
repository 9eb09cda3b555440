"""What an answer is, however the network cuts it; what is none; and what servers tell beside it."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.load.grpc_client import status_of
from paceline.load.http11 import AnswerReader, Unreadable
from paceline.load.request import Endpoint, Prepared, http_bytes
from paceline.load.server_timing import carries_text, read_stages
from paceline.load.trace import BROKEN, REFUSED, SHED, TIMED_OUT
from support.refused import refused


def reader() -> AnswerReader:
    made = AnswerReader()
    made.expect(wants_body=True, wants_events=True)
    return made


def test_a_length_tells_the_end() -> None:
    one = reader()
    assert not one.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Paceline: d=1,n=2\r\n\r\nhel", 1)
    assert one.feed(b"lo", 2)
    assert (one.status, bytes(one.body or b""), one.timing, one.keeps_alive) == (200, b"hello", b" d=1,n=2", True)


def test_chunks_are_joined_and_events_have_their_times() -> None:
    one = reader()
    assert not one.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", 1)
    assert not one.feed(b"8\r\ndata: a\n\r\n9;x=y\r\n\ndata: ", 2)
    assert not one.feed(b"bc\r\n2\r\n\n\n\r\n", 3)
    assert one.feed(b"0\r\nTrailer: x\r\n\r\n", 4)
    assert bytes(one.body or b"") == b"data: a\n\ndata: bc\n\n"
    assert one.events == [(2, b"a"), (3, b"bc")]


def test_an_interim_answer_is_not_the_answer() -> None:
    one = reader()
    assert one.feed(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n", 1)
    assert one.status == 204


def test_without_a_length_the_end_of_the_connection_is_the_end() -> None:
    one = reader()
    assert not one.feed(b"HTTP/1.0 200 OK\r\n\r\nabc", 1)
    assert one.end()
    assert bytes(one.body or b"") == b"abc"
    assert not one.keeps_alive


def test_a_truncated_answer_does_not_end_with_its_connection() -> None:
    one = reader()
    assert not one.feed(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc", 1)
    assert not one.end()


@pytest.mark.parametrize(
    ("head", "keeps"),
    [
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n", False),
        (b"HTTP/1.1 200 OK\r\n", True),
        (b"HTTP/1.0 200 OK\r\n", False),
        (b"HTTP/1.0 200 OK\r\nconnection: Keep-Alive\r\n", True),
    ],
)
def test_whether_a_connection_may_be_used_again(head: bytes, keeps: bool) -> None:
    one = reader()
    assert one.feed(head + b"content-length: 0\r\n\r\n", 1)
    assert one.keeps_alive is keeps


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x01 nonsense",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nabcdef\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nmore",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70000,
    ],
)
def test_what_is_no_answer_is_unreadable(data: bytes) -> None:
    with pytest.raises(Unreadable):
        reader().feed(data, 1)


def test_a_reader_forgets_the_answer_before() -> None:
    one = reader()
    one.feed(b"HTTP/1.1 500 Oh\r\ncontent-length: 3\r\nx-paceline: q=1\r\n\r\nabc", 1)
    one.expect(wants_body=False, wants_events=False)
    assert one.feed(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", 2)
    assert (one.status, one.timing, one.body) == (200, None, None)


def test_stages_are_seconds_and_absent_where_not_told() -> None:
    stages, batch = read_stages([b" d=1000,q=2000000,i=5,n=4", None, b"rubbish,q=x,n=", b"q=1000000000"])
    assert stages["queue"].tolist() == pytest.approx([0.002, np.nan, np.nan, 1.0], nan_ok=True)
    assert set(stages) == {"decode", "queue", "inference"}
    assert batch is not None and batch.tolist() == [4, 0, 0, 0]
    assert read_stages([None]) == ({}, None)


@pytest.mark.parametrize(
    ("event", "carries"),
    [
        (b"[DONE]", False),
        (b'{"choices":[{"delta":{"role":"assistant","content":""}}]}', False),
        (b'{"choices":[{"delta":{"content":"a"}}]}', True),
        (b'{"choices":[{"text":"a"}]}', True),
        (b'{"choices":[],"usage":{"completion_tokens":5}}', False),
        (b'{"choices":[{"delta":{"reasoning_content":"hm"}}]}', True),
        (b"plain words", True),
    ],
)
def test_only_events_with_text_are_pieces(event: bytes, carries: bool) -> None:
    assert carries_text(event) is carries


def test_a_request_is_built_once_with_the_headers_of_both() -> None:
    endpoint = Endpoint("kserve-json", "::1", 80, "/v2/x", "x", headers={"Authorization": "a", "X-A": "1"})
    built = http_bytes(endpoint, Prepared(b"body", {"x-a": "2", "Content-Type": "application/octet-stream"}))
    head, _, body = built.partition(b"\r\n\r\n")
    assert head.split(b"\r\n")[0] == b"POST /v2/x HTTP/1.1"
    assert set(head.split(b"\r\n")[1:]) == {
        b"host: [::1]:80",
        b"authorization: a",
        b"x-a: 2",
        b"content-type: application/octet-stream",
        b"content-length: 4",
    }
    assert body == b"body"


def test_a_header_cannot_smuggle_another_one_in() -> None:
    with refused("control-character", value=None):
        http_bytes(Endpoint("kserve-json", "h", 80, "/", "x"), Prepared(b"", {"a": "b\r\nc: d"}))


@pytest.mark.parametrize(
    ("code", "details", "status"),
    [
        ("OK", "", 200),
        ("RESOURCE_EXHAUSTED", "queue is full", 429),
        ("DEADLINE_EXCEEDED", "", TIMED_OUT),
        ("UNAVAILABLE", "failed to connect to all addresses; Connection refused", REFUSED),
        ("UNAVAILABLE", "Socket closed", BROKEN),
        ("UNAVAILABLE", "too busy", SHED),
        ("INVALID_ARGUMENT", "", 400),
    ],
)
def test_codes_of_grpc_in_the_words_of_http(code: str, details: str, status: int) -> None:
    assert status_of(code, details) == status
