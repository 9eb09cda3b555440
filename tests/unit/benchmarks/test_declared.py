"""What a benchmark's source says about it, read without importing it."""

from __future__ import annotations

import subprocess
import sys

from paceline.benchmarks import registry
from paceline.benchmarks._declared import declared


def test_it_tells_the_truth_or_nothing() -> None:
    told = {name: declared(name, "primary") for name in registry().entries}
    assert all(word in (None, registry().entries[name].primary) for name, word in told.items())
    assert told["gemm"] == "compute_rate"
    assert told["train"] == "throughput"  # of its base class, in another module


def test_it_knows_nothing_of_what_is_not_there() -> None:
    assert declared("no-such-benchmark", "primary") is None
    assert declared("train", "no_such_word") is None


def test_the_benchmark_is_not_imported() -> None:
    code = "import sys; from paceline.benchmarks import PrimaryMetrics; PrimaryMetrics()['train']; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "paceline.benchmarks.training.train" not in done.stdout.split()
