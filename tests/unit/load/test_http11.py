"""What an answer is, however the network cuts it; what is none; and what servers tell beside it."""

from __future__ import annotations

from unittest.mock import Mock

import numpy as np
import pytest

from paceline.load.http11 import LARGEST_HEAD, AnswerReader, HttpError, Unreadable, parse_request
from paceline.load.kserve_grpc import status_of
from paceline.load.request import Endpoint, Prepared, grpc_metadata, http_bytes
from paceline.load.trace import BROKEN, REFUSED, SHED, TIMED_OUT, UNREADABLE, read_stages
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


CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1x200 OK\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
        CHUNKED + b"-5\r\n",
        CHUNKED + b"+5\r\n",
        CHUNKED + b"1_0\r\n",
        CHUNKED + b"\r\n",
        CHUNKED + b"1\r\naxy",
        CHUNKED + b"1" * (LARGEST_HEAD + 1),
    ],
)
def test_what_is_nearly_an_answer_is_unreadable(data: bytes) -> None:
    with pytest.raises(Unreadable):
        reader().feed(data, 1)


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\nx: ".ljust(LARGEST_HEAD, b"y"),
        CHUNKED + b"1" * LARGEST_HEAD,
        CHUNKED + b"9c40\r\n" + b"x" * 40_000 + b"\r\n1",
        CHUNKED + b"1\r\na\r",
        b"H",
    ],
    ids=["head", "size", "after a chunk", "half an end", "a letter"],
)
def test_what_may_still_become_an_answer_is_waited_for(data: bytes) -> None:
    assert not reader().feed(data, 1)


def test_a_head_of_the_largest_size_is_still_read_when_its_end_comes() -> None:
    one = reader()
    assert not one.feed(b"HTTP/1.1 204 No\r\nx: ".ljust(LARGEST_HEAD, b"y"), 1)
    assert one.feed(b"\r\n\r\n", 2)
    assert (one.status, one.size) == (204, LARGEST_HEAD + 4)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"HTTP/1.1 200\r\ncontent-length: 0\r\n", 200),
        (b"HTTP/1.1 304 Not Modified\r\n", 304),
        (b"HTTP/1.1 204 No Content\r\n", 204),
        (b"HTTP/1.1 099 Odd\r\ncontent-length: 0\r\n", 99),
        (b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n", 503),
    ],
)
def test_an_answer_without_a_body_is_whole_with_its_head(head: bytes, status: int) -> None:
    one = reader()
    assert one.feed(head + b"\r\n", 1)
    assert (one.status, bytes(one.body or b""), one.keeps_alive) == (status, b"", True)


@pytest.mark.parametrize("status", [100, 103, 199])
def test_the_answer_after_an_interim_one_may_come_later(status: int) -> None:
    one = reader()
    assert not one.feed(b"HTTP/1.1 %d Wait\r\n\r\n" % status, 1)
    assert not one.end()
    assert not one.feed(b"HTTP/1.1 200 OK\r\ncontent-", 2)
    assert one.feed(b"length: 1\r\n\r\na", 3)
    assert (one.status, bytes(one.body or b""), one.keeps_alive) == (200, b"a", True)


def test_a_header_of_stages_without_a_value_has_none() -> None:
    one = reader()
    assert one.feed(b"HTTP/1.1 200 OK\r\nx-paceline:\r\ncontent-length: 0\r\n\r\n", 1)
    assert one.timing == b""


def test_chunks_of_any_size_and_cut_anywhere_are_joined() -> None:
    data = CHUNKED + b" 1F ; a=b\r\n" + b"x" * 31 + b"\r\n2\r\nyz\r\n0\r\n\r\n"
    for cut in range(1, len(data)):
        one = reader()
        assert not one.feed(data[:cut], 1)
        assert one.feed(data[cut:], 2)
        assert bytes(one.body or b"") == b"x" * 31 + b"yz"


def test_only_lines_of_data_are_events() -> None:
    one = reader()
    assert not one.feed(b"HTTP/1.1 200 OK\r\n\r\n: a comment\nevent: x\ndata:a\ndata:  b c \nid: 5\nda", 7)
    assert not one.feed(b"ta: d\n", 8)
    assert one.events == [(7, b"a"), (7, b"b c"), (8, b"d")]


