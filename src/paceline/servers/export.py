"""Models for serving: exported once into the format that an engine reads, checked, and cached.

An exported model answers as the eager one does, or it is not cached: both compute batches of one, two and three
samples, which also shows that the batch may have any size.

The key of the cache is made from name, scale, format, precision, seed, the versions of the exporters, the sizes and
settings of every layer, and the source files of their classes. The weights themselves are left out, as reading those of
a large model takes as long as exporting it, and the seed defines them. Only a user's own model (`module:factory`) may
have them from elsewhere, so that there they are part of the key.

Each export is a folder that is either whole or missing. Of two processes that export the same model at once both do the
work, and the first one's stays.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import CaseError, InputError, Unsupported
from paceline.core.files import cache_directory
from paceline.core.subject import FloatPrecision
from paceline.load.kserve import Array, TensorSpec
from paceline.models.base import ModelSpec
from paceline.models.sources import find_model, is_own
from paceline.servers.base import Artifact, Format, Need

if TYPE_CHECKING:
    from torch import Tensor, nn

    from paceline.servers._exported_module import Exporter

PRECISIONS = get_args(FloatPrecision)
CHECKED_ROWS = (1, 2, 3)
# Of the largest output: what another order of adding, or batch norms folded into convolutions, may change in a deep
# model. One that computes something else is off by about 1.
TOLERANCES = {"fp32": 1e-3, "tf32": 1e-1, "fp16": 1e-1, "bf16": 3e-1}

DESCRIPTION = "artifact.json"
ABANDONED_SECONDS = 24 * 3600.0  # after this no process works on an unfinished export any more


class NotExportable(Unsupported):
    """A model that a format cannot express."""


def export(need: Need, format: Format, folder: Path | None = None) -> Artifact:
    """The model of a need in a format, exported now or found in the cache `folder` (unset: the user's).

    Torch's formats hold the device they were traced on. For eager nothing is written: `load_module` builds the model.
    """
    from paceline.servers._exported_module import EXPORTERS, describe

    precision, device = need.precision, need.device
    spec = find_model(need.model, allow_import=need.allow_import, inputs=need.inputs)
    if precision not in PRECISIONS:
        message = f"precision = {precision} is not served; choose one of {', '.join(PRECISIONS)}"
        raise InputError("precision-not-served", message, key="precision", value=precision)
    if format == "onnx" and spec.traits.engine == "onnxruntime":
        return _of_file(need, describe(spec, need.scale))
    if format not in ("eager", "onnx") and spec.traits.engine != "torch":
        raise NotExportable(f"the {spec.traits.noun} {need.model} cannot become {format}: serve it with onnxruntime")
    if format == "eager":
        specs = describe(spec, need.scale)
        named = (need.model, need.scale, format, precision, need.seed, None)
        return Artifact(*named, *specs, device=device, given_inputs=need.inputs)
    exporter = EXPORTERS[format]
    if precision not in exporter.precisions:
        raise Unsupported(f"{format} is exported in {' or '.join(exporter.precisions)}, not in {precision}")
    exporter.require()
    device = "cpu" if exporter.any_device else device
    artifact = Artifact(need.model, need.scale, format, precision, need.seed, None, (), (), device=device)
    root = folder if folder is not None else cache_directory() / "models"
    file_name = re.sub(r"[^A-Za-z0-9.=]+", "-", spec.name).strip("-.")[:80]
    path = root / f"{file_name}-{format}-{_key(spec, artifact, exporter)}"
    cached = _load_cached(path) or _cache(path, partial(_make, spec, artifact, exporter))
    return replace(cached, model=need.model, given_inputs=need.inputs)


def _of_file(need: Need, specs: tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]) -> Artifact:
    """The user's own ONNX file as it is: there is nothing to export and nothing to compare it with."""
    path = Path(need.model).expanduser().absolute()
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    named = (need.model, need.scale, "onnx", need.precision, need.seed, path)
    return Artifact(*named, *specs, digest=digest, given_inputs=need.inputs)  # type: ignore[arg-type]


def load_module(artifact: Artifact, device: str = "cpu", *, allow_import: bool = False) -> nn.Module:
    """The eager module of an artifact on a device, ready to answer.

    It takes tensors on that device, in the order of the inputs, and gives one tensor or a tuple of several.
    """
    import torch

    from paceline.servers._exported_module import build

    spec = find_model(artifact.model, allow_import=allow_import, inputs=artifact.given_inputs)
    served, _ = build(spec, artifact.scale, artifact.precision, artifact.seed, torch.device(device))
    return served


def sample_inputs(artifact: Artifact, count: int, *, seed: int, allow_import: bool = False) -> list[dict[str, Array]]:
    """So many different samples as the model's own data has them: by input name, without the batch axis."""
    from paceline.servers._exported_module import outline, samples

    spec = find_model(artifact.model, allow_import=allow_import, inputs=artifact.given_inputs)
    return samples(outline(spec, artifact.scale), count, seed)


def _make(spec: ModelSpec, artifact: Artifact, exporter: Exporter, folder: Path) -> Artifact:
    import torch

    from paceline.servers._embedded.engines import FORMATS, open_engine
    from paceline.servers._exported_module import ExportJob, build, describe, first_line, quiet

    what = f"{artifact.model} as {artifact.format} in {artifact.precision}"
    inputs, outputs = describe(spec, artifact.scale)
    device = torch.device(artifact.device)
    served, rows = build(spec, artifact.scale, artifact.precision, artifact.seed, device)
    made = replace(artifact, path=folder / exporter.file, inputs=inputs, outputs=outputs)
    with quiet():
        try:
            job = ExportJob(served, rows, tuple(one.name for one in inputs), tuple(one.name for one in outputs))
            exporter.write(job, folder / exporter.file)
            engine = next(name for name, format in FORMATS.items() if format == artifact.format)
            session = open_engine(engine, made, artifact.device, ()).session(torch.get_num_threads())
        except (MemoryError, torch.OutOfMemoryError, OSError):
            raise
        except Exception as error:  # exporters raise whatever they like
            raise NotExportable(f"{what} cannot be exported: {first_line(error)}") from error
        deviations: list[float] = []
        for count in CHECKED_ROWS:
            few = tuple(one[:count] for one in rows)
            try:
                answers = session({spec.name: one.cpu().numpy() for spec, one in zip(inputs, few, strict=True)})
            except Exception as error:
                message = f"{what} was exported but takes no batch of {count}: {first_line(error)}"
                raise NotExportable(message) from error
            deviations += _deviations(what, served(*few), list(answers.values()))
    return replace(made, deviation=_largest(what, deviations, artifact.precision, "serve it in another format"))


def check_answers(
    artifact: Artifact, inputs: tuple[Tensor, ...], answers: list[Tensor], precision: str, *, allow_import: bool
) -> float:
    """How far another engine's answers to these inputs are from the eager model's, in parts of the largest output.

    Too far for the precision that it computes in is a CaseError. The eager model answers on the CPU.
    """
    import torch

    what = f"{artifact.model} in {precision}"
    with torch.inference_mode():
        expected = load_module(artifact, allow_import=allow_import)(*(one.cpu() for one in inputs))
    deviations = list(_deviations(what, expected, [one.cpu().numpy() for one in answers]))
    return _largest(what, deviations, precision, "use --engine torch")


def _largest(what: str, deviations: list[float], precision: str, remedy: str) -> float:
    deviation = float(np.max(deviations, initial=0.0))  # of an answer that is not a number, neither is this
    if not deviation <= TOLERANCES[precision]:
        raise CaseError(
            f"{what} answers otherwise than the eager model: the largest difference is {deviation:.2g} of the "
            f"largest output, tolerated is {TOLERANCES[precision]:g}; {remedy}"
        )
    return deviation


def deviation_of(actual: Array, expected: NDArray[np.float64]) -> float:
    """The largest difference of an output, relative to its largest value."""
    largest = float(np.max(np.abs(expected), initial=0.0)) or 1.0
    return float(np.max(np.abs(np.subtract(actual, expected, dtype=np.float64)), initial=0.0)) / largest


def _deviations(what: str, expected: Any, answers: list[Array]) -> Iterator[float]:
    """Of each output of fractions.

    Whole numbers are choices: where two are as good but for rounding, either may come.
    """
    from paceline.servers._exported_module import flat

    for output, answer in zip(flat(expected), answers, strict=True):
        eager = output.double().cpu().numpy()
        if eager.shape != answer.shape:
            raise CaseError(f"{what} answers in the sizes {answer.shape} where the eager model's are {eager.shape}")
        if not np.isfinite(eager).all():
            raise CaseError(f"{what}: the eager model's own output is not finite; use bf16 or fp32")
        if output.is_floating_point():
            yield deviation_of(answer, eager)


def _key(spec: ModelSpec, artifact: Artifact, exporter: Exporter) -> str:
    import torch

    from paceline.servers import _exported_module

    parts: dict[str, Any] = {
        "model": spec.name,
        "artifact": [artifact.scale, artifact.format, artifact.precision, artifact.seed, artifact.device],
        "versions": exporter.versions(),
        "exporter": _source_of(_exported_module.__name__),
    }
    if is_own(artifact.model):
        served, _ = _exported_module.build(spec, artifact.scale, "fp32", artifact.seed, torch.device("cpu"))
        weights = hashlib.sha256()
        for name, one in served.state_dict().items():
            weights.update(name.encode())
            weights.update(one.detach().contiguous().cpu().flatten().view(torch.uint8).numpy().tobytes())
        parts |= {"layers": _layers(served), "weights": weights.hexdigest()}
    else:
        workload = _exported_module.outline(spec, artifact.scale)
        functions = [getattr(function, "func", function) for function in (spec.build, workload.make_batch)]
        builder = [_source_of(getattr(function, "__module__", "")) for function in functions]
        parts |= {"layers": _layers(workload.module), "builder": builder}
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=repr).encode()).hexdigest()[:16]


