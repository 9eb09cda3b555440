"""The time of a step: FLOPs, bubble, communication and recomputation, each against arithmetic by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.analysis.plan import (
    Cluster,
    RankPlacement,
    StepTime,
    all_reduce_time,
    send_time,
    stage_parameters,
    step_time,
)
from paceline.analysis.plan_calibration import samples_per_second
from paceline.core.layout import Layout
from paceline.core.transformer import transformer

PLAIN = Cluster(
    gpus_per_node=8,
    memory=80e9,
    rate=100e12,
    peak=200e12,
    memory_bandwidth=1e12,
    intra_bandwidth=100e9,
    intra_latency=0.0,
    inter_bandwidth=10e9,
    inter_latency=0.0,
)
EVEN = replace(transformer("gpt2", 24), even_stages=True)


def timed(word: str, cluster: Cluster = PLAIN) -> StepTime:
    return step_time(EVEN, Layout.parse(word).check(), cluster)


def test_the_flops_are_megatrons() -> None:
    b, s, layers, h, v = 6, 1024, 24, 1024, 50257
    by_formula = 72 * b * s * layers * h**2 * (1 + s / (6 * h) + v / (12 * layers * h))
    assert EVEN.step_flops(6) == pytest.approx(by_formula)
    bert = transformer("bert", 24)
    s, v, m = 512, 21128, 80
    by_formula = 72 * b * s * layers * h**2 * (1 + s / (6 * h) + m / s * (v + h) / (12 * layers * h))
    assert bert.step_flops(6) == pytest.approx(by_formula)


def test_one_gpu_computes_and_updates_and_nothing_else() -> None:
    time = timed("gpt2/nl24_bf16_1x1x1_mb6_gb24_1n1g")
    assert time.compute == pytest.approx((24 * EVEN.layer_cost(24) + EVEN.head_flops(24, 1)) / PLAIN.rate)
    assert time.optimizer == pytest.approx(34 * EVEN.parameters / 1e12)
    assert time.communication == time.bubble == time.recompute == 0
    assert time.total == pytest.approx(time.compute + time.optimizer)


def test_checkpointing_computes_a_third_of_the_layers_again() -> None:
    time = timed("gpt2/nl24_bf16_1x1x1_ac_mb6_gb24_1n1g")
    assert time.recompute == pytest.approx(24 * EVEN.layer_cost(24) / 3 / PLAIN.rate)


def test_equal_stages_wait_for_p_minus_1_of_m_micro_batches() -> None:
    free_head = replace(PLAIN, head_cost=0.0, intra_bandwidth=1e30)
    time = timed("gpt2/nl24_bf16_1x1x4_mb4_gb32_1n4g", free_head)
    assert time.bubble / time.compute == pytest.approx(3 / 8)


def test_a_stage_with_the_head_makes_the_others_wait() -> None:
    free_head = timed("gpt2/nl24_bf16_1x1x4_mb4_gb128_1n4g", replace(PLAIN, head_cost=0.0))
    time = timed("gpt2/nl24_bf16_1x1x4_mb4_gb128_1n4g")
    assert time.bubble > 2 * free_head.bubble
    balanced = step_time(transformer("gpt2", 24), Layout.parse("gpt2/nl24_bf16_1x1x4_mb4_gb128_1n4g"), PLAIN)
    assert balanced.total < time.total


def test_tensor_parallel_ranks_sum_four_times_a_layer() -> None:
    time = timed("gpt2/nl24_bf16_1x8x1_mb4_gb4_1n8g")
    volume = 4 * 1024 * 1024 * 2
    assert time.tensor == pytest.approx(24 * 4 * (2 * 7 / 8) * volume / 100e9)
    again = timed("gpt2/nl24_bf16_1x8x1_ac_mb4_gb4_1n8g")
    assert again.tensor == pytest.approx(1.5 * time.tensor)


def test_gradients_are_summed_once_a_step_and_hide_behind_the_backward_pass() -> None:
    one, four = (timed(f"gpt2/nl24_bf16_8x1x1_mb4_gb{gb}_1n8g") for gb in (32, 128))
    assert one.data == pytest.approx(2 * 7 / 8 * 4 * EVEN.parameters / 100e9)
    assert four.data == pytest.approx(one.data)
    hidden = timed("gpt2/nl24_bf16_8x1x1_mb4_gb32_1n8g", replace(PLAIN, overlap=0.75))
    assert hidden.data == pytest.approx(one.data / 4)
    slow = replace(PLAIN, overlap=1.0, intra_bandwidth=1e9)
    whole = all_reduce_time(slow, 4.0 * EVEN.parameters, RankPlacement(8, 1, 8))
    behind = 2 / 3 * (24 * EVEN.layer_cost(4) + EVEN.head_flops(4, 1)) / slow.rate
    assert timed("gpt2/nl24_bf16_8x1x1_mb4_gb32_1n8g", slow).data == pytest.approx(whole - behind)


@pytest.mark.parametrize(
    ("size", "stride", "crosses", "members", "nodes"),
    [
        (8, 1, False, 8, 1),
        (16, 1, True, 8, 2),
        (4, 2, False, 4, 1),
        (4, 8, True, 1, 4),
        (8, 2, True, 4, 2),
        (3, 1, True, 3, 1),  # of three groups, the last lies on two nodes
        (3, 4, True, 2, 2),
    ],
)
def test_where_the_ranks_of_an_axis_lie(size: int, stride: int, crosses: bool, members: int, nodes: int) -> None:
    where = RankPlacement(size, stride, per_node=8)
    assert (where.crosses, where.members, where.nodes) == (crosses, members, nodes)


def test_groups_of_a_node_share_its_network() -> None:
    one_group = all_reduce_time(PLAIN, 1e9, RankPlacement(16, 1, 8))
    assert one_group == pytest.approx(2 * 15 / 16 * 1e9 / 10e9)
    eight_groups = all_reduce_time(PLAIN, 1e9, RankPlacement(2, 8, 8))
    assert eight_groups == pytest.approx(8 * 1e9 / 10e9)
    assert send_time(PLAIN, 1e9, RankPlacement(2, 8, 8)) == pytest.approx(8 * 1e9 / 10e9)
    assert send_time(PLAIN, 1e9, RankPlacement(2, 4, 8)) == pytest.approx(1e9 / 100e9)


def test_without_a_switch_two_gpus_have_one_link() -> None:
    meshed = replace(PLAIN, neighbours=4)
    pair, all_of_them = (all_reduce_time(meshed, 1e9, RankPlacement(size, 1, 8)) for size in (2, 8))
    assert pair == pytest.approx(1e9 / 25e9)
    assert all_of_them == pytest.approx(2 * 7 / 8 * 1e9 / 100e9)


def test_every_exchange_has_the_latency_of_its_slowest_link() -> None:
    late = replace(PLAIN, intra_latency=0.25, inter_latency=4.0)
    inside, across = RankPlacement(8, 1, 8), RankPlacement(16, 1, 8)
    for exchange in (all_reduce_time, send_time):
        assert exchange(late, 1e9, inside) == pytest.approx(exchange(PLAIN, 1e9, inside) + 0.25)
        assert exchange(late, 1e9, across) == pytest.approx(exchange(PLAIN, 1e9, across) + 4.0)
        assert exchange(late, 1e9, RankPlacement(1, 1, 8)) == 0.0
        assert exchange(late, 0.0, RankPlacement(2, 1, 8)) == pytest.approx(0.25)


@pytest.mark.parametrize(("stride", "senders"), [(1, 1), (4, 4), (8, 8), (16, 8)])
def test_as_many_ranks_send_at_once_as_a_node_has_at_its_border(stride: int, senders: int) -> None:
    assert send_time(PLAIN, 1e9, RankPlacement(16, stride, 8)) == pytest.approx(senders * 1e9 / 10e9)


@pytest.mark.parametrize(
    ("size", "nodes", "groups"),
    [(16, 2, 1.0), (32, 4, 1.0), (64, 8, 1.0), (3, 1, 8 / 3)],
)
def test_the_more_nodes_sum_the_less_bandwidth_each_has(size: int, nodes: int, groups: float) -> None:
    contended = replace(PLAIN, contention=0.5)
    where = RankPlacement(size, 1, 8)
    assert where.nodes == nodes
    lost = (nodes / 2) ** 0.5 if nodes > 2 else 1.0
    assert all_reduce_time(contended, 1e9, where) == pytest.approx(2 * (size - 1) / size * 1e9 * groups * lost / 10e9)


def test_a_sum_over_nodes_takes_as_long_as_its_slower_part() -> None:
    slow_inside = replace(PLAIN, intra_bandwidth=1e9)
    assert all_reduce_time(slow_inside, 1e9, RankPlacement(16, 1, 8)) == pytest.approx(2 * 15 / 16 * 1e9 / 1e9)


def test_the_parts_of_a_step_add_up() -> None:
    time = StepTime(compute=1, recompute=2, tensor=4, pipeline=8, bubble=16, data=32, optimizer=64)
    assert time.total == 127
    assert time.communication == 4 + 8 + 32
    assert time.share(254) == 2


COSTLY = replace(
    PLAIN,
    intra_latency=3e-3,
    inter_latency=7e-3,
    layer_overhead=5e-3,
    head_cost=0.5,
    attention_cost=3.0,
    overlap=0.25,
    contention=0.5,
    reduced_bytes=2,
)


@pytest.mark.parametrize(
    ("word", "layers", "places"),
    [
        ("gpt2/nl24_bf16_2x2x3_ac_mb2_gb32_1n12g", (9, 9, 6), ((2, 1, 12), (3, 4, 12), (2, 2, 12))),
        ("gpt2/nl24_fp32_2x2x4_mb2_gb32_2n8g", (7, 7, 7, 3), ((2, 1, 8), (4, 4, 8), (2, 2, 8))),
        ("bert/nl24_bf16_4x1x2_mb2_gb32_1n8g", (12, 12), ((1, 1, 8), (2, 4, 8), (4, 1, 8))),
        ("bert/nl24_fp32_1x8x1_ac_mb2_gb32_1n8g", (24,), ((8, 1, 8), (1, 8, 8), (1, 8, 8))),
    ],
)
def test_a_whole_step_is_what_its_stages_take(
    word: str, layers: tuple[int, ...], places: tuple[tuple[int, int, int], ...]
) -> None:
    layout = Layout.parse(word).check()
    model = transformer(layout.model, 24)
    assert model.stage_layers(layout.pipeline, layout.tensor) == layers
    in_tensor, in_pipeline, in_data = (RankPlacement(*place) for place in places)
    hidden, tokens = 1024, 2 * model.sequence  # two samples in a micro-batch
    is_gpt2, wide = layout.model == "gpt2", 4 if layout.precision == "fp32" else 2
    # Attention costs three times its FLOPs, of which the kernel of GPT-2 skips the masked half.
    per_token = 72 * hidden**2 + 3.0 * (6 if is_gpt2 else 12) * model.sequence * hidden
    of_layer = tokens * per_token / layout.tensor / 100e12 + 5e-3
    scored = tokens if is_gpt2 else 2 * 80
    outputs = model.padded_vocabulary(layout.tensor) + (0 if is_gpt2 else hidden)
    of_head = 0.5 * 6 * scored * hidden * outputs / layout.tensor / 100e12
    volume = tokens * hidden * wide
    compute = [count * of_layer for count in layers]
    again = [seconds / 3 if layout.checkpointing else 0.0 for seconds in compute]
    compute[-1] += of_head
    sums = 6 if layout.checkpointing else 4
    tensor = [count * sums * all_reduce_time(COSTLY, volume, in_tensor) for count in layers]
    ends = {1: [0], 2: [1, 1], 3: [1, 2, 1], 4: [1, 2, 2, 1]}[layout.pipeline]
    handed = [count * send_time(COSTLY, volume, in_pipeline) for count in ends]
    stages = [sum(parts) for parts in zip(compute, again, tensor, handed, strict=True)]
    micro_batches, each = layout.micro_batches, layout.micro_batches / layout.pipeline
    largest = max(stage_parameters(model, layout, stage) for stage in range(layout.pipeline))
    reduction = all_reduce_time(COSTLY, 2.0 * largest, in_data)
    time = step_time(model, layout, COSTLY)
    assert time.compute == pytest.approx(each * sum(compute))
    assert time.recompute == pytest.approx(each * sum(again))
    assert time.tensor == pytest.approx(each * sum(tensor))
    assert time.pipeline == pytest.approx(each * sum(handed))
    assert time.optimizer == pytest.approx(34 * largest / 1e12)
    assert time.data == pytest.approx(reduction - min(0.25 * reduction, 2 / 3 * min(compute)))
    busy = sum(stages) + (micro_batches - 1) * max(stages)
    assert time.bubble == pytest.approx(busy - each * sum(stages), abs=1e-9)
    assert time.total == pytest.approx(busy + time.data + time.optimizer)
    assert samples_per_second(model, layout, COSTLY) == pytest.approx(32 / time.total)


def test_masked_scores_cost_only_where_they_are_computed() -> None:
    layout = Layout.parse("gpt2/nl24_bf16_1x1x1_mb6_gb24_1n1g")
    fused, written = (step_time(replace(EVEN, fused_attention=fused), layout, PLAIN) for fused in (True, False))
    assert written.compute - fused.compute == pytest.approx(24 * EVEN.attention_flops(24) / 2 / PLAIN.rate)
    bert, bert_word = transformer("bert", 24), Layout.parse("bert/nl24_bf16_1x1x1_mb6_gb24_1n1g")
    assert step_time(replace(bert, fused_attention=False), bert_word, PLAIN) == step_time(bert, bert_word, PLAIN)


def test_the_reduction_hides_behind_the_shortest_backward_pass() -> None:
    slow = replace(PLAIN, overlap=1.0, intra_bandwidth=1e8)
    layout = Layout.parse("gpt2/nl24_bf16_2x1x2_mb4_gb32_2n2g").check()
    largest = max(stage_parameters(EVEN, layout, stage) for stage in range(2))
    reduction = all_reduce_time(slow, 4.0 * largest, RankPlacement(2, 1, 2))
    first_stage = 12 * EVEN.layer_cost(4) / slow.rate  # the last one has the head
    assert step_time(EVEN, layout, slow).data == pytest.approx(reduction - 2 / 3 * first_stage)


@given(
    data=st.sampled_from([1, 2, 4]),
    tensor=st.sampled_from([1, 2, 4]),
    pipeline=st.sampled_from([1, 2, 4]),
    checkpointing=st.booleans(),
    faster=st.sampled_from(["rate", "intra_bandwidth", "inter_bandwidth", "memory_bandwidth"]),
)
def test_a_faster_part_never_slows_and_nothing_beats_compute_alone(
    data: int, tensor: int, pipeline: int, checkpointing: bool, faster: str
) -> None:
    layout = Layout(
        model="gpt2",
        layers=24,
        precision="bf16",
        data=data,
        tensor=tensor,
        pipeline=pipeline,
        checkpointing=checkpointing,
        micro_batch=2,
        global_batch=64,
        nodes=1,
        gpus=data * tensor * pipeline,
    ).check()
    before = samples_per_second(EVEN, layout, PLAIN)
    better = replace(PLAIN, **{faster: 2 * getattr(PLAIN, faster)})  # type: ignore[arg-type]
    assert samples_per_second(EVEN, layout, better) >= before * (1 - 1e-9)
    assert before < layout.world_size * PLAIN.rate / (24 * EVEN.layer_cost(1))
    parts = step_time(EVEN, layout, PLAIN)
    assert min(parts.compute, parts.recompute, parts.tensor, parts.pipeline, parts.data, parts.optimizer) >= 0
    assert parts.bubble >= -1e-9
