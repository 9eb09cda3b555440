"""Communication between GPUs: what one GPU cannot do says so, and several are measured."""

from __future__ import annotations

import pytest

from paceline.core.record import Outcome, Record
from paceline.devices import device_count
from support.cli import Sandbox

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(device_count() == 0, reason="needs an NVIDIA GPU and its driver"),
]
needs_two = pytest.mark.skipif(device_count() < 2, reason="needs two NVIDIA GPUs")
SHORT = ["--budget", "200ms", "--warm-up", "100ms", "--no-report"]


def measured(sandbox: Sandbox, *words: str, code: int = 0) -> Record:
    done = sandbox.run("run", *words, *SHORT)
    assert done.returncode == code, done.stderr + done.stdout
    (record,) = sandbox.load().records
    return record


@pytest.mark.skipif(device_count() != 1, reason="needs exactly one NVIDIA GPU")
@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["collective", "--target", "cuda:0", "--backend", "nccl"], "each needs a GPU of its own"),
        (["collective", "--target", "cuda:*", "--ranks", "2"], "this machine has 1 GPU"),
        (["p2p"], "copies between GPUs take two of them, but torch sees 1 here"),
        (["compute-during-collective", "--target", "cuda:0"], "with several GPUs"),
    ],
)
def test_one_gpu_says_what_to_do(sandbox: Sandbox, words: list[str], remedy: str) -> None:
    record = measured(sandbox, *words, code=1)
    assert record.outcome is Outcome.UNSUPPORTED
    assert record.cause is not None
    assert remedy in record.cause.message


@needs_two
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "operation", ["all-reduce", "all-gather", "broadcast", "reduce", "reduce-scatter", "all-to-all"]
)
def test_every_operation_over_nccl(sandbox: Sandbox, operation: str, precision: str) -> None:
    sizes = ["--sizes", "1KiB,64MiB"]
    record = measured(
        sandbox, "collective", "--target", "cuda:*", "--operation", operation, "--precision", precision, *sizes
    )
    assert record.outcome is Outcome.OK, record.cause
    assert record.facts["backend"] == "nccl"
    bandwidth = record.measurement("bus_bandwidth")
    assert bandwidth is not None
    assert bandwidth.value > 0


@needs_two
def test_every_pair_of_gpus_has_its_bandwidth(sandbox: Sandbox) -> None:
    record = measured(sandbox, "p2p", "--size", "64MiB")
    assert record.outcome is Outcome.OK, record.cause
    pairs = [m for m in record.measurements if m.metric.name == "bandwidth"]
    assert len(pairs) == device_count() * (device_count() - 1)
    smallest, largest = record.measurement("minimum_bandwidth"), record.measurement("maximum_bandwidth")
    assert smallest is not None
    assert largest is not None
    assert smallest.value == min(pair.value for pair in pairs)
    assert largest.value == max(pair.value for pair in pairs)


@needs_two
def test_computation_beside_a_collective_on_gpus(sandbox: Sandbox) -> None:
    record = measured(sandbox, "compute-during-collective", "--target", "cuda:*", "--size", "64MiB")
    assert record.outcome is Outcome.OK, record.cause
    assert "synchronised" in str(record.facts["timing"])
    assert record.measurement("overlap") is not None
