"""Which requests follow which, how long that may take, and how answers get into the next request."""

from __future__ import annotations

import json

from paceline.load.request import ALONE, Endpoint, Prepared, Turn, followers, http_bytes, longest_wait, quoting, sizes

# Two conversations: one request alone, and an agent with two parallel calls that are joined.
TURNS = [ALONE, Turn(), Turn((1,), 0.5), Turn((1,), 2.0), Turn((2, 3), 1.0)]


def test_what_follows_and_how_many_there_are() -> None:
    assert followers(TURNS) == {1: [2, 3], 2: [4], 3: [4]}
    assert sizes(TURNS) == [1, 4] and sizes([]) == []
    assert followers([ALONE, ALONE]) == {}


def test_the_longest_way_through_a_conversation_counts() -> None:
    assert longest_wait(TURNS, timeout=10.0) == 2.0 + 10.0 + 1.0 + 10.0
    assert longest_wait([ALONE], timeout=10.0) == longest_wait([], 10.0) == 0.0


def test_answers_are_put_in_their_places_and_the_length_is_right() -> None:
    body = b'{"a": "", "b": " and "}'
    places = ((body.index(b'""') + 1, 3), (body.index(b" and ") + 5, 1), (body.index(b" and ") + 5, 3))
    payload = http_bytes(Endpoint("openai-chat", "h", 1, "/", "m"), Prepared(body))
    head = len(payload) - len(body)
    turn = Turn((1, 3), quotes=tuple((head + at, kind) for at, kind in places))
    said = {1: 'quote " and \\ and\nline', 3: "naïve \U0001f600"}
    first, _, sent = quoting(payload, turn, said).partition(b"\r\n\r\n")
    assert json.loads(sent) == {"a": said[3], "b": f" and {said[1]}{said[3]}"}
    assert f"content-length: {len(sent)}".encode() in first
