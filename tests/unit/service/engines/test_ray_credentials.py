"""Which answers of Ray's nodes the leader takes for those of a follower; Ray itself is scripted."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.service.api.tokens import Scope, make
from paceline.service.credentials import Answer, Credentials, signed
from paceline.service.engines import EngineOptions
from paceline.service.engines import ray as ray_engine
from paceline.service.engines.base import Assignment, AttemptReport, FollowerGone, FollowerState
from paceline.service.engines.ray import RESOURCE, RayEngine
from paceline.store import codec
from paceline.store.store import Store

REPORT = AttemptReport(job_id="job", attempt=1)
ASSIGNMENT = Assignment(job_id="job", attempt=1, run_id="run", suite={})


class Node:
    """A node of the cluster, with an actor that signs with the token it has."""

    def __init__(self, name: str, token: str = "", node_id: str = "") -> None:
        self.name, self.token, self.id = name, token, node_id or name
        self.calls_itself = name
        self.answers: list[Answer] = []
        self.replays = False
        self.begun: list[Assignment] = []
        self.introduce = SimpleNamespace(remote=self._introduce)
        self.report = SimpleNamespace(remote=lambda nonce, acknowledged: self._answer([REPORT.model_dump()], nonce))
        self.begin = SimpleNamespace(remote=self.begun.append)

    def _introduce(self, nonce: bytes) -> Answer:
        state = FollowerState(id=self.calls_itself, host="host", seen_at=datetime.now(UTC))
        return self._answer(state.model_dump(), nonce)

    def _answer(self, value: Any, nonce: bytes) -> Answer:
        answer = signed(codec.dumps(value).encode(), self.token, self.name, nonce)
        self.answers.append(answer)
        return self.answers[-2] if self.replays else answer


class Cluster:
    """An engine over scripted nodes, and the store that has its tokens."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nodes: list[Node] = []
        self.store = store
        scripted = SimpleNamespace(
            init=lambda **_: None,
            nodes=lambda: [
                {"Alive": True, "Resources": {RESOURCE: 1}, "NodeName": one.name, "NodeID": one.id}
                for one in self.nodes
            ],
            wait=lambda calls, timeout: (calls, []),
            get=lambda answer, timeout: answer,
            exceptions=SimpleNamespace(GetTimeoutError=TimeoutError),
        )
        monkeypatch.setattr(ray_engine, "_ray", lambda: scripted)
        monkeypatch.setattr(ray_engine, "_LOOK_SECONDS", 0.0)
        monkeypatch.setattr(
            RayEngine, "_actor", lambda _, name, node: next(one for one in self.nodes if one.id == node["NodeID"])
        )
        credentials = Credentials(store.queue.tokens)
        self.engine = RayEngine(EngineOptions(Path("unused"), address="10.0.0.1:6379", credentials=credentials))

    def give_token(self, name: str) -> str:
        token, row = make(name, Scope.FOLLOWER, None)
        with self.store.queue.writing("make a token") as writing:
            writing.put_token(row)
        return token

    def revoke(self, name: str) -> None:
        with self.store.queue.writing("revoke a token") as writing:
            writing.revoke_token(name)

    def seen(self) -> dict[str, str]:
        """Followers, each with the first words of why it is refused."""
        self.engine.followers()
        return {state.id: " ".join(state.refused.split()[:5]) for state in self.engine.followers()}


@pytest.fixture
def cluster(store: Store, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(store, monkeypatch)


def test_with_the_secret_alone_nodes_are_followers_until_there_is_a_token(cluster: Cluster) -> None:
    cluster.nodes = [Node("bravo"), Node("charlie")]
    assert cluster.seen() == {"bravo": "", "charlie": ""}
    assert cluster.engine.poll("bravo", {}) == [REPORT]
    cluster.nodes[0].token = cluster.give_token("bravo")
    assert cluster.seen() == {"bravo": "", "charlie": "it has no token of"}
    assert cluster.engine.poll("bravo", {}) == [REPORT]
    with pytest.raises(FollowerGone, match="it has no token of its own"):
        cluster.engine.poll("charlie", {})


def test_a_revoked_follower_is_handed_nothing_from_that_moment_on(cluster: Cluster) -> None:
    cluster.nodes = [Node("bravo", cluster.give_token("bravo"))]
    assert cluster.seen() == {"bravo": ""}
    cluster.revoke("bravo")
    with pytest.raises(FollowerGone, match="its token was revoked on"):
        cluster.engine.begin("bravo", ASSIGNMENT)
    assert cluster.nodes[0].begun == []
    assert cluster.seen() == {"bravo": "its token was revoked on"}
    for call in (lambda: cluster.engine.poll("bravo", {}), lambda: cluster.engine.cancel("bravo", "job", 1)):
        with pytest.raises(FollowerGone, match="its token was revoked on"):
            call()

    new = cluster.give_token("bravo")
    cluster.seen()
    with pytest.raises(FollowerGone, match="it does not have the token 'bravo'"):
        cluster.engine.poll("bravo", {})
    assert cluster.seen() == {"bravo": "it does not have the"}
    cluster.nodes[0].token = new
    assert cluster.seen() == {"bravo": ""}
    cluster.engine.begin("bravo", ASSIGNMENT)
    assert cluster.nodes[0].begun == [ASSIGNMENT]


def test_results_under_the_name_of_another_are_not_taken(cluster: Cluster) -> None:
    bravo, charlie = cluster.give_token("bravo"), cluster.give_token("charlie")
    cluster.nodes = [Node("bravo", charlie), Node("charlie", charlie)]
    assert cluster.seen() == {"bravo": "it does not have the", "charlie": ""}
    with pytest.raises(FollowerGone, match="it does not have the token 'bravo'"):
        cluster.engine.poll("bravo", {})
    cluster.nodes[1].calls_itself = "bravo"
    cluster.nodes[1].id = "started again"
    cluster.nodes[0].token = bravo
    assert cluster.seen() == {"bravo": "", "charlie": ""}, "it is called as its token is, whatever it says"


def test_an_answer_that_is_sent_again_is_not_taken(cluster: Cluster) -> None:
    cluster.nodes = [Node("bravo", cluster.give_token("bravo"))]
    assert cluster.seen() == {"bravo": ""}
    assert cluster.engine.poll("bravo", {}) == [REPORT]
    cluster.nodes[0].replays = True
    with pytest.raises(FollowerGone, match="it does not have the token 'bravo'"):
        cluster.engine.poll("bravo", {})
    assert cluster.seen() == {"bravo": "it does not have the"}


@pytest.mark.parametrize("is_first", [True, False])
def test_of_two_nodes_with_one_name_the_one_that_proves_it_is_taken(cluster: Cluster, *, is_first: bool) -> None:
    real, squatter = Node("bravo", cluster.give_token("bravo"), "real"), Node("bravo", "", "squatter")
    cluster.nodes = [squatter]
    assert cluster.seen() == {"bravo": "it shows no token: start"}
    cluster.nodes = [real, squatter] if is_first else [squatter, real]
    for _ in range(3):
        assert cluster.seen() == {"bravo": ""}
    assert cluster.engine.poll("bravo", {}) == [REPORT]


def test_a_node_of_an_earlier_version_is_refused_with_what_to_do(cluster: Cluster) -> None:
    cluster.nodes = [Node("bravo"), Node("charlie")]
    del cluster.nodes[0].introduce
    assert cluster.seen() == {"bravo": "it runs an earlier version", "charlie": ""}
