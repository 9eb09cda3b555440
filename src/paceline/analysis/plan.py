"""Which layout to train a model in: memory and time of each from formulas, without running any.

The memory of a rank is that at the peak of a training step, in bytes, by what it is for: for one stage of a 1F1B
pipeline with compiled layers. P are the parameters of a rank, b the samples of a micro-batch, s the tokens of a sample
(r of them scored), h the hidden size, a the heads, t the tensor-parallel ranks, V the padded vocabulary.

                       16 bits            fp32
    parameters         4 P                4 P                in fp32, which the optimizer updates
    casts              2 P                0                  the copy in 16 bits that computes
    gradients          4 P                4 P
    optimizer          8 P                8 P                two moments in fp32
    kept by a layer    s b h (8 + 24/t)   s b h (16 + 48/t)
    its scores         5 a s^2 b/t        9 a s^2 b/t        where attention is not fused
    input of a layer   2 s b h            4 s b h            all that is kept with checkpointing
    vocabulary         4 r b V/t          8 r b V/t          10 and 12 with tensor parallelism
    working            s b h (4 + 8/t)    s b h (4 + 16/t)   and 2 or 4 a s^2 b/t where attention is not fused

A layer keeps what its backward pass reads. Whole on every tensor-parallel rank are the inputs of two norms and of two
products, 2 bytes a number each. Split over the ranks are queries, keys and values (6), the output of attention (2), and
both sides of the GELU (8 each). Fused attention keeps no more. Without it, each head keeps squares of probabilities
before and after dropout (2 each) and dropout's mask (1). The vocabulary's part, on the last stage and for one
micro-batch, is the logits and their gradient (2 each); where tensor parallelism keeps the loss from being compiled,
log-probabilities and gradient are fp32 (4 each). Working memory is the gradients of one layer's activations, of the two
sides of the GELU one at a time, as the second takes the place of what the first was made from; the gradient of one
square of scores; and with checkpointing also that layer's activations, computed again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from paceline.core.errors import InputError, PacelineError
from paceline.core.layout import Layout, LayoutPrecision
from paceline.core.quantity import show_size
from paceline.core.transformer import TRAINING_FACTOR, Transformer

OUTSIDE = 1024**3  # of the GPU, for the driver's context and the buffers of the communication library
BUCKET = 25 * 1024**2  # of gradients on their way, of which two are in flight
WORKSPACE = 64 * 1024**2  # of matrix products
USABLE = 0.95  # of a GPU's memory: an allocator leaves gaps


# Bytes of one parameter, as the table above has them.
_PARAMETERS = 4
_GRADIENTS = 4
_OPTIMIZER = 8


@dataclass(frozen=True)
class RankMemory:
    """Bytes on one rank of a pipeline stage; each part at its own highest."""

    stage: int
    parameters: float
    casts: float  # of parameters, in the format that computes
    gradients: float
    optimizer: float
    activations: float  # that layers keep for the backward pass
    vocabulary: float  # logits and what the loss makes of them
    working: float  # for the backward pass of one layer, which comes after that of the vocabulary
    temporary: float  # buffers of reductions, workspace of matrix products
    single_pass: bool  # one micro-batch a step: gradients take the place of activations

    @property
    def peak(self) -> float:
        """The most that is allocated at once.

        With a single micro-batch no gradient is left from an earlier one: activations go as gradients come.
        """
        passing = self.activations + max(self.vocabulary, self.working) + self.temporary
        moving = max(passing, self.gradients) if self.single_pass else passing + self.gradients
        return self.parameters + self.casts + self.optimizer + moving

    @property
    def occupied(self) -> float:
        """The most that the GPU must hold, with what is not allocated by the training program."""
        return self.peak + OUTSIDE

    def fits(self, memory: float) -> bool:
        """Whether a GPU with so many bytes can hold it."""
        return self.occupied <= USABLE * memory


def rank_memory(model: Transformer, layout: Layout) -> RankMemory:
    """Of the rank that needs the most."""
    stages = (stage_memory(model, layout, index) for index in range(layout.pipeline))
    return max(stages, key=lambda memory: memory.peak)


def stage_memory(model: Transformer, layout: Layout, stage: int) -> RankMemory:
    """Of a rank on the pipeline stage of this index."""
    width = 4 if layout.precision == "fp32" else 2  # bytes of a number as it is computed
    parameters = stage_parameters(model, layout, stage)
    numbers = layout.micro_batch * model.sequence * model.hidden
    scores = 0.0 if model.fused_attention else layout.micro_batch * model.heads * model.sequence**2 / layout.tensor
    layer = numbers * (4 * width + 12 * width / layout.tensor) + scores * (2 * width + 1)
    of_layer = numbers * width if layout.checkpointing else layer
    layers = model.stage_layers(layout.pipeline, layout.tensor)[stage]
    working = numbers * (4 + 4 * width / layout.tensor) + scores * width
    vocabulary = 0.0
    if stage == layout.pipeline - 1:
        entries = model.padded_vocabulary(layout.tensor) / layout.tensor
        of_entry = 2 * width if layout.tensor == 1 else width + 8
        vocabulary = layout.micro_batch * model.scored * entries * of_entry
    buckets = 2 * min(BUCKET, parameters * _GRADIENTS) if layout.data > 1 else 0
    return RankMemory(
        stage=stage,
        parameters=parameters * _PARAMETERS,
        casts=parameters * (0 if layout.precision == "fp32" else width),
        gradients=parameters * _GRADIENTS,
        optimizer=parameters * _OPTIMIZER,
        activations=in_flight(layout, stage) * (layers * of_layer),
        vocabulary=vocabulary,
        working=working + (layer if layout.checkpointing else 0.0),
        temporary=WORKSPACE + buckets,
        single_pass=layout.micro_batches == 1,
    )


def in_flight(layout: Layout, stage: int) -> int:
    """How many micro-batches a stage has begun and not ended at most, under 1F1B."""
    return min(layout.micro_batches, layout.pipeline - stage)


def stage_parameters(model: Transformer, layout: Layout, stage: int) -> int:
    """On one rank of a stage: its part of the products of its layers, all of their norms and output biases.

    The tied embedding is on the first stage and on the last.
    """
    split = 12 * model.hidden**2 + 7 * model.hidden
    whole = model.layer_parameters - split
    count = model.stage_layers(layout.pipeline, layout.tensor)[stage] * (-(-split // layout.tensor) + whole)
    last = layout.pipeline - 1
    if stage == 0:
        count += model.embedding_parameters(layout.tensor)
    if stage == last:
        count += model.head_parameters(layout.tensor)
        if last > 0:
            count += model.padded_vocabulary(layout.tensor) // layout.tensor * model.hidden
    return count


# Of a parameter, in bytes: gradient, master copy and both moments are read (16), the last three are written (12), the
# copy that computes is written (2), and clipping reads the gradient once more (4).
OPTIMIZER_TRAFFIC = 34
REDUCTIONS = 4  # of a layer's output over tensor-parallel ranks in a micro-batch: two forward, two backward
REDUCTIONS_AGAIN = 2  # of them a second time where the forward pass is computed again
BACKWARD = 2 / 3  # of the work of a step


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Equal nodes of equal GPUs. Bandwidths are bytes per second in one direction, latencies seconds."""

    gpus_per_node: int
    memory: float  # bytes of one GPU
    rate: float  # FLOP/s that the layers of a model reach on one GPU when its batch is large
    peak: float | None  # FLOP/s that an MFU is a part of; None where it is not known
    memory_bandwidth: float
    intra_bandwidth: float  # bus bandwidth of an all-reduce among all GPUs of a node
    intra_latency: float  # of the smallest all-reduce in a node
    inter_bandwidth: float  # of one node to the others, shared by its GPUs
    inter_latency: float
    neighbours: int = 1  # GPUs of a node that each is linked to directly; 1 where a switch links all
    # What the training program makes of it:
    layer_overhead: float = 0.0  # seconds that a layer costs in every micro-batch, however small
    head_cost: float = 1.0  # time of a FLOP of the vocabulary's projection, relative to one of a layer
    attention_cost: float = 1.0  # the same for a FLOP of attention's scores
    overlap: float = 0.0  # part of the data-parallel reduction that may hide behind the last backward pass
    contention: float = 0.0  # N nodes have (2/N)^this of the bandwidth that two have
    reduced_bytes: int = 4  # of a gradient on the wire


# Nodes of eight V100; from `rate` on, as fitted to every throughput that LiBai published (`plan_calibration.py`).
LIBAI = Cluster(
    gpus_per_node=8,
    memory=32 * 1024**3,
    peak=125e12,
    memory_bandwidth=900e9,
    inter_latency=50e-6,
    neighbours=4,
    reduced_bytes=2,
    rate=6.23e13,
    intra_bandwidth=7.42e10,
    inter_bandwidth=2.18e10,
    intra_latency=3.39e-4,
    layer_overhead=2.07e-4,
    head_cost=0.182,
    attention_cost=4.38,
    overlap=0.0305,
    contention=0.948,
)


@dataclass(frozen=True)
class RankPlacement:
    """Where the ranks of one axis of the mesh lie: every `stride`-th rank, `size` of them."""

    size: int
    stride: int
    per_node: int

    @property
    def crosses(self) -> bool:
        """Whether some group of this axis spans nodes."""
        span = self.size * self.stride
        return span > self.per_node or self.per_node % span != 0

    @property
    def members(self) -> int:
        """How many ranks of a group are on one node."""
        return max(1, min(self.size, self.per_node // self.stride))

    @property
    def nodes(self) -> int:
        """How many nodes a group spans."""
        return -(-self.size // self.members)


def all_reduce_time(cluster: Cluster, volume: float, where: RankPlacement) -> float:
    """Seconds to sum `volume` bytes over a group while all other groups of the axis do the same.

    A ring sends 2 (n-1)/n of the volume over each of its links. Between nodes the groups of a node share its network.
    """
    if where.size == 1:
        return 0.0
    sent = 2 * (where.size - 1) / where.size * volume
    inside = 0.0
    if where.members > 1:
        # Without a switch, a small group has only the links between its own members.
        linked = min(where.members - 1, cluster.neighbours) / cluster.neighbours
        inside = sent / (cluster.intra_bandwidth * linked)
    if not where.crosses:
        return inside + cluster.intra_latency
    groups = where.per_node / where.members
    lost = float((max(2, where.nodes) / 2) ** cluster.contention)
    return max(inside, sent * groups * lost / cluster.inter_bandwidth) + cluster.inter_latency


def send_time(cluster: Cluster, volume: float, where: RankPlacement) -> float:
    """Seconds to hand `volume` bytes to the next rank of the axis, by its slowest link.

    Where neighbours are on different nodes, all ranks of a node that have such a neighbour send at once.
    """
    if where.size == 1:
        return 0.0
    if not where.crosses:
        return volume / cluster.intra_bandwidth + cluster.intra_latency
    senders = min(where.stride, where.per_node)
    return volume * senders / cluster.inter_bandwidth + cluster.inter_latency


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step, as the average rank spends them, or of one micro-batch on one stage."""

    compute: float
    recompute: float  # activations computed again for the backward pass
    tensor: float  # sums over tensor-parallel ranks
    pipeline: float  # activations and their gradients handed to the next stage
    bubble: float = 0.0  # waiting for other stages: filling, draining, and for the slowest one
    data: float = 0.0  # sums of gradients over data-parallel ranks that do not hide behind the backward pass
    optimizer: float = 0.0

    @property
    def total(self) -> float:
        return self.compute + self.recompute + self.tensor + self.pipeline + self.bubble + self.data + self.optimizer

    @property
    def communication(self) -> float:
        """Seconds in which links are busy and the GPU is not."""
        return self.tensor + self.pipeline + self.data

    def share(self, seconds: float) -> float:
        """A part of the step."""
        return seconds / self.total


def step_time(model: Transformer, layout: Layout, cluster: Cluster) -> StepTime:
    """Seconds of one step under the schedule 1F1B, tensor-parallel ranks next to each other, stages furthest apart.

    With t_i the time of a micro-batch on stage i of p, m micro-batches take sum(t_i) + (m-1) max(t_i); for equal stages
    that is m t (1 + (p-1)/m).
    """
    stages = [_stage(model, layout, cluster, index) for index in range(layout.pipeline)]
    micro_batches = layout.micro_batches
    passed = sum(stage.total for stage in stages) + (micro_batches - 1) * max(stage.total for stage in stages)
    each = micro_batches / layout.pipeline  # the sum over stages times this is the average rank's share of a step
    parameters = max(stage_parameters(model, layout, index) for index in range(layout.pipeline))
    # The reduction of gradients starts with the backward pass of the last micro-batch.
    last_backward = BACKWARD * min(stage.compute for stage in stages)
    where = RankPlacement(layout.data, layout.tensor, layout.gpus)
    reduction = all_reduce_time(cluster, float(parameters * cluster.reduced_bytes), where)
    return StepTime(
        compute=each * sum(stage.compute for stage in stages),
        recompute=each * sum(stage.recompute for stage in stages),
        tensor=each * sum(stage.tensor for stage in stages),
        pipeline=each * sum(stage.pipeline for stage in stages),
        bubble=passed - each * sum(stage.total for stage in stages),
        data=reduction - min(cluster.overlap * reduction, last_backward),
        optimizer=parameters * OPTIMIZER_TRAFFIC / cluster.memory_bandwidth,
    )


def _stage(model: Transformer, layout: Layout, cluster: Cluster, index: int) -> StepTime:
    layers = model.stage_layers(layout.pipeline, layout.tensor)[index]
    samples, ranks = layout.micro_batch, layout.tensor
    of_layer = model.layer_cost(samples, cluster.attention_cost) / ranks / cluster.rate
    in_layers = layers * (of_layer + cluster.layer_overhead)
    in_head = model.head_flops(samples, ranks) / ranks / cluster.rate * cluster.head_cost
    output = samples * model.sequence * model.hidden * (4 if layout.precision == "fp32" else 2)  # bytes
    sums = layers * (REDUCTIONS + (REDUCTIONS_AGAIN if layout.checkpointing else 0))
    neighbours = (index > 0) + (index < layout.pipeline - 1)
    stages = RankPlacement(layout.pipeline, layout.tensor * layout.data, layout.gpus)
    return StepTime(
        compute=in_layers + (in_head if index == layout.pipeline - 1 else 0.0),
        recompute=in_layers / TRAINING_FACTOR if layout.checkpointing else 0.0,
        tensor=sums * all_reduce_time(cluster, output, RankPlacement(ranks, 1, layout.gpus)),
        pipeline=neighbours * send_time(cluster, output, stages),
    )


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
