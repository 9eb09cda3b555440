"""Whether a server answers what the model itself would."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import SilentCorruption
from paceline.load import kserve, kserve_grpc
from paceline.load.request import Wire
from paceline.load.tensors import Array, Tensors
from paceline.servers.base import Artifact
from paceline.servers.processing import INDICES, VALUES, Processing, likeliest

CHECKED = 4  # of the different requests: the first that are answered
MOST_SAMPLES = 8  # of a request, the first: the model on the CPU would take long for more
MANY_CHOICES = 16  # of which half differ by no rounding


class Answers:
    """Collects answers of a load and compares them with what the eager model gives on the CPU."""

    def __init__(
        self,
        artifact: Artifact,
        requests: Sequence[Tensors],  # as the model takes them
        wire: Wire,
        processing: Processing | None = None,  # what the server makes of the model's outputs
        *,
        allow_import: bool,
    ) -> None:
        self._artifact = artifact
        self._wire = wire
        self._processing = processing
        self._requests = list(requests)
        self._allow_import = allow_import
        self._expected: dict[int, list[NDArray[np.float64]]] = {}  # by the kind of request
        self._model: Callable[[Tensors], list[NDArray[np.float64]]] | None = None
        self.checked = 0
        self.deviation = 0.0  # the largest, relative to the largest value of an output

    def __call__(self, kind: int, body: bytes) -> None:
        """Check one answer; SilentCorruption if it is not the right one."""
        from paceline.servers.export import TOLERANCES

        allowed = TOLERANCES[self._artifact.precision]
        if kind not in self._expected:
            if len(self._expected) >= CHECKED:
                return
            if self._model is None:
                self._model = self._load()
            self._expected[kind] = self._model(_first_samples(self._requests[kind]))
            if len(self._expected) >= CHECKED:
                self._model = None  # its memory is not needed any more
        answered = decode(body, self._wire)
        samples = len(next(iter(self._requests[kind].values())))
        for name, one in answered.items():  # all samples must have come, although only the first are compared
            if samples > MOST_SAMPLES and one.shape[:1] != (samples,):
                raise SilentCorruption(
                    f"request {kind}: output '{name}' has the shape {one.shape} for {samples} samples"
                )
        for index, (name, actual, expected) in enumerate(self._pairs(kind, _first_samples(answered))):
            if actual.shape != expected.shape:
                raise SilentCorruption(
                    f"request {kind}: output '{name}' has the shape {actual.shape}, the model gives {expected.shape}"
                )
            if self._processing is None and self._artifact.outputs[index].dtype.kind in "iu":
                _check_choices(kind, name, actual, expected)
                continue
            largest = float(np.max(np.abs(expected), initial=0.0)) or 1.0
            off = float(np.max(np.abs(np.subtract(actual, expected, dtype=np.float64)), initial=0.0)) / largest
            self.deviation = max(self.deviation, off)
            if not off <= allowed:
                raise SilentCorruption(
                    f"request {kind}: output {index} ('{name}') differs from the model's own by {off:.2g} of its "
                    f"largest value; at most {allowed:g} is rounding"
                )
        self.checked += 1

    def _pairs(self, kind: int, answered: dict[str, Array]) -> list[tuple[str, Array, NDArray[np.float64]]]:
        """The actual and the expected outputs, by name."""
        expected = self._expected[kind]
        if self._processing is not None:
            return _likeliest_pairs(kind, answered, expected[0])
        if len(answered) != len(expected):
            raise SilentCorruption(
                f"request {kind}: the answer has {len(answered)} outputs, the model gives {len(expected)}"
            )
        # In the model's own order; a server that names the outputs differently keeps that order.
        names = [spec.name for spec in self._artifact.outputs]
        names = names if set(names) == answered.keys() else list(answered)
        return [(name, answered[name], one) for name, one in zip(names, expected, strict=True)]

    def _load(self) -> Callable[[Tensors], list[NDArray[np.float64]]]:
        import torch

        from paceline.servers._exported_module import flat
        from paceline.servers.export import load_module

        artifact = self._artifact
        module = load_module(replace(artifact, precision="fp32"), allow_import=self._allow_import)

        def answer(request: Tensors) -> list[NDArray[np.float64]]:
            with torch.inference_mode():
                outputs = module(*(torch.from_numpy(request[spec.name]) for spec in artifact.inputs))
                return [one.double().numpy() for one in flat(outputs)]

        return answer


def _first_samples(arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {name: array[:MOST_SAMPLES] for name, array in arrays.items()}


def _check_choices(kind: int, name: str, actual: Array, expected: NDArray[np.float64]) -> None:
    """Where two are as good but for rounding, either may be chosen; most must be the model's, if there are many."""
    share = float(np.mean(actual == expected)) if expected.size else 1.0
    if expected.size >= MANY_CHOICES and share < 0.5:
        raise SilentCorruption(
            f"request {kind}: {100 * share:.0f} % of the {expected.size} choices in output '{name}' are the model's "
            "own; rounding changes some, never most"
        )


def _likeliest_pairs(
    kind: int, answered: dict[str, Array], scores: NDArray[np.float64]
) -> list[tuple[str, Array, NDArray[np.float64]]]:
    """The returned values, and those of the model at the returned indices, must be the model's largest.

    Indices themselves are not compared: where two values are equal but for rounding, either may come first.
    """
    if answered.keys() != {VALUES, INDICES}:
        raise SilentCorruption(f"request {kind}: the answer has {', '.join(answered)}, not {VALUES} and {INDICES}")
    best, _ = likeliest(scores)
    index = answered[INDICES]
    if index.shape != best.shape or index.dtype.kind != "i" or index.min() < 0 or index.max() >= scores.shape[-1]:
        raise SilentCorruption(f"request {kind}: output '{INDICES}' has indices that the model does not have")
    values = np.take_along_axis(scores, index.astype(np.int64), axis=-1)
    return [(VALUES, answered[VALUES], best.astype(np.float64)), (INDICES, values, best.astype(np.float64))]


def decode(body: bytes, wire: Wire) -> dict[str, Array]:
    """The outputs in an answer."""
    if wire == "kserve-grpc":
        return kserve_grpc.decode_response(body)
    if wire == "kserve-json":
        return kserve.decode_response(body).outputs
    # The header that says where the JSON ends is not stored; the JSON itself shows it too.
    _, length = json.JSONDecoder().raw_decode(body.decode("latin-1"))
    return kserve.decode_response(body, length if length < len(body) else None).outputs
