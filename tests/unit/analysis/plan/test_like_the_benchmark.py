"""A plan is about what the benchmark `parallel` trains: the same model, split the same way, with the same FLOPs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.analysis.plan import LIBAI, candidate, in_flight, stage_memory
from paceline.benchmarks._model.measuring import MFU, StepWork, step_measurements
from paceline.benchmarks.parallel._parameters import ParallelParameters
from paceline.core.layout import Layout, ModelFamily
from paceline.core.transformer import transformer
from paceline.measure.memory import Peak
from paceline.models import MODELS
from paceline.models.flops import training_flops

WORDS = (
    "gpt2/nl24_bf16_1x1x1_mb6_gb6_1n1g",
    "gpt2/nl24_bf16_2x2x4_ac_mb2_gb32_2n8g",
    "gpt2/nl13_bf16_1x1x6_mb2_gb32_1n6g",
    "bert/nl24_bf16_1x8x4_mb2_gb32_4n8g",
    "bert/nl48_fp32_1x1x8_mb2_gb32_1n8g",
)


@pytest.mark.parametrize("word", WORDS)
def test_the_model_is_that_of_the_benchmark(word: str) -> None:
    layout = Layout.parse(word).check()
    benchmark = ParallelParameters(case=word)
    model = transformer(layout.model, layout.layers)
    assert model == benchmark.transformer
    assert model.padded_vocabulary(layout.tensor) == benchmark.padded_vocabulary
    assert model.sequence == benchmark.tokens


@pytest.mark.parametrize("family", ["gpt2", "bert"])
@pytest.mark.parametrize("hidden", [512, 1024, 2048, 4096])
@pytest.mark.parametrize("tensor", [1, 2, 8])
def test_layers_are_split_as_the_benchmark_splits_them(family: ModelFamily, hidden: int, tensor: int) -> None:
    # With 8 ranks the padded vocabulary of GPT-2 at 2048 is worth two layers, and with one a little less.
    for layers in range(3, 25):
        model = transformer(family, layers, hidden, heads=hidden // 64)
        benchmark = ParallelParameters(
            model=family, layers=layers, hidden=hidden, heads=hidden // 64, tensor=tensor, pipeline=3
        )
        word = benchmark.layout
        split = benchmark.transformer.stage_layers(benchmark.stages, tensor)
        assert model.stage_layers(3, tensor) == split
        held = [stage_memory(model, word, stage).activations / in_flight(word, stage) for stage in range(3)]
        assert held == pytest.approx([held[0] / split[0] * one for one in split])


def mfu(flops: float, seconds: float) -> float:
    """As `train` and `parallel` report it, for a rank that does so much in every step."""
    work = StepWork(8.0, "sequence", None, flops, Peak(125e12, "a datasheet"))
    (value,) = [one.value for one in step_measurements([seconds] * 3, work) if one.metric.name == MFU.name]
    return value


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("gpt2-small", {"model": "gpt2", "layers": 12, "hidden": 768, "heads": 12}),
        ("gpt2-medium", {"model": "gpt2"}),
        ("gpt2-xl", {"model": "gpt2", "layers": 48, "hidden": 1600, "heads": 25}),
        ("bert-large", {"model": "bert", "vocabulary": 30522}),
    ],
)
def test_train_parallel_and_plan_have_one_mfu(name: str, parameters: dict[str, object]) -> None:
    in_train = 8 * training_flops(MODELS.registry().get(name))
    benchmark = ParallelParameters.model_validate(parameters | {"precision": "fp16", "micro_batch": 8})
    in_parallel = benchmark.transformer.step_flops(benchmark.layout.global_batch)
    assert in_train == in_parallel
    planned = candidate(benchmark.transformer, benchmark.layout, replace(LIBAI, peak=125e12))
    assert planned.mfu == pytest.approx(mfu(in_train, planned.time.total) / 100, rel=1e-12)


@pytest.mark.parametrize("mesh", ["8x1x1", "1x8x1", "1x2x4_ac"])
def test_the_mfu_of_a_layout_follows_from_its_throughput_alone(mesh: str) -> None:
    word = f"gpt2/nl24_fp16_{mesh}_mb4_gb64_1n8g"
    planned = candidate(transformer("gpt2", 24), Layout.parse(word), LIBAI)
    medium = training_flops(MODELS.registry().get("gpt2-medium"))
    assert planned.mfu == pytest.approx(planned.samples_per_s * medium / 8 / 125e12, rel=1e-12)
