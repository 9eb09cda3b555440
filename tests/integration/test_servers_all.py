"""Every other serving software that pip installs here, started for real."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

from paceline.benchmarks.serving.prompts import PromptMaker
from paceline.load.generator import drive
from paceline.load.parameters import LoadParameters, RequestParameters
from paceline.load.request import LANGUAGE_PATHS, TEXT_WIRES, Wire
from paceline.servers.base import Need
from support import server_software as tools
from support.server_software import Software, environments, software  # noqa: F401 (fixtures)

pytestmark = pytest.mark.long

NAMES = ["litserve", "bentoml", "ray-serve", "pytriton", "torchserve"]


@pytest.fixture(autouse=True)
def _has_java(request: pytest.FixtureRequest) -> None:
    if "torchserve" in request.node.name and shutil.which("java") is None:
        pytest.skip("TorchServe needs java: apt-get install openjdk-17-jre-headless")


@pytest.mark.parametrize("name", NAMES)
def test_the_answers_are_right_over_every_wire(software: Software, name: str) -> None:  # noqa: F811
    with software.started(name) as server:
        for wire in server.wires:
            inputs = tools.samples(3)
            tools.assert_right(tools.ask(server.endpoint(wire), inputs), inputs)
        assert tools.status_of(server.endpoint("kserve-json"), {"nonsense": 1}) in range(400, 600)
        tools.assert_right(tools.ask(server.endpoint("kserve-json"), inputs), inputs)
        if name != "ray-serve":  # one of its ports is for all; it wants a token
            assert tools.listened_at(server.processes()) == {"127.0.0.1"}
        facts = server.describe()
        assert len(facts["versions"]) >= 3
        assert facts["workers"] == 1
        tools.kill_all(server.processes())
        tools.wait_until_dead(server)


@pytest.mark.parametrize("name", NAMES)
def test_requests_are_put_together_and_taken_apart(software: Software, name: str) -> None:  # noqa: F811
    with software.started(name, max_batch=4, workers=2) as server:
        sent = [tools.samples(1 + number % 2, seed=number) for number in range(16)]
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda inputs: tools.ask(server.endpoint("kserve-json"), inputs), sent))
        for inputs, answer in zip(sent, answers, strict=True):
            tools.assert_right(answer, inputs)
        assert server.describe()["max_batch"] == 4


@pytest.mark.parametrize("wire", LANGUAGE_PATHS)
def test_llama_cpp_speaks_every_wire_of_language_models(software: Software, wire: Wire) -> None:  # noqa: F811
    need = Need(model="generated/llama:vocabulary=128", allow_import=True, wire=wire)
    with software.started("llama-cpp", need) as server:
        endpoint, load = server.endpoint(wire), LoadParameters(arrival="closed", users=2, requests=10)
        wanted = {"prompt_tokens": 20, "output_tokens": 6} | ({} if wire in TEXT_WIRES else {"samples": 3})
        made = PromptMaker(RequestParameters(**wanted), endpoint, 1, 10, None, server.prompt_words).made()
        trace = drive(
            endpoint, made.prepared, load, streaming=made.is_streaming, in_turn=True, fresh=made.fresh, timeout=120
        )
    assert trace.ok.all(), trace.causes
    assert trace.prompt_tokens is not None and trace.output_tokens is not None
    if wire in TEXT_WIRES:
        assert trace.output_tokens.tolist() == [6] * 10
        assert trace.chunks is not None and min(map(len, trace.chunks)) > 1
    assert trace.prompt_tokens.min() >= 20 * (1 if wire in TEXT_WIRES else 3)
