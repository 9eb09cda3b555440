"""The settings of a server within a case."""

from __future__ import annotations

from paceline.benchmarks.serving.parameters import ServeParameters
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
