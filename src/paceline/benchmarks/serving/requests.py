"""The requests of a load (tensors, pictures, texts), and whether their answers are what the model itself gives."""

from __future__ import annotations

import io
import timeit
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from paceline.benchmarks.serving.parameters import ServeParameters
from paceline.benchmarks.serving.texts import WORDS, bad_dataset, read_prompts
from paceline.core.errors import InputError, SilentCorruption
from paceline.load import kserve, kserve_grpc
from paceline.load.kserve import Array, ProtocolError, Tensors, TensorSpec, byte_strings
from paceline.load.parameters import RequestParameters
from paceline.load.request import Endpoint, Prepared, Wire
from paceline.load.results import decode
from paceline.load.shared_memory import shared_requests
from paceline.servers.base import Artifact, Server
from paceline.servers.processing import INDICES, VALUES, Processing, likeliest

SIZE = (500, 375)  # pixels of a synthetic picture: what photographs in collections have on average
_COARSE = (25, 19)  # of the areas of colour in it; without them JPEG would make it far larger than a photograph
_GRAIN = 6.0
_QUALITY = 90
_TIMES = 3  # that a client's work is timed, for the median
_PICTURES = (".jpg", ".jpeg", ".png")
CHECKED = 4  # of the different requests: the first that are answered
MOST_SAMPLES = 8  # of a request, the first: the model on the CPU would take long for more
MANY_CHOICES = 16  # of which half differ by no rounding

Sample = TypeVar("Sample")


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
        from paceline.servers.export import TOLERANCES, deviation_of

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
            off = deviation_of(actual, expected)
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


@dataclass(frozen=True)
class Requests:
    """Requests that are ready to go, what they were made of, and how their answers are to be taken."""

    prepared: list[Prepared]
    source: str
    tensors: list[Tensors] = field(default_factory=list)  # as the model takes them
    processing: Processing | None = None  # what the server makes of its outputs
    is_streaming: bool = False
    in_turn: bool = False  # one after the other, instead of drawn at random
    answers: Answers | None = None  # None where nobody can say what is right
    outputs: tuple[tuple[int, ...], ...] | None = None  # shapes of one sample in an answer; None if not to be checked
    warm_up: list[Prepared] = field(default_factory=list)  # sent before the load, where its own must not be seen before
    fresh: tuple[str, ...] = ()  # words of which requests get some as they are sent
    prompt_lengths: list[int] = field(default_factory=list)  # of language models, in tokens, as asked for
    output_lengths: list[int] = field(default_factory=list)
    models: list[str] = field(default_factory=list)  # of each, where there are several
    json_keys: tuple[str, ...] | None = None  # what answers have to be JSON objects with


