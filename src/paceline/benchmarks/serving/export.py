"""Models for serving: exported once into the format that an engine reads, checked, and kept.

An exported model answers as the eager one does, or it is not kept: both are asked with batches of one, two and three
samples, which also shows that the batch may have any size.

What is kept is found again by a key of all that it was made from: name, scale, format, precision, seed, the versions
of the exporters, the sizes and settings of every layer, and the source files of their classes. The weights themselves
are left out, as reading those of a large model takes as long as exporting it, and the seed defines them. Only a user's
own model (`module:factory`) may have them from elsewhere, so that there they are part of the key.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.benchmarks.serving import _export_cache
from paceline.benchmarks.serving.artifact import Artifact, Format
from paceline.benchmarks.serving.tensors import Array, TensorSpec
from paceline.core.errors import CaseError, InputError, Unsupported
from paceline.core.files import cache_directory
from paceline.models.base import ModelSpec, Scale, Workload
from paceline.models.user import find_model, is_reference

if TYPE_CHECKING:
    import torch
    from torch import nn

    from paceline.benchmarks.serving._export_formats import Exporter

PRECISIONS = ("fp32", "bf16", "fp16")
CHECKED_ROWS = (1, 2, 3)
# Of the largest output: what another order of adding, or batch norms folded into convolutions, may change in a deep
# model. One that computes something else is off by about 1.
TOLERANCES = {"fp32": 1e-3, "fp16": 1e-1, "bf16": 3e-1}


class NotExportable(Unsupported):
    """A model that a format cannot express."""


def export(
    model: str,
    *,
    scale: Scale,
    format: Format,
    precision: str = "fp32",
    seed: int = 1234,
    device: str = "cpu",
    allow_import: bool = False,
    folder: Path | None = None,
) -> Artifact:
    """The model in a format, exported now or found among those kept in `folder` (unset: in the user's cache).

    Torch's formats hold the device they were traced on. For eager nothing is written: `load_eager` builds the model.
    """
    spec = find_model(model, allow_import=allow_import)
    _check_precision(precision)
    if format == "eager":
        from paceline.benchmarks.serving._served import describe

        inputs, outputs = describe(spec, scale)
        return Artifact(model, scale, format, precision, seed, None, inputs, outputs, device=device)
    from paceline.benchmarks.serving._export_formats import EXPORTERS

    exporter = EXPORTERS[format]
    if precision not in exporter.precisions:
        raise Unsupported(f"{format} is exported in {' or '.join(exporter.precisions)}, not in {precision}")
    exporter.require()
    wanted = Artifact(
        model, scale, format, precision, seed, None, (), (), device="cpu" if exporter.any_device else device
    )
    root = folder if folder is not None else cache_directory() / "models"
    place = root / f"{_file_name(spec.name)}-{format}-{_key(spec, wanted, exporter)}"
    found = _export_cache.load(place)
    if found is None:
        found = _export_cache.keep(place, partial(_make, spec, wanted, exporter))
    return replace(found, model=model)


def load_eager(
    model: str, *, scale: Scale, precision: str, seed: int, device: str = "cpu", allow_import: bool = False
) -> tuple[nn.Module, tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """The module on its device, ready to answer, and what goes in and comes out."""
    from paceline.benchmarks.serving._served import describe

    module = load_module(model, scale=scale, precision=precision, seed=seed, device=device, allow_import=allow_import)
    return module, *describe(find_model(model, allow_import=allow_import), scale)


def load_module(
    model: str, *, scale: Scale, precision: str, seed: int, device: str = "cpu", allow_import: bool = False
) -> nn.Module:
    """The module on its device, ready to answer; an artifact knows what goes in and comes out.

    It takes tensors on that device, in the order of the inputs, and gives one tensor or a tuple of several.
    """
    import torch

    from paceline.benchmarks.serving._served import build

    spec = find_model(model, allow_import=allow_import)
    _check_precision(precision)
    served, _ = build(spec, scale, precision, seed, torch.device(device))
    return served


def sample_inputs(artifact: Artifact, count: int, *, seed: int, allow_import: bool = False) -> list[dict[str, Array]]:
    """So many different samples as the model's own data has them: by input name, without the batch axis."""
    from paceline.benchmarks.serving._served import outline, samples

    spec = find_model(artifact.model, allow_import=allow_import)
    return samples(outline(spec, _scale(artifact)), count, seed)


def _make(spec: ModelSpec, wanted: Artifact, exporter: Exporter, folder: Path) -> Artifact:
    import torch

    from paceline.benchmarks.serving._export_formats import Job, quiet
    from paceline.benchmarks.serving._served import build, describe, first_line

    inputs, outputs = describe(spec, _scale(wanted))
    device = torch.device(wanted.device)
    served, rows = build(spec, _scale(wanted), wanted.precision, wanted.seed, device)
    path = folder / exporter.file
    with quiet():
        try:
            job = Job(served, rows, tuple(one.name for one in inputs), tuple(one.name for one in outputs))
            exporter.write(job, path)
            run = exporter.open(path, device)
        except (MemoryError, torch.OutOfMemoryError, OSError):
            raise
        except Exception as error:  # exporters raise whatever they like
            raise NotExportable(f"{_what(wanted)} cannot be exported: {first_line(error)}") from error
        deviation = 0.0
        for count in CHECKED_ROWS:
            few = tuple(one[:count] for one in rows)
            try:
                answers = run(few)
            except Exception as error:
                raise NotExportable(
                    f"{_what(wanted)} was exported but takes no batch of {count}: {first_line(error)}"
                ) from error
            deviation = max(deviation, _deviation(_what(wanted), served(*few), answers))
    if not deviation <= TOLERANCES[wanted.precision]:
        raise CaseError(
            f"{_what(wanted)} answers otherwise than the eager model: the largest difference is {deviation:.2g} of the "
            f"largest output, tolerated is {TOLERANCES[wanted.precision]:g}; serve it in another format"
        )
    return replace(wanted, path=path, inputs=inputs, outputs=outputs, deviation=deviation)


def _deviation(what: str, expected: Any, answers: list[torch.Tensor]) -> float:
    """The largest difference of any output of fractions, relative to that output's largest value.

    Whole numbers are choices: where two are as good but for rounding, either may come.
    """
    from paceline.benchmarks.serving._served import flat

    largest = 0.0
    for one, answer in zip(flat(expected), answers, strict=True):
        true, given = one.double().cpu(), answer.double().cpu()
        if true.shape != given.shape:
            raise CaseError(
                f"{what} answers in the sizes {tuple(given.shape)} where the eager model's are {tuple(true.shape)}"
            )
        if not bool(true.isfinite().all()):
            raise CaseError(f"{what}: the eager model's own output is not finite; use bf16 or fp32")
        if true.numel() and one.is_floating_point():
            difference = float((true - given).abs().max())
            scale = float(true.abs().max())
            largest = max(largest, difference / scale if scale else difference)
            if difference != difference:
                return difference
    return largest


def _key(spec: ModelSpec, wanted: Artifact, exporter: Exporter) -> str:
    from paceline.benchmarks.serving import _export_formats, _served

    parts: dict[str, Any] = {
        "model": spec.name,
        "wanted": [wanted.scale, wanted.format, wanted.precision, wanted.seed, wanted.device],
        "versions": exporter.versions(),
        "exporter": [_source_of(name) for name in (_export_formats.__name__, _served.__name__)],
    }
    if is_reference(wanted.model):
        import torch

        served, _ = _served.build(spec, _scale(wanted), "fp32", wanted.seed, torch.device("cpu"))
        parts["layers"], parts["weights"] = _layers(served), _weights(served)
    else:
        workload = _served.outline(spec, _scale(wanted))
        parts["layers"] = _layers(workload.module)
        parts["builder"] = _builder_source(spec, workload)
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
            if kind.__module__.partition(".")[0] not in ("torch", "builtins"):  # torch is told by its version
                sources[kind.__module__] = _source_of(kind.__module__)
    return [layers, sources]


def _builder_source(spec: ModelSpec, workload: Workload) -> list[str]:
    functions = [getattr(one, "func", one) for one in (spec.build, workload.make_batch)]
    return [_source_of(getattr(one, "__module__", "")) for one in functions]


def _source_of(module: str) -> str:
    """A digest of a module's file; empty where there is none, as in a console."""
    try:
        file = inspect.getsourcefile(sys.modules[module])
        return hashlib.sha256(Path(file or "").read_bytes()).hexdigest()
    except (KeyError, TypeError, OSError):
        return ""


def _weights(module: nn.Module) -> str:
    import torch

    digest = hashlib.sha256()
    for name, one in module.state_dict().items():
        digest.update(name.encode())
        digest.update(one.detach().contiguous().cpu().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _check_precision(precision: str) -> None:
    if precision not in PRECISIONS:
        raise InputError(f"precision = {precision} is not served; choose one of {', '.join(PRECISIONS)}")


def _scale(artifact: Artifact) -> Scale:
    return "tiny" if artifact.scale == "tiny" else "full"


def _what(wanted: Artifact) -> str:
    return f"{wanted.model} as {wanted.format} in {wanted.precision}"


def _file_name(model: str) -> str:
    return re.sub(r"[^A-Za-z0-9.=]+", "-", model).strip("-.")[:80]
