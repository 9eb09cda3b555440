"""The memory of a rank: its parts by hand, what splits it, and measured peaks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.analysis.plan.calibrate import as_published, observations
from paceline.analysis.plan.memory import in_flight, rank_memory, stage_memory, stage_parameters
from paceline.analysis.plan.transformer import Transformer, transformer
from paceline.core.layout import Layout

GPT2 = transformer("gpt2", 24)
BERT = transformer("bert", 24)
GIB = 1024**3


def layout(word: str) -> Layout:
    return Layout.parse(word).check()


def test_the_parameters_are_those_of_the_real_models() -> None:
    # GPT-2 medium has 354,823,168 with 50257 tokens; 47 more of 1024 numbers each fill up to 50304.
    assert GPT2.parameters == 354_823_168 + 47 * 1024
    hidden, tokens = 1024, 21248
    layer = 4 * hidden**2 + 4 * hidden + 8 * hidden**2 + 5 * hidden + 4 * hidden
    embedding = (tokens + 512 + 2) * hidden + 2 * hidden
    head = hidden**2 + hidden + 2 * hidden + tokens
    assert BERT.parameters == 24 * layer + embedding + head


def test_one_device_holds_the_whole_model() -> None:
    one = layout("gpt2/nl24_bf16_1x1x1_mb6_gb6_1n1g")
    assert stage_parameters(GPT2, one, 0) == GPT2.parameters
    memory = rank_memory(GPT2, one)
    assert memory.parameters == memory.gradients == 4 * GPT2.parameters
    assert memory.casts == 2 * GPT2.parameters
    assert memory.optimizer == 8 * GPT2.parameters
    assert memory.activations == 24 * 32 * 6 * 1024 * 1024
    assert memory.vocabulary == 4 * 6 * 1024 * 50304


def test_fp32_has_no_casts_and_wider_activations() -> None:
    half, full = (rank_memory(GPT2, layout(f"gpt2/nl24_{p}_1x1x1_mb6_gb6_1n1g")) for p in ("bf16", "fp32"))
    assert full.casts == 0
    assert full.parameters == half.parameters
    assert full.activations == 2 * half.activations


@pytest.mark.parametrize(
    ("model", "word", "gib"),
    [  # on an H200: the whole model compiled, BERT's head over all tokens
        (as_published(GPT2), "gpt2/nl24_bf16_1x1x1_mb6_gb6_1n1g", 10.7),
        (as_published(GPT2), "gpt2/nl24_bf16_1x1x1_mb32_gb32_1n1g", 36.1),
        (as_published(BERT), "bert/nl24_bf16_1x1x1_mb24_gb24_1n1g", 15.0),
        (as_published(BERT), "bert/nl24_bf16_1x1x1_mb128_gb128_1n1g", 61.4),
        # and the benchmark `parallel`, docs/reference/h200.md
        (GPT2, "gpt2/nl24_bf16_1x1x1_mb6_gb6_1n1g", 9.90),
        (GPT2, "gpt2/nl24_bf16_1x1x1_mb32_gb32_1n1g", 32.04),
        (transformer("gpt2", 8, hidden=4096, heads=32), "gpt2/nl8_bf16_1x1x1_mb16_gb16_1n1g", 41.99),
        (BERT, "bert/nl24_bf16_1x1x1_mb24_gb24_1n1g", 13.55),
        (BERT, "bert/nl24_bf16_1x1x1_ac_mb128_gb128_1n1g", 10.11),
    ],
)
def test_the_peak_is_near_what_was_measured(model: Transformer, word: str, gib: float) -> None:
    assert rank_memory(model, layout(word)).peak / GIB == pytest.approx(gib, rel=0.1)


def test_every_layout_that_was_published_fits_the_32_gib_it_ran_in() -> None:
    for one in observations("libai"):
        assert rank_memory(one.model, one.layout).fits(32 * GIB), one.layout


def test_a_first_stage_holds_more_micro_batches_than_a_last_one() -> None:
    deep = layout("gpt2/nl24_bf16_1x1x4_mb2_gb32_1n4g")
    assert [in_flight(deep, stage) for stage in range(4)] == [4, 3, 2, 1]
    few = layout("gpt2/nl24_bf16_1x1x4_mb16_gb32_1n4g")
    assert in_flight(few, 0) == 2


def test_the_logits_are_on_the_last_stage_and_the_embedding_on_both_ends() -> None:
    deep = layout("gpt2/nl24_bf16_1x1x4_mb2_gb32_1n4g")
    stages = [stage_memory(GPT2, deep, stage) for stage in range(4)]
    assert [bool(stage.vocabulary) for stage in stages] == [False, False, False, True]
    counts = [stage_parameters(GPT2, deep, stage) for stage in range(4)]
    assert sum(counts) == GPT2.parameters + 50304 * 1024


def test_the_last_stage_has_fewer_layers_for_its_head() -> None:
    assert GPT2.stage_layers(4) == (7, 7, 7, 3)
    assert transformer("bert", 24).stage_layers(4) == (6, 6, 6, 6)
    assert sum(GPT2.stage_layers(7)) == 24


def test_a_single_micro_batch_has_no_gradients_from_before() -> None:
    once, twice = (rank_memory(GPT2, layout(f"gpt2/nl24_bf16_1x1x1_mb6_gb{gb}_1n1g")) for gb in (6, 12))
    assert twice.peak - once.peak == pytest.approx(once.gradients)


@given(
    tensor=st.sampled_from([1, 2, 4, 8]),
    pipeline=st.sampled_from([1, 2, 4, 8]),
    micro_batch=st.integers(1, 64),
    precision=st.sampled_from(["fp32", "fp16", "bf16"]),
    family=st.sampled_from(["gpt2", "bert"]),
)
def test_more_ranks_or_checkpointing_never_need_more_and_samples_never_less(
    tensor: int, pipeline: int, micro_batch: int, precision: str, family: str
) -> None:
    def peak(tensor: int, pipeline: int, micro_batch: int, checkpointing: str = "") -> float:
        word = (
            f"{family}/nl24_{precision}_1x{tensor}x{pipeline}{checkpointing}_mb{micro_batch}_gb{16 * micro_batch}"
            f"_1n{tensor * pipeline}g"
        )
        return rank_memory(transformer(family, 24), layout(word)).peak  # type: ignore[arg-type]

    here = peak(tensor, pipeline, micro_batch)
    assert peak(tensor, pipeline, micro_batch + 1) > here
    if tensor > 1:  # from one rank to two the loss is no longer compiled, and its part grows
        assert peak(2 * tensor, pipeline, micro_batch) < here
    if pipeline < 8:
        assert peak(tensor, pipeline, micro_batch, "_ac") < here
