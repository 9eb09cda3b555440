"""Messages between processes: whole, however long they are, and with the descriptors that belong to them."""

from __future__ import annotations

import os
import threading

import pytest

from paceline.runner.channel import Channel

AROUND = 60_000 - len('{"text":""}')  # a text with which a message fills one packet


@pytest.mark.parametrize(
    "length", [0, 1, AROUND - 1, AROUND, AROUND + 1, AROUND + 60_000, AROUND + 60_001, AROUND + 200_000]
)
def test_a_message_arrives_as_it_was_sent_whatever_its_length(length: int) -> None:
    ours, theirs = Channel.pair()
    text = ("0123456789" * (length // 10 + 1))[:length]

    def send() -> None:
        ours.send({"text": text})
        ours.send({"then": 1})
        ours.close()

    sender = threading.Thread(target=send)
    sender.start()
    received = [theirs.receive(), theirs.receive(), theirs.receive()]
    sender.join()
    theirs.close()
    assert received == [({"text": text}, []), ({"then": 1}, []), None]


def test_up_to_four_descriptors_travel_with_a_message_and_lead_where_they_did() -> None:
    ours, theirs = Channel.pair()
    source, sink = os.pipe()
    ours.send({"to": "write"}, [sink] * 5)
    received = theirs.receive()
    assert received is not None
    message, descriptors = received
    assert (message, len(descriptors)) == ({"to": "write"}, 4)
    os.close(sink)
    for descriptor in descriptors:
        os.write(descriptor, b"x")
        os.close(descriptor)
    assert os.read(source, 10) == b"xxxx"
    os.close(source)
    ours.close()
    theirs.close()


def test_an_end_that_is_passed_on_is_the_same_connection() -> None:
    ours, theirs = Channel.pair()
    other = Channel.of_descriptor(os.dup(theirs.fileno()))
    theirs.close()
    ours.send({"a": 1})
    assert other.receive() == ({"a": 1}, [])
    ours.close()
    other.close()


def test_an_end_that_left_without_reading_its_messages_is_gone() -> None:
    ours, theirs = Channel.pair()
    ours.send({"a": 1})
    theirs.close()
    assert ours.receive() is None, "the connection was reset"
    with pytest.raises(BrokenPipeError):
        ours.send({"a": 2})
    ours.close()
