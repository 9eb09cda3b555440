"""Who may send, and whether the server is where they reach it."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.benchmarks.serving.load.clients import is_for_others
from paceline.benchmarks.serving.parameters import ServeParameters
from paceline.benchmarks.serving.serve import Serve
from paceline.core.case import Case, Origin
from paceline.core.errors import InputError


def read(clients: dict[str, Any], **more: Any) -> ServeParameters:
    return ServeParameters.read({"load": {"rate": 5}, "clients": clients, **more}, "case")


def check(parameters: ServeParameters, origin: Origin = "local") -> None:
    Serve.check(parameters, Case(index=0, benchmark="serve", parameters={}, title="", origin=origin))


def test_hosts_are_a_list_or_one_word_and_tell_a_case_from_others() -> None:
    assert read({"hosts": "a,me@b"}).clients == read({"hosts": ["a", "me@b"]}).clients
    assert "from=a,me@b" in Serve.title(read({"hosts": "a,me@b"}))
    assert "from" not in Serve.title(read({}))


@pytest.mark.parametrize(
    ("clients", "says"),
    [
        ({"hosts": ["-oProxyCommand=x"]}, "is no host"),
        ({"hosts": ["a b"]}, "is no host"),
        ({"hosts": "a,"}, "is no host"),
        ({"hosts": ["a", "b", "a"]}, "a stands twice"),
        ({"hosts": ["a"], "remote_shell": "ssh there"}, "does not say where the host goes"),
        ({"remote_shell": "ssh {host}"}, "go with hosts"),
        ({"host": ["a"]}, "did you mean 'hosts'"),
    ],
)
def test_what_is_no_way_to_a_host_is_refused(clients: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        read(clients)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::", "::1", "localhost"])
def test_other_hosts_need_a_server_at_an_address_that_they_reach(host: str) -> None:
    assert not is_for_others(host)
    with pytest.raises(InputError, match=r"set server.host to the one address"):
        check(read({"hosts": ["a"]}, server={"host": host}))
    check(read({"hosts": ["localhost"]}, server={"host": host}))


def test_a_server_that_listens_for_others_may_be_asked_by_them() -> None:
    check(read({"hosts": ["a"]}, server={"host": "192.0.2.7"}))
    check(read({"hosts": ["a"]}, server={"kind": "url", "url": "http://serving.example:8000", "model": "m"}))
    with pytest.raises(InputError, match=r"listen at 127\.0\.0\.1"):
        check(read({"hosts": ["a"]}, server={"kind": "mlserver"}))


def test_a_job_from_the_network_enters_no_hosts() -> None:
    with pytest.raises(InputError, match=r"clients\.hosts enters other hosts"):
        check(read({"hosts": ["a"]}, server={"host": "192.0.2.7"}), origin="network")
