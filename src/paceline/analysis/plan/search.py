"""Finds the layouts of a model on a number of GPUs that fit their memory, fastest first by prediction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from paceline.analysis.plan.timing import Cluster, RankMemory, StepTime, rank_memory, step_time
from paceline.core.errors import InputError, PacelineError
from paceline.core.layout import Layout, LayoutPrecision
from paceline.core.quantity import show_size
from paceline.core.transformer import Transformer


class NothingFits(PacelineError):
    """No layout of these GPUs can hold the model."""


@dataclass(frozen=True)
class Candidate:
    """A layout with what is predicted of it."""

    layout: Layout
    time: StepTime
    memory: RankMemory
    tokens_per_sample: int
    mfu: float | None  # a part of one; None where the peak of the device is not known

    @property
    def samples_per_s(self) -> float:
        """Of all GPUs together."""
        return self.layout.global_batch / self.time.total

    @property
    def tokens_per_s(self) -> float:
        """Of all GPUs together."""
        return self.samples_per_s * self.tokens_per_sample


@dataclass(frozen=True)
class LayoutPlan:
    """The layouts that fit: of each mesh the best, the fastest first."""

    model: Transformer
    cluster: Cluster
    candidates: tuple[Candidate, ...]
    considered: int
    too_large: int  # of those that were considered

    @property
    def best(self) -> Candidate:
        return self.candidates[0]


def plan(
    model: Transformer, cluster: Cluster, *, gpus: int, global_batch: int, precision: LayoutPrecision = "bf16"
) -> LayoutPlan:
    """Rank every layout that fits; raise `NothingFits` where none does."""
    best: dict[str, Candidate] = {}
    considered = too_large = 0
    smallest: tuple[RankMemory, Layout] | None = None
    for layout in layouts(model, cluster.gpus_per_node, gpus=gpus, global_batch=global_batch, precision=precision):
        considered += 1
        memory = rank_memory(model, layout)
        if smallest is None or memory.occupied < smallest[0].occupied:
            smallest = memory, layout
        if not memory.fits(cluster.memory):
            too_large += 1
            continue
        one = candidate(model, layout, cluster, memory)
        if layout.mesh not in best or _order(one) < _order(best[layout.mesh]):
            best[layout.mesh] = one
    if smallest is None:
        message = (
            f"no layout of {gpus} GPUs divides {model.heads} heads, {model.layers} layers and a batch of "
            f"{global_batch}: d x m x p must be the number of GPUs, m must divide the heads, p is at most the layers, "
            "and d must divide the batch into at least p micro-batches; choose another number of GPUs or --global-batch"
        )
        raise InputError("no-layout", message, key="--gpus", value=gpus)
    if not best:
        memory, layout = smallest
        raise NothingFits(
            f"no layout of {gpus} GPUs fits {show_size(cluster.memory)} each: the smallest, {layout}, needs "
            f"{show_size(memory.occupied)} and some room; use more GPUs, or GPUs with more memory"
        )
    ranked = tuple(sorted(best.values(), key=_order))
    return LayoutPlan(model=model, cluster=cluster, candidates=ranked, considered=considered, too_large=too_large)


def candidate(model: Transformer, layout: Layout, cluster: Cluster, memory: RankMemory | None = None) -> Candidate:
    """What is predicted of one layout, whether it fits or not."""
    time = step_time(model, layout, cluster)
    done = model.step_flops(layout.global_batch) / time.total / layout.world_size
    return Candidate(
        layout=layout,
        time=time,
        memory=memory or rank_memory(model, layout),
        tokens_per_sample=model.sequence,
        mfu=done / cluster.peak if cluster.peak else None,
    )


def layouts(
    model: Transformer, gpus_per_node: int, *, gpus: int, global_batch: int, precision: LayoutPrecision
) -> Iterator[Layout]:
    """Every layout whose numbers agree: d x m x p GPUs, whole heads on a rank, whole micro-batches in a batch."""
    if gpus % min(gpus, gpus_per_node):
        message = (
            f"{gpus} GPUs are not a whole number of nodes with {gpus_per_node} each: choose a multiple of "
            f"{gpus_per_node}, or give the GPUs of a node with --gpus-per-node"
        )
        raise InputError("partial-node", message, key="--gpus", value=gpus)
    for tensor in divisors(gpus):
        if model.heads % tensor:
            continue
        for pipeline in divisors(gpus // tensor):
            data = gpus // tensor // pipeline
            if pipeline > model.layers or global_batch % data:
                continue
            samples = global_batch // data
            # 1F1B begins with a micro-batch for each stage.
            for micro_batch in (size for size in divisors(samples) if samples // size >= pipeline):
                for checkpointing in (False, True):
                    yield Layout(
                        model=model.family,
                        layers=model.layers,
                        precision=precision,
                        data=data,
                        tensor=tensor,
                        pipeline=pipeline,
                        checkpointing=checkpointing,
                        micro_batch=micro_batch,
                        global_batch=global_batch,
                        nodes=max(1, gpus // gpus_per_node),
                        gpus=min(gpus, gpus_per_node),
                    )


def divisors(number: int) -> list[int]:
    """All of them, ascending."""
    small = [divisor for divisor in range(1, int(number**0.5) + 1) if number % divisor == 0]
    return small + [number // divisor for divisor in reversed(small) if divisor * divisor != number]


def _order(one: Candidate) -> tuple[float, float]:
    return -one.samples_per_s, one.memory.peak


PARTS = {
    "recompute": "computing activations again",
    "tensor": "sums over tensor-parallel ranks",
    "pipeline": "handing activations to the next stage",
    "bubble": "waiting for other pipeline stages",
    "data": "sums of gradients over data-parallel ranks",
    "optimizer": "the optimizer",
}
WORTH_MENTIONING = 0.02  # of a step


def reasons(plan: LayoutPlan) -> list[str]:
    """Sentences: where its time goes, why it checkpoints or not, and what the next one loses by."""
    time = plan.best.time
    lost = sorted(((time.share(getattr(time, name)), name) for name in PARTS), reverse=True)
    parts = [f"{_percent(share)} goes to {PARTS[name]}" for share, name in lost if share >= WORTH_MENTIONING]
    rest = "; ".join(parts) or "nothing else takes more than 2 %"
    spent = f"{plan.best.layout.mesh} computes for {_percent(time.share(time.compute))} of a step: {rest}."
    return [spent, _checkpointing(plan), *_next(plan)]


def _checkpointing(plan: LayoutPlan) -> str:
    best, memory = plan.best, plan.cluster.memory
    needs = f"It needs {show_size(best.memory.occupied)} of {show_size(memory)} on the fullest rank"
    if not best.layout.checkpointing:
        return f"{needs}, so that nothing has to be computed again."
    needed = rank_memory(plan.model, best.layout.model_copy(update={"checkpointing": False}))
    if needed.fits(memory):
        return f"{needs}."
    return f"{needs}; without checkpointing the same micro-batch would need {show_size(needed.occupied)}."


def _next(plan: LayoutPlan) -> list[str]:
    if plan.best.layout.world_size == 1:
        return []
    if len(plan.candidates) < 2:
        return ["No other mesh of these GPUs fits."]
    best, other = plan.candidates[:2]
    behind = 1 - other.samples_per_s / best.samples_per_s
    text = f"{other.layout.mesh}, the next, is {_percent(behind)} slower"
    if behind < WORTH_MENTIONING:
        return [f"{text}: too little to choose by prediction, so measure both."]
    # What the other spends the most on beyond the best one, unless that is plain compute.
    growth = {name: getattr(other.time, name) - getattr(best.time, name) for name in PARTS}
    name = max(growth, key=lambda part: growth[part])
    if growth[name] <= max(0.0, other.time.compute - best.time.compute):
        return [f"{text}."]
    return [f"{text}: {_percent(other.time.share(getattr(other.time, name)))} of its step goes to {PARTS[name]}."]


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.095 else f"{100 * share:.1f} %"
