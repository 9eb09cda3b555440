"""What a benchmark counts of its work: operations, and the least that it must move through memory."""

from __future__ import annotations

import pytest

from paceline.benchmarks._model.traffic import ACTIVATIONS
from paceline.core.metric import Better, Metric
from paceline.core.record import Measurement
from support.insight_records import inference, mesh, product, training
from support.records import described_here


def test_a_product_reads_its_operands_once_and_writes_its_result_once() -> None:
    work = product(0, 16, 32, 64, 1.0).work
    assert work is not None
    assert work.bytes == 2 * (16 * 64 + 64 * 32) + 2 * 16 * 32
    assert work.flops == 2 * 16 * 32 * 64
    assert not work.is_modelled


@pytest.mark.parametrize(("precision", "operand", "result"), [("fp64", 8, 8), ("tf32", 4, 4), ("fp8", 1, 2)])
def test_numbers_have_the_width_of_their_format(precision: str, operand: int, result: int) -> None:
    work = product(0, 10, 10, 10, 1.0, precision=precision).work
    assert work is not None
    assert work.bytes == 200 * operand + 100 * result


def test_inference_reads_each_weight_and_leaves_activations_out() -> None:
    work = inference(0, 7e9, 14e9, 4.4e-3).work
    assert work is not None
    assert (work.bytes, work.left_out, work.is_modelled) == (14e9, ACTIVATIONS, True)
    assert work.intensity == 1.0


def test_without_a_peak_training_moves_what_was_kept_for_the_backward_pass() -> None:
    work = training(0, 1e6, 1e12, 1.0, peak=None, facts={"activation_bytes": 50e6}).work
    assert work is not None
    assert (work.bytes, work.left_out) == (40e6 + 2 * 50e6, "")
    assert "kept for the backward pass" in work.formula
    measured = training(0, 1e6, 1e12, 1.0, peak=16e6 + 70e6, facts={"activation_bytes": 50e6}).work
    assert measured is not None and measured.bytes == 40e6 + 2 * 70e6  # what was allocated is more than what was kept


def test_training_moves_gradients_optimizer_and_what_memory_held() -> None:
    weights = 1e6
    work = training(0, weights, 1e12, 1.0, peak=16e6 + 50e6).work
    assert work is not None
    assert work.bytes == 40 * weights + 2 * 50e6
    assert work.left_out == ""
    alone = training(0, weights, 1e12, 1.0, peak=None).work
    assert alone is not None
    assert (alone.bytes, alone.left_out) == (40 * weights, ACTIVATIONS)


def test_a_rank_of_a_mesh_reads_its_weights_in_every_micro_batch() -> None:
    flops = Metric(name="achieved_flops", unit="FLOP/s", better=Better.HIGHER)
    parts = [
        Measurement.of_value(Metric(name=f"{part}_memory", unit="B"), size)
        for part, size in (("parameter", 4e6), ("gradient", 4e6), ("optimizer", 8e6))
    ]
    one = mesh(0, (2, 1, 2), 1.0, batch=64)  # 64 / (4 x 2) = 8 micro-batches
    facts = one.facts | {"precision": "bf16", "parameter_count": 2e6, "flops_per_step": 1e12}
    found = [*one.measurements, *parts, Measurement.of_value(flops, 4e12)]
    work = described_here(one.model_copy(update={"facts": facts, "measurements": found})).work
    assert work is not None
    assert work.bytes == 1e6 * 8 * 2 * 2 + 2 * 16e6
    assert work.rate == 1e12  # of one of four GPUs


def test_ranks_on_one_processor_share_its_ceilings() -> None:
    one = inference(0, 1e6, 1e9, 1.0, precision="fp32")
    where = one.case.model_copy(update={"target": "cpu", "ranks": 2})
    work = described_here(one.model_copy(update={"case": where})).work
    assert work is not None
    assert work.rate == 1e9
