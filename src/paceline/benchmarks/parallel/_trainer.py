"""Builds the stages of one rank on the mesh and trains them: one step is a whole batch, over all ranks.

Ranks of context parallelism have a part of every sample's tokens each, and gather keys and values. Experts lie on
different ranks, or each rank has a part of the width of every expert.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import loss_parallel

from paceline.benchmarks._model import session as formats
from paceline.benchmarks._model.checks import Gradients
from paceline.benchmarks.parallel._optimizer import LossScale, Masters, MeshOptimizer
from paceline.benchmarks.parallel._parameters import (
    LEARNING_RATE,
    ParallelParameters,
    ScheduleKind,
    build,
    draw,
    stages_of_rank,
)
from paceline.benchmarks.parallel._stage import TIED, Mesh, Recomputed, Stage
from paceline.core.errors import Unsupported
from paceline.devices import Device
from paceline.devices.timeline import monotonic
from paceline.models._modules.decoder import GroupedQueryAttention, Rotary, attend
from paceline.models._modules.experts import Experts, MixtureOfExperts, Permuted
from paceline.models.base import Batch, low_dtype, seed_everything


def local_tokens(tokens: int, ranks: int, rank: int) -> Tensor:
    """Which tokens of a sample a rank has.

    They are cut into twice as many chunks as there are ranks, and a rank has one from each end: a causal mask leaves a
    late token more work than an early one, and so all ranks have the same.
    """
    chunks = torch.arange(tokens).view(2 * ranks, -1)
    return torch.cat((chunks[rank], chunks[2 * ranks - 1 - rank]))


def split_context(stage: Stage, mesh: Any, tokens: int) -> None:
    """Let the stage's layers attend over all tokens, of which each rank of the mesh has those of `local_tokens`."""
    mine = local_tokens(tokens, mesh.size(), mesh.get_local_rank())
    turned: set[Rotary] = set()
    for module in stage.modules():
        if isinstance(module, GroupedQueryAttention):
            module.attend = _GatheredAttention(mesh)
            if module.rotary not in turned:  # layers share one
                module.rotary.table = module.rotary.table[:, mine.to(module.rotary.table.device)]
                turned.add(module.rotary)


class _GatheredAttention:
    """Causal attention of this rank's two chunks of queries over the keys up to each."""

    def __init__(self, mesh: Any) -> None:
        self._mesh = mesh
        self._rank, self._ranks = mesh.get_local_rank(), mesh.size()

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, *, causal: bool) -> Tensor:
        assert causal
        chunk = query.shape[2] // 2
        keys, values = self._gathered(key), self._gathered(value)
        parts = []
        for part, place in zip(query.chunk(2, 2), (self._rank, 2 * self._ranks - 1 - self._rank), strict=True):
            end = (place + 1) * chunk
            # The last token of the chunk sees every key before its end, those before it one less each.
            mask = torch.ones(chunk, end, dtype=torch.bool, device=query.device).tril(end - chunk)
            parts.append(attend(part, keys[:, :, :end], values[:, :, :end], mask=mask))
        return torch.cat(parts, 2)

    def _gathered(self, x: Tensor) -> Tensor:
        """Of all ranks, in the order of the tokens; gradients are summed where they belong."""
        spread = DTensor.from_local(x, self._mesh, [Shard(2)], run_check=False)
        whole = spread.redistribute(self._mesh, [Replicate()]).to_local(grad_placements=[Partial()])
        early, late = torch.unflatten(whole, 2, (self._ranks, 2, -1)).unbind(3)
        return torch.cat((early.flatten(2, 3), late.flip(2).flatten(2, 3)), 2)


def mixtures(module: nn.Module) -> Iterator[MixtureOfExperts]:
    """All that a module has."""
    return (layer for layer in module.modules() if isinstance(layer, MixtureOfExperts))


def split_experts(stage: Stage, mesh: Any) -> None:
    """Leave each rank of the mesh its share of the experts, and send it their tokens from all ranks."""
    rank, ranks = mesh.get_local_rank(), mesh.size()
    for layer in mixtures(stage):
        for name, weight in list(layer.experts.named_parameters()):
            setattr(layer.experts, name, nn.Parameter(weight.detach().chunk(ranks)[rank].clone()))
        layer.exchange = _Exchange(mesh.get_group(), ranks)


