"""Models made to measure: `generated/FAMILY:knob=value,...`, every knob with a default, random data to run them on.

A name is a grammar: `generated/transformer:layers=4,width=256,heads=4,sequence=64`. Knobs may come in any order; the
model's own name has those that differ from the defaults, in the order of the family. All of them classify, so that
what a sample takes in and gives out stays small however large the model is.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Self

from paceline.core.errors import InputError, nearest
from paceline.models.base import ModelSpec, ModelTask, Scale, Workload, class_loss, classification_batch

if TYPE_CHECKING:
    from torch import nn

PREFIX = "generated/"
CLASSES = 100
VOCABULARY = 8192  # of a transformer's tokens
FEATURES = 64  # of a step of an LSTM
CHANNELS = 3  # of an image

# A knob means the same in every family. A value above its limit is a typing error.
LIMITS = {"layers": 1024, "width": 65_536, "heads": 1024, "sequence": 131_072, "kernel": 31, "image": 4096}
TINY_LIMITS = {"layers": 2, "width": 64, "heads": 4, "sequence": 16, "kernel": 3, "image": 16}


@dataclass(frozen=True, kw_only=True)
class Knobs:
    """Sizes that the name of a model may set, in the order in which it has them."""

    family: ClassVar[str]
    limits: ClassVar[dict[str, int]] = LIMITS

    def __post_init__(self) -> None:
        for knob, value in asdict(self).items():
            if not 1 <= value <= self.limits[knob]:
                message = f"{PREFIX}{self.family}: {knob}={value} is outside of 1 to {self.limits[knob]}"
                raise InputError("knob-out-of-range", message, value=value)

    @classmethod
    def read(cls, name: str) -> Self:
        """What a name of this family says after its colon; an unknown knob is refused with the nearest one."""
        knobs = [knob.name for knob in fields(cls)]
        values: dict[str, int] = {}
        _, colon, settings = name.partition(":")
        for setting in settings.split(",") if colon else ():
            knob, equals, value = (part.strip() for part in setting.partition("="))
            if not equals:
                example = f"{PREFIX}{cls.family}:{knobs[0]}=4,{knobs[1]}=64"
                raise _refusal(name, "not-a-knob", f"'{setting}' is not knob=value; write it like {example}")
            if knob not in knobs:
                message = f"there is no knob '{knob}'{_hint(knob, knobs)}"
                raise _refusal(name, "unknown-knob", message, nearest(knob, knobs))
            if knob in values:
                raise _refusal(name, "duplicate-knob", f"{knob} is given twice")
            if not re.fullmatch("[0-9]{1,9}", value):
                message = f"{knob}={value} is not a whole number from 1 to {cls.limits[knob]}"
                raise _refusal(name, "not-a-whole-number", message)
            values[knob] = int(value)
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class Shape(Knobs, ABC):
    """The knobs of one generated model that classifies."""

    task: ClassVar[ModelTask]
    sample: ClassVar[str]
    summary: ClassVar[str]  # with the knobs to fill in
    linear: ClassVar[bool] = False  # whether its layers are linear ones, which fp8 requires
    vocabulary: ClassVar[int | None] = None  # of the tokens that it takes instead of features

    layers: int
    width: int

    def __str__(self) -> str:
        values = ((knob, getattr(self, knob.name)) for knob in fields(self))
        changed = [f"{knob.name}={value}" for knob, value in values if value != knob.default]
        return f"{PREFIX}{self.family}" + (f":{','.join(changed)}" if changed else "")

    def at(self, scale: Scale) -> Self:
        """As its name says, or with every knob at most as high as a slow machine can bear."""
        if scale == "full":
            return self
        return type(self)(**{knob: min(value, TINY_LIMITS[knob]) for knob, value in asdict(self).items()})

    @abstractmethod
    def count(self) -> tuple[int, int]:
        """The weights of the layers, and the FLOPs of one sample's forward pass through them (see `models.flops`)."""

    @abstractmethod
    def build(self) -> tuple[nn.Module, tuple[int, ...]]:
        """The module with random weights, and the sizes of what one sample takes in."""


@dataclass(frozen=True, kw_only=True)
class FcShape(Shape):
    """Layers that are all products of one width."""

    family = "fc"
    task = "vector classification"
    sample = "vector"
    summary = "{layers} fully connected layers on vectors of {width}"
    linear = True

    layers: int = 8
    width: int = 1024

    def count(self) -> tuple[int, int]:
        return self.layers * (self.width + 1) * self.width, 2 * self.layers * self.width**2

    def build(self) -> tuple[nn.Module, tuple[int, ...]]:
        from paceline.models._modules.generated import FcClassifier

        return FcClassifier(**asdict(self), classes=CLASSES), (self.width,)


@dataclass(frozen=True, kw_only=True)
class CnnShape(Shape):
    """Convolutions that all keep the image's size; without batch norms."""

    family = "cnn"
    task = "image classification"
    sample = "image"
    summary = "{layers} convolutions of {kernel} x {kernel} with {width} channels on images of {image} x {image}"

    layers: int = 8
    width: int = 64
    kernel: int = 3
    image: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kernel % 2 == 0:
            message = (
                f"{PREFIX}{self.family}: kernel={self.kernel} is even, so that a layer could not keep the image's "
                f"size: use kernel={self.kernel - 1} or kernel={self.kernel + 1}"
            )
            raise InputError("even-kernel", message, value=self.kernel, suggestion=f"kernel={self.kernel - 1}")

    def count(self) -> tuple[int, int]:
        weights = self.kernel**2 * (CHANNELS + (self.layers - 1) * self.width) * self.width
        return weights + self.layers * self.width, 2 * self.image**2 * weights

    def build(self) -> tuple[nn.Module, tuple[int, ...]]:
        from paceline.models._modules.generated import CnnClassifier

        sizes = {"layers": self.layers, "width": self.width, "kernel": self.kernel}
        return CnnClassifier(**sizes, channels=CHANNELS, classes=CLASSES), (CHANNELS, self.image, self.image)


