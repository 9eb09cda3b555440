"""Live objects of a user's Python, which cloudpickle wrote into a file that nobody else may write."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from paceline.core.shipping import SUFFIX, unship
from paceline.models.base import ModelSpec, Scale, Workload
from paceline.models.sources import OBJECT
from paceline.models.sources.factory import called, spec_of
from paceline.models.sources.given import is_module, workload_of
from paceline.models.sources.importing import mended
from paceline.models.sources.refusal import WITH_INPUTS, existing_file, refusal

FOLDER = "PACELINE_OBJECTS"  # in the environment of such a run: where they are


class LiveModel(NamedTuple):
    """A module, or what makes one, with the inputs and the loss that go with it."""

    model: Any
    inputs: Any = None
    loss: Callable[[Any], Any] | None = None


def load_object(text: str, inputs: str | None = None) -> ModelSpec:
    """The model in such a file; one that others may have written is refused, as reading it runs what they wrote."""
    path = _file_of(text)
    for one in (path, path.parent):
        status = one.stat()
        if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            why = f": {one} may be written by others, and reading the file would run what they wrote"
            raise refusal("not-private", text, why, WITH_INPUTS)
    content = path.read_bytes()

    def make(scale: Scale) -> object:
        loaded = mended(lambda: unship(content))
        given = loaded if isinstance(loaded, LiveModel) else LiveModel(loaded)
        model = given.model
        if callable(model) and not is_module(model) and not isinstance(model, ModelSpec):
            model = called(text, model, scale)
        return _described(text, given, model, inputs)

    return spec_of(text, make, None, "an object of the user's Python")  # what it makes has its inputs


def _described(text: str, given: LiveModel, made: Any, inputs: str | None) -> object:
    """What was made, with the inputs and the loss that were given; its record names the class."""
    if given.inputs is not None or given.loss is not None:
        made = (*(made if isinstance(made, tuple) else (made,)), None, None)[:3]
        made = (made[0], made[1] if given.inputs is None else given.inputs, given.loss or made[2])
    if isinstance(made, ModelSpec):
        return made
    workload: Workload = workload_of(text, made, inputs)
    kind = type(workload.module)
    return replace(workload, facts={"model_class": f"{kind.__module__}.{kind.__qualname__}", **workload.facts})


def _file_of(text: str) -> Path:
    if not text.startswith(OBJECT):
        return existing_file(text, WITH_INPUTS)
    path = Path(os.environ.get(FOLDER, ""), f"{text.removeprefix(OBJECT)}{SUFFIX}")
    if FOLDER not in os.environ or not path.is_file():
        why = " was an object of a Python process: measure it again from there, with paceline.run(..., model=...)"
        raise refusal("object-is-gone", text, why, WITH_INPUTS)
    return path
