"""Messages are told apart from what else a host prints."""

from __future__ import annotations

from paceline.remote import agent as messages


def test_a_message_is_one_line_and_comes_back() -> None:
    message = {"text": "two\nlines é", "number": 1.5}
    line = messages.encode(message)
    assert line.count(b"\n") == 1
    assert messages.decode(line) == message


def test_a_greeting_of_the_shell_is_no_message_and_hides_none() -> None:
    assert messages.decode(b'{"looks": "like one"}\n') is None
    assert messages.decode(b"welcome! " + messages.encode({"hello": 1})) == {"hello": 1}


def test_a_torn_line_is_no_message() -> None:
    assert messages.decode(messages.encode({"text": "long"})[:-4]) is None
