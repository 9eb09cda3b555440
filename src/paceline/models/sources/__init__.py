"""Where models come from: the zoo, a name that generates one, or a file or code of the user's own.

The form of the text decides. Benchmarks see a `ModelSpec` and its traits, whatever it was made from.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import PurePath

from paceline.core.errors import InputError
from paceline.core.network import FromNetwork, shorten
from paceline.models import MODELS, generated
from paceline.models.base import ModelSpec, Traits
from paceline.models.sources.refusal import refusal

Load = Callable[[str, str | None], ModelSpec]

# By the end of the text: the module here that reads it, and the function in it. Imported when it is needed.
FILES = {
    ".onnx": ("model_file", "load_onnx"),
    ".pt2": ("model_file", "load_program"),
    ".cloudpickle": ("factory", "load_object"),
    ".json": ("factory", "load_folder"),
}
OBJECT = "object:"  # before the name of an object of the process that started the run
WEIGHTS = (".pt", ".pth", ".bin", ".ckpt", ".safetensors")


def is_own(name: str) -> bool:
    """Whether a name stands for a file or for code of the user's own."""
    suffix = PurePath(name).suffix
    own = ":" in name or "/" in name or name.startswith(("~", ".")) or suffix in (*FILES, *WEIGHTS, ".py")
    return own and not name.startswith(generated.PREFIX)


def _network_name(name: str) -> str:
    """Why a job from the network may not name this model; empty where it may."""
    if is_own(name):
        return f"= {shorten(name)} would run code or read a file; name a model of the zoo"
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/:=,-]{0,199}", name):
        return f"= {shorten(name)} has invalid characters"
    return "would name a file" if ".." in name else ""


MODEL_NAME = FromNetwork(_network_name)  # for parameters that name a model
MODEL_INPUT = FromNetwork(never="describes the inputs of a model that a job may not name")


def find_model(name: str, *, allow_import: bool, key: str = "model", inputs: str | None = None) -> ModelSpec:
    """A model of the zoo by its name, a generated one, or the user's own where that is allowed.

    A refusal names the parameter that the model was given as.
    """
    try:
        if is_own(name) and not allow_import:
            message = (
                f"model '{name}' is refused: a model given as a file or as module:factory runs code, so it is taken "
                "from the command line and from local suites, but not from the network; name a model of the zoo"
            )
            raise InputError("not-from-network", message, value=name)
        if is_own(name):
            return _loader(name)(name, inputs)
        if inputs is not None:
            message = f"input = {inputs}: model '{name}' has inputs of its own; leave it out"
            raise InputError("input-not-taken", message, key="input", value=inputs)
        return generated.generated_model(name) if name.startswith(generated.PREFIX) else MODELS.registry().get(name)
    except InputError as error:
        raise error.within("", key=key) from error.__cause__


def check_model(name: str, *, is_local: bool, key: str = "model", inputs: str | None = None) -> Traits:
    """Refuse a model that is unknown, wrong, or a user's own in a job from the network; what it leaves no choice of.

    A user's own is loaded in a process of its own, where it takes one step forward without weights if it can.
    """
    if not is_own(name) or not is_local:
        return find_model(name, allow_import=False, key=key, inputs=inputs).traits
    from paceline.models.sources.trying import try_in_child

    return try_in_child(name, inputs, key)


def _loader(name: str) -> Load:
    suffix = PurePath(name).suffix
    if name.startswith(OBJECT):
        module, function = FILES[".cloudpickle"]
    elif suffix in FILES:
        module, function = FILES[suffix]
    elif ":" in name:
        module, function = "factory", "load_factory"
    elif suffix == ".py":
        raise refusal("missing-factory", name, f" is a script: name what makes the model in it, as in {name}:make")
    elif suffix in WEIGHTS:
        why = " holds weights without the code that computes with them: give that as ./script.py:factory"
        raise refusal("weights-alone", name, why)
    else:
        module, function = "factory", "load_folder"
    load: Load = getattr(import_module(f"{__name__}.{module}"), function)
    return load


__all__ = ["MODEL_INPUT", "MODEL_NAME", "check_model", "find_model", "is_own"]
