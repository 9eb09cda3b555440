"""FLOPs by hand, and how layers are divided into stages."""

from __future__ import annotations

from typing import Any

import pytest
from torch.distributed.pipelining.schedules import get_schedule_class

from paceline.benchmarks.parallel._parameters import (
    FLOPS_FORMULA,
    SCHEDULES,
    ParallelParameters,
    ideal_bubble,
    stages_of_rank,
)
from paceline.core.transformer import _share_out, transformer

SMALL = {"layers": 3, "hidden": 12, "heads": 2, "sequence": 24, "vocabulary": 3456, "micro_batch": 2}


def step_flops(parameters: ParallelParameters) -> float:
    return parameters.transformer.step_flops(parameters.layout.global_batch)


def stage_layers(parameters: ParallelParameters) -> list[int]:
    return list(parameters.transformer.stage_layers(parameters.stages, parameters.layout.tensor))


def masked(tokens: int) -> int:
    """How many of a sample's tokens BERT has to fill in."""
    return transformer("bert", 1, sequence=tokens).scored


def test_flops_of_gpt2_by_hand() -> None:
    flops = step_flops(ParallelParameters(model="gpt2", **SMALL))
    # forward of 2 x 24 tokens: three layers of 24 h^2 and 4 s h each, and a head of 2 h V; three times that
    layers = 48 * 3 * (24 * 144 + 4 * 24 * 12)
    head = 48 * 2 * 12 * 3456
    assert layers + head == 4_644_864
    assert flops == 3 * 4_644_864
    assert FLOPS_FORMULA["gpt2"].startswith("Megatron-LM's: 72 B s L h^2 (1 + s/(6h) + V/(12Lh))")


def test_flops_of_bert_count_all_of_attention_and_the_masked_part_of_the_head() -> None:
    assert masked(24) == 16
    flops = step_flops(ParallelParameters(model="bert", **SMALL))
    layers = 48 * 3 * (24 * 144 + 4 * 24 * 12)
    head = 2 * 16 * 2 * 12 * (3456 + 12)
    assert flops == pytest.approx(3 * (layers + head))
    assert "(m/s) (V+h)" in FLOPS_FORMULA["bert"]


def test_flops_of_llama_and_mixtral_by_hand() -> None:
    sizes = SMALL | {"hidden": 16, "heads": 4, "feed_forward": 40}
    # keys are as wide as one head of four; three products of the feed-forward layer, and attention's two
    attention = 2 * 16 * (16 + 4) + 2 * 24 * 16
    layers = 48 * 3 * 2 * (attention + 3 * 16 * 40)
    head = 48 * 2 * 16 * 3456
    assert step_flops(ParallelParameters(model="llama", **sizes)) == 3 * (layers + head)
    experts = 48 * 3 * 2 * (attention + 2 * 3 * 16 * 40 + 16 * 6)  # two of six, and the choice among them
    assert step_flops(ParallelParameters(model="mixtral", experts=6, **sizes)) == 3 * (experts + head)
    assert "3 h f" in FLOPS_FORMULA["llama"]
    assert "3 e h f + E h" in FLOPS_FORMULA["mixtral"]


def test_flops_are_those_of_the_whole_batch_in_any_layout() -> None:
    alone = step_flops(ParallelParameters(case="gpt2/nl24_fp16_1x1x1_mb4_gb64_1n1g"))
    for mesh, machines in (("2x1x4_ac", "1n8g"), ("1x8x1", "1n8g")):  # eight tensor-parallel ranks pad the vocabulary
        assert step_flops(ParallelParameters(case=f"gpt2/nl24_fp16_{mesh}_mb4_gb64_{machines}")) == alone
    tokens = 64 * 1024
    by_hand = 72 * tokens * 24 * 1024**2 * (1 + 1024 / (6 * 1024) + 50257 / (12 * 24 * 1024))
    assert alone == pytest.approx(by_hand)


def test_fifteen_percent_are_masked() -> None:
    assert [masked(tokens) for tokens in (512, 320, 32, 8)] == [80, 48, 16, 8]


def test_the_stage_with_the_head_has_fewer_layers() -> None:
    assert _share_out(24, 4, head=0.0) == (6, 6, 6, 6)
    assert _share_out(24, 4, head=3.5) == (7, 7, 7, 3)
    assert _share_out(4, 4, head=10.0) == (1, 1, 1, 1)
    assert _share_out(7, 3, head=0.0) == (3, 2, 2)
    gpt2 = stage_layers(ParallelParameters(case="gpt2/nl24_fp16_1x1x4_ac_mb32_gb256_1n4g"))
    assert sum(gpt2) == 24
    assert gpt2[-1] < min(gpt2[:-1])


def test_stages_go_round_the_ranks() -> None:
    assert [stages_of_rank(SCHEDULES["1f1b"], 3, rank) for rank in range(3)] == [[0], [1], [2]]
    assert [stages_of_rank(SCHEDULES["interleaved"], 2, rank) for rank in range(2)] == [[0, 2], [1, 3]]


def test_the_ideal_bubble_is_named_with_its_formula() -> None:
    assert ideal_bubble("1f1b", 4, 8, 1) == (pytest.approx(3 / 11), "(p - 1) / (m + p - 1)")
    assert ideal_bubble("interleaved", 4, 8, 2) == (pytest.approx(3 / 19), "(p - 1) / (2 m + p - 1)")
    assert ideal_bubble("zero-bubble", 4, 8, 2) is None