@dataclass(frozen=True, kw_only=True)
class TransformerShape(Shape):
    """Pre-norm layers over token numbers; the feed-forward part is four times as wide."""

    family = "transformer"
    task = "sequence classification"
    sample = "sequence"
    summary = (
        f"{{layers}} pre-norm layers, hidden size {{width}}, {{heads}} heads, over {{sequence}} of {VOCABULARY} tokens"
    )
    linear = True
    vocabulary = VOCABULARY

    layers: int = 4
    width: int = 256
    heads: int = 4
    sequence: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads:
            near = min(_divisors(self.width), key=lambda heads: abs(heads - self.heads))
            message = (
                f"{PREFIX}{self.family}: width={self.width} is not a multiple of heads={self.heads}: "
                f"use heads={near}, or another width"
            )
            raise InputError("not-a-multiple", message, value=self.width, suggestion=f"heads={near}")

    def at(self, scale: Scale) -> Self:
        if scale == "full":
            return self
        width = min(self.width, TINY_LIMITS["width"])
        heads = max(heads for heads in _divisors(width) if heads <= min(self.heads, TINY_LIMITS["heads"]))
        return super(TransformerShape, replace(self, width=width, heads=heads)).at(scale)

    def count(self) -> tuple[int, int]:
        embedding = (VOCABULARY + self.sequence) * self.width
        block = 12 * self.width**2 + 13 * self.width  # four products in attention, eight after; biases, two norms
        flops = 24 * self.width**2 * self.sequence + 4 * self.sequence**2 * self.width
        return embedding + self.layers * block + 2 * self.width, self.layers * flops

    def build(self) -> tuple[nn.Module, tuple[int, ...]]:
        from paceline.models._modules.generated import TransformerClassifier

        return TransformerClassifier(**asdict(self), vocabulary=VOCABULARY, classes=CLASSES), (self.sequence,)


@dataclass(frozen=True, kw_only=True)
class LstmShape(Shape):
    """LSTM layers over steps of features; the last step decides."""

    family = "lstm"
    task = "sequence classification"
    sample = "sequence"
    summary = f"{{layers}} LSTM layers, hidden size {{width}}, over {{sequence}} steps of {FEATURES} features"

    layers: int = 2
    width: int = 256
    sequence: int = 64

    def count(self) -> tuple[int, int]:
        weights = 4 * self.width * (FEATURES + (2 * self.layers - 1) * self.width)
        biases = 8 * self.width * self.layers  # two each, as cuDNN has them
        return weights + biases, 2 * self.sequence * weights

    def build(self) -> tuple[nn.Module, tuple[int, ...]]:
        from paceline.models._modules.generated import LstmClassifier

        sizes = {"layers": self.layers, "inputs": FEATURES, "hidden": self.width}
        return LstmClassifier(**sizes, classes=CLASSES), (self.sequence, FEATURES)


SHAPES: dict[str, type[Shape]] = {shape.family: shape for shape in (TransformerShape, FcShape, CnnShape, LstmShape)}


def parse(name: str) -> Shape:
    """The shape that a name describes; an unknown family or knob is refused with the nearest one."""
    family = name.removeprefix(PREFIX).partition(":")[0]
    if family not in SHAPES:
        message = f"there is no family '{family}'{_hint(family, SHAPES)}"
        raise _refusal(name, "unknown-family", message, nearest(family, SHAPES))
    return SHAPES[family].read(name)


def generated_model(name: str) -> ModelSpec:
    """The model of a name that starts with `generated/`."""
    shape = parse(name)
    weights, flops = shape.count()
    decision = " from the last step" if isinstance(shape, LstmShape) else ""
    return ModelSpec(
        name=str(shape),
        family="generated",
        task=shape.task,
        summary=f"generated: {shape.summary.format(**asdict(shape))}; {CLASSES} classes{decision}",
        build=partial(_build, shape),
        parameters=weights + (shape.width + 1) * CLASSES,  # the classifier included
        flops=flops + 2 * shape.width * CLASSES,
        batch_size=32,
        sample=shape.sample,
        channels_last=isinstance(shape, CnnShape),
        fp8=shape.linear and shape.width % 16 == 0,  # other widths have no 8-bit product
        settings=asdict(shape),
    )


def _build(shape: Shape, scale: Scale) -> Workload:
    scaled = shape.at(scale)
    module, sizes = scaled.build()
    return Workload(
        module=module,
        make_batch=partial(classification_batch, sizes, CLASSES, vocabulary=shape.vocabulary),
        loss=class_loss,
        tokens_per_sample=getattr(scaled, "sequence", None),
    )


def _divisors(number: int) -> list[int]:
    return [candidate for candidate in range(1, LIMITS["heads"] + 1) if number % candidate == 0]


def _refusal(name: str, code: str, message: str, suggestion: str | None = None) -> InputError:
    return InputError(code, f"model '{name}': {message}", value=name, suggestion=suggestion)


def _hint(name: str, names: Collection[str]) -> str:
    guess = nearest(name, names)
    return f": did you mean '{guess}'?" if guess else f"; known are {', '.join(names)}"


MODELS = tuple(generated_model(f"{PREFIX}{family}") for family in SHAPES)
