"""Who may send, and whether the server is where they reach it."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.benchmarks.serving.parameters import ServeParameters
from paceline.benchmarks.serving.serve import Serve
from paceline.core.case import Case, Origin
from paceline.load.clients import is_for_others, read_names
from support.refused import refused


def read(clients: dict[str, Any], **more: Any) -> ServeParameters:
    return ServeParameters.read({"load": {"rate": 5}, "clients": clients, **more})


def check(parameters: ServeParameters, origin: Origin = "local") -> None:
    Serve.check(parameters, Case(index=0, benchmark="serve", parameters={}, title="", origin=origin))


def test_hosts_are_a_list_or_one_word_and_tell_a_case_from_others() -> None:
    assert read({"hosts": "a,me@b"}).clients == read({"hosts": ["a", "me@b"]}).clients
    assert "from=a,me@b" in Serve.title(read({"hosts": "a,me@b"}))
    assert "from" not in Serve.title(read({}))


@pytest.mark.parametrize(
    ("clients", "says"),
    [
        ({"hosts": ["-oProxyCommand=x"]}, "is not a host"),
        ({"hosts": ["a b"]}, "is not a host"),
        ({"hosts": "a,"}, "is not a host"),
        ({"hosts": ["a", "b", "a"]}, "duplicate host 'a'"),
        ({"hosts": ["a"], "remote_shell": "ssh there"}, "for the name of the host"),
        ({"remote_shell": "ssh {host}"}, "go with hosts"),
    ],
)
def test_what_is_no_way_to_a_host_is_refused(clients: dict[str, Any], says: str) -> None:
    with refused("invalid-value", key="clients", says=says):
        read(clients)


def test_a_key_that_clients_do_not_have_is_refused_with_the_nearest() -> None:
    with refused("unknown-key", key="clients.host", suggestion="hosts"):
        read({"host": ["a"]})


@pytest.mark.parametrize(
    ("names", "code", "value"), [(["a b"], "not-a-host", "a b"), (["a", "a"], "duplicate-host", "a")]
)
def test_names_of_hosts_are_refused_one_by_one(names: list[str], code: str, value: str) -> None:
    with refused(code, key="clients.hosts", value=value):
        read_names(names)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::", "::1", "localhost"])
def test_other_hosts_need_a_server_at_an_address_that_they_reach(host: str) -> None:
    assert not is_for_others(host)
    with refused("unreachable-address", key="server.host", value=host):
        check(read({"hosts": ["a"]}, server={"host": host}))
    check(read({"hosts": ["localhost"]}, server={"host": host}))


def test_a_server_that_listens_for_others_may_be_asked_by_them() -> None:
    check(read({"hosts": ["a"]}, server={"host": "192.0.2.7"}))
    check(read({"hosts": ["a"]}, server={"kind": "url", "url": "http://serving.example:8000", "model": "m"}))
    with refused("unreachable-address", key="server.host", value="127.0.0.1"):
        check(read({"hosts": ["a"]}, server={"kind": "mlserver"}))


def test_a_job_from_the_network_enters_no_hosts() -> None:
    with refused("not-from-network", key="clients.hosts"):
        check(read({"hosts": ["a"]}, server={"host": "192.0.2.7"}), origin="network")
