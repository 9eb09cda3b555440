"""Messages between processes: whole, however long they are, and with the descriptors that belong to them."""

from __future__ import annotations

import os
import socket
import threading
from random import Random

import pytest

from paceline.runner import channel
from paceline.runner.channel import Channel, _packet

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


def test_what_is_not_a_message_is_counted_and_passed_over() -> None:
    ours, theirs = Channel.pair()
    ours.send({"length": 1})
    whole = theirs.connection.recv(1000)
    nested = b"[" * 50_000
    packets = [b"rubbish", b"", whole[:-1], whole + b"x", whole.replace(b"1", b"2"), _packet(nested, more=False)]
    packets += [_packet(b"[1]", more=False), _packet(b"\xff", more=False), b"x" * 61_000]
    for packet in packets:
        os.write(ours.fileno(), packet)
    ours.send({"text": "y" * 100_000})
    received = theirs.receive()
    assert received is not None
    assert received[0] == {"text": "y" * 100_000}
    assert theirs.rubbish == len(packets)
    ours.close()
    assert theirs.receive() is None
    theirs.close()


def test_rubbish_between_the_parts_of_a_message_leaves_it_whole_and_nobody_waits_for_a_part() -> None:
    ours, theirs = Channel.pair()
    os.write(ours.fileno(), _packet(b'{"a":', more=True))
    assert theirs.read_packet() is None, "there is no second part yet"
    os.write(ours.fileno(), b"rubbish")
    assert theirs.read_packet() is None
    os.write(ours.fileno(), _packet(b"1}", more=False))
    assert theirs.read_packet() == ({"a": 1}, [])
    ours.close()
    theirs.close()


def test_no_bytes_of_any_kind_end_the_reader() -> None:
    random = Random(1)
    ours, theirs = Channel.pair()
    whole = _packet(b'{"a":1}', more=False)
    for number in range(3000):
        damaged = bytearray(whole)
        damaged[random.randrange(len(whole))] ^= 1 << random.randrange(8)
        packet = random.choice([bytes(damaged), random.randbytes(random.randrange(200)), whole[: random.randrange(24)]])
        os.write(ours.fileno(), packet)
        theirs.read_packet()
        if number % 100 == 0:
            theirs._parts, theirs._length = [], 0  # a damaged flag may have made the beginning of a message
            os.write(ours.fileno(), whole)
            assert theirs.read_packet() == ({"a": 1}, [])
    ours.close()
    theirs.close()


def test_a_message_without_an_end_does_not_take_all_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "_MOST", 100)
    ours, theirs = Channel.pair()
    for _ in range(11):
        os.write(ours.fileno(), _packet(b"x" * 10, more=True))
        assert theirs.read_packet() is None
    assert theirs.rubbish == 1
    ours.send({"a": 1})
    assert theirs.receive() == ({"a": 1}, [])
    ours.close()
    theirs.close()


def test_descriptors_that_come_with_rubbish_are_closed() -> None:
    ours, theirs = Channel.pair()
    source, sink = os.pipe()
    socket.send_fds(ours.connection, [b"rubbish"], [sink])
    os.close(sink)
    assert theirs.read_packet() is None
    assert os.read(source, 1) == b"", "nobody can write there any more"
    os.close(source)
    ours.close()
    theirs.close()


def test_the_end_of_a_case_is_out_of_the_way_and_is_not_that_of_its_children() -> None:
    ours, theirs = Channel.pair()
    hidden = Channel.hidden(theirs.connection.detach())
    assert hidden.fileno() >= 1000
    assert not os.get_inheritable(hidden.fileno())
    child = os.fork()
    if child == 0:
        try:
            hidden.send({"from": "child"})
        except PermissionError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    hidden.send({"from": "case"})
    assert ours.receive() == ({"from": "case"}, [])
    ours.close()
    hidden.close()
