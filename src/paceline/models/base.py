"""What a model is to a benchmark: a spec that lists without torch, and a workload that it builds."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


Scale = Literal["full", "tiny"]
ModelTask = Literal[
    "image classification",
    "object detection",
    "language modelling",
    "masked language modelling",
    "sequence to sequence",
    "image generation",
    "sequence classification",
    "speech recognition",
    "vector classification",
    "custom",
]


@dataclass(frozen=True)
class Batch:
    """Inputs as the module takes them, and what the loss compares its output with; the first axis is the sample."""

    inputs: tuple[Tensor, ...]
    targets: tuple[Tensor, ...]

    def to(self, device: torch.device, *, memory_format: torch.memory_format | None = None) -> Batch:
        """The batch on a device; images take the memory format."""

        def move(tensor: Tensor) -> Tensor:
            if memory_format is not None and tensor.dim() == 4:
                return tensor.to(device, memory_format=memory_format)
            return tensor.to(device)

        return Batch(tuple(move(t) for t in self.inputs), tuple(move(t) for t in self.targets))

    def rows(self, start: int, stop: int) -> Batch:
        """Some samples of the batch: a rank's share of a joined batch."""
        return Batch(tuple(t[start:stop] for t in self.inputs), tuple(t[start:stop] for t in self.targets))


@dataclass
class Marks:
    """Where a loss says that a part of it has ended which is worth timing by itself; nobody need listen."""

    listener: Callable[[str], None] | None = None

    def __call__(self, phase: str) -> None:
        if self.listener is not None:
            self.listener(phase)


@dataclass(frozen=True)
class Workload:
    """A built model with the data to run it on."""

    module: nn.Module
    make_batch: Callable[[int, torch.Generator], Batch]  # on the CPU; the first n rows do not depend on the batch size
    loss: Callable[[Any, Batch], Tensor]  # of the module's output in training mode; a module if it has weights itself
    tokens_per_sample: int | None = None  # for sequence models: throughput in tokens as well
    audio_per_sample: float | None = None  # seconds, for models of speech: throughput in seconds of audio as well
    marks: Marks = field(default_factory=Marks)  # what the loss calls when a part of it has ended
    loss_compiles: bool = True  # False where the loss must go to the host, as a matcher does
    loss_flops: float = 0.0  # forward FLOPs per sample of a loss that has weights itself
    extra_flops: float = 0.0  # forward FLOPs per sample that the counter of operators cannot see
    answer: Callable[[Any], Any] | None = None  # what a server returns of the output; None is all of it
    batch_size: int | None = None  # of the inputs as they were given; None where they say nothing of it
    loss_name: str = ""  # for the record, where the loss is not the model's own
    input_names: tuple[str, ...] = ()  # where a file has names for them; empty takes those of the module's code
    output_names: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)  # for the record: where it is from, what was counted


Engine = Literal["torch", "onnxruntime", "tensorrt"]


@dataclass(frozen=True)
class Traits:
    """What a model leaves no choice of; one of the zoo leaves every choice."""

    noun: str = "model"
    batch_size: int | None = None  # the only one that it takes
    precision: str = ""  # the only one that it computes in
    engine: Engine = "torch"  # what computes it
    is_trainable: bool = True
    has_scales: bool = True  # whether there is a tiny one of the same kind


@dataclass(frozen=True)
class ModelSpec:
    """A model of the zoo; listing it must not import torch."""

    name: str
    family: str
    task: ModelTask
    summary: str
    build: Callable[[Scale], Workload]  # imports torch; random weights from torch's global seed
    parameters: int | None = None  # of the full scale, as documented; checked against the built module
    flops: int | None = None  # forward, of one sample at the full scale; what counting gives, stored to save the time
    batch_size: int = 32
    sample: str = "sample"  # what one sample is called: image, sequence, ...
    channels_last: bool = False  # whether convolutions gain from it
    fp8: bool = False  # whether its linear layers can run in fp8
    imports: tuple[str, ...] = ("torch",)  # heavy modules to have imported before a case is forked
    settings: dict[str, Any] = field(default_factory=dict)  # layers, hidden size, ...: for people and for formulas
    traits: Traits = Traits()


Shape = TypeVar("Shape")


def build_scaled(build: Callable[[Shape], Workload], full: Shape, tiny: Shape, scale: Scale) -> Workload:
    """The model in its full or its tiny shape; with the first three bound, the `build` of a spec."""
    return build(full if scale == "full" else tiny)


def classification_batch(
    shape: tuple[int, ...], classes: int, samples: int, generator: torch.Generator, *, vocabulary: int | None = None
) -> Batch:
    """Random inputs of this shape, or token numbers where there is a vocabulary, and one label for each sample."""
    import torch

    dtype = None if vocabulary is None else torch.int64
    inputs = torch.empty(samples, *shape, dtype=dtype, device=generator.device)
    labels = torch.empty(samples, dtype=torch.int64, device=generator.device)
    for row in range(samples):  # row by row: the first samples must not depend on how many follow
        if vocabulary is None:
            inputs[row].normal_(generator=generator)
        else:
            inputs[row].random_(vocabulary, generator=generator)
        labels[row].random_(classes, generator=generator)
    return Batch(inputs=(inputs,), targets=(labels,))


def make_text(sequence: int, vocabulary: int, samples: int, generator: torch.Generator) -> Batch:
    """Random tokens, each to be predicted from those before it."""
    import torch

    tokens = torch.empty(samples, sequence + 1, dtype=torch.int64, device=generator.device)
    for row in tokens:  # row by row: the first samples must not depend on how many follow
        row.random_(vocabulary, generator=generator)
    return Batch(inputs=(tokens[:, :-1].contiguous(),), targets=(tokens[:, 1:].contiguous(),))


def class_loss(logits: Tensor, batch: Batch) -> Tensor:
    """Cross entropy with one label, or one distribution over the classes, for each sample."""
    import torch.nn.functional as F

    return F.cross_entropy(logits, batch.targets[0])


def token_loss(logits: Tensor, batch: Batch) -> Tensor:
    """Cross entropy with one token for each position."""
    import torch.nn.functional as F

    return F.cross_entropy(logits.flatten(0, 1), batch.targets[0].flatten())


SETTLING_ROWS = 8


def seed_everything(seed: int) -> None:
    """A user's model may draw its weights from any of these."""
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def low_dtype(precision: str) -> torch.dtype | None:
    """The 16-bit format that goes with a precision, if any."""
    import torch

    if precision in ("fp32", "tf32"):
        return None
    return torch.float16 if precision == "fp16" else torch.bfloat16


def set_fp32_mode(precision: str) -> None:
    """Let fp32 products and convolutions run in TF32 for the precision `tf32`; true fp32 for every other.

    TF32 computes with fewer bits, so it is allowed only where it is requested.
    """
    import torch

    tf32 = precision == "tf32"
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32


def has_batch_norm(module: nn.Module) -> bool:
    """Whether a module has statistics that depend on earlier data."""
    from torch.nn.modules.batchnorm import _BatchNorm

    return any(isinstance(layer, _BatchNorm) for layer in module.modules())


def settle_batch_norm(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Give untrained batch norms the statistics of the data, as training would have; the module is then in eval mode.

    Without them activations shrink to zero or overflow fp16 with depth, and zeros are faster than numbers.
    """
    from torch.nn.modules.batchnorm import _BatchNorm

    for layer in module.modules():
        if isinstance(layer, _BatchNorm):
            layer.momentum = None  # the plain average over the batches: of one batch, its own statistics
    module.train()
    module(*inputs)
    module.eval()