def goes_round(name: str, ranks: int, micro_batches: int) -> bool:
    """Whether the schedule takes so many micro-batches."""
    return not SCHEDULES[name].in_rounds or micro_batches % max(1, micro_batches // ranks) == 0


SPREAD = [
    (name, ranks, micro_batches)
    for name in ("interleaved", "looped-bfs")
    for ranks in (2, 3, 4, 8)
    for micro_batches in (1, 2, 3, 4, 8, 16)
    if goes_round(name, ranks, micro_batches)
]


@pytest.mark.parametrize(("name", "ranks", "micro_batches"), SPREAD)
def test_the_ideal_bubble_is_that_of_the_schedule_with_equal_stages(name: str, ranks: int, micro_batches: int) -> None:
    ideal = ideal_bubble(name, ranks, micro_batches, 2)
    assert ideal is not None
    assert ideal[0] == pytest.approx(simulated_bubble(name, ranks, micro_batches, 2))


def simulated_bubble(name: str, ranks: int, micro_batches: int, stages_per_rank: int) -> float:
    """What torch's own order of the work leaves idle, if forward takes 1 and backward 2 on every stage."""
    orders = {rank: order_of(name, ranks, micro_batches, stages_per_rank, rank) for rank in range(ranks)}
    stages, clocks, done = ranks * stages_per_rank, [0.0] * ranks, dict[tuple[int, bool, int], float]()
    for _ in range(2 * stages * micro_batches):  # each look at the ranks finishes one piece of work at least
        for rank, order in orders.items():
            while order:
                stage, forward, number = order[0]
                needed = [(stage - 1, True, number)] if forward else [(stage, True, number), (stage + 1, False, number)]
                needed = [one for one in needed if 0 <= one[0] < stages]
                if not all(one in done for one in needed):
                    break
                clocks[rank] = max([clocks[rank], *(done[one] for one in needed)]) + (1 if forward else 2)
                done[order.pop(0)] = clocks[rank]
    assert not any(orders.values())
    return 1 - 3 * stages_per_rank * micro_batches / max(clocks)


def order_of(name: str, ranks: int, micro_batches: int, stages_per_rank: int, rank: int) -> list[tuple[int, bool, int]]:
    schedule: Any = object.__new__(get_schedule_class(SCHEDULES[name].torch_name))  # made, it wants real stages
    schedule.pp_group_size, schedule.n_local_stages, schedule._n_microbatches = ranks, stages_per_rank, micro_batches
    schedule._stages = [None] * stages_per_rank
    schedule.microbatches_per_round = micro_batches // max(1, micro_batches // ranks)
    actions = [one for one in schedule._calculate_single_rank_operations(rank) if one is not None]
    return [(one.stage_index, one.computation_type.name == "FORWARD", one.microbatch_index) for one in actions]


@pytest.mark.parametrize(
    ("parameters", "counts"),
    [
        # The head is worth 50304 / (12 x 1024 + 1024) = 3.8 layers of gpt2, and a quarter of one of bert.
        ({"model": "gpt2", "layers": 24, "pipeline": 4}, [7, 7, 7, 3]),
        ({"model": "bert", "layers": 27, "pipeline": 4}, [7, 7, 7, 6]),
        # 80 of 512 tokens x 4096 / (12 x 32 + 2 x 512) = 0.45, and 4096 / (12 x 32 + 512) = 4.6.
        ({"model": "bert", "layers": 9, "pipeline": 2, "hidden": 32, "vocabulary": 4096}, [5, 4]),
        ({"model": "gpt2", "layers": 12, "pipeline": 2, "hidden": 32, "vocabulary": 4096, "sequence": 512}, [8, 4]),
    ],
)
def test_a_head_is_worth_layers(parameters: dict[str, Any], counts: list[int]) -> None:
    assert stage_layers(ParallelParameters(**parameters)) == counts


@pytest.mark.parametrize(("name", "ranks", "micro_batches"), [("gpipe", 1, 4), ("1f1b", 3, 3), ("gpipe", 3, 1)])
def test_one_stage_on_each_rank_fills_and_drains_once(name: str, ranks: int, micro_batches: int) -> None:
    ideal = ideal_bubble(name, ranks, micro_batches, 1)
    assert ideal == (pytest.approx((ranks - 1) / (micro_batches + ranks - 1)), "(p - 1) / (m + p - 1)")


def test_the_formula_of_few_micro_batches_is_named() -> None:
    ideal = ideal_bubble("looped-bfs", 4, 3, 2)
    assert ideal == (pytest.approx(1 - 6 / 10), "1 - 2 m / (2 p + m - 1), as m < p")
    equal = ideal_bubble("looped-bfs", 4, 4, 2)
    assert equal == (pytest.approx(3 / 11), "(p - 1) / (2 m + p - 1)")


@pytest.mark.parametrize(("tokens", "count"), [(106, 16), (107, 32), (213, 32), (214, 48), (16, 16), (15, 15), (1, 1)])
def test_masked_tokens_are_a_multiple_of_sixteen_where_there_are_as_many(tokens: int, count: int) -> None:
    assert masked(tokens) == count
