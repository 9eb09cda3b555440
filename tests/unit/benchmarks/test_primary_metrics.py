"""The metric that leads a benchmark's row is known without importing every other benchmark."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from paceline.core.benchmark import BENCHMARKS
from paceline.core.record import Cause, CauseKind, Outcome
from support.records import case, record

REQUIRED: dict[str, dict[str, Any]] = {
    "train": {"model": "resnet50"},
    "inference": {"model": "resnet50"},
    "generate": {"model": "llama3-8b"},
    "serve": {"model": "resnet50", "slo": {"p99": 0.1}},
    "megatron-gpt": {"code_base": "co"},
}


@pytest.mark.parametrize("name", sorted(BENCHMARKS.registry().entries))
def test_each_benchmark_says_which_metric_leads_even_of_a_case_that_failed(name: str) -> None:
    cause = Cause(kind=CauseKind.ERROR, message="it raised")
    where = case(0, name, name, **REQUIRED.get(name, {}))
    made = record(where, outcome=Outcome.FAILED, cause=cause)
    assert made.is_described
    assert "not_described_because" not in made.facts
    # What leads of a served model depends on what was measured.
    assert made.primary == ("" if name == "serve" else BENCHMARKS.get(name).primary)


def test_one_is_found_where_its_name_says() -> None:
    for name, benchmark in BENCHMARKS.registry().entries.items():
        assert BENCHMARKS.get(name) is benchmark


@pytest.mark.parametrize("name", ["gemm", "train"])
def test_looking_for_one_does_not_import_all(name: str) -> None:
    code = f"import sys; from paceline.core.benchmark import BENCHMARKS; BENCHMARKS.get({name!r}); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"paceline.benchmarks.storage.disk", "torch"} & set(done.stdout.split())