def test_nothing_is_kept_that_is_not_wanted() -> None:
    one = AnswerReader()
    one.expect(wants_body=False, wants_events=False)
    assert one.feed(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\ndata: ab\n", 1)
    assert (one.body, one.events, one.size) == (None, None, 47)


HOST = b"\r\nHost: h"


@pytest.mark.parametrize(
    ("text", "method", "path", "keeps_alive"),
    [
        (b"GET /a/b?c=/d HTTP/1.1" + HOST, "GET", "/a/b", True),
        (b"GET http://h:80/a/b?c HTTP/1.1" + HOST, "GET", "/a/b", True),
        (b"GET http://h HTTP/1.1" + HOST, "GET", "/", True),
        (b"POST / HTTP/1.1\r\nhost: h\r\nconnection: Close", "POST", "/", False),
        (b"POST / HTTP/1.0", "POST", "/", False),
        (b"POST / HTTP/1.0\r\nConnection: Keep-Alive", "POST", "/", True),
    ],
)
def test_a_request_is_read_from_its_head(text: bytes, method: str, path: str, keeps_alive: bool) -> None:
    head = parse_request(text)
    assert (head.method, head.path, head.keep_alive) == (method, path, keeps_alive)


def test_headers_are_by_their_names_in_lower_case_and_count_bytes() -> None:
    head = parse_request(b"GET / HTTP/1.1" + HOST + b"\r\nA-B: \tc d \r\nContent-Length: 999999999999999999\r\nn: -1")
    assert head.headers == {"host": "h", "a-b": "c d", "content-length": "999999999999999999", "n": "-1"}
    assert (head.length, head.json_length) == (999_999_999_999_999_999, None)
    head = parse_request(b"GET / HTTP/1.1" + HOST + b"\r\nInference-Header-Content-Length: 3")
    assert (head.length, head.json_length) == (0, 3)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"GET / HTTP/1.1", "Host is missing"),
        (b"GET / HTTP/1.2" + HOST, "request line"),
        (b"GET / HTTP/1.1" + HOST + b"\r\nhost: i", "several headers host that differ"),
        (b"GET / HTTP/1.1" + HOST + b"\r\nContent-Length: 1\r\nContent-Length: 2", "several headers Content-Length"),
        (b"GET / HTTP/1.1" + HOST + b"\r\na b: c", "header line 'a b: c' is malformed"),
        (b"GET / HTTP/1.1" + HOST + b"\r\nContent-Length: -1", "content-length is '-1'; it must be a number of bytes"),
    ],
)
def test_a_malformed_request_is_refused(text: bytes, says: str) -> None:
    with pytest.raises(HttpError, match=says) as caught:
        parse_request(text)
    assert caught.value.status == 400


def test_a_header_may_be_repeated_where_that_cannot_mislead() -> None:
    head = parse_request(b"GET / HTTP/1.1" + HOST + HOST + b"\r\na: 1\r\na: 2")
    assert head.headers == {"host": "h", "a": "2"}


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


def test_stages_are_numbers_of_at_most_18_digits() -> None:
    stages, batch = read_stages([b"q=999999999999999999,d=1000000000000000000, n = 3,z=1", b"p=-1, b=7 , r=2e3,n=2"])
    assert set(stages) == {"queue", "batch"}
    assert stages["queue"].tolist() == pytest.approx([999_999_999.999999999, np.nan], nan_ok=True)
    assert stages["batch"].tolist() == pytest.approx([np.nan, 7e-9], nan_ok=True)
    assert batch is not None and batch.tolist() == [0, 2]
    assert read_stages([b"n=99999999999"]) == ({}, None)


def test_each_stage_takes_one_column(monkeypatch: pytest.MonkeyPatch) -> None:
    full = Mock(side_effect=np.full)
    monkeypatch.setattr(np, "full", full)
    read_stages([b"d=1,q=2"] * 100)
    assert full.call_count == 2


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


def test_a_request_is_of_json_unless_its_headers_say_otherwise() -> None:
    built = http_bytes(Endpoint("kserve-json", "h", 80, "/", "x"), Prepared(b"", {"a": "b c\xe9"}))
    assert built == b"POST / HTTP/1.1\r\nhost: h:80\r\ncontent-type: application/json\r\na: b c\xe9\r\n" + (
        b"content-length: 0\r\n\r\n"
    )


@pytest.mark.parametrize("character", ["\x1f", "\x7f", "\0", "\n"])
def test_no_control_character_is_sent(character: str) -> None:
    with refused("control-character", value=None):
        http_bytes(Endpoint("kserve-json", "h", 80, f"/{character}", "x"), Prepared(b""))


def test_the_headers_of_a_call_are_those_of_both_in_lower_case() -> None:
    endpoint = Endpoint("kserve-grpc", "h", 80, "/", "x", headers={"Authorization": "a", "X-A": "1"})
    assert grpc_metadata(endpoint, Prepared(b"", {"x-a": "2"})) == (("authorization", "a"), ("x-a", "2"))


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
        ("A_CODE_OF_LATER", "", UNREADABLE),
        ("INTERNAL", "connection refused", 500),
    ],
)
def test_codes_of_grpc_in_the_words_of_http(code: str, details: str, status: int) -> None:
    assert status_of(code, details) == status
