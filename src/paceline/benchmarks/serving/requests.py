"""From what a user wants to send to requests that are ready to go: tensors, pictures, texts."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from paceline.benchmarks.serving.answers import Answers
from paceline.benchmarks.serving.parameters import ServeParameters
from paceline.core.errors import InputError
from paceline.load import kserve, kserve_grpc
from paceline.load.kserve import ProtocolError
from paceline.load.parameters import Distribution, RequestParameters
from paceline.load.request import Endpoint, Prepared, Wire
from paceline.load.shared_memory import shared_requests
from paceline.load.tensors import Tensors, TensorSpec, byte_strings
from paceline.servers.base import Artifact, Server
from paceline.servers.processing import Processing

PROMPT = Distribution.constant(32)
OUTPUT = Distribution.constant(16)
# Common short words, which most tokenizers take as one token each; lengths are therefore near, not exact.
_COMMON = (
    "the of and to in is that it was for on are as with his they at be this from have or by one had not but what all "
    "were when we there can an your which their said if do will each about how up out them then she many some so these "
    "would other into has more her two like him see time could no make than first been its who now people my made over "
    "did down only way find use may water long little very after words called just where most know"
)
WORDS = np.array(_COMMON.split(" "))


def language_requests(wanted: RequestParameters, wire: Wire, *, model: str, seed: int) -> tuple[list[Prepared], str]:
    """Different prompts, and where they are from."""
    random = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(2,)))
    lengths = (wanted.output_tokens or OUTPUT).draw(wanted.distinct, random)
    if wanted.dataset is not None:
        texts = read_prompts(wanted.dataset)
        prompts = [texts[number % len(texts)] for number in range(wanted.distinct)]
        source = f"the user's file {wanted.dataset.name}"
    else:
        prompts = _prompts(wanted, random)
        source = "random common words, about one token each; lengths are near, not exact"
    bodies = [
        _body(prompt, int(length), wire, model, wanted.stream) for prompt, length in zip(prompts, lengths, strict=True)
    ]
    return [Prepared(json.dumps(body).encode(), {"content-type": "application/json"}) for body in bodies], source


def read_prompts(path: Path) -> list[str]:
    """One prompt on each line: a JSON string, or an object with `prompt`."""
    found = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        message = f"dataset {path} cannot be read: {error}"
        raise InputError("unreadable-file", message, key="requests.dataset", value=str(path)) from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        text = value.get("prompt") if isinstance(value, dict) else value
        if not isinstance(text, str) or not text:
            message = 'write a JSON string or {"prompt": "..."}'
            where = f"dataset {path}, line {number}"
            raise InputError("not-a-prompt", message, where=where, key="requests.dataset", value=line)
        found.append(text)
    if not found:
        raise InputError("no-prompts", f"dataset {path} has no prompts", key="requests.dataset", value=str(path))
    return found


def _prompts(wanted: RequestParameters, random: np.random.Generator) -> list[str]:
    lengths = (wanted.prompt_tokens or PROMPT).draw(wanted.distinct, random)
    shared = random.choice(WORDS, size=int(lengths.max()))
    prompts = []
    for length in lengths:
        same = round(wanted.shared_prefix * int(length))
        # What is not shared begins differently in each prompt, or a cache of prefixes would answer it.
        prompts.append(" ".join([*shared[:same], *random.choice(WORDS, size=int(length) - same)]))
    return prompts


def _body(prompt: str, length: int, wire: Wire, model: str, stream: bool) -> dict[str, Any]:
    body: dict[str, Any] = {"model": model, "max_tokens": length, "stream": stream, "temperature": 0.0}
    if wire == "openai-completions":
        return body | {"prompt": prompt}
    return body | {"messages": [{"role": "user", "content": prompt}]}


SIZE = (500, 375)  # pixels of a synthetic picture: what photographs in collections have on average
_COARSE = (25, 19)  # of the areas of colour in it; without them JPEG would make it far larger than a photograph
_GRAIN = 6.0
_QUALITY = 90
_TIMES = 3  # that a client's work is timed, for the median
_PICTURES = (".jpg", ".jpeg", ".png")


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
        from paceline.servers.export import sample_inputs

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
        largest = int(sizes.max())
        message = f"requests of {largest} samples do not fit into max_batch = {most_samples}: raise it"
        raise InputError("too-many-samples", message, key="requests.samples", value=largest)
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
        message = f"dataset {path}: tensors are read from a .npz file with an array for each input"
        raise InputError("not-an-npz-file", message, key="requests.dataset", value=str(path))
    try:
        with np.load(path, allow_pickle=False) as found:
            arrays = {name: found[name] for name in found.files}
    except (OSError, ValueError) as error:
        message = f"dataset {path} cannot be read: {error}"
        raise InputError("unreadable-file", message, key="requests.dataset", value=str(path)) from None
    lengths = {len(array) for array in arrays.values() if array.ndim}
    for spec in inputs:
        if spec.name not in arrays:
            message = f"dataset {path} has no array '{spec.name}'; it has {', '.join(arrays) or 'none'}"
            raise InputError("missing-array", message, key="requests.dataset", value=str(path))
        shape = arrays[spec.name].shape[1:]
        if not _fits(shape, spec):
            message = f"dataset {path}: '{spec.name}' has samples of {shape}, the model takes {spec.shape}"
            raise InputError("wrong-shape", message, key="requests.dataset", value=str(path))
    if len(lengths) != 1 or not lengths - {0}:
        message = f"dataset {path}: arrays of {sorted(lengths)} samples; all of one length, and at least one"
        raise InputError("unequal-lengths", message, key="requests.dataset", value=str(path))
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
    message = (
        f"the server takes {taken}, which requests made for the model '{artifact.model}' are not; "
        "name the model that is served, or your own requests (requests.dataset)"
    )
    raise InputError("another-model-is-served", message, key="model", value=artifact.model)


def _batch(samples: Sequence[Tensors], first: int, size: int) -> Tensors:
    chosen = [samples[(first + offset) % len(samples)] for offset in range(size)]
    return {name: np.stack([one[name] for one in chosen]) for name in chosen[0]}


def raw_requests(
    wanted: RequestParameters,
    artifact: Artifact,
    wire: Wire,
    *,
    model: str,
    seed: int,
    most_samples: int | None,
    allow_import: bool,
) -> Requests:
    """As many different requests as are wanted; what clients have to do for them is done and timed beforehand."""
    assert wanted.form != "tensors"
    processing = Processing.of(wanted.form, artifact, allow_import=allow_import)
    samples, source = raw_samples(wanted, processing, seed)
    prepared, tensors = [], []
    for first, size in enumerate(drawn_sizes(wanted, seed, most_samples)):
        chosen = [samples[(first + offset) % len(samples)] for offset in range(size)]
        try:
            tensors.append(processing.before(chosen))
        except ProtocolError as error:
            message = f"dataset {wanted.dataset}: {error}"
            raise InputError("unreadable-sample", message, key="requests.dataset", value=str(wanted.dataset)) from None
        if wanted.processing == "server":
            prepared.append(encode({processing.takes.name: byte_strings(chosen)}, wire, model))
        else:
            prepared.append(_by_client(processing, chosen, encode(tensors[-1], wire, model)))
    source = f"{source}, made into tensors by the {wanted.processing}"
    return Requests(prepared, tensors, source, processing if wanted.processing == "server" else None)


def _by_client(processing: Processing, samples: list[bytes], prepared: Prepared) -> Prepared:
    """The request with the time that its user's machine needs before it can send it, and after its answer came."""
    scores = np.random.default_rng(0).standard_normal((len(samples), *np.abs(processing.output.shape)))
    outputs = {processing.output.name: scores.astype(processing.output.dtype)}
    before = _seconds(lambda: processing.before(samples))
    return replace(prepared, before=before, after=_seconds(lambda: processing.after(outputs)))