@dataclass(frozen=True)
class RequestMaker:
    """Makes as many different requests as are to be sent to a model that takes tensors."""

    parameters: RequestParameters
    artifact: Artifact
    endpoint: Endpoint
    seed: int
    most_samples: int | None
    allow_import: bool

    def tensor_requests(self) -> Requests:
        """Requests that carry tensors, each with its own samples."""
        dataset, artifact = self.parameters.dataset, self.artifact
        if dataset is not None:
            samples, source = read_samples(dataset, artifact.inputs), f"the user's file {dataset.name}"
        else:
            from paceline.servers.export import sample_inputs

            samples = sample_inputs(artifact, self.parameters.different, seed=self.seed, allow_import=self.allow_import)
            source = "synthetic, encoded before the load begins"
            # Somebody else's server may serve another model than the case names.
            specs = {spec.name: spec for spec in artifact.inputs}
            shapes = {name: array.shape for name, array in samples[0].items()}
            if shapes.keys() != specs.keys() or not all(_fits(shape, specs[name]) for name, shape in shapes.items()):
                message = (
                    f"the server takes {', '.join(f'{spec.name} {list(spec.shape)}' for spec in artifact.inputs)}, "
                    f"which requests made for the model '{artifact.model}' are not; "
                    "name the model that is served, or your own requests (requests.dataset)"
                )
                raise InputError("another-model-is-served", message, key="model", value=artifact.model)
        batches = [{name: np.stack([one[name] for one in rows]) for name in rows[0]} for rows in self._drawn(samples)]
        if self.endpoint.wire == "kserve-shm":
            return Requests(shared_requests(batches, self.endpoint), f"{source}, in shared memory", batches)
        return Requests([encode(batch, self.endpoint) for batch in batches], source, batches)

    def raw_requests(self) -> Requests:
        """Requests made of pictures or texts; what clients have to do for them is done and timed beforehand."""
        parameters = self.parameters
        assert parameters.form != "tensors"
        processing = Processing.of(parameters.form, self.artifact, allow_import=self.allow_import)
        samples, source = raw_samples(parameters, processing, self.seed)
        prepared, tensors = [], []
        for rows in self._drawn(samples):
            try:
                tensors.append(processing.before(rows))
            except ProtocolError as error:
                raise bad_dataset("unreadable-sample", parameters.dataset, str(error)) from None
            if parameters.processing == "server":
                prepared.append(encode({processing.takes.name: byte_strings(rows)}, self.endpoint))
            else:
                prepared.append(_by_client(processing, rows, encode(tensors[-1], self.endpoint)))
        source = f"{source}, made into tensors by the {parameters.processing}"
        return Requests(prepared, source, tensors, processing if parameters.processing == "server" else None)

    def _drawn(self, samples: Sequence[Sample]) -> Iterator[list[Sample]]:
        """The samples of each request, as many as are drawn for it."""
        random = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(1,)))
        sizes = self.parameters.samples.draw(self.parameters.different, random)
        check_batch(int(sizes.max()), self.most_samples)
        for first, size in enumerate(sizes):
            yield [samples[(first + offset) % len(samples)] for offset in range(int(size))]


def check_batch(largest: int | None, most: int | None) -> None:
    """Refuse requests of more samples than the server takes at once."""
    if largest is not None and most is not None and largest > most:
        message = f"requests of {largest} samples do not fit into max_batch = {most}: raise it"
        raise InputError("too-many-samples", message, key="requests.samples", value=largest)


def encode(tensors: Tensors, endpoint: Endpoint) -> Prepared:
    """A request as it goes over the wire."""
    count = len(next(iter(tensors.values())))
    if endpoint.wire == "kserve-grpc":
        return Prepared(kserve_grpc.encode_request(endpoint.model, tensors), samples=count)
    message = kserve.encode_request(tensors, binary=endpoint.wire == "kserve-binary")
    headers = {"content-type": message.content_type}
    if message.json_length is not None:
        headers[kserve.JSON_LENGTH] = str(message.json_length)
    return Prepared(message.body, headers, count)


def read_samples(path: Path, inputs: Sequence[TensorSpec]) -> list[Tensors]:
    """Single samples from a .npz file that has an array for each input, all of one length."""
    if path.suffix != ".npz":
        raise bad_dataset("not-an-npz-file", path, "tensors are read from a .npz file with an array for each input")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError) as error:
        raise bad_dataset("unreadable-file", path, f"cannot be read: {error}") from None
    lengths = {len(array) for array in arrays.values() if array.ndim}
    for spec in inputs:
        if spec.name not in arrays:
            reason = f"it has no array '{spec.name}'; it has {', '.join(arrays) or 'none'}"
            raise bad_dataset("missing-array", path, reason)
        shape = arrays[spec.name].shape[1:]
        if not _fits(shape, spec):
            reason = f"'{spec.name}' has samples of {shape}, the model takes {spec.shape}"
            raise bad_dataset("wrong-shape", path, reason)
    if len(lengths) != 1 or not lengths - {0}:
        reason = f"arrays of {sorted(lengths)} samples; all of one length, and at least one"
        raise bad_dataset("unequal-lengths", path, reason)
    typed = {spec.name: arrays[spec.name].astype(spec.dtype, copy=False) for spec in inputs}
    return [{name: array[row] for name, array in typed.items()} for row in range(lengths.pop())]


