"""`paceline.submit`: what is refused before anything is sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import paceline
from support.refused import refused

NOBODY = "http://127.0.0.1:9"


def make() -> None: ...


@pytest.mark.parametrize(
    ("what", "parameters", "key"),
    [
        ("train", {"model": object()}, "model"),
        ("train", {"model": make}, "model"),
        ("train", {"model": "./net.py:make"}, "model"),
        ("train", {"model": ["resnet50", "package.net:make"]}, "model"),
        ("train", {"model": "resnet50", "inputs": (1,)}, "inputs"),
        (make, {}, "what"),
        (paceline.benchmark(make), {}, "what"),
        ("./bench.py", {}, "what"),
        (Path("bench.py"), {}, "what"),
    ],
)
def test_objects_factories_and_code_stay_here(what: Any, parameters: dict[str, Any], key: str) -> None:
    with refused("not-from-network", key=key, says="measure here with paceline.run"):
        paceline.submit(what, leader=NOBODY, **parameters)


def test_other_wrong_arguments_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with refused("not-a-parameter", key="size"):
        paceline.submit("gemm", leader=NOBODY, size=object())
    with refused("not-an-address", value="somewhere"):
        paceline.submit("gemm", leader="somewhere")
    with refused("not-a-token", key="token"):
        paceline.submit("gemm", leader=NOBODY, token="two words")
    monkeypatch.setenv("PACELINE_TOKEN", "two words")
    with refused("not-a-token", key="PACELINE_TOKEN"):
        paceline.submit("gemm", leader=NOBODY)
    with refused("unknown-need"):
        paceline.submit("gemm", leader=NOBODY, token="x", machines="gpuss=8")
    with refused("missing-file"):
        paceline.submit("./absent.yaml", leader=NOBODY, token="x")


def test_no_leader_says_so() -> None:
    with pytest.raises(paceline.PacelineError, match="no leader answers at"):
        paceline.submit("gemm", leader=NOBODY, token="x")