def _seconds(call: Callable[[], object]) -> float:
    taken = []
    for _ in range(_TIMES):
        begun = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begun)
    return median(taken)


def raw_samples(wanted: RequestParameters, processing: Processing, seed: int) -> tuple[list[bytes], str]:
    """So many different byte strings, each one sample, and where they are from."""
    random = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(3,)))
    if wanted.dataset is not None:
        own = read_pictures(wanted.dataset) if processing.form == "image" else _encoded(read_prompts(wanted.dataset))
        return own, f"the user's own in {wanted.dataset.name}"
    if processing.form == "text":
        (length,) = processing.shape
        return [_sentence(random, length) for _ in range(wanted.distinct)], "sentences of random common words"
    pictures = [_picture(random) for _ in range(wanted.distinct)]
    size = sum(map(len, pictures)) / len(pictures)
    return pictures, f"synthetic JPEG pictures of {SIZE[0]} x {SIZE[1]}, {size / 1000:.0f} kB on average"


def read_pictures(folder: Path) -> list[bytes]:
    """Every JPEG and PNG file in a folder, by name."""
    if not folder.is_dir():
        message = f"dataset {folder}: pictures are read from a folder of JPEG and PNG files"
        raise InputError("not-a-folder", message, key="requests.dataset", value=str(folder))
    try:
        found = [path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix.lower() in _PICTURES]
    except OSError as error:
        message = f"dataset {folder} cannot be read: {error}"
        raise InputError("unreadable-file", message, key="requests.dataset", value=str(folder)) from None
    if not found:
        message = f"dataset {folder} has no files {', '.join(_PICTURES)}"
        raise InputError("empty-folder", message, key="requests.dataset", value=str(folder))
    return found


