"""The settings of a server within a case."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.benchmarks.serving.parameters import ServeParameters
from paceline.core.benchmark import BENCHMARKS
from paceline.core.suite import Here, Origin, Suite, expand
from support.refused import refused


def case_of(graph: object) -> ServeParameters:
    server = {"kind": "embedded", "engine": "torch-compile", "graph": graph}
    return ServeParameters.read({"model": "resnet18", "server": server, "load": {"rate": 5}})


def test_a_word_that_yaml_reads_as_a_boolean_is_the_word() -> None:
    assert case_of(False) == case_of("off")
    assert case_of(False).model_dump() == case_of("off").model_dump()
    assert "graph=off" in case_of(False).label()


def test_what_the_server_does_not_take_is_refused() -> None:
    words = r"server 'embedded': 'graph'.*must be one of 'auto' or 'off'"
    with refused("invalid-value", key="server", says=words):
        case_of(True)


LOAD = {"load.rate": 5}


def server_of(overrides: dict[str, Any], server: object = None, origin: Origin = "local") -> dict[str, Any]:
    entry = {"benchmark": "serve"} | ({"server": server} if server is not None else {})
    suite = Suite(name="s", cases=[entry], origin=origin)
    (case,) = expand(suite, BENCHMARKS.registry().get, Here(), overrides | LOAD)
    return dict(case.parameters["server"])


@pytest.mark.parametrize("server", [None, "embedded"])
def test_a_word_is_the_kind_of_a_server(server: str | None) -> None:
    kind = {"server": "url"} if server is None else {"server.kind": "url"}
    given = {"server.url": "http://h:1", "server.model": "m"}
    assert server_of(kind | given, server) == {"kind": "url", "url": "http://h:1", "model": "m"}


def test_a_word_for_something_else_has_no_parts() -> None:
    with refused("no-parts", key="slo.p99"):
        server_of({"slo": "fast", "slo.p99": "1s"})


def test_a_curl_line_is_written_out_for_a_person_at_this_machine_alone(tmp_path: Path) -> None:
    line = tmp_path / "line.sh"
    line.write_text("curl http://h:1/predict -d x")
    given = {"server": "url", "server.from_curl": f"@{line}"}
    written = server_of(given)
    assert written == {
        "kind": "url",
        "url": "http://h:1",
        "path": "/predict",
        "body": "x",
        "header": ["Content-Type: application/x-www-form-urlencoded"],
    }
    assert server_of({}, written) == written  # as --resume reads it
    with refused("invalid-value", says="'url' is missing"):  # it is not even read
        server_of(given, origin="network")
    with refused("not-from-network", key="wire"):
        server_of(given | {"server.url": "http://h:1"}, origin="network")
    with refused("not-from-network", key="wire"):
        server_of({}, written, origin="network")


def test_a_case_of_any_http_is_named_by_what_it_asks_for() -> None:
    server = {"kind": "url", "url": "http://h:1/v1", "path": "/p", "header": ["X-Key: $K"], "body": "{}"}
    parameters = ServeParameters.read({"server": server, "load": {"rate": 5}})
    assert parameters.chosen_wire == "http"
    assert parameters.label() == "/v1/p url url=http://h:1/v1 poisson 5/s"


def test_only_what_is_exported_or_asked_here_takes_a_framework() -> None:
    serve, rate = BENCHMARKS.get("serve"), {"load": {"rate": 5}}
    assert serve.imports({"model": "llama3.2-1b", **rate}) == ()
    assert serve.imports({"server": {"kind": "url", "url": "http://h:1/v1", "body": "{}"}, **rate}) == ()
    assert "torch" in serve.imports({"model": "resnet18", **rate})
