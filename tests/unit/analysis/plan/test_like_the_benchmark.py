"""A plan is about what the benchmark `parallel` trains: the same model, split the same way, with the same FLOPs."""

from __future__ import annotations

import pytest

from paceline.analysis.plan.memory import in_flight, stage_memory
from paceline.benchmarks.parallel._parameters import ParallelParameters
from paceline.core.layout import Layout, ModelFamily
from paceline.core.transformer import transformer

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