def _encoded(texts: list[str]) -> list[bytes]:
    return [text.encode() for text in texts]


def _sentence(random: np.random.Generator, length: int) -> bytes:
    """At most as many words as the model takes tokens."""
    words = random.choice(WORDS, size=int(random.integers(max(1, length // 2), length + 1)))
    return " ".join(words).encode()


def _picture(random: np.random.Generator) -> bytes:
    from PIL import Image

    areas = Image.fromarray(random.integers(0, 256, (*reversed(_COARSE), 3), np.uint8))
    pixels = np.asarray(areas.resize(SIZE, Image.Resampling.BICUBIC), np.float64)
    grained = np.clip(pixels + random.normal(0.0, _GRAIN, pixels.shape), 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(grained).save(file, "JPEG", quality=_QUALITY)
    return file.getvalue()


@dataclass(frozen=True)
class Made:
    """Requests, and how their answers are to be taken."""

    prepared: list[Prepared]
    source: str
    streaming: bool
    answers: Answers | None  # None where nobody knows what is right


def made_requests(parameters: ServeParameters, server: Server, endpoint: Endpoint, *, allow_import: bool) -> Made:
    """The requests of a case."""
    wanted, wire = parameters.wanted, endpoint.wire
    if wire in ("openai-chat", "openai-completions"):
        prepared, source = language_requests(wanted, wire, model=endpoint.model, seed=parameters.seed)
        return Made(prepared, source, wanted.stream, None)
    artifact = server.artifact or _as_named(parameters, allow_import)
    most, seed = server.most_samples(server.settings), parameters.seed
    if wire == "kserve-shm":
        batches, source = tensor_batches(wanted, artifact, seed=seed, most_samples=most, allow_import=allow_import)
        requests = Requests(shared_requests(batches, endpoint), batches, f"{source}, in shared memory")
    else:
        make = tensor_requests if wanted.form == "tensors" else raw_requests
        requests = make(
            wanted, artifact, wire, model=endpoint.model, seed=seed, most_samples=most, allow_import=allow_import
        )
    answers = None
    is_null = getattr(server.settings, "engine", None) == "null"  # it computes nothing, on purpose
    if parameters.check_answers and server.is_checkable and not is_null:
        answers = Answers(artifact, requests.tensors, wire, requests.processing, allow_import=allow_import)
    return Made(requests.prepared, requests.source, False, answers)


def _as_named(parameters: ServeParameters, allow_import: bool) -> Artifact:
    """What goes into the model that the case names, for a server that does not tell what it takes."""
    from paceline.servers.export import export

    return export(
        parameters.model,
        scale=parameters.scale,
        format="eager",
        precision=parameters.precision,
        seed=parameters.seed,
        allow_import=allow_import,
    )
