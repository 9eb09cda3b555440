"""FLOPs by hand, and how layers are divided into stages."""

from __future__ import annotations

import pytest

from paceline.benchmarks.parallel._parameters import SCHEDULES, ParallelParameters
from paceline.benchmarks.parallel._pipeline import ideal_bubble, stages_of_rank
from paceline.benchmarks.parallel._shape import balance, masked_tokens, split_layers, stage_ranges, step_flops

SMALL = {"layers": 3, "hidden": 12, "heads": 2, "sequence": 24, "vocabulary": 3456, "micro_batch": 2}


def test_flops_of_gpt2_by_hand() -> None:
    flops, formula = step_flops(ParallelParameters(model="gpt2", **SMALL))
    # forward of 2 x 24 tokens: three layers of 24 h^2 and half of 4 s h each, and a head of 2 h V; three times that
    layers = 48 * 3 * (24 * 144 + 2 * 24 * 12)
    head = 48 * 2 * 12 * 3456
    assert layers + head == 4_561_920
    assert flops == pytest.approx(3 * 4_561_920)
    assert formula.startswith("Megatron-LM's: 72 B s L h^2 (1 + s/(12h) + V/(12Lh))")


def test_flops_of_bert_count_all_of_attention_and_the_masked_part_of_the_head() -> None:
    assert masked_tokens(24) == 16
    flops, formula = step_flops(ParallelParameters(model="bert", **SMALL))
    layers = 48 * 3 * (24 * 144 + 4 * 24 * 12)
    head = 2 * 16 * 2 * 12 * 3456
    assert flops == pytest.approx(3 * (layers + head))
    assert "(m/s) V" in formula


def test_flops_are_those_of_the_whole_batch_in_any_layout() -> None:
    alone = step_flops(ParallelParameters(case="gpt2/nl24_fp16_1x1x1_mb4_gb64_1n1g"))[0]
    spread = step_flops(ParallelParameters(case="gpt2/nl24_fp16_2x1x4_ac_mb4_gb64_1n8g"))[0]
    assert alone == spread
    tokens = 64 * 1024
    by_hand = 72 * tokens * 24 * 1024**2 * (1 + 1024 / (12 * 1024) + 50304 / (12 * 24 * 1024))
    assert alone == pytest.approx(by_hand)


def test_fifteen_percent_are_masked() -> None:
    assert [masked_tokens(tokens) for tokens in (512, 320, 32, 8)] == [80, 48, 16, 8]


def test_the_stage_with_the_head_has_fewer_layers() -> None:
    assert balance(24, 4, head=0.0) == [6, 6, 6, 6]
    assert balance(24, 4, head=3.5) == [7, 7, 7, 3]
    assert balance(4, 4, head=10.0) == [1, 1, 1, 1]
    assert balance(7, 3, head=0.0) == [3, 2, 2]
    gpt2 = split_layers(ParallelParameters(case="gpt2/nl24_fp16_1x1x4_ac_mb32_gb256_1n4g"))
    assert sum(gpt2) == 24
    assert gpt2[-1] < min(gpt2[:-1])
    assert [list(layers) for layers in stage_ranges([2, 1])] == [[0, 1], [2]]


def test_stages_go_round_the_ranks_or_down_and_up_again() -> None:
    assert [stages_of_rank(SCHEDULES["1f1b"], 3, rank) for rank in range(3)] == [[0], [1], [2]]
    assert [stages_of_rank(SCHEDULES["interleaved"], 2, rank) for rank in range(2)] == [[0, 2], [1, 3]]
    assert [stages_of_rank(SCHEDULES["zero-bubble-v"], 2, rank) for rank in range(2)] == [[0, 3], [1, 2]]


def test_the_ideal_bubble_is_named_with_its_formula() -> None:
    assert ideal_bubble("1f1b", 4, 8, 1) == (pytest.approx(3 / 11), "(p - 1) / (m + p - 1)")
    assert ideal_bubble("interleaved", 4, 8, 2) == (pytest.approx(3 / 19), "(p - 1) / (2 m + p - 1)")
    assert ideal_bubble("zero-bubble", 4, 8, 2) is None
