"""Schedules and answers, whatever their numbers and wherever the network cuts."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paceline.load import arrivals
from paceline.load.http11 import AnswerReader, Unreadable

rates = st.floats(0.1, 2000.0)
seeds = st.integers(0, 2**32)


@given(st.integers(0, 500), st.integers(1, 17))
def test_shares_are_a_partition(number: int, workers: int) -> None:
    shares = arrivals.shares(number, workers)
    assert len(shares) == workers
    assert sorted(np.concatenate(shares).tolist()) == list(range(number))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(rates, st.floats(0.1, 10.0), st.integers(1, 200), seeds)
def test_a_count_is_kept_and_times_are_in_order(rate: float, burstiness: float, count: int, seed: int) -> None:
    times = arrivals.gamma(rate, burstiness, np.random.default_rng(seed), count=count)
    assert len(times) == count
    assert np.all(np.diff(times) >= 0) and times[0] >= 0


@given(rates, rates, st.floats(0.05, 1.0), seeds)
def test_a_duration_is_kept_and_seeds_repeat(start: float, end: float, duration: float, seed: int) -> None:
    times, again = (arrivals.ramp(start, end, duration, np.random.default_rng(seed)) for _ in range(2))
    assert np.array_equal(times, again)
    assert np.all(np.diff(times) >= 0)
    assert not len(times) or (times[0] >= 0 and times[-1] <= duration)


def _answer(body: bytes, chunks: list[int] | None) -> bytes:
    if chunks is None:
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nX-Paceline: q=5\r\n\r\n%s" % (len(body), body)
    parts, at = [], 0
    for size in (*chunks, max(1, len(body))):
        if body[at : at + size]:
            parts.append(b"%x\r\n%s\r\n" % (len(body[at : at + size]), body[at : at + size]))
        at += size
    return b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nx-paceline: q=5\r\n\r\n" + b"".join(parts) + b"0\r\n\r\n"


cuts = st.lists(st.integers(1, 60), max_size=30)


@given(st.binary(max_size=300), st.none() | st.lists(st.integers(1, 40), max_size=8), cuts)
def test_an_answer_is_the_same_however_it_is_cut(body: bytes, chunks: list[int] | None, pieces: list[int]) -> None:
    data = _answer(body, chunks)
    reader = AnswerReader()
    reader.expect(wants_body=True, wants_events=False)
    at = 0
    ends = []
    for size in (*pieces, len(data)):
        if at < len(data):
            ends.append(reader.feed(data[at : at + size], 1))
            at += size
    assert ends == [False] * (len(ends) - 1) + [True]
    assert bytes(reader.body or b"") == body
    assert (reader.status, reader.timing, reader.size) == (200, b" q=5", len(data))


@given(st.binary(max_size=400), cuts)
def test_garbage_is_unreadable_or_unfinished_and_nothing_else(data: bytes, pieces: list[int]) -> None:
    reader = AnswerReader()
    reader.expect(wants_body=True, wants_events=True)
    at = 0
    try:
        for size in (*pieces, len(data)):
            if data[at : at + size] and reader.feed(b"HTTP/1.1 2" * (at == 0) + data[at : at + size], 1):
                break
            at += size
    except Unreadable:
        pass
