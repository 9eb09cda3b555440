"""What is proposed: it fits, its numbers agree, it is the fastest that is predicted, and the words say why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from paceline.analysis.plan import (
    LIBAI,
    USABLE,
    Candidate,
    LayoutPlan,
    NothingFits,
    StepTime,
    candidate,
    divisors,
    layouts,
    plan,
    rank_memory,
    reasons,
    stage_memory,
)
from paceline.core.errors import InputError
from paceline.core.layout import Layout
from paceline.core.quantity import show_size
from paceline.core.transformer import transformer
from support.refused import refused

GIB = 1024**3


@settings(deadline=None)
@given(
    family=st.sampled_from(["gpt2", "bert"]),
    layers=st.integers(1, 48),
    hidden=st.sampled_from([256, 1024, 2048, 4096]),
    gpus=st.sampled_from([1, 2, 3, 4, 6, 8, 16, 24]),
    memory=st.floats(2 * GIB, 96 * GIB),
    per_gpu=st.integers(1, 12),
    precision=st.sampled_from(["fp32", "fp16", "bf16"]),
)
def test_nothing_is_proposed_that_does_not_fit(
    family: str, layers: int, hidden: int, gpus: int, memory: float, per_gpu: int, precision: str
) -> None:
    model = transformer(family, layers, hidden, hidden // 64)  # type: ignore[arg-type]
    try:
        found = plan(
            model,
            replace(LIBAI, memory=memory),
            gpus=gpus,
            global_batch=per_gpu * gpus,
            precision=precision,  # type: ignore[arg-type]
        )
    except NothingFits:
        every = layouts(model, 8, gpus=gpus, global_batch=per_gpu * gpus, precision=precision)  # type: ignore[arg-type]
        assert not any(rank_memory(model, one).fits(memory) for one in every)
        return
    for one in found.candidates:
        one.layout.check()
        assert one.layout.world_size == gpus
        for stage in range(one.layout.pipeline):
            assert stage_memory(model, one.layout, stage).occupied <= USABLE * memory < memory
    speeds = [one.samples_per_s for one in found.candidates]
    assert speeds == sorted(speeds, reverse=True)


@settings(deadline=None)
@given(
    gpus=st.sampled_from([1, 2, 4, 8, 12, 16]),
    batch=st.integers(1, 96),
    heads=st.sampled_from([4, 6, 16]),
    layers=st.integers(1, 12),
)
def test_every_layout_is_one_that_can_be_run(gpus: int, batch: int, heads: int, layers: int) -> None:
    model = transformer("gpt2", layers, 64 * heads, heads)
    found = list(layouts(model, 16, gpus=gpus, global_batch=batch, precision="bf16"))
    assume(found)
    assert len(set(found)) == len(found)
    for one in found:
        one.check()
        assert heads % one.tensor == 0
        assert one.micro_batches >= one.pipeline


def test_the_first_is_the_fastest_of_all_that_fit() -> None:
    model, cluster = transformer("gpt2", 24), replace(LIBAI, memory=16 * GIB)
    found = plan(model, cluster, gpus=16, global_batch=512, precision="fp16")
    every = list(layouts(model, 8, gpus=16, global_batch=512, precision="fp16"))
    fitting = [candidate(model, one, cluster) for one in every if rank_memory(model, one).fits(cluster.memory)]
    assert found.best.samples_per_s == max(one.samples_per_s for one in fitting)
    assert found.considered == len(every)
    assert found.too_large == len(every) - len(fitting)
    assert len({one.layout.mesh for one in found.candidates}) == len(found.candidates)


def test_less_memory_brings_checkpointing_or_another_mesh_and_then_nothing() -> None:
    model = transformer("gpt2", 48, 4096, 32)
    roomy, tight = (
        plan(model, replace(LIBAI, memory=size * GIB), gpus=32, global_batch=256, precision="fp16") for size in (80, 12)
    )
    assert tight.best.samples_per_s < roomy.best.samples_per_s
    with pytest.raises(NothingFits, match="no layout of 32 GPUs fits 4 GiB each: the smallest, gpt2/nl48"):
        plan(model, replace(LIBAI, memory=4 * GIB), gpus=32, global_batch=256, precision="fp16")


def test_a_model_that_fits_one_gpu_is_trained_data_parallel_by_a_fast_network() -> None:
    fast = replace(LIBAI, inter_bandwidth=400e9, contention=0.0)
    found = plan(transformer("gpt2", 24), fast, gpus=32, global_batch=1024, precision="fp16")
    assert found.best.layout.mesh == "32x1x1"
    assert not found.best.layout.checkpointing


def test_a_slow_network_keeps_tensor_parallelism_inside_a_node() -> None:
    model = transformer("gpt2", 48, 8192, 64)
    cluster = replace(LIBAI, memory=80 * GIB)
    found = plan(model, cluster, gpus=64, global_batch=512, precision="fp16")
    assert found.best.layout.tensor <= 8


def test_gpus_must_fill_nodes() -> None:
    with refused("partial-node", key="--gpus", value=12):
        plan(transformer("gpt2", 24), LIBAI, gpus=12, global_batch=96, precision="fp16")


def test_numbers_without_a_common_divisor_are_refused_with_the_rule() -> None:
    with pytest.raises(InputError, match="no layout of 7 GPUs divides 16 heads, 3 layers and a batch of 4"):
        plan(transformer("gpt2", 3), LIBAI, gpus=7, global_batch=4, precision="fp16")


def test_the_reasons_name_the_share_of_compute_the_memory_and_the_next_one() -> None:
    found = plan(transformer("gpt2", 24), LIBAI, gpus=32, global_batch=1024, precision="fp16")
    time, memory, other = reasons(found)
    share = 100 * found.best.time.compute / found.best.time.total
    assert time.startswith(f"{found.best.layout.mesh} computes for {share:.0f} % of a step")
    assert "of 32 GiB on the fullest rank" in memory
    assert other.startswith(f"{found.candidates[1].layout.mesh}, the next, is ")


def test_checkpointing_is_explained_by_what_it_saves() -> None:
    model = transformer("gpt2", 48, 2048, 32)
    found = plan(model, replace(LIBAI, memory=12 * GIB), gpus=8, global_batch=64, precision="fp16")
    assert found.best.layout.checkpointing
    assert "without checkpointing the same micro-batch would need" in reasons(found)[1]


def test_an_unknown_peak_gives_no_mfu() -> None:
    found = plan(transformer("gpt2", 24), replace(LIBAI, peak=None), gpus=8, global_batch=64, precision="fp16")
    assert found.best.mfu is None


MODEL = transformer("gpt2", 24)
MESHES = ("8x1x1", "4x2x1", "2x4x1")


def literal(*times: StepTime, words: Sequence[str] = MESHES, memory: float = 32 * GIB) -> LayoutPlan:
    """A plan whose layouts take these times."""
    every = []
    for time, word in zip(times, words, strict=False):
        data, tensor, pipeline = (int(part) for part in word.removesuffix("_ac").split("x"))
        layout = Layout.parse(f"gpt2/nl24_fp16_{word}_mb4_gb256_1n{data * tensor * pipeline}g")
        every.append(Candidate(layout, time, rank_memory(MODEL, layout), MODEL.sequence, None))
    return LayoutPlan(MODEL, replace(LIBAI, memory=memory), tuple(every), len(every), 0)


def parts(compute: float, **more: float) -> StepTime:
    others = ("recompute", "tensor", "pipeline", "bubble", "data", "optimizer")
    return StepTime(compute=compute, **dict.fromkeys(others, 0.0) | more)


@pytest.mark.parametrize(
    ("time", "text"),
    [
        (
            parts(80, tensor=2, pipeline=1.5, bubble=6.5, data=10),
            "80 % of a step: 10 % goes to sums of gradients over data-parallel ranks; "
            "6.5 % goes to waiting for other pipeline stages; 2.0 % goes to sums over tensor-parallel ranks.",
        ),
        (parts(90.5, optimizer=9.5), "90 % of a step: 10 % goes to the optimizer."),
        (parts(9.4, recompute=90.6), "9.4 % of a step: 91 % goes to computing activations again."),
        (parts(98.5, tensor=1.5), "98 % of a step: nothing else takes more than 2 %."),
    ],
)
def test_a_plan_says_where_the_time_goes_the_largest_part_first(time: StepTime, text: str) -> None:
    assert reasons(literal(time))[0] == f"8x1x1 computes for {text}"


@pytest.mark.parametrize(
    ("best", "other", "text"),
    [
        (parts(99), parts(100), "is 1.0 % slower: too little to choose by prediction, so measure both."),
        (
            parts(0.4, data=0.6),
            parts(0.3, data=0.5, tensor=0.45),
            "is 20 % slower: 36 % of its step goes to sums over tensor-parallel ranks.",
        ),
        (parts(50, tensor=30), parts(75, tensor=25), "is 20 % slower."),
        (parts(40, tensor=40), parts(50, tensor=50), "is 20 % slower."),
        (parts(60, bubble=20), parts(65, bubble=35), "is 20 % slower: 35 % of its step goes to waiting for other"),
    ],
)
def test_the_next_one_is_told_by_what_it_loses_most_on(best: StepTime, other: StepTime, text: str) -> None:
    last = reasons(literal(best, other, parts(1000)))[2]
    assert last.startswith(f"4x2x1, the next, {text}")
    assert len(last.split(": ")) == len(text.split(": "))


@pytest.mark.parametrize(("mesh", "last"), [("1x1x1", []), ("2x1x1", ["No other mesh of these GPUs fits."])])
def test_a_plan_of_one_mesh_has_no_next_one(mesh: str, last: list[str]) -> None:
    assert reasons(literal(parts(1), words=[mesh]))[2:] == last
    two = reasons(literal(parts(1), parts(2), words=["2x1x1", "1x2x1"]))
    assert two[2] == "1x2x1, the next, is 50 % slower."


def test_a_plan_says_why_it_computes_again_or_not() -> None:
    plain, again = (rank_memory(MODEL, literal(parts(1), words=[f"8x1x1{ac}"]).best.layout) for ac in ("", "_ac"))
    needs = f"It needs {show_size(again.occupied)} of 32 GiB on the fullest rank"
    assert reasons(literal(parts(1)))[1] == (
        f"It needs {show_size(plain.occupied)} of 32 GiB on the fullest rank, so that nothing has to be computed again."
    )
    assert reasons(literal(parts(1), words=["8x1x1_ac"]))[1] == f"{needs}."
    between = (plain.occupied + again.occupied) / 2 / USABLE
    assert reasons(literal(parts(1), words=["8x1x1_ac"], memory=between))[1] == (
        f"It needs {show_size(again.occupied)} of {show_size(between)} on the fullest rank; "
        f"without checkpointing the same micro-batch would need {show_size(plain.occupied)}."
    )


def test_a_candidate_has_its_throughput_memory_and_mfu() -> None:
    layout = Layout.parse("gpt2/nl24_fp16_4x2x1_mb2_gb32_1n8g").check()
    one = candidate(MODEL, layout, replace(LIBAI, peak=100e12))
    assert one.memory == rank_memory(MODEL, layout)
    assert one.samples_per_s == pytest.approx(32 / one.time.total)
    assert one.tokens_per_s == pytest.approx(1024 * 32 / one.time.total)
    assert one.mfu == pytest.approx(MODEL.step_flops(32) / one.time.total / 8 / 100e12)


@pytest.mark.parametrize("per_node", [2, 4, 8])
def test_all_layouts_are_tried_that_agree_with_heads_layers_and_batch(per_node: int) -> None:
    model = transformer("gpt2", 2, 128, 2)
    every = [str(one) for one in layouts(model, per_node, gpus=4, global_batch=8, precision="fp16")]
    machines = {2: "2n2g", 4: "1n4g", 8: "1n4g"}[per_node]
    sizes = {"4x1x1": (1, 2), "2x1x2": (1, 2), "2x2x1": (1, 2, 4), "1x2x2": (1, 2, 4)}
    wanted = [f"{mesh}{ac}_mb{size}" for mesh in sizes for size in sizes[mesh] for ac in ("", "_ac")]
    assert sorted(every) == sorted(f"gpt2/nl2_fp16_{one}_gb8_{machines}" for one in wanted)


def test_gpus_that_do_not_divide_the_batch_are_not_data_parallel() -> None:
    model = transformer("gpt2", 4, 256, 4)
    every = {one.mesh for one in layouts(model, 8, gpus=4, global_batch=6, precision="fp16")}
    assert every == {"2x2x1", "2x1x2", "1x4x1", "1x2x2", "1x1x4"}


def test_where_nothing_fits_the_layout_that_needs_the_least_is_named() -> None:
    model = transformer("gpt2", 8, 4096, 32)
    every = list(layouts(model, 8, gpus=8, global_batch=32, precision="fp16"))
    smallest = min(every, key=lambda one: rank_memory(model, one).occupied)
    assert smallest not in (every[0], every[-1])
    needs = show_size(rank_memory(model, smallest).occupied)
    with pytest.raises(NothingFits, match=rf"the smallest, {smallest}, needs {needs} and some room"):
        plan(model, replace(LIBAI, memory=GIB), gpus=8, global_batch=32, precision="fp16")


def test_of_layouts_that_need_equally_much_the_simpler_is_named() -> None:
    model = transformer("gpt2", 8, 4096, 32, sequence=8)  # gradients take more than all activations
    with pytest.raises(NothingFits, match="the smallest, gpt2/nl8_fp16_1x1x1_mb1_gb1_1n1g, needs"):
        plan(model, replace(LIBAI, memory=GIB), gpus=1, global_batch=1, precision="fp16")


@given(st.integers(1, 5000))
@example(1)
@example(2)
@example(12)
@example(36)
def test_divisors(number: int) -> None:
    assert divisors(number) == [one for one in range(1, number + 1) if number % one == 0]