def _layers(module: nn.Module) -> list[Any]:
    """Every layer's class, plain settings and the sizes of its weights; and the sources of the classes."""
    layers: list[Any] = []
    sources: dict[str, str] = {}
    for name, layer in module.named_modules():
        settings = {key: value for key, value in vars(layer).items() if isinstance(value, bool | int | float | str)}
        sizes = [(key, list(one.shape), str(one.dtype)) for key, one in layer.named_parameters(recurse=False)]
        sizes += [(key, list(one.shape), str(one.dtype)) for key, one in layer.named_buffers(recurse=False)]
        layers.append([name, type(layer).__qualname__, settings, sizes])
        for kind in type(layer).__mro__:
            if kind.__module__.partition(".")[0] not in ("torch", "builtins"):  # the key has the version of torch
                sources[kind.__module__] = _source_of(kind.__module__)
    return [layers, sources]


def _source_of(module: str) -> str:
    """A digest of a module's file; empty where there is none, as in a console."""
    try:
        file = inspect.getsourcefile(sys.modules[module])
        return hashlib.sha256(Path(file or "").read_bytes()).hexdigest()
    except (KeyError, TypeError, OSError):
        return ""


def _load_cached(folder: Path) -> Artifact | None:
    """The artifact in this folder; None where it is missing, or not as it was written."""
    try:
        fields = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))["artifact"]
        for key in ("inputs", "outputs"):
            fields[key] = tuple(TensorSpec(one["name"], one["datatype"], tuple(one["shape"])) for one in fields[key])
        artifact = Artifact(**{**fields, "path": folder / fields["path"]})
        if artifact.digest == _digest(folder) and artifact.path is not None and artifact.path.is_file():
            return artifact
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def _cache(path: Path, make: Callable[[Path], Artifact]) -> Artifact:
    """Let `make` write into a temporary folder, then rename that; it returns paths in that folder."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for leftover in path.parent.glob(".*.tmp"):  # of exports that were killed
            with suppress(OSError):
                if time.time() - leftover.stat().st_mtime > ABANDONED_SECONDS:
                    shutil.rmtree(leftover, ignore_errors=True)
        folder = _temporary(path)
        folder.mkdir(mode=0o700)
    except OSError as error:
        message = f"exported models cannot be kept in {path.parent}: {error.strerror}; set $XDG_CACHE_HOME"
        raise CaseError(message) from None
    try:
        artifact = make(folder)
        assert artifact.path is not None
        fields = asdict(replace(artifact, digest=_digest(folder))) | {"path": artifact.path.name}
        (folder / DESCRIPTION).write_text(json.dumps({"artifact": fields}, indent=2) + "\n", encoding="utf-8")
        for written in folder.iterdir():
            with written.open("rb") as file:
                os.fsync(file.fileno())
        _publish(folder, path)
    except OSError as error:
        raise CaseError(f"{path.name} cannot be kept in {path.parent}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    cached = _load_cached(path)
    if cached is None:
        raise CaseError(f"{path} was written, but reads differently: check that disk, or set $XDG_CACHE_HOME")
    return cached


def _publish(folder: Path, path: Path) -> None:
    """Rename it; a damaged folder of that name is replaced, a whole one stays."""
    for _ in range(3):
        with suppress(OSError):  # a folder that is not empty is in the way
            folder.rename(path)
            return
        if _load_cached(path) is not None:
            return
        aside = _temporary(path)
        with suppress(FileNotFoundError):  # another process was faster
            path.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)
    folder.rename(path)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")


def _digest(folder: Path) -> str:
    """Of every file except the description, by name."""
    whole = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.name != DESCRIPTION:
            with path.open("rb") as file:
                whole.update(f"{path.name}\0".encode() + hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()
