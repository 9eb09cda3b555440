"""Tensor parallelism by DTensor: how each layer of a single-device model is split, applied from outside.

Weights of attention and of the feed-forward layer are split by columns, then by rows, so that a layer needs one
reduction forward and one backward; the embedding and the head are split over the vocabulary. With sequence parallelism
what lies between them, norms and residual stream, is split over the tokens of the sequence as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.benchmarks.parallel._stage import TIED, Stage

if TYPE_CHECKING:
    from torch import Tensor

_NORMS = ("attention_norm", "feed_forward_norm")


def split_stage(stage: Stage, mesh: Any, *, sequence: bool) -> None:
    """Split the stage's layers over the ranks of a one-dimensional mesh."""
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import PrepareModuleOutput, RowwiseParallel, parallelize_module

    for block in stage.model.blocks:
        parallelize_module(block, mesh, _block_plan(sequence))
    plan: dict[str, Any] = {}
    if getattr(stage.model, TIED) is not None:
        plan[TIED] = RowwiseParallel(input_layouts=Replicate())  # an embedding's rows are its vocabulary
    if stage.last:
        last_norm = "final_norm" if hasattr(stage.model, "final_norm") else "head_norm"
        # The product with the split embedding wants an input that knows the mesh.
        plan[last_norm] = PrepareModuleOutput(
            output_layouts=Replicate(), desired_output_layouts=Replicate(), use_local_output=False
        )
        _split_bias(stage.model, mesh)
        whole = stage.score
        stage.score = lambda *arguments: _local(whole(*arguments))
    parallelize_module(stage.model, mesh, plan)
    if sequence:
        stage.enter = lambda x: _redistributed(x, mesh, joined_before=True)
        stage.leave = lambda x: _redistributed(x, mesh, joined_before=False)


def _block_plan(sequence: bool) -> dict[str, Any]:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
    )

    between = Shard(1) if sequence else Replicate()
    plan: dict[str, Any] = {
        "attention.qkv": ColwiseParallel(),
        "attention.output": RowwiseParallel(output_layouts=between),
        "feed_forward.expand": ColwiseParallel(),
        "feed_forward.contract": RowwiseParallel(output_layouts=between),
    }
    if sequence:
        joined = PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate(), use_local_output=False)
        plan |= {"attention": joined, "feed_forward": joined}
        plan |= {name: SequenceParallel(use_local_output=True) for name in _NORMS}
    return plan


def _split_bias(model: Any, mesh: Any) -> None:
    from torch import nn
    from torch.distributed.tensor import Shard, distribute_tensor

    bias = getattr(model, "head_bias", None)
    if bias is not None:
        model.head_bias = nn.Parameter(distribute_tensor(bias.detach(), mesh, [Shard(0)]))


def _redistributed(x: Tensor, mesh: Any, *, joined_before: bool) -> Tensor:
    """Split the sequence over the mesh, or join it; the gradient goes the other way."""
    from torch.distributed.tensor import DTensor, Replicate, Shard

    before, after = (Replicate(), Shard(1)) if joined_before else (Shard(1), Replicate())
    return DTensor.from_local(x, mesh, [before], run_check=False).redistribute(mesh, [after]).to_local()


def _local(loss: Tensor) -> Tensor:
    from torch.distributed.tensor import DTensor

    return loss.to_local() if isinstance(loss, DTensor) else loss
