"""Models given as code: `package.module:factory`, `./script.py:factory`, a Hugging Face config, or a live object.

Objects of a user's Python come as files that cloudpickle wrote, and that nobody else may write.
"""

from __future__ import annotations

import copy
import inspect
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from paceline.core.errors import PacelineError
from paceline.core.shipping import SUFFIX, unship
from paceline.models.base import ModelSpec, Scale, Traits, Workload
from paceline.models.sources import OBJECT
from paceline.models.sources.given import is_module, read_config, workload_of
from paceline.models.sources.importing import attribute, mended
from paceline.models.sources.refusal import FACTORY, WITH_INPUTS, existing_file, refusal


def load_factory(reference: str, inputs: str | None = None) -> ModelSpec:
    """The model behind a reference; the current folder, or that of the script, is on the import path.

    The factory takes nothing, or a keyword `scale` ("full" or "tiny"), and returns what `workload_of` takes, or a
    `ModelSpec`. It is called here once, to see which (at the tiny scale where it takes one), unless it is annotated to
    return a `Workload`: then only a case calls it, and a large model is not built merely to be inspected.
    """
    named = attribute(reference)
    if isinstance(named, ModelSpec):
        return named
    if is_module(named):
        return spec_of(reference, lambda scale: copy.deepcopy(named), inputs, "a module of the user's own")
    if not callable(named):
        why = f" is an object of type {type(named).__name__}: expected is a function or a class without arguments"
        raise refusal("not-a-function", reference, why)
    _takes_scale(reference, named)

    def make(scale: Scale) -> object:
        return called(reference, named, scale)

    summary = next(iter((inspect.getdoc(named) or "").splitlines()), "a model of the user's own")
    annotation = getattr(named, "__annotations__", {}).get("return")
    is_promised = annotation is Workload or str(annotation).rpartition(".")[2] == "Workload"
    return spec_of(reference, make, inputs, summary, is_promised=is_promised)


def called(reference: str, factory: Callable[..., Any], scale: Scale) -> object:
    """What a factory makes at a scale; one without a choice of it makes what it makes."""
    return factory(scale=scale) if _takes_scale(reference, factory) else factory()


def spec_of(
    text: str, make: Callable[[Scale], object], inputs: str | None, summary: str, *, is_promised: bool = False
) -> ModelSpec:
    """A spec of what `make` gives, which is tried here unless it promises a `Workload`."""

    def read(scale: Scale) -> Workload | ModelSpec:
        made = make(scale)
        return made if isinstance(made, ModelSpec) else workload_of(text, made, inputs)

    def build(scale: Scale) -> Workload:
        made = read(scale)
        return made.build(scale) if isinstance(made, ModelSpec) else made

    spec = ModelSpec(name=text, family="user", task="custom", summary=summary, build=build)
    if is_promised:
        return spec
    made = _tried(text, read)
    if isinstance(made, ModelSpec):
        return made
    is_trainable = any(weight.requires_grad for weight in made.module.parameters())
    return replace(spec, batch_size=made.batch_size or spec.batch_size, traits=Traits(is_trainable=is_trainable))


def _tried(text: str, read: Callable[[Scale], Workload | ModelSpec]) -> Workload | ModelSpec:
    """What is made at the tiny scale, without memory for its weights where that is possible."""
    import torch

    try:
        with torch.device("meta"):
            return read("tiny")
    except PacelineError:
        raise
    except Exception:  # code that needs numbers; what is wrong in any case is wrong once more
        pass
    try:
        return read("tiny")
    except PacelineError:
        raise
    except (Exception, SystemExit) as error:
        why = f" failed when called: {type(error).__name__}: {error}"
        raise refusal("failing-factory", text, why) from error


def _takes_scale(reference: str, factory: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # some callables written in C have no signature
        return False
    takes_any = [one for one in parameters if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    required = [
        one.name for one in parameters if one.default is one.empty and one not in takes_any and one.name != "scale"
    ]
    if required:
        why = f" needs {', '.join(required)}: a factory takes no arguments, or only the keyword scale"
        raise refusal("factory-needs-arguments", reference, why, FACTORY)
    return any(
        (one.kind is one.VAR_KEYWORD and not inspect.isclass(factory))
        or (one.name == "scale" and one.kind is not one.POSITIONAL_ONLY)
        for one in parameters
    )


def load_folder(text: str, inputs: str | None = None) -> ModelSpec:
    """The model that the config describes, with random weights."""
    config = read_config(text)
    return spec_of(text, lambda scale: copy.deepcopy(config), inputs, f"{config.model_type}, from a config")


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
