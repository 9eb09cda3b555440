"""What is proposed: it fits, its numbers agree, it is the fastest that is predicted, and the words say why."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from paceline.analysis.plan.calibrate import LIBAI
from paceline.analysis.plan.memory import USABLE, rank_memory, stage_memory
from paceline.analysis.plan.search import NothingFits, candidate, divisors, layouts, plan, reasons
from paceline.analysis.plan.transformer import transformer
from paceline.core.errors import InputError
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


@given(st.integers(1, 5000))
def test_divisors(number: int) -> None:
    assert divisors(number) == [one for one in range(1, number + 1) if number % one == 0]
