"""Pictures and texts that a real server makes tensors of: its answers are those of doing the same by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from paceline.benchmarks.serving.parameters import ServeParameters
from paceline.benchmarks.serving.requests import Answers, Requests, encode, prepare_requests
from paceline.load.generator import drive
from paceline.load.kserve import byte_strings
from paceline.load.parameters import LoadParameters
from paceline.load.request import Endpoint, Wire
from paceline.servers.base import Need
from paceline.servers.embedded import Embedded

pytestmark = pytest.mark.slow

USERS = LoadParameters(arrival="closed", users=3, requests=30)


@contextmanager
def served(folder: Path, model: str, wire: Wire, **requests: object) -> Iterator[tuple[Embedded, Endpoint, Requests]]:
    """A started server, and requests for it."""
    server = {"engine": "torch", "max_batch": 4, "threads": 1, "ready_timeout": "10min"}
    asked = {"model": model, "scale": "tiny", "server": server, "wire": wire, "load": USERS}
    parameters = ServeParameters.read({**asked, "requests": {"distinct": 4, **requests}})
    form = parameters.requests.read_by_server
    need = Need(model, "tiny", seed=parameters.seed, wire=wire, form=form)
    own = Embedded(parameters.server.whole(), need, folder, lambda _: None)
    try:
        own.prepare()
        own.start()
        endpoint = own.endpoint(wire)
        yield own, endpoint, prepare_requests(parameters, own, endpoint, allow_import=False)
    finally:
        own.stop()


@pytest.mark.parametrize(
    ("model", "form", "wire"),
    [
        pytest.param("resnet18", "image", "kserve-binary", marks=pytest.mark.long),
        ("generated/transformer", "text", "kserve-json"),
        pytest.param("bert-base", "text", "kserve-grpc", marks=pytest.mark.long),
    ],
)
def test_the_server_answers_what_preparing_and_computing_by_hand_gives(
    tmp_path: Path, model: str, form: str, wire: Wire
) -> None:
    with served(tmp_path, model, wire, form=form, samples={1: 0.5, 2: 0.5}) as (server, endpoint, made):
        assert isinstance(made.answers, Answers)
        trace = drive(endpoint, made.prepared, USERS, keep=1, on_answer=made.answers)
        assert trace.ok.all()
        assert made.answers.checked >= 4
        assert trace.stages["pre"].min() > 0 and trace.stages["post"].min() > 0
        assert "made into tensors by the server" in made.source
        binary = server.endpoint("kserve-binary")
        wrong = encode({form: byte_strings([b"\xff\xfe\xfd"])}, binary)
        refused = drive(binary, [wrong], LoadParameters(arrival="single-stream", requests=3))
        assert set(refused.status) == {400}
        counted = server.statistics()["requests"]
        assert (counted["ok"], counted["refused"], counted["failed"]) == (30, 3, 0)


def test_where_it_is_prepared_is_seen_in_the_stages(tmp_path: Path) -> None:
    with served(tmp_path, "generated/cnn", "kserve-binary", form="image", processing="client") as (_, endpoint, made):
        assert isinstance(made.answers, Answers)
        trace = drive(endpoint, made.prepared, USERS, keep=1, on_answer=made.answers)
        assert trace.ok.all() and made.answers.checked >= 4
        assert "pre" not in trace.stages
        assert trace.stages["client pre"].min() > 0
        within = np.array([one.before + one.after for one in made.prepared])
        assert np.all(trace.latency >= within[trace.kind] - 1e-6)
