"""How a training is laid out over GPUs, in one word: `gpt2/nl24_fp16_2x2x4_ac_mb32_gb1024_2n8g`.

Model, layers, precision, data x tensor x pipeline parallel, activation checkpointing, samples in a micro-batch and in
a whole batch, nodes and GPUs of each. After the mesh, `cp2` says that two ranks share the tokens of every sample, and
`ep2` that two data-parallel ranks share the experts of every layer. The word is read and printed back the same.
"""

from __future__ import annotations

import re
from typing import Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field

from paceline.core.errors import InputError, unknown
from paceline.core.subject import FloatPrecision

ModelFamily = Literal["bert", "gpt2", "llama", "mixtral"]
LayoutPrecision = Literal[FloatPrecision, "fp8"]

EXAMPLE = "gpt2/nl24_fp16_2x2x4_ac_mb32_gb1024_2n8g"
_PARTS = (
    (r"(?P<model>[a-z0-9-]+)/", "the model and a slash"),
    (r"nl(?P<layers>\d+)_", "nl and the number of layers"),
    (r"(?P<precision>[a-z0-9]+)_", "fp32, fp16, bf16 or fp8"),
    (
        r"(?P<data>\d+)x(?P<tensor>\d+)x(?P<pipeline>\d+)_"
        r"(?:cp(?P<context>\d+)_)?(?:ep(?P<expert>\d+)_)?(?P<checkpointing>ac_)?",
        "data x tensor x pipeline, like 2x2x4",
    ),
    (r"mb(?P<micro_batch>\d+)_", "mb and the samples of a micro-batch"),
    (r"gb(?P<global_batch>\d+)_", "gb and the samples of a whole batch"),
    (r"(?P<nodes>\d+)n(?P<gpus>\d+)g$", "nodes and GPUs, like 2n8g"),
)

Count = Field(ge=1, le=1_000_000)


class Layout(BaseModel):
    """One way to train one model on many GPUs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: ModelFamily
    layers: int = Count
    precision: LayoutPrecision
    data: int = Count
    tensor: int = Count
    pipeline: int = Count
    context: int = Field(default=1, ge=1, le=1_000_000)
    expert: int = Field(default=1, ge=1, le=1_000_000)  # of the data-parallel ranks, those that share experts
    checkpointing: bool = False
    micro_batch: int = Count
    global_batch: int = Count
    nodes: int = Count
    gpus: int = Count  # of each node

    @classmethod
    def parse(cls, word: str) -> Self:
        """Read the word; whether its numbers agree with each other is for `check` to say."""
        fields: dict[str, Any] = {}
        rest = word.strip()
        for pattern, part in _PARTS:
            match = re.match(pattern, rest)
            if match is None:
                problem = f"{part} is expected at '{rest}'" if rest else f"{part} is missing at its end"
                message = f"'{word}' is not a layout: {problem}; write it like {EXAMPLE}"
                raise InputError("not-a-layout", message, value=word)
            fields |= {name: text for name, text in match.groupdict().items() if text is not None}
            rest = rest[match.end() :]
        for name, kind in (("model", ModelFamily), ("precision", LayoutPrecision)):
            if fields[name] not in get_args(kind):
                raise unknown(f"{name} in the layout '{word}'", fields[name], get_args(kind))
        for name in [name for name in fields if name not in ("model", "precision", "checkpointing")]:
            fields[name] = int(fields[name])
            if not 1 <= fields[name] <= 1_000_000:
                message = f"'{word}': {name.replace('_', ' ')} = {fields[name]} must be from 1 to 1,000,000"
                raise InputError("layout-out-of-range", message, value=word)
        return cls(**fields | {"checkpointing": "checkpointing" in fields})

    def __str__(self) -> str:
        checkpointing = "_ac" if self.checkpointing else ""
        batches = f"mb{self.micro_batch}_gb{self.global_batch}"
        return f"{self.model}/nl{self.layers}_{self.precision}_{self.mesh}{checkpointing}_{batches}_{self.machines}"

    @property
    def mesh(self) -> str:
        """Data x tensor x pipeline, and what more there is."""
        more = {"cp": self.context, "ep": self.expert}
        words = [f"_{name}{size}" for name, size in more.items() if size > 1]
        return "".join((f"{self.data}x{self.tensor}x{self.pipeline}", *words))

    @property
    def machines(self) -> str:
        """Nodes and GPUs of each."""
        return f"{self.nodes}n{self.gpus}g"

    @property
    def world_size(self) -> int:
        """How many ranks the mesh has."""
        return self.data * self.tensor * self.pipeline * self.context

    @property
    def micro_batches(self) -> int:
        """How many micro-batches each data-parallel rank takes in a step."""
        return self.global_batch // (self.micro_batch * self.data)

    def check(self) -> Self:
        """Refuse numbers that contradict each other, with the arithmetic shown."""
        available = self.nodes * self.gpus
        if self.world_size != available:
            message = (
                f"'{self}' contradicts itself: {self.mesh} = {self.world_size} ranks against {self.machines} = "
                f"{available} GPUs; make d x m x p (x cp) equal nodes x GPUs"
            )
            raise InputError("layout-ranks", message, value=str(self))
        share = self.micro_batch * self.data
        if self.global_batch % share:
            message = (
                f"'{self}' contradicts itself: gb {self.global_batch} is not a multiple of "
                f"mb x d = {self.micro_batch} x {self.data} = {share}"
            )
            raise InputError("layout-batch", message, value=str(self))
        if self.data % self.expert:
            message = f"'{self}' contradicts itself: d = {self.data} is not a multiple of ep = {self.expert}"
            raise InputError("layout-experts", message, value=str(self))
        if self.layers < self.pipeline:
            message = f"'{self}' has {self.layers} layers for {self.pipeline} pipeline stages: use fewer stages"
            raise InputError("layout-stages", message, value=str(self))
        return self
