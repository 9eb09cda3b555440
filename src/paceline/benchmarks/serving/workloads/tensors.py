"""Requests of tensors, as the model's own data has them or as the user's file does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paceline.benchmarks.serving.artifact import Artifact
from paceline.benchmarks.serving.load.prepared import Prepared
from paceline.benchmarks.serving.processing import Processing
from paceline.benchmarks.serving.protocol import kserve, kserve_grpc
from paceline.benchmarks.serving.servers.base import Wire
from paceline.benchmarks.serving.tensors import Array, TensorSpec
from paceline.benchmarks.serving.workloads.parameters import RequestParameters
from paceline.core.errors import InputError

Tensors = dict[str, Array]  # by input name; the first axis is the batch


@dataclass(frozen=True)
class Requests:
    """Requests that are ready to go, and what they were made of."""

    prepared: list[Prepared]
    tensors: list[Tensors]  # as the model takes them
    source: str
    processing: Processing | None = None  # what the server makes of its outputs


def tensor_requests(
    wanted: RequestParameters,
    artifact: Artifact,
    wire: Wire,
    *,
    model: str,
    seed: int,
    most_samples: int | None,
    allow_import: bool,
) -> Requests:
    """As many different requests as are wanted, each with its own samples."""
    batches, source = tensor_batches(wanted, artifact, seed=seed, most_samples=most_samples, allow_import=allow_import)
    return Requests([encode(batch, wire, model) for batch in batches], batches, source)


def tensor_batches(
    wanted: RequestParameters, artifact: Artifact, *, seed: int, most_samples: int | None, allow_import: bool
) -> tuple[list[Tensors], str]:
    """What each of the requests carries, and where that comes from."""
    if wanted.dataset is not None:
        samples, source = read_samples(wanted.dataset, artifact.inputs), f"the user's file {wanted.dataset.name}"
    else:
        from paceline.benchmarks.serving.export import sample_inputs

        samples = sample_inputs(artifact, wanted.distinct, seed=seed, allow_import=allow_import)
        _require_fit(samples[0], artifact)
        source = "synthetic, encoded before the load begins"
    batches = [_batch(samples, number, size) for number, size in enumerate(drawn_sizes(wanted, seed, most_samples))]
    return batches, source


def drawn_sizes(wanted: RequestParameters, seed: int, most_samples: int | None) -> list[int]:
    """How many samples each request has."""
    random = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,)))
    sizes = wanted.samples.draw(wanted.distinct, random)
    if most_samples is not None and int(sizes.max()) > most_samples:
        raise InputError(f"requests of {int(sizes.max())} samples do not fit into max_batch = {most_samples}: raise it")
    return [int(size) for size in sizes]


def encode(tensors: Tensors, wire: Wire, model: str) -> Prepared:
    """A request as it goes over the wire."""
    count = len(next(iter(tensors.values())))
    if wire == "kserve-grpc":
        return Prepared(kserve_grpc.encode_request(model, tensors), samples=count)
    message = kserve.encode_request(tensors, binary=wire == "kserve-binary")
    headers = {"content-type": message.content_type}
    if message.json_length is not None:
        headers[kserve.JSON_LENGTH] = str(message.json_length)
    return Prepared(message.body, headers, count)


def read_samples(path: Path, inputs: Sequence[TensorSpec]) -> list[Tensors]:
    """Single samples from a .npz file that has an array for each input, all of one length."""
    if path.suffix != ".npz":
        raise InputError(f"dataset {path}: tensors are read from a .npz file with an array for each input")
    try:
        with np.load(path, allow_pickle=False) as found:
            arrays = {name: found[name] for name in found.files}
    except (OSError, ValueError) as error:
        raise InputError(f"dataset {path} cannot be read: {error}") from None
    lengths = {len(array) for array in arrays.values() if array.ndim}
    for spec in inputs:
        if spec.name not in arrays:
            raise InputError(f"dataset {path} has no array '{spec.name}'; it has {', '.join(arrays) or 'none'}")
        shape = arrays[spec.name].shape[1:]
        if not _fits(shape, spec):
            raise InputError(f"dataset {path}: '{spec.name}' has samples of {shape}, the model takes {spec.shape}")
    if len(lengths) != 1 or not lengths - {0}:
        raise InputError(f"dataset {path}: arrays of {sorted(lengths)} samples; all of one length, and at least one")
    names = [spec.name for spec in inputs]
    typed = {spec.name: arrays[spec.name].astype(spec.dtype, copy=False) for spec in inputs}
    return [{name: typed[name][row] for name in names} for row in range(lengths.pop())]


def _fits(shape: tuple[int, ...], spec: TensorSpec) -> bool:
    return len(shape) == len(spec.shape) and all(w in (-1, s) for s, w in zip(shape, spec.shape, strict=True))


def _require_fit(sample: Tensors, artifact: Artifact) -> None:
    """Somebody else's server may serve another model than the case names."""
    wanted = {spec.name: spec for spec in artifact.inputs}
    if sample.keys() == wanted.keys() and all(_fits(one.shape, wanted[name]) for name, one in sample.items()):
        return
    taken = ", ".join(f"{spec.name} {list(spec.shape)}" for spec in artifact.inputs)
    raise InputError(
        f"the server takes {taken}, which requests made for the model '{artifact.model}' are not; "
        "name the model that is served, or your own requests (requests.dataset)"
    )


def _batch(samples: Sequence[Tensors], first: int, size: int) -> Tensors:
    chosen = [samples[(first + offset) % len(samples)] for offset in range(size)]
    return {name: np.stack([one[name] for one in chosen]) for name in chosen[0]}
