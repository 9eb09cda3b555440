"""Who is let to the front of a leader when there is a crowd, and who has to go."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from paceline.service.api import connections
from paceline.service.api.connections import Accepted, ConnectionLimits, Gate
from paceline.service.api.server import Front
from support.leading import Served, served_in

LIMITS = ConnectionLimits(total=4, per_address=2, silent_seconds=10.0, busy_seconds=100.0)


class Crowd:
    """Connections at a gate, each with the other end of it."""

    def __init__(self, stack: ExitStack, proxies: tuple[str, ...] = ()) -> None:
        self.now = 0.0
        self.gate = Gate(LIMITS, proxies, clock=lambda: self.now)
        self._stack = stack
        self._ends: dict[tuple[str, int], socket.socket] = {}

    def come(self, address: str, port: int) -> bool:
        plain, theirs = (self._stack.enter_context(closing(one)) for one in socket.socketpair())
        ours = self._stack.enter_context(closing(Accepted(plain)))
        theirs.setblocking(False)
        self._ends[address, port] = theirs
        return self.gate.admit((address, port), ours)

    def gone(self) -> list[tuple[str, int]]:
        """Those that were told to go."""
        gone = []
        for peer, end in self._ends.items():
            try:
                gone += [peer] if end.recv(1) == b"" else []
            except BlockingIOError:
                continue
        return gone


@pytest.fixture
def crowd() -> Iterator[Crowd]:
    with ExitStack() as stack:
        yield Crowd(stack)


def test_in_a_crowd_of_one_address_its_longest_silent_goes(crowd: Crowd) -> None:
    assert crowd.come("b", 1)
    assert [crowd.come("a", port) for port in range(4)] == [True] * 4
    assert crowd.gone() == [("a", 0), ("a", 1)]


def test_when_all_is_full_the_longest_silent_of_all_goes(crowd: Crowd) -> None:
    assert all(crowd.come(address, 1) for address in "abcde")
    assert crowd.gone() == [("a", 1)]


def test_when_all_is_full_a_crowd_makes_room_before_who_is_alone(crowd: Crowd) -> None:
    assert all(crowd.come(*peer) for peer in (("alone", 1), ("crowd", 1), ("crowd", 2), ("other", 1), ("new", 1)))
    assert crowd.gone() == [("crowd", 1)]


def test_where_the_crowd_has_requests_the_longest_silent_of_all_goes(crowd: Crowd) -> None:
    for peer in (("alone", 1), ("crowd", 1), ("crowd", 2), ("other", 1)):
        crowd.come(*peer)
    for port in (1, 2):
        crowd.gate.note(("crowd", port), is_busy=True)
    assert crowd.come("new", 1)
    assert crowd.gone() == [("alone", 1)]


def test_who_has_a_request_stays_and_others_are_refused(crowd: Crowd) -> None:
    for port in (1, 2):
        crowd.come("a", port)
        crowd.gate.note(("a", port), is_busy=True)
    assert not crowd.come("a", 3)
    assert crowd.come("b", 1)
    crowd.gate.note(("a", 1), is_busy=False)  # answered
    assert crowd.come("a", 4)
    assert crowd.gone() == [("a", 1)]
    assert crowd.gate.refused == 2


def test_a_proxy_that_is_trusted_is_no_crowd() -> None:
    with ExitStack() as stack:
        crowd = Crowd(stack, proxies=("a",))
        assert all(crowd.come("a", port) for port in range(4))
        assert crowd.gone() == []


def test_who_takes_too_long_to_ask_or_to_read_goes(crowd: Crowd) -> None:
    crowd.come("a", 1)
    crowd.come("b", 1)
    crowd.gate.note(("b", 1), is_busy=True)
    crowd.now = 10.5
    crowd.gate.sweep()
    assert crowd.gone() == [("a", 1)]
    crowd.now = 101.0
    crowd.gate.sweep()
    assert crowd.gone() == [("a", 1), ("b", 1)]


def test_who_has_left_makes_room(crowd: Crowd) -> None:
    for port in range(50):
        assert crowd.come("a", port)
        crowd.gate.leave(("a", port))
        crowd.gate.leave(("a", port))
    assert (crowd.gone(), len(crowd.gate), crowd.gate.refused) == ([], 0, 0)


def test_nobody_is_accepted_while_many_are_told_to_go_and_have_not(crowd: Crowd) -> None:
    for port in range(2 + 32):
        assert not crowd.gate.is_pausing
        crowd.come("a", port)
    assert crowd.gate.is_pausing
    crowd.gate.leave(("a", 0))
    assert not crowd.gate.is_pausing


@pytest.mark.parametrize(("descriptors", "total"), [(1024, 512), (256, 128), (1 << 20, 1000), (-1, 1000)])
def test_half_of_the_descriptors_are_not_for_the_front(
    monkeypatch: pytest.MonkeyPatch, descriptors: int, total: int
) -> None:
    monkeypatch.setattr(connections.resource, "getrlimit", lambda _: (descriptors, descriptors))
    assert ConnectionLimits().total == total


@pytest.fixture
def crowded(tmp_path: Path) -> Iterator[Served]:
    limits = ConnectionLimits(total=20, per_address=16, silent_seconds=0.5, busy_seconds=60.0)
    with served_in(tmp_path, front=Front(limits=limits)) as served:
        yield served


def test_half_sent_requests_stop_nobody_and_are_not_waited_for(crowded: Served) -> None:
    gate = crowded.app.state.gate
    with ExitStack() as stack:
        for number in range(100):
            half = stack.enter_context(socket.create_connection(("127.0.0.1", crowded.port), timeout=30))
            half.sendall(b"GET /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\n")
            if number % 20 == 0:
                assert crowded.ask("GET", "jobs").status == 200
                assert len(gate) <= 20 + 32
        assert gate.refused > 0
        assert half.recv(1) == b"", "it was closed when its time was over"
    deadline = time.monotonic() + 30
    while len(gate) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(gate) == 0, "every descriptor is given back"


def test_a_header_that_comes_in_drops_does_not_get_more_time(crowded: Served) -> None:
    with socket.create_connection(("127.0.0.1", crowded.port), timeout=30) as slow:
        slow.sendall(b"GET /api/v1/jobs HTTP/1.1\r\n")
        with pytest.raises(OSError, match=r"reset|[Bb]roken pipe"):
            for _ in range(600):
                slow.sendall(b"X-A: b\r\n")
                time.sleep(0.05)


@pytest.mark.parametrize("end", [b"\r\n\r\n", b"\n\n", b"\n\r\n"])
def test_a_header_may_come_byte_by_byte_and_end_as_the_server_allows(crowded: Served, end: bytes) -> None:
    with socket.create_connection(("127.0.0.1", crowded.port), timeout=30) as slow:
        slow.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        for byte in b"GET /api/v1/health HTTP/1.1\nHost: 127.0.0.1" + end:
            slow.sendall(bytes([byte]))
        assert slow.recv(1 << 16).startswith(b"HTTP/1.1 200")


def test_a_body_may_follow_its_header_later(crowded: Served) -> None:
    with socket.create_connection(("127.0.0.1", crowded.port), timeout=30) as slow:
        slow.sendall(b"POST /api/v1/validate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n")
        slow.sendall(b"Content-Length: 2\r\n\r\n{")
        time.sleep(0.05)
        slow.sendall(b"}")
        assert b"HTTP/1.1 200" in slow.recv(1 << 16)


def test_who_goes_before_saying_anything_leaves_nothing(crowded: Served) -> None:
    gate = crowded.app.state.gate
    for said in (b"", b"GET /"):
        with socket.create_connection(("127.0.0.1", crowded.port), timeout=30) as short:
            short.sendall(said)
    deadline = time.monotonic() + 30
    while len(gate) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(gate) == 0


def test_one_connection_may_be_used_again_and_again(crowded: Served) -> None:
    request = b"GET /api/v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with socket.create_connection(("127.0.0.1", crowded.port), timeout=30) as kept:
        for times in (1, 1, 1, 2):
            kept.sendall(request * times)
            answers = b""
            while answers.count(b'"status"') < times:
                answers += kept.recv(1 << 16)
            assert answers.count(b"HTTP/1.1 200") == times
