"""Which events of a stream are pieces of an answer, and which say that there will be none."""

from __future__ import annotations

import pytest

from paceline.load.server_timing import carries_text, is_error


@pytest.mark.parametrize(
    ("event", "is_piece", "is_failure"),
    [
        (b'{"choices":[{"text":"error"}]}', True, False),
        (b'{"choices":[{"delta":{"content":"a"}}]}', True, False),
        (b'{"choices":[{"delta":{"role":"assistant"}}]}', False, False),
        (b'{"choices":[],"usage":{"completion_tokens":3}}', False, False),
        (b'{"choices":[{"text":"a"}],"error":null}', True, False),
        (b'{"error":{"message":"no memory","code":500}}', False, True),
        (b'{"object":"error","message":"no memory"}', False, True),
        (b"an error of words", True, False),
        (b"[DONE]", False, False),
    ],
)
def test_an_event_is_a_piece_an_error_or_neither(event: bytes, is_piece: bool, is_failure: bool) -> None:
    assert carries_text(event) is is_piece
    assert is_error(event) is is_failure