class ScaledGradient(torch.autograd.Function):
    """x as it is, with its gradient multiplied."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None


class _Exchange:
    """Sends every row to the rank of its expert, and brings back what the expert made of it."""

    def __init__(self, group: Any, ranks: int) -> None:
        self._group, self._ranks = group, ranks

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, experts: Callable[..., Tensor], rows: Tensor, counts: Tensor) -> Tensor:
        """Rows sorted by expert, so many for each of all experts."""
        by_rank = counts.view(self._ranks, -1)
        theirs = torch.empty_like(by_rank)  # how many rows each rank has for each expert here
        distributed.all_to_all_single(theirs, by_rank, group=self._group)
        sent, received = by_rank.sum(1).tolist(), theirs.sum(1).tolist()
        arrived = self._all_to_all(rows, received, sent)
        here = torch.arange(theirs.shape[1], device=rows.device).repeat(self._ranks)
        order = here.repeat_interleave(theirs.flatten()).argsort(stable=True)
        inverse = order.argsort()
        # Gradients of these weights are sums over all ranks that sent rows, but those of a mesh are means over them.
        sorted_rows = ScaledGradient.apply(Permuted.apply(arrived, order, inverse), self._ranks)  # type: ignore[no-untyped-call]
        made = ScaledGradient.apply(experts(sorted_rows, theirs.sum(0)), 1 / self._ranks)  # type: ignore[no-untyped-call]
        return self._all_to_all(Permuted.apply(made, inverse, order), sent, received)  # type: ignore[no-untyped-call]

    def _all_to_all(self, rows: Tensor, received: list[int], sent: list[int]) -> Tensor:
        return all_to_all_single_autograd(rows.contiguous(), received, sent, self._group)


def split_widths(layer: MixtureOfExperts, mesh: Any) -> None:
    """Leave each rank of the mesh a part of the width of every expert, and sum what the parts make."""

    def spread(experts: Experts, name: str, axis: int) -> None:
        setattr(experts, name, nn.Parameter(distribute_tensor(getattr(experts, name).detach(), mesh, [Shard(axis)])))

    def whole_gradient(x: Tensor) -> Tensor:
        return DTensor.from_local(x, mesh, [Replicate()], run_check=False).to_local(grad_placements=[Partial()])

    def mix(x: Tensor, probabilities: Tensor, chosen: Tensor) -> Tensor:
        part = layer.mixed(whole_gradient(x), whole_gradient(probabilities), chosen)
        return DTensor.from_local(part, mesh, [Partial()], run_check=False).redistribute(mesh, [Replicate()]).to_local()

    spread(layer.experts, "expand_weights", 1)
    spread(layer.experts, "contract_weights", 2)
    layer.mix = mix


class Stopwatch:
    """While it runs, adds up the time of what is entered: by device events on a GPU, otherwise by the host's clock."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._is_running = False
        self._spans: dict[str, list[tuple[Any, Any]]] = {}

    def start(self) -> None:
        """Clear the earlier times, and begin."""
        self._spans = {}
        self._is_running = True

    def stop(self) -> dict[str, float]:
        """Seconds by name."""
        self._is_running = False
        self._device.synchronize()
        return {name: sum(self._seconds(*span) for span in spans) for name, spans in self._spans.items()}

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Count what happens inside, if the watch runs."""
        if not self._is_running:
            yield
            return
        begun = self._now()
        yield
        self._spans.setdefault(name, []).append((begun, self._now()))

    def _now(self) -> Any:
        if not self._device.kind.is_accelerator:
            return monotonic()
        event = self._device.event()
        event.record()
        return event

    def _seconds(self, begun: Any, ended: Any) -> float:
        return float(begun.elapsed_time(ended) * 1e-3 if self._device.kind.is_accelerator else ended - begun)


class Pipeline:
    """All micro-batches of a step through all stages, in the order of a schedule."""

    def __init__(
        self,
        stages: dict[int, Stage],
        kind: ScheduleKind,
        *,
        ranks: int,
        micro_batches: int,
        group: Any,
        device: Device,
        scaled: Callable[[Tensor], Tensor],
    ) -> None:
        self.watch = Stopwatch(device)
        watched = []
        for index, stage in stages.items():
            one = PipelineStage(stage, index, ranks * kind.stages_per_rank, device.torch(), group=group)
            # Receiving from its neighbours is not part of what a stage computes.
            for name in ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk"):
                setattr(one, name, self.watch.span("busy")(getattr(one, name)))
            watched.append(one)
        schedule = get_schedule_class(kind.torch_name)
        self._schedule: Any = schedule(
            watched if issubclass(schedule, PipelineScheduleMulti) else watched[0],
            n_microbatches=micro_batches,
            loss_fn=lambda loss, _labels: scaled(loss),
            scale_grads=False,  # the loss is divided by the number of micro-batches already, which costs nothing
        )
        self._first = any(stage.first for stage in stages.values())

    def run(self, inputs: tuple[Tensor, ...], head: dict[str, Tensor]) -> list[Tensor]:
        """Forward and backward of a whole batch, forward alone where there are no gradients; the scaled losses of its
        micro-batches where the last stage is."""
        losses: list[Tensor] = []
        entry = inputs if self._first else ()
        run = self._schedule.step if torch.is_grad_enabled() else self._schedule.eval
        with self.watch.span("schedule"):
            run(*entry, target=head["labels"], losses=losses, return_outputs=False, **head)
        return losses


def split_stage(stage: Stage, mesh: Any, experts_mesh: Any, *, sequence: bool) -> None:
    """Split the stage's layers over the ranks of a one-dimensional mesh; that of experts has the same ranks."""
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        PrepareModuleOutput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    def redistributed(x: Tensor, before: Any, after: Any) -> Tensor:
        """Split the sequence over the mesh, or join it; the gradient goes the other way."""
        return DTensor.from_local(x, mesh, [before], run_check=False).redistribute(mesh, [after]).to_local()

    for block in stage.model.blocks:  # a plan keeps state, so that each block has its own
        between = Shard(1) if sequence else Replicate()
        block_plan: dict[str, Any] = {
            "attention.qkv": ColwiseParallel(),
            "attention.output": RowwiseParallel(output_layouts=between),
            "feed_forward.expand": ColwiseParallel(),
            "feed_forward.contract": RowwiseParallel(output_layouts=between),
        }
        if isinstance(block.feed_forward, MixtureOfExperts):
            split_widths(block.feed_forward, experts_mesh)
            block_plan = {name: style for name, style in block_plan.items() if name.startswith("attention")}
        if sequence:
            whole = PrepareModuleInput(
                input_layouts=Shard(1), desired_input_layouts=Replicate(), use_local_output=False
            )
            block_plan |= {"attention": whole, "feed_forward": whole}
            if isinstance(block.feed_forward, MixtureOfExperts):
                block_plan["feed_forward"] = PrepareModuleInput(
                    input_layouts=Shard(1), desired_input_layouts=Replicate(), use_local_output=True
                )
                back = PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Shard(1))
                parallelize_module(block, mesh, {"feed_forward": back})
            for name in ("attention_norm", "feed_forward_norm"):
                block_plan[name] = SequenceParallel(use_local_output=True)
        parallelize_module(block, mesh, block_plan)
    plan: dict[str, Any] = {}
    if getattr(stage.model, TIED) is not None:
        plan[TIED] = RowwiseParallel(input_layouts=Replicate())  # an embedding's rows are its vocabulary
    if stage.last:
        last_norm = "final_norm" if hasattr(stage.model, "final_norm") else "head_norm"
        # The product with the split embedding needs an input that carries the mesh.
        plan[last_norm] = PrepareModuleOutput(
            output_layouts=Replicate(), desired_output_layouts=Replicate(), use_local_output=False
        )
        bias = getattr(stage.model, "head_bias", None)
        if getattr(stage.model, "lm_head", None) is not None:
            plan["lm_head"] = ColwiseParallel()
        if bias is not None:
            stage.model.head_bias = nn.Parameter(distribute_tensor(bias.detach(), mesh, [Shard(0)]))
        score = stage.score

        def local_score(*arguments: Any) -> Tensor:
            loss = score(*arguments)
            return loss.to_local() if isinstance(loss, DTensor) else loss

        stage.score = local_score
    parallelize_module(stage.model, mesh, plan)
    if sequence:
        stage.enter = lambda x: redistributed(x, Replicate(), Shard(1))
        stage.leave = lambda x: redistributed(x, Shard(1), Replicate())


