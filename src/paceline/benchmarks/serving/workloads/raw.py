"""Pictures and texts as people send them: synthetic ones, or the user's own."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np

from paceline.benchmarks.serving.artifact import Artifact
from paceline.benchmarks.serving.load.prepared import Prepared
from paceline.benchmarks.serving.processing import Processing
from paceline.benchmarks.serving.protocol.byte_strings import byte_strings
from paceline.benchmarks.serving.protocol.values import ProtocolError
from paceline.benchmarks.serving.servers.base import Wire
from paceline.benchmarks.serving.workloads.language import WORDS, read_prompts
from paceline.benchmarks.serving.workloads.parameters import RequestParameters
from paceline.benchmarks.serving.workloads.tensors import Requests, drawn_sizes, encode
from paceline.core.errors import InputError

SIZE = (500, 375)  # pixels of a synthetic picture: what photographs in collections have on average
_COARSE = (25, 19)  # of the areas of colour in it; without them JPEG would make it far larger than a photograph
_GRAIN = 6.0
_QUALITY = 90
_TIMES = 3  # that a client's work is timed, for the median
_PICTURES = (".jpg", ".jpeg", ".png")


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
            raise InputError(f"dataset {wanted.dataset}: {error}") from None
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
        raise InputError(f"dataset {folder}: pictures are read from a folder of JPEG and PNG files")
    try:
        found = [path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix.lower() in _PICTURES]
    except OSError as error:
        raise InputError(f"dataset {folder} cannot be read: {error}") from None
    if not found:
        raise InputError(f"dataset {folder} has no files {', '.join(_PICTURES)}")
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
