"""The interface that leads to an address."""

from __future__ import annotations

import pytest

from paceline.core.network import is_loopback, own_address
from paceline.runner.launcher_ranks import bound_to, interface_of


def test_the_way_to_this_host_is_its_loopback() -> None:
    address = own_address("127.0.0.1")
    assert address == "127.0.0.1"
    assert is_loopback(address)
    name = interface_of(address)
    assert name is not None
    assert bound_to(address, {}) == {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": f"={name}"}


def test_what_the_user_chose_stands() -> None:
    assert "GLOO_SOCKET_IFNAME" not in bound_to("127.0.0.1", {"GLOO_SOCKET_IFNAME": "ib0"})
    assert "NCCL_SOCKET_IFNAME" in bound_to("127.0.0.1", {"GLOO_SOCKET_IFNAME": "ib0"})


def test_an_address_of_no_interface_binds_nothing() -> None:
    assert interface_of("203.0.113.9") is None
    assert bound_to("203.0.113.9", {}) == {}


@pytest.mark.parametrize(("address", "expected"), [("127.0.1.1", True), ("::1", True), ("10.0.0.1", False)])
def test_loopback(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected
