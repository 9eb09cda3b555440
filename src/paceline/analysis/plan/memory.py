"""How much memory a rank needs at the peak of a training step, in bytes, by what it is for.

For one stage of a 1F1B pipeline with compiled layers. P are the parameters of a rank, b the samples of a micro-batch,
s the tokens of a sample (r of them scored), h the hidden size, a the heads, t the tensor-parallel ranks, V the padded
vocabulary.

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
square of scores; and with checkpointing also that layer's activations, computed again.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.core.layout import Layout
from paceline.core.transformer import Transformer

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
