"""Which ports a node of a Ray cluster takes: those that the guide tells a firewall of."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from paceline.service.engines import ray
from support.refused import refused


@contextmanager
def listening(*ports: int) -> Iterator[None]:
    with ExitStack() as opened:
        for port in ports:
            taken = opened.enter_context(socket.socket())
            taken.bind(("127.0.0.1", port))
            taken.listen()
        yield


@pytest.fixture
def base() -> int:
    """A port with a few free blocks above it."""
    for port in range(12000, 30000, 500):
        if all(ray._is_free(port + step) for step in range(1 + 2 * ray._PORTS)):
            return port
    pytest.skip("no 101 ports in a row are free on this machine")


def test_a_node_takes_the_ports_right_after_that_of_the_cluster(base: int) -> None:
    with listening(base):
        assert ray._node_ports(base) == list(range(base + 1, base + 1 + ray._PORTS))


def test_a_second_node_of_a_machine_takes_the_next_ones(base: int) -> None:
    with listening(base, base + 1):
        assert ray._node_ports(base)[0] == base + 1 + ray._PORTS


def test_a_port_that_somebody_else_has_is_left_out(base: int) -> None:
    with listening(base + 7):
        ports = ray._node_ports(base)
    assert base + 7 not in ports
    assert len(ports) == ray._PORTS - 1


def test_ports_that_do_not_fit_above_the_cluster_are_refused() -> None:
    with refused("no-free-ports"):
        ray._node_ports(2**16 - 10)