EMBEDDED = {
    "gpt2": 1,
    "bert": 2,
    "llama": 1,
    "mixtral": 1,
}  # of a batch's inputs, how many enter the embedding; the others go to the head


class ParallelTrainer:
    """This rank's part of the training."""

    def __init__(
        self, parameters: ParallelParameters, device: Device, mesh: Mesh, *, compiled: bool, capturable: bool = False
    ) -> None:
        self.parameters = parameters
        self.device = device
        self.mesh = mesh
        layout = parameters.layout
        self.layers = list(parameters.transformer.stage_layers(parameters.stages, layout.tensor))
        self.parameter_count = 0
        self.fp8_layers = 0
        self._batch: Batch | None = None
        mine = stages_of_rank(parameters.schedule_kind, layout.pipeline, mesh.pipeline_rank)
        self.stages = {index: self._stage(index, compiled=compiled) for index in mine}
        self.scale = LossScale(device.torch(), dynamic=layout.precision == "fp16")
        rate = LEARNING_RATE[layout.model]
        self.masters: Masters | None = None
        low = low_dtype(layout.precision)
        # Several micro-batches add up in fp32, and ranks reduce in it: that is for gradients of fp32 weights.
        if compiled and low is not None and not self.fp8_layers and layout.world_size == layout.micro_batches == 1:
            (stage,) = self.stages.values()
            self.masters = Masters(stage.model.blocks, low, rate, capturable=capturable)
        self.optimizer = MeshOptimizer(
            self.stages, parameters.stages, mesh, rate, self.scale, masters=self.masters, capturable=capturable
        )
        self.pipeline: Pipeline | None = None
        if layout.pipeline > 1:
            self.pipeline = Pipeline(
                self.stages,
                parameters.schedule_kind,
                ranks=layout.pipeline,
                micro_batches=layout.micro_batches,
                group=mesh.device_mesh["pipeline"].get_group(),
                device=device,
                scaled=self.scaled,
            )
        self.norm: Tensor | None = None  # of the last step's gradient

    @property
    def loss_scale(self) -> float:
        """What the loss is multiplied by."""
        return float(self.scale.value)

    def memory(self) -> dict[str, int]:
        """Bytes of this rank's parameters, of their gradients after a step, and of the optimizer's state."""
        return self.optimizer.memory()

    def scaled(self, loss: Tensor) -> Tensor:
        """What the backward pass of a micro-batch begins with: its share of the loss of this rank's batch."""
        return loss * (self.scale.value * (1.0 / self.parameters.layout.micro_batches))

    def step(self) -> Tensor | None:
        """One step; this data-parallel rank's loss, still on the device, where the last stage is."""
        scale = self.scale.value.clone()
        if self.parameters.mode == "inference":
            with torch.no_grad():
                losses = self._forward_and_backward()
            return _unscaled(losses, scale) if losses else None
        losses = self._forward_and_backward()
        self.norm = self.optimizer.step()
        return _unscaled(losses, scale) if losses else None

    def gradients(self) -> Gradients:
        """What the weights as they are give, on one rank; no step is taken."""
        (stage,) = self.stages.values()
        try:
            loss = _unscaled(self._forward_and_backward(), self.scale.value)
            return Gradients.of(loss, stage.named_parameters(), float(self.scale.value))
        finally:
            self.optimizer.zero()

    def _forward_and_backward(self) -> list[Tensor]:
        """The scaled losses of all micro-batches, where the last stage is; without gradients forward alone."""
        assert self._batch is not None  # drawn when the first stage is built
        layout = self.parameters.layout
        self.optimizer.zero()
        # What enters the first stage, and what the last one needs as well.
        entering = EMBEDDED[layout.model]
        entry, head = self._batch.inputs[:entering], {"labels": self._batch.targets[0]}
        if len(self._batch.inputs) > entering:
            head["positions"] = self._batch.inputs[entering]
        # Where logits are split over the vocabulary, the loss is computed without joining them.
        with loss_parallel() if layout.tensor > 1 else nullcontext():
            if self.pipeline is not None:
                return self.pipeline.run(entry, head)
            (stage,) = self.stages.values()
            losses = []
            for number in range(layout.micro_batches):
                rows = slice(number * layout.micro_batch, (number + 1) * layout.micro_batch)
                if layout.data * layout.context > 1:
                    stage.set_requires_gradient_sync(number == layout.micro_batches - 1)  # type: ignore[operator]
                inputs, labels = (one[rows] for one in entry), {name: one[rows] for name, one in head.items()}
                loss = self.scaled(stage(*inputs, **labels))
                if torch.is_grad_enabled():
                    loss.backward()  # type: ignore[no-untyped-call]
                losses.append(loss)
            return losses

    def _stage(self, index: int, *, compiled: bool) -> Stage:
        """Every rank builds the whole model from the seed and keeps its part, so that all layouts start alike."""
        parameters, layout = self.parameters, self.parameters.layout
        seed_everything(parameters.seed)
        with torch.device(self.device.torch()):
            workload = build(parameters)
        workload.module.train()
        self.parameter_count = sum(one.numel() for one in workload.module.parameters())
        if self._batch is None:
            batch = draw(parameters, workload, self.mesh.data_rank)
            if layout.context > 1:
                mine = local_tokens(parameters.tokens, layout.context, self.mesh.context_rank)
                batch = Batch(tuple(one[:, mine] for one in batch.inputs), tuple(one[:, mine] for one in batch.targets))
            self._batch = batch.to(self.device.torch())
        start = sum(self.layers[:index])
        stage = Stage(
            workload,
            range(start, start + self.layers[index]),
            first=index == 0,
            last=index == parameters.stages - 1,
            autocast=partial(formats.autocast, layout.precision, self.device),
            wire=low_dtype(layout.precision),
        )
        if layout.precision == "fp8":
            self.fp8_layers += formats.convert_to_fp8(
                stage.model.blocks,
                "fp8",
                recipe=parameters.fp8_recipe,
                least_size=parameters.fp8_least,
                emulate=not self.device.kind.is_accelerator,
            )
        if layout.context > 1:
            split_context(stage, self.mesh.fine_mesh["context"], parameters.tokens)
        if layout.expert > 1:
            split_experts(stage, self.mesh.fine_mesh["expert"])
        if layout.tensor > 1:
            of_experts = self.mesh.expert_mesh or self.mesh.device_mesh
            split_stage(
                stage,
                self.mesh.device_mesh["tensor"],
                of_experts["tensor"],
                sequence=parameters.sequence_parallel,
            )
        if layout.checkpointing:
            stage.recompute_layers(whole=layout.tensor == 1)
        if compiled:
            _compile_parts(stage, whole=layout.tensor == 1)
        if layout.data * layout.context > 1:
            _share_data(stage, self.mesh, parameters)
        return stage