def _fits(shape: tuple[int, ...], spec: TensorSpec) -> bool:
    return len(shape) == len(spec.shape) and all(w in (-1, s) for s, w in zip(shape, spec.shape, strict=True))


def _by_client(processing: Processing, samples: list[bytes], prepared: Prepared) -> Prepared:
    """The request with the time that its user's machine needs before it can send it, and after its answer came."""
    scores = np.random.default_rng(0).standard_normal((len(samples), *np.abs(processing.output.shape)))
    outputs = {processing.output.name: scores.astype(processing.output.dtype)}

    def seconds(call: Callable[[], object]) -> float:
        return median(timeit.repeat(call, number=1, repeat=_TIMES))

    before = seconds(lambda: processing.before(samples))
    return replace(prepared, before=before, after=seconds(lambda: processing.after(outputs)))


def raw_samples(parameters: RequestParameters, processing: Processing, seed: int) -> tuple[list[bytes], str]:
    """So many different byte strings, each one sample, and where they are from."""
    random = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(3,)))
    if parameters.dataset is not None:
        source = f"the user's own in {parameters.dataset.name}"
        if processing.form == "image":
            return read_pictures(parameters.dataset), source
        return [text.encode() for text in read_prompts(parameters.dataset)], source
    if processing.form == "text":
        (length,) = processing.shape
        texts = []
        for _ in range(parameters.different):
            count = int(random.integers(max(1, length // 2), length + 1))  # at most one word for each token
            texts.append(" ".join(random.choice(WORDS, size=count)).encode())
        return texts, "sentences of random common words"
    pictures = [picture(random, SIZE) for _ in range(parameters.different)]
    size = sum(map(len, pictures)) / len(pictures)
    return pictures, f"synthetic JPEG pictures of {SIZE[0]} x {SIZE[1]}, {size / 1000:.0f} kB on average"


def read_pictures(folder: Path) -> list[bytes]:
    """Every JPEG and PNG file in a folder, by name."""
    if not folder.is_dir():
        raise bad_dataset("not-a-folder", folder, "pictures are read from a folder of JPEG and PNG files")
    try:
        pictures = [path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix.lower() in _PICTURES]
    except OSError as error:
        raise bad_dataset("unreadable-file", folder, f"cannot be read: {error}") from None
    if not pictures:
        raise bad_dataset("empty-folder", folder, f"it has no files {', '.join(_PICTURES)}")
    return pictures


def picture(random: np.random.Generator, size: tuple[int, int]) -> bytes:
    """A JPEG file of so many pixels, about as large as a photograph's."""
    from PIL import Image

    areas = Image.fromarray(random.integers(0, 256, (*reversed(_COARSE), 3), np.uint8))
    pixels = np.asarray(areas.resize(size, Image.Resampling.BICUBIC), np.float64)
    grained = np.clip(pixels + random.normal(0.0, _GRAIN, pixels.shape), 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(grained).save(file, "JPEG", quality=_QUALITY)
    return file.getvalue()


def prepare_requests(
    parameters: ServeParameters, server: Server, endpoint: Endpoint, *, allow_import: bool
) -> Requests:
    """The requests of a case."""
    sent, seed = parameters.effective_requests, parameters.seed
    artifact = server.artifact
    if artifact is None:  # a server that does not say what it takes: the inputs are those of the model that is named
        from paceline.servers.export import export

        artifact = export(parameters.need("cpu", allow_import=allow_import), "eager")
    most = server.most_samples(server.settings)
    maker = RequestMaker(sent, artifact, endpoint, seed, most, allow_import)
    requests = maker.tensor_requests() if sent.form == "tensors" else maker.raw_requests()
    is_null = getattr(server.settings, "engine", None) == "null"  # it computes nothing, on purpose
    if requests.processing is None and not is_null:
        requests = replace(requests, outputs=tuple(spec.shape for spec in artifact.outputs))
    if not parameters.check_answers or not server.is_checkable or is_null:
        return requests
    answers = Answers(artifact, requests.tensors, endpoint.wire, requests.processing, allow_import=allow_import)
    return replace(requests, answers=answers)
