"""Models for serving: exported once into the format that an engine reads, checked, and kept.

An exported model answers as the eager one does, or it is not kept: both are asked with batches of one, two and three
samples, which also shows that the batch may have any size.

What is kept is found again by a key of all that it was made from: name, scale, format, precision, seed, the versions
of the exporters, the sizes and settings of every layer, and the source files of their classes. The weights themselves
are left out, as reading those of a large model takes as long as exporting it, and the seed defines them. Only a user's
own model (`module:factory`) may have them from elsewhere, so that there they are part of the key.

Each is kept in a folder of its own that is there whole or not at all. Two processes that export the same model at once
both do the work, and the first one's stays.
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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from paceline.core.errors import CaseError, InputError, Unsupported
from paceline.core.files import cache_directory
from paceline.core.subject import FloatPrecision
from paceline.load.tensors import Array, TensorSpec
from paceline.models.base import ModelSpec, Scale, Workload
from paceline.models.user import find_model, is_reference
from paceline.servers.base import Artifact, Format

if TYPE_CHECKING:
    import torch
    from torch import nn

    from paceline.servers._exported_module import Exporter

PRECISIONS = get_args(FloatPrecision)
CHECKED_ROWS = (1, 2, 3)
# Of the largest output: what another order of adding, or batch norms folded into convolutions, may change in a deep
# model. One that computes something else is off by about 1.
TOLERANCES = {"fp32": 1e-3, "fp16": 1e-1, "bf16": 3e-1}

DESCRIPTION = "artifact.json"
ABANDONED_SECONDS = 24 * 3600.0  # a half export that is older than this has nobody who works on it


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
        from paceline.servers._exported_module import describe

        inputs, outputs = describe(spec, scale)
        return Artifact(model, scale, format, precision, seed, None, inputs, outputs, device=device)
    from paceline.servers._exported_module import EXPORTERS

    exporter = EXPORTERS[format]
    if precision not in exporter.precisions:
        raise Unsupported(f"{format} is exported in {' or '.join(exporter.precisions)}, not in {precision}")
    exporter.require()
    wanted = Artifact(
        model, scale, format, precision, seed, None, (), (), device="cpu" if exporter.any_device else device
    )
    root = folder if folder is not None else cache_directory() / "models"
    place = root / f"{_file_name(spec.name)}-{format}-{_key(spec, wanted, exporter)}"
    found = _load_kept(place)
    if found is None:
        found = _keep(place, partial(_make, spec, wanted, exporter))
    return replace(found, model=model)


def load_eager(
    model: str, *, scale: Scale, precision: str, seed: int, device: str = "cpu", allow_import: bool = False
) -> tuple[nn.Module, tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """The module on its device, ready to answer, and what goes in and comes out."""
    from paceline.servers._exported_module import describe

    module = load_module(model, scale=scale, precision=precision, seed=seed, device=device, allow_import=allow_import)
    return module, *describe(find_model(model, allow_import=allow_import), scale)


def load_module(
    model: str, *, scale: Scale, precision: str, seed: int, device: str = "cpu", allow_import: bool = False
) -> nn.Module:
    """The module on its device, ready to answer; an artifact knows what goes in and comes out.

    It takes tensors on that device, in the order of the inputs, and gives one tensor or a tuple of several.
    """
    import torch

    from paceline.servers._exported_module import build

    spec = find_model(model, allow_import=allow_import)
    _check_precision(precision)
    served, _ = build(spec, scale, precision, seed, torch.device(device))
    return served


def sample_inputs(artifact: Artifact, count: int, *, seed: int, allow_import: bool = False) -> list[dict[str, Array]]:
    """So many different samples as the model's own data has them: by input name, without the batch axis."""
    from paceline.servers._exported_module import outline, samples

    spec = find_model(artifact.model, allow_import=allow_import)
    return samples(outline(spec, _scale(artifact)), count, seed)