def _unscaled(losses: list[Tensor], scale: Tensor) -> Tensor:
    """The loss of the whole batch: each of its micro-batches came with its share of it."""
    return torch.stack([loss.detach() for loss in losses]).sum() / scale


def _compile_parts(stage: Stage, *, whole: bool) -> None:
    """Compile each layer by itself: one small graph serves them all.

    Not whole, for layers split over ranks, is without embedding and loss, and with the recomputing left outside.
    """
    if whole:
        stage.defer_sums()
    for block in stage.model.blocks:
        layer = block.layer if isinstance(block, Recomputed) and not whole else block
        layer.compile()
    if stage.first and whole:
        stage.embed = torch.compile(stage.embed)
    if stage.last and whole:
        from torch._inductor import config

        # A row of logits stays in the cache for a second pass, which takes fewer instructions than a single one.
        two_passes: dict[str, Any] | None = {"online_softmax": False} if hasattr(config, "online_softmax") else None
        stage.score = torch.compile(stage.score, options=two_passes)


def _share_data(stage: Stage, mesh: Mesh, parameters: ParallelParameters) -> None:
    """Average gradients over the data-parallel ranks; weights are whole everywhere, or in parts."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    low = low_dtype(parameters.layout.precision)
    policy = MixedPrecisionPolicy() if low is None else MixedPrecisionPolicy(low, torch.float32)
    if parameters.shard == "fsdp":
        # A pipeline runs many micro-batches through a stage: gathering its weights again for each would cost more.
        again = parameters.layout.pipeline == 1
        apply: Any = partial(fully_shard, mp_policy=policy, reshard_after_forward=again)
    else:
        apply = partial(_find_replicate(), mp_policy=policy)
    if mesh.expert_mesh is not None:
        for layer in mixtures(stage):
            apply(layer.experts, mesh=mesh.expert_mesh["data"])
    for block in stage.model.blocks:
        apply(block, mesh=mesh.device_mesh["data"])
    apply(stage, mesh=mesh.device_mesh["data"])


def _find_replicate() -> Any:
    """The replication that knows tensor-parallel and pipelined modules, as DistributedDataParallel does not."""
    with suppress(ImportError):
        from torch.distributed._composable.replicate_with_fsdp import replicate

        if "mesh" in inspect.signature(replicate).parameters:
            return replicate
    raise Unsupported(f"torch {torch.__version__} has no replication that goes with a mesh; use --shard fsdp")
