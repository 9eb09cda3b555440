"""Ranks of a mesh train what one rank trains, and each holds its part."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, distributed
from torch.distributed.tensor import DTensor

from paceline.benchmarks.parallel import _trainer
from paceline.benchmarks.parallel._optimizer import BETAS, EPSILON, WEIGHT_DECAY, byte_count
from paceline.benchmarks.parallel._parameters import LEARNING_RATE, ParallelParameters, build
from paceline.benchmarks.parallel._stage import Mesh
from paceline.benchmarks.parallel._trainer import ParallelTrainer
from paceline.core.errors import Unsupported
from paceline.core.layout import Layout
from paceline.devices.cpu import CpuDevice
from support.layouts import TINY
from support.threaded_ranks import as_ranks, share_the_process


@pytest.fixture(autouse=True)
def _one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    share_the_process(monkeypatch)


def chosen_of(**parameters: Any) -> ParallelParameters:
    return ParallelParameters(**TINY | parameters)


def trainer_of(chosen: ParallelParameters, rank: int) -> ParallelTrainer:
    return ParallelTrainer(chosen, CpuDevice(), Mesh.of(chosen.layout, rank, "cpu"), compiled=False)


def layout_of(data: int, tensor: int, pipeline: int) -> Layout:
    return ParallelParameters(data=data, tensor=tensor, pipeline=pipeline).layout


# ---- the mesh


def test_tensor_ranks_are_neighbours_and_pipeline_ranks_are_far_apart() -> None:
    layout = layout_of(data=3, tensor=2, pipeline=2)
    ranks = [Mesh(layout, rank) for rank in range(12)]
    assert [one.data_rank for one in ranks] == [0, 0, 1, 1, 2, 2] * 2
    assert [one.pipeline_rank for one in ranks] == [0] * 6 + [1] * 6


def test_one_rank_alone_has_no_groups() -> None:
    mesh = Mesh.of(layout_of(1, 1, 1), 0, "cpu")
    assert (mesh.rank, mesh.device_mesh, mesh.ends) == (0, None, None)


def seen_of(layout: Layout) -> list[tuple[dict[str, list[int]], list[int] | None]]:
    """The neighbours of each rank along each axis, and the ranks that its ends are."""

    def seen(rank: int) -> tuple[dict[str, list[int]], list[int] | None]:
        mesh = Mesh.of(layout, rank, "cpu")
        assert mesh.rank == rank
        along = {axis: mesh.device_mesh[axis].mesh.tolist() for axis in ("pipeline", "data", "tensor")}
        return along, None if mesh.ends is None else distributed.get_process_group_ranks(mesh.ends)

    return as_ranks(layout.world_size, seen)


def test_every_rank_has_its_neighbours_along_each_axis_and_the_two_ends_of_its_pipeline() -> None:
    seen = seen_of(layout_of(data=1, tensor=2, pipeline=3))
    assert [along["tensor"] for along, _ in seen] == [[0, 1], [0, 1], [2, 3], [2, 3], [4, 5], [4, 5]]
    assert [along["pipeline"] for along, _ in seen] == [[0, 2, 4], [1, 3, 5]] * 3
    assert [ends for _, ends in seen] == [[0, 4], [1, 5], None, None, [0, 4], [1, 5]]


def test_the_ends_of_every_pipeline_of_a_plane_are_joined() -> None:
    seen = seen_of(layout_of(data=2, tensor=2, pipeline=2))
    assert [along["data"] for along, _ in seen] == [[0, 2], [1, 3], [0, 2], [1, 3], [4, 6], [5, 7], [4, 6], [5, 7]]
    assert [ends for _, ends in seen] == [[0, 4], [1, 5], [2, 6], [3, 7]] * 2


def test_without_a_pipeline_there_are_no_ends() -> None:
    assert [ends for _, ends in seen_of(layout_of(data=2, tensor=1, pipeline=1))] == [None, None]


# ---- trainings


def plain(chosen: ParallelParameters, steps: int) -> tuple[list[float], list[float]]:
    """Losses and norms of the whole batch in a plain loop."""
    torch.manual_seed(chosen.seed)
    workload = build(chosen)
    model = workload.module.train()
    batch = workload.make_batch(chosen.layout.global_batch, torch.Generator().manual_seed(chosen.seed))
    groups = [
        {"params": [one for one in model.parameters() if one.dim() > 1], "weight_decay": WEIGHT_DECAY},
        {"params": [one for one in model.parameters() if one.dim() <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE[chosen.layout.model], betas=BETAS, eps=EPSILON)
    losses, norms = [], []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = workload.loss(model(*batch.inputs), batch)
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, norms


def trained(chosen: ParallelParameters, steps: int) -> tuple[list[float], list[float], list[dict[str, int]]]:
    """Losses of the whole batch, norms, and the memory of each rank."""

    def train(rank: int) -> tuple[list[float], list[float], dict[str, int]]:
        trainer = trainer_of(chosen, rank)
        losses, norms = [], []
        for _ in range(steps):
            loss = trainer.step()
            assert loss is not None
            assert trainer.norm is not None
            losses.append(float(loss))
            norms.append(float(trainer.norm))
        return losses, norms, trainer.memory()

    ranks = as_ranks(chosen.layout.world_size, train)
    for _, norms, _ in ranks:
        assert norms == ranks[0][1]  # the norm of the whole gradient, everywhere
    losses = [sum(parts) / len(parts) for parts in zip(*(losses for losses, _, _ in ranks), strict=True)]
    return losses, ranks[0][1], [memory for _, _, memory in ranks]


@pytest.mark.parametrize(
    "parameters",
    [
        {"data": 2, "micro_batch": 2},
        {"data": 2, "micro_batch": 1, "checkpointing": True},
        {"data": 2, "micro_batch": 1, "shard": "fsdp"},
        {"data": 2, "micro_batch": 2, "shard": "fsdp", "model": "bert"},
        {"tensor": 2, "micro_batch": 2},
        {"tensor": 2, "sequence_parallel": True, "checkpointing": True},
        {"tensor": 2, "model": "bert", "checkpointing": True},
        {"tensor": 2, "model": "bert", "sequence_parallel": True},
        {"data": 2, "tensor": 2, "micro_batch": 1, "sequence_parallel": True},
    ],
    ids=lambda parameters: " ".join(f"{name}={value}" for name, value in parameters.items()),
)
def test_a_mesh_trains_what_one_rank_trains(parameters: dict[str, Any]) -> None:
    chosen = chosen_of(**parameters)
    losses, norms, _ = trained(chosen, 2)
    expected_losses, expected_norms = plain(chosen, 2)
    assert losses == pytest.approx(expected_losses, abs=1e-5)
    assert norms == pytest.approx(expected_norms, rel=1e-4)
    assert max(norms) > 1.0  # so that clipping took part


@pytest.mark.parametrize("parameters", [{"data": 2}, {"data": 2, "shard": "fsdp"}, {"tensor": 2}])
def test_mixed_precision_on_a_mesh_is_close_to_fp32(parameters: dict[str, Any]) -> None:
    losses, norms, _ = trained(chosen_of(precision="bf16", micro_batch=2, **parameters), 2)
    expected_losses, expected_norms = plain(chosen_of(micro_batch=2, **parameters), 2)
    assert losses == pytest.approx(expected_losses, rel=5e-3)
    assert norms == pytest.approx(expected_norms, rel=3e-2)
    assert losses != pytest.approx(expected_losses, abs=1e-6)  # sixteen bits are seen


def test_replicated_weights_are_whole_on_each_rank_and_sharded_ones_in_parts() -> None:
    whole = byte_count(build(chosen_of()).module.parameters())
    for shard, part in (("replicate", 1), ("fsdp", 2)):
        _, _, memory = trained(chosen_of(data=2, micro_batch=2, shard=shard), 1)
        assert [one["parameter_memory"] for one in memory] == [whole // part] * 2
        assert [one["gradient_memory"] for one in memory] == [whole // part] * 2
        assert all(one["optimizer_memory"] == pytest.approx(2 * whole // part, rel=0.01) for one in memory)


def test_tensor_ranks_hold_half_of_the_matrices_and_all_of_the_norms() -> None:
    chosen = chosen_of(tensor=2)

    def held(rank: int) -> tuple[dict[str, list[int]], list[float]]:
        trainer = trainer_of(chosen, rank)
        (stage,) = trainer.stages.values()
        parts = {
            name.removeprefix("model."): list((one.to_local() if isinstance(one, DTensor) else one).shape)
            for name, one in stage.named_parameters()
        }
        return parts, trainer.optimizer._shares.tolist()

    (parts, shares), (others, _) = as_ranks(2, held)
    assert parts == others
    assert parts["token_embedding.weight"] == [128, 32]  # of 256
    assert parts["position_embedding.weight"] == [16, 32]
    assert parts["blocks.0.attention.qkv.weight"] == [48, 32]
    assert parts["blocks.1.attention.output.weight"] == [32, 16]
    assert parts["blocks.1.feed_forward.expand.bias"] == [64]
    assert parts["blocks.0.feed_forward.contract.weight"] == [32, 64]
    assert parts["final_norm.weight"] == [32]
    # What both ranks hold counts half on each.
    split = ("token_embedding.weight", "qkv.weight", "qkv.bias", "expand.weight", "expand.bias", "output.weight")
    split = (*split, "contract.weight")
    assert shares == [1.0 if name.endswith(split) else 0.5 for name in parts]


@pytest.mark.parametrize(
    ("precision", "of_weights", "of_sums"), [("fp32", None, None), ("bf16", torch.bfloat16, torch.float32)]
)
@pytest.mark.parametrize(("shard", "again"), [("fsdp", True), ("replicate", None)])
def test_weights_travel_in_16_bits_and_gradients_add_up_in_32(
    precision: str, of_weights: Any, of_sums: Any, shard: str, again: bool | None
) -> None:
    chosen = chosen_of(data=2, micro_batch=2, precision=precision, shard=shard)

    def seen(rank: int) -> list[tuple[Any, ...]]:
        (stage,) = trainer_of(chosen, rank).stages.values()
        states = [module._get_fsdp_state() for module in (stage, *stage.model.blocks)]
        return [(state._mp_policy.param_dtype, state._mp_policy.reduce_dtype, resharded(state)) for state in states]

    def resharded(state: Any) -> bool | None:
        return None if again is None else state._fsdp_param_group.post_forward_mesh_info is not None

    for rank in as_ranks(2, seen):
        assert [(one[0], one[1]) for one in rank] == [(of_weights, of_sums)] * 3
        # The root keeps its weights from the forward to the backward pass in any case.
        assert [one[2] for one in rank[1:]] == [again] * 2


def test_in_a_pipeline_weights_are_gathered_once_for_all_micro_batches() -> None:
    chosen = chosen_of(data=2, pipeline=2, micro_batch=1, shard="fsdp")

    def seen(rank: int) -> bool:
        (stage,) = trainer_of(chosen, rank).stages.values()
        return stage.model.blocks[0]._get_fsdp_state()._fsdp_param_group.post_forward_mesh_info is not None

    assert as_ranks(4, seen) == [False] * 4


# ---- the embedding that two stages share


def test_the_first_and_the_last_rank_of_a_pipeline_step_one_embedding() -> None:
    chosen = chosen_of(pipeline=3, layers=3, micro_batch=1, global_batch=6)

    def stepped(rank: int) -> tuple[Tensor | None, float, list[float]]:
        trainer = trainer_of(chosen, rank)
        assert trainer.pipeline is not None
        for parameter in trainer.optimizer.parameters:
            parameter.grad = torch.zeros_like(parameter)
        (stage,) = trainer.stages.values()
        tied = stage.model.token_embedding
        if tied is not None:
            tied.weight.grad[0, 0] = (3.0, 0.0, 1.0)[rank]
        norm = float(trainer.optimizer.step())
        return None if tied is None else tied.weight.detach(), norm, trainer.optimizer._shares.tolist()

    (first, *first_more), (middle, *_), (last, *last_more) = as_ranks(3, stepped)
    assert middle is None
    assert first is not None
    assert last is not None
    assert torch.equal(first, last)
    assert first_more[0] == last_more[0] == pytest.approx(4.0)  # the sum of both, counted once
    assert 0.0 not in first_more[1]
    assert last_more[1].count(0.0) == 1


# ---- versions of torch


@pytest.mark.parametrize("replicate", [None, lambda module: module])
def test_a_torch_without_replication_over_a_mesh_names_the_other_way(
    replicate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("replicate_with_fsdp")
    if replicate is not None:
        module.replicate = replicate  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.distributed._composable.replicate_with_fsdp", module)
    with pytest.raises(Unsupported, match="has no replication that goes with a mesh; use --shard fsdp"):
        _trainer._find_replicate()
