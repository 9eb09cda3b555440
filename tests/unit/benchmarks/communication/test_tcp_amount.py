"""How much is sent at a time, so that what is timed is the link and not the answer's way back."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from paceline.benchmarks._micro.session import MicroSession
from paceline.benchmarks.communication import _tcp_peer
from paceline.benchmarks.communication.tcp import Address, TcpParameters, _amount, _bandwidth
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.devices.cpu import CpuDevice

DELAY = 0.02


def test_a_pause_does_not_pass_for_a_long_transfer() -> None:
    pauses = [0.0, 1.0]

    def send(amount: int) -> float:
        return (pauses.pop(0) if pauses else 0.0) + amount / 1e9

    assert _amount(send, 0.03) / 1e9 >= 0.03


@pytest.fixture
def far_peer() -> Iterator[Address]:
    """A peer whose answers take a while, as over a long distance."""

    def answer(connection: socket.socket) -> None:
        with connection:
            _tcp_peer.receive_exactly(connection, memoryview(bytearray(_tcp_peer.GREETING.size)))
            connection.sendall(_tcp_peer.MAGIC)
            announced, buffer = bytearray(_tcp_peer.COUNT.size), memoryview(bytearray(_tcp_peer.BUFFER))
            while _tcp_peer.receive_exactly(connection, memoryview(announced)):
                (left,) = _tcp_peer.COUNT.unpack(announced)
                while left:
                    left -= connection.recv_into(buffer, min(left, _tcp_peer.BUFFER))
                time.sleep(DELAY)
                connection.sendall(announced)

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            answer(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield Address("127.0.0.1", listener.getsockname()[1])
        thread.join(10)


def test_over_a_long_distance_a_transfer_is_long_enough_for_the_answer_not_to_weigh(far_peer: Address) -> None:
    parameters = TcpParameters.read({"steps": 1, "warm_up": "1ms"})
    context = Context(case=Case(index=0, benchmark="tcp", parameters={}, title=""))
    with MicroSession(parameters, context, CpuDevice()) as session:
        _, seconds = _bandwidth(session, parameters, far_peer, "own", 1)
    assert seconds.value > 10 * DELAY