def _make(spec: ModelSpec, wanted: Artifact, exporter: Exporter, folder: Path) -> Artifact:
    import torch

    from paceline.servers._exported_module import ExportJob, build, describe, first_line, quiet

    inputs, outputs = describe(spec, _scale(wanted))
    device = torch.device(wanted.device)
    served, rows = build(spec, _scale(wanted), wanted.precision, wanted.seed, device)
    path = folder / exporter.file
    with quiet():
        try:
            job = ExportJob(served, rows, tuple(one.name for one in inputs), tuple(one.name for one in outputs))
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
    from paceline.servers._exported_module import flat

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
    from paceline.servers import _exported_module

    parts: dict[str, Any] = {
        "model": spec.name,
        "wanted": [wanted.scale, wanted.format, wanted.precision, wanted.seed, wanted.device],
        "versions": exporter.versions(),
        "exporter": [_source_of(name) for name in (_exported_module.__name__, _exported_module.__name__)],
    }
    if is_reference(wanted.model):
        import torch

        served, _ = _exported_module.build(spec, _scale(wanted), "fp32", wanted.seed, torch.device("cpu"))
        parts["layers"], parts["weights"] = _layers(served), _weights(served)
    else:
        workload = _exported_module.outline(spec, _scale(wanted))
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
        message = f"precision = {precision} is not served; choose one of {', '.join(PRECISIONS)}"
        raise InputError("precision-not-served", message, key="precision", value=precision)


def _scale(artifact: Artifact) -> Scale:
    return "tiny" if artifact.scale == "tiny" else "full"


def _what(wanted: Artifact) -> str:
    return f"{wanted.model} as {wanted.format} in {wanted.precision}"


def _file_name(model: str) -> str:
    return re.sub(r"[^A-Za-z0-9.=]+", "-", model).strip("-.")[:80]


def _load_kept(place: Path) -> Artifact | None:
    """What is kept there; None where nothing is, or something that is not as it was written."""
    try:
        words = json.loads((place / DESCRIPTION).read_text(encoding="utf-8"))
        fields = words["artifact"]
        for key in ("inputs", "outputs"):
            fields[key] = tuple(TensorSpec(one["name"], one["datatype"], tuple(one["shape"])) for one in fields[key])
        artifact = Artifact(**{**fields, "path": place / fields["path"]})
        if artifact.digest == _digest(place) and artifact.path is not None and artifact.path.is_file():
            return artifact
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def _keep(place: Path, make: Callable[[Path], Artifact]) -> Artifact:
    """Let `make` write into a folder beside the place, then put it there at once; it returns paths in that folder."""
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _sweep(place.parent)
        folder = _beside(place)
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise CaseError(
            f"exported models cannot be kept in {place.parent}: {error.strerror}; set $XDG_CACHE_HOME"
        ) from None
    try:
        made = make(folder)
        _finish(folder, made)
        _publish(folder, place)
    except OSError as error:
        raise CaseError(f"{place.name} cannot be kept in {place.parent}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    kept = _load_kept(place)
    if kept is None:
        raise CaseError(f"{place} was written, but reads differently: check that disk, or set $XDG_CACHE_HOME")
    return kept


def _finish(folder: Path, made: Artifact) -> None:
    """Describe what was written, and have it on the disk."""
    assert made.path is not None
    words = asdict(replace(made, digest=_digest(folder))) | {"path": made.path.name}
    (folder / DESCRIPTION).write_text(json.dumps({"artifact": words}, indent=2) + "\n", encoding="utf-8")
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())


def _publish(folder: Path, place: Path) -> None:
    """Rename into place; what is damaged makes room, what is whole stays."""
    for _ in range(3):
        with suppress(OSError):  # a folder that is not empty is in the way
            folder.rename(place)
            return
        if _load_kept(place) is not None:
            return
        aside = _beside(place)
        with suppress(FileNotFoundError):  # another process was faster
            place.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)
    folder.rename(place)


def _beside(place: Path) -> Path:
    return place.with_name(f".{place.name}.{uuid.uuid4().hex[:8]}.tmp")


def _sweep(folder: Path) -> None:
    """Remove what exports left behind that were killed."""
    for leftover in folder.glob(".*.tmp"):
        with suppress(OSError):
            if time.time() - leftover.stat().st_mtime > ABANDONED_SECONDS:
                shutil.rmtree(leftover, ignore_errors=True)


def _digest(folder: Path) -> str:
    """Of every file beside the description, by name."""
    whole = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.name != DESCRIPTION:
            with path.open("rb") as file:
                whole.update(f"{path.name}\0".encode() + hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()
