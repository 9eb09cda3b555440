"""Images and texts on both sides of a model: from requests to its tensors, and from its outputs to an answer.

The same code runs in the server, in the client and in the check of answers: where it runs is all that differs.
"""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.core.errors import InputError, MissingDependency
from paceline.load.kserve import BYTES, Array, ProtocolError, TensorSpec
from paceline.load.request import Form
from paceline.servers.base import Artifact

VALUES, INDICES = "top_values", "top_indices"

_TOP = 5  # classes of an answer, at most
_MOST_PIXELS = 50_000_000
_MEAN = np.array([0.485, 0.456, 0.406], np.float32)  # of ImageNet, as vision models are mostly trained
_SPREAD = np.array([0.229, 0.224, 0.225], np.float32)
_CENTRE = 7 / 8  # of the picture, around its middle, is used
_VOCABULARY_SAMPLES = 64  # of the model's own data, whose largest token bounds the vocabulary
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Processing:
    """How byte strings become what one model takes, and what becomes of its first output."""

    form: Form
    input: str  # of the model, that is made from them
    shape: tuple[int, ...]  # of that input, for one sample
    inputs: tuple[TensorSpec, ...]  # all that the model takes
    others: Mapping[str, list[Any]]  # values of its other inputs, the same for every sample
    output: TensorSpec  # the model's first
    vocabulary: int = 0  # tokens are below it

    @classmethod
    def of(cls, form: Form, artifact: Artifact, *, allow_import: bool) -> Processing:
        """For an exported model; InputError if it takes nothing of this form."""
        from paceline.servers.export import sample_inputs

        if form == "image":
            try:
                import PIL.Image  # noqa: F401
            except ImportError:
                raise MissingDependency("pillow", "pip install '.[torch]'") from None
        spec = next((one for one in artifact.inputs if _is_made_from(form, one)), None)
        if spec is None:
            inputs = ", ".join(f"{one.name} {one.datatype} {list(one.shape)}" for one in artifact.inputs)
            expected = "pictures of three channels" if form == "image" else "a row of tokens"
            message = f"requests.form = {form}: '{artifact.model}' takes {inputs}, and not {expected}"
            raise InputError("form-not-taken", message, key="requests.form", value=form)
        if not artifact.outputs[0].shape:
            message = f"requests.form = {form}: the first output of '{artifact.model}' has no classes"
            raise InputError("no-classes", message, key="requests.form", value=form)
        count = _VOCABULARY_SAMPLES if form == "text" else 1
        samples = sample_inputs(artifact, count, seed=artifact.seed, allow_import=allow_import)
        return cls(
            form=form,
            input=spec.name,
            shape=samples[0][spec.name].shape,
            inputs=artifact.inputs,
            others={name: value.tolist() for name, value in samples[0].items() if name != spec.name},
            output=artifact.outputs[0],
            vocabulary=1 + max(int(one[spec.name].max()) for one in samples) if form == "text" else 0,
        )

    @property
    def takes(self) -> TensorSpec:
        """What a request carries: one byte string for each sample."""
        return TensorSpec(self.form, BYTES, ())

    @property
    def gives(self) -> tuple[TensorSpec, ...]:
        """What an answer carries: the likeliest classes, best first."""
        classes = self.output.shape[-1]
        shape = (*self.output.shape[:-1], classes if 0 < classes < _TOP else _TOP)
        return TensorSpec(VALUES, self.output.datatype, shape), TensorSpec(INDICES, "INT64", shape)

    def before(self, samples: Sequence[bytes]) -> dict[str, Array]:
        """The model's inputs; ProtocolError if one of the strings is not what it should be."""
        read = self._pixels if self.form == "image" else self._tokens
        inputs = {}
        for spec in self.inputs:
            if spec.name == self.input:
                inputs[spec.name] = np.stack([read(sample) for sample in samples])
            else:
                inputs[spec.name] = np.stack([np.array(self.others[spec.name], spec.dtype)] * len(samples))
        return inputs

    def after(self, outputs: Mapping[str, Array]) -> dict[str, Array]:
        """The likeliest classes of the model's first output."""
        values, indices = likeliest(outputs[self.output.name])
        return {VALUES: values, INDICES: indices}

    def _pixels(self, encoded: bytes) -> Array:
        from PIL import Image

        _, height, width = self.shape
        try:
            with Image.open(io.BytesIO(encoded), formats=("JPEG", "PNG")) as picture:
                if picture.width * picture.height > _MOST_PIXELS:
                    raise ValueError(f"{picture.width} x {picture.height} pixels are more than {_MOST_PIXELS}")
                box = _centre(picture.width, picture.height, width / height)
                small = picture.convert("RGB").resize((width, height), Image.Resampling.BILINEAR, box)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise ProtocolError(f"an image cannot be read as JPEG or PNG: {str(error)[:200]}") from None
        pixels = (np.asarray(small, np.float32) / np.float32(255) - _MEAN) / _SPREAD
        return np.ascontiguousarray(pixels.transpose(2, 0, 1))

    def _tokens(self, encoded: bytes) -> Array:
        try:
            words = _WORD.findall(encoded.decode().lower())
        except UnicodeDecodeError as error:
            raise ProtocolError(f"a text is not in UTF-8: {error.reason}") from None
        (length,) = self.shape
        tokens = np.zeros(length, np.int64)
        for position, word in enumerate(words[:length]):
            tokens[position] = zlib.crc32(word.encode()) % self.vocabulary
        return tokens.astype(next(spec.dtype for spec in self.inputs if spec.name == self.input), copy=False)


def likeliest(scores: Array) -> tuple[Array, Array]:
    """The largest values along the last axis, largest first, and where they are."""
    count = min(_TOP, scores.shape[-1])
    indices = np.argpartition(scores, -count, axis=-1)[..., -count:]
    values = np.take_along_axis(scores, indices, axis=-1)
    order = np.argsort(values, axis=-1, kind="stable")[..., ::-1]
    return np.take_along_axis(values, order, axis=-1), np.take_along_axis(indices, order, axis=-1)


def _is_made_from(form: Form, spec: TensorSpec) -> bool:
    if form == "image":
        return len(spec.shape) == 3 and spec.shape[0] == 3 and spec.datatype == "FP32"
    return len(spec.shape) == 1 and spec.datatype in ("INT32", "INT64")


def _centre(width: int, height: int, aspect: float) -> tuple[float, float, float, float]:
    """The largest part of a picture with this aspect, less its margins."""
    crop_width, crop_height = _CENTRE * min(width, height * aspect), _CENTRE * min(height, width / aspect)
    left, top = (width - crop_width) / 2, (height - crop_height) / 2
    return left, top, left + crop_width, top + crop_height
