"""Exported models that are kept: each in a folder of its own that is there whole or not at all.

Two processes that export the same model at once both do the work, and the first one's stays.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from paceline.benchmarks.serving.artifact import Artifact
from paceline.benchmarks.serving.tensors import TensorSpec
from paceline.core.errors import CaseError

DESCRIPTION = "artifact.json"
ABANDONED_SECONDS = 24 * 3600.0  # a half export that is older than this has nobody who works on it


def load(place: Path) -> Artifact | None:
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


def keep(place: Path, make: Callable[[Path], Artifact]) -> Artifact:
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
    kept = load(place)
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
        if load(place) is not None:
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
