"""The memory of a rank: its parts by hand, what splits it, and measured peaks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.analysis.plan import (
    BUCKET,
    OUTSIDE,
    USABLE,
    WORKSPACE,
    RankMemory,
    in_flight,
    rank_memory,
    stage_memory,
    stage_parameters,
)
from paceline.analysis.plan_calibration import published_observations
from paceline.core.layout import Layout
from paceline.core.transformer import Transformer, transformer

GPT2 = transformer("gpt2", 24)
BERT = transformer("bert", 24)
ALL_SCORED_GPT2, ALL_SCORED_BERT = (replace(one, scored=one.sequence, even_stages=True) for one in (GPT2, BERT))
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
        (ALL_SCORED_GPT2, "gpt2/nl24_bf16_1x1x1_mb6_gb6_1n1g", 10.7),
        (ALL_SCORED_GPT2, "gpt2/nl24_bf16_1x1x1_mb32_gb32_1n1g", 36.1),
        (ALL_SCORED_BERT, "bert/nl24_bf16_1x1x1_mb24_gb24_1n1g", 15.0),
        (ALL_SCORED_BERT, "bert/nl24_bf16_1x1x1_mb128_gb128_1n1g", 61.4),
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
    for one in published_observations("libai"):
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
    assert GPT2.stage_layers(4, 1) == (7, 7, 7, 3)
    assert transformer("bert", 24).stage_layers(4, 1) == (6, 6, 6, 6)
    assert sum(GPT2.stage_layers(7, 1)) == 24


def test_a_single_micro_batch_has_no_gradients_from_before() -> None:
    once, twice = (rank_memory(GPT2, layout(f"gpt2/nl24_bf16_1x1x1_mb6_gb{gb}_1n1g")) for gb in (6, 12))
    assert twice.peak - once.peak == pytest.approx(once.gradients)


TINY = Transformer(family="bert", layers=6, hidden=6, heads=2, sequence=10, vocabulary=200, scored=4)
ODD = replace(TINY, hidden=5)  # an odd number of weights, which two ranks share with one to spare


@pytest.mark.parametrize(
    ("word", "stage", "expected"),
    [  # layers, micro-batches in flight, bytes of a layer and of working memory, entries and bytes of the vocabulary
        ("bert/nl6_bf16_1x1x1_mb3_gb6_1n1g", 0, (6, 1, 8 + 24, 4 + 8, 256, 4)),
        ("bert/nl6_fp32_1x1x1_mb3_gb6_1n1g", 0, (6, 1, 16 + 48, 4 + 16, 256, 8)),
        ("bert/nl6_bf16_1x2x1_mb3_gb6_1n2g", 0, (6, 1, 8 + 12, 4 + 4, 128, 10)),
        ("bert/nl6_fp32_1x2x1_mb3_gb6_1n2g", 0, (6, 1, 16 + 24, 4 + 8, 128, 12)),
        ("bert/nl6_bf16_1x1x1_ac_mb3_gb6_1n1g", 0, (6, 1, 2, 4 + 8 + 8 + 24, 256, 4)),
        ("bert/nl6_fp32_1x2x1_ac_mb3_gb6_1n2g", 0, (6, 1, 4, 4 + 8 + 16 + 24, 128, 12)),
        ("bert/nl6_fp16_1x1x2_mb3_gb12_1n2g", 0, (3, 2, 8 + 24, 4 + 8, 0, 0)),
        ("bert/nl6_fp16_1x1x2_mb3_gb12_1n2g", 1, (3, 1, 8 + 24, 4 + 8, 256, 4)),
        ("bert/nl6_fp16_1x1x2_mb3_gb3_1n2g", 0, (3, 1, 8 + 24, 4 + 8, 0, 0)),
    ],
)
def test_every_part_is_as_the_table_has_it(word: str, stage: int, expected: tuple[int, ...]) -> None:
    where = layout(word)
    model = replace(TINY, even_stages=True)
    layers, in_flight_here, of_layer, of_working, entries, of_entry = expected
    numbers = 3 * 10 * 6
    memory = stage_memory(model, where, stage)
    count = stage_parameters(model, where, stage)
    assert (memory.stage, memory.parameters, memory.gradients, memory.optimizer) == (
        stage,
        4 * count,
        4 * count,
        8 * count,
    )
    assert memory.casts == (0 if where.precision == "fp32" else 2 * count)
    assert memory.activations == in_flight_here * layers * of_layer * numbers
    assert memory.working == of_working * numbers
    assert memory.vocabulary == 3 * 4 * entries * of_entry
    assert memory.temporary == WORKSPACE
    assert memory.single_pass is (where.micro_batches == 1)


@pytest.mark.parametrize(
    ("word", "of_scores", "of_working"),
    [
        ("bert/nl6_bf16_1x1x1_mb3_gb6_1n1g", 5, 2),
        ("bert/nl6_fp32_1x1x1_mb3_gb6_1n1g", 9, 4),
        ("bert/nl6_bf16_1x2x1_mb3_gb6_1n2g", 5 / 2, 2 / 2),
        ("bert/nl6_bf16_1x1x1_ac_mb3_gb6_1n1g", 0, 2 + 5),
    ],
)
def test_attention_that_is_not_fused_keeps_its_scores(word: str, of_scores: float, of_working: float) -> None:
    where = layout(word)
    fused, written = (rank_memory(replace(TINY, fused_attention=fused), where) for fused in (True, False))
    squares = 3 * 2 * 10**2  # samples, heads, tokens with each other
    assert written.activations - fused.activations == pytest.approx(6 * of_scores * squares)
    assert written.working - fused.working == pytest.approx(of_working * squares)


@pytest.mark.parametrize(
    ("word", "stage", "count"),
    [  # a layer has 12 h^2 + 7 h that are split and 6 h that are not; then embedding, head, and the tied embedding
        ("bert/nl6_bf16_1x1x1_mb1_gb1_1n1g", 0, 6 * (335 + 30) + (256 + 10 + 4) * 5 + 25 + 15 + 256),
        ("bert/nl6_bf16_1x2x1_mb1_gb1_1n2g", 0, 6 * (168 + 30) + (128 + 10 + 4) * 5 + 25 + 15 + 128),
        ("bert/nl6_bf16_1x2x2_mb1_gb2_1n4g", 0, 3 * (168 + 30) + (128 + 10 + 4) * 5),
        ("bert/nl6_bf16_1x2x2_mb1_gb2_1n4g", 1, 3 * (168 + 30) + 25 + 15 + 128 + 128 * 5),
        ("bert/nl6_bf16_1x1x3_mb1_gb3_1n3g", 0, 2 * (335 + 30) + (256 + 10 + 4) * 5),
        ("bert/nl6_bf16_1x1x3_mb1_gb3_1n3g", 1, 2 * (335 + 30)),
        ("bert/nl6_bf16_1x1x3_mb1_gb3_1n3g", 2, 2 * (335 + 30) + 25 + 15 + 256 + 256 * 5),
    ],
)
def test_the_parameters_of_a_stage_are_counted_by_hand(word: str, stage: int, count: int) -> None:
    assert stage_parameters(replace(ODD, even_stages=True), layout(word), stage) == count


def test_data_parallel_ranks_have_two_buckets_of_gradients_on_their_way() -> None:
    alone, two = (layout(f"gpt2/nl24_bf16_{data}x1x1_mb2_gb4_1n{data}g") for data in (1, 2))
    assert rank_memory(GPT2, alone).temporary == WORKSPACE
    assert rank_memory(GPT2, two).temporary == WORKSPACE + 2 * BUCKET
    small = layout("bert/nl6_bf16_2x1x1_mb2_gb4_1n2g")
    assert rank_memory(TINY, small).temporary == WORKSPACE + 2 * 4 * TINY.parameters


@pytest.mark.parametrize(
    ("changes", "peak"),
    [
        ({}, 1 + 2 + 8 + (16 + 64 + 128) + 4),
        ({"vocabulary": 256}, 1 + 2 + 8 + (16 + 256 + 128) + 4),
        ({"single_pass": True}, 1 + 2 + 8 + (16 + 64 + 128)),
        ({"single_pass": True, "gradients": 512}, 1 + 2 + 8 + 512),
    ],
)
def test_the_peak_adds_what_is_held_at_once(changes: dict[str, Any], peak: float) -> None:
    parts: dict[str, Any] = {"parameters": 1, "casts": 2, "gradients": 4, "optimizer": 8, "activations": 16}
    parts |= {"vocabulary": 32, "working": 64, "temporary": 128, "stage": 0, "single_pass": False}
    memory = RankMemory(**parts | changes)
    assert memory.peak == peak
    assert memory.occupied == peak + OUTSIDE


def test_a_gpu_holds_what_leaves_the_allocator_its_gaps_and_not_a_byte_more() -> None:
    size = 2.0**40
    parts = {
        "casts": 0,
        "gradients": 0,
        "optimizer": 0,
        "activations": 0,
        "vocabulary": 0,
        "working": 0,
        "temporary": 0,
    }
    exact = RankMemory(stage=0, parameters=USABLE * size - OUTSIDE, single_pass=False, **parts)
    assert exact.fits(size)
    assert not replace(exact, parameters=exact.parameters + 1).fits(size)


def test_a_rank_is_that_of_the_fullest_stage() -> None:
    deep = layout("gpt2/nl24_bf16_1x1x4_mb2_gb32_1n4g")
    assert rank_memory(GPT2, deep).peak == max(stage_memory(GPT2, deep, stage).peak for stage in range(4))


def test_stages_share_layers_evenly_where_the_head_does_not_count() -> None:
    even = replace(GPT2, even_stages=True)
    assert even.stage_layers(4, 1) == (6, 6, 6, 6)
    assert even.stage_layers(5, 1) == (5, 5, 5, 5, 4)


@pytest.mark.parametrize(("tokens", "scored"), [(512, 80), (320, 48), (321, 64), (16, 16), (8, 8)])
def test_bert_predicts_fifteen_percent_of_its_tokens_in_sixteens(tokens: int, scored: int) -> None:
    assert transformer("bert", 24, sequence=tokens).scored == scored
    assert transformer("gpt2", 24, sequence=tokens).scored == tokens


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
