"""Whatever somebody sends to a leader, it answers, and never with a defect of its own; and a channel stays one."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from paceline.report.run.document import to_html
from paceline.service.api.app import create_app
from paceline.service.api.guard import Limits
from paceline.service.leader import Leader
from paceline.store import open_store
from paceline.web.pages import pages_of
from support.fuzzing import fuzz
from support.scripted_followers import ScriptedEngine

GEMM = {"name": "small", "cases": [{"benchmark": "gemm", "size": 64}]}
JOB = {
    "id": "job-1",
    "suite": GEMM,
    "overrides": {"size": [64, 128]},
    "needs": {"gpus": 1},
    "tags": ["a"],
    "only": ["x"],
}
JSON, FORM = "application/json", "application/x-www-form-urlencoded"
BODIES = {
    "/api/v1/jobs": (JSON, (json.dumps(JOB).encode(),)),
    "/api/v1/validate": (
        JSON,
        (json.dumps({"suite": GEMM}).encode(), json.dumps({"text": "name: x\ncases:\n- benchmark: gemm\n"}).encode()),
    ),
    "/submit": (FORM, (b"token=x&kind=yaml&yaml=name%3A+x&benchmark=gemm&p.size=64%2C128&priority=0&tags=a",)),
    "/submit/check": (FORM, (b"kind=benchmark&benchmark=gemm&p.size=64%2C128&seed=1",)),
    "/login": (FORM, (b"token=x&next=%2Fjobs",)),
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    limits = Limits(rate=1e9, burst=10**9, failures=1e9, failure_burst=10**9)
    with open_store(tmp_path_factory.mktemp("leader") / "store.db") as store:
        leader = Leader(store, ScriptedEngine([]))
        pages = pages_of(leader, store, to_html)
        app = create_app(leader, store, is_local=True, report=to_html, pages=pages, limits=limits)
        with TestClient(app, base_url="http://127.0.0.1", client=("127.0.0.1", 50_000)) as made:
            yield made
        leader.close()


def send(client: TestClient, path: str, count: int) -> None:
    kind, seeds = BODIES[path]

    def post(data: bytes) -> None:
        answer = client.post(path, content=data, headers={"content-type": kind}, follow_redirects=False)
        assert answer.status_code < 500, answer.text[:500]
        answer.content.decode()

    fuzz(f"http{path.replace('/', '-')}", seeds, post, (), count)


@pytest.mark.parametrize("path", BODIES)
def test_a_body_is_answered(client: TestClient, path: str) -> None:
    send(client, path, 60)


@pytest.mark.long
@pytest.mark.parametrize("path", BODIES)
def test_a_body_is_answered_for_longer(client: TestClient, path: str) -> None:
    send(client, path, 1500)


def test_rubbish_between_runner_and_case_loses_no_message() -> None:
    from paceline.runner.channel import Channel

    def read(data: bytes) -> None:
        ours, theirs = Channel.pair()
        if data:
            theirs.connection.send(data[:50_000])
        theirs.send({"result": 1})
        theirs.close()
        received = []
        while (message := ours.receive()) is not None:
            received.append(message[0])
        ours.close()
        assert received[-1:] == [{"result": 1}]
        assert all(isinstance(one, dict) for one in received)

    fuzz("channel", (b'.{"result": 2}', b"+part", b"paceline\x00" + bytes(8) + b"{}"), read, (), 300)
