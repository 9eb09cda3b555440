"""The metric that leads a benchmark's row is known without importing every other benchmark."""

from __future__ import annotations

import subprocess
import sys

import pytest

from paceline.benchmarks import PrimaryMetrics, find, registry


def test_each_benchmark_says_which_metric_leads() -> None:
    primary = PrimaryMetrics()
    assert {name: primary[name] for name in primary} == {
        name: benchmark.primary for name, benchmark in registry().entries.items()
    }
    assert len(primary) == len(registry().entries)
    assert primary.get("no-such-benchmark") is None


def test_one_is_found_where_its_name_says() -> None:
    for name, benchmark in registry().entries.items():
        assert find(name) is benchmark


@pytest.mark.parametrize("name", ["gemm", "train"])
def test_looking_for_one_does_not_import_all(name: str) -> None:
    code = f"import sys; from paceline.benchmarks import find; find({name!r}); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"paceline.benchmarks.storage.disk", "torch"} & set(done.stdout.split())
