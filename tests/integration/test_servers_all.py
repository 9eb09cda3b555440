"""Every other serving software that pip installs here, started for real."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

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


def test_llama_cpp_serves_a_generated_model(software: Software) -> None:  # noqa: F811
    with software.started("llama-cpp", Need(model="generated/llama:vocabulary=128", allow_import=True)) as server:
        endpoint = server.endpoint("openai-completions")
        body = json.dumps({"model": endpoint.model, "prompt": "baba beba", "max_tokens": 6, "temperature": 0})
        with tools.post(endpoint, body.encode(), {"Content-Type": "application/json"}) as answer:
            told = json.loads(answer.read())
        assert told["usage"]["completion_tokens"] == 6
        assert len(told["choices"][0]["text"].split()) == 6
