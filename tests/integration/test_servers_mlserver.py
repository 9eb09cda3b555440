"""MLServer, installed and started for real: HTTP and gRPC, batching, a bad request, a sudden end."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from paceline.servers._program import Program
from paceline.servers.base import ServerFailed
from support import server_software as tools
from support.server_software import Software, environments, software  # noqa: F401 (fixtures)

pytestmark = pytest.mark.long


def test_http_and_grpc_give_the_right_answers(software: Software) -> None:  # noqa: F811
    with software.started("mlserver") as server:
        for wire in server.wires:
            inputs = tools.samples(3)
            tools.assert_right(tools.ask(server.endpoint(wire), inputs), inputs)
        assert tools.status_of(server.endpoint("kserve-json"), {"inputs": []}) in range(400, 600)
        assert tools.status_of(server.endpoint("kserve-json"), {"nonsense": 1}) in range(400, 500)
        tools.assert_right(tools.ask(server.endpoint("kserve-json"), inputs), inputs)  # it is still well
        assert tools.listened_at(server.processes()) == {"127.0.0.1"}
        facts = server.describe()
        assert facts["versions"]["mlserver"] == "1.7.1"
        assert facts["engine"] == "onnxruntime"


def test_requests_are_put_together_and_taken_apart(software: Software) -> None:  # noqa: F811
    with software.started("mlserver", max_batch=4, max_delay="50ms", workers=2) as server:
        sent = [tools.samples(1 + number % 2, seed=number) for number in range(16)]
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda inputs: tools.ask(server.endpoint("kserve-json"), inputs), sent))
        for inputs, answer in zip(sent, answers, strict=True):
            tools.assert_right(answer, inputs)
        assert server.describe()["max_delay"] == 0.05


def test_a_server_that_was_killed_is_seen_to_be_dead(software: Software) -> None:  # noqa: F811
    with software.started("mlserver") as server:
        tools.kill_all(server.processes())
        tools.wait_until_dead(server)
        server.stop()
        server.stop()


def test_a_model_that_cannot_be_loaded_fails_with_the_servers_words(software: Software) -> None:  # noqa: F811
    software.install("mlserver")
    server = software.make("mlserver")
    server.prepare()
    assert isinstance(server, Program)
    (server.folder / "onnx_model.py").write_text("raise OSError('the disk is on fire')")
    with pytest.raises(ServerFailed) as failed:
        server.start()
    assert "the disk is on fire" in failed.value.logs
    assert server.processes() == []
