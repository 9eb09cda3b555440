"""Models of the user's own, given as `package.module:factory`."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline.core.errors import InputError, PacelineError
from paceline.core.network import FromNetwork, shorten
from paceline.models import MODELS, generated
from paceline.models.base import ModelSpec, Scale, Workload

_FORM = "write it as package.module:factory"


def is_reference(name: str) -> bool:
    """Whether a name stands for code of the user's own, `module:factory`."""
    return ":" in name and not name.startswith(generated.PREFIX)


def _network_name(name: str) -> str:
    """Why a job from the network may not name this model; empty where it may."""
    if is_reference(name):
        return f"= {shorten(name)} would import code; name a model of the zoo"
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/:=,-]{0,199}", name):
        return f"= {shorten(name)} has invalid characters"
    return "would name a file" if ".." in name else ""


MODEL_NAME = FromNetwork(_network_name)  # for parameters that name a model


def find_model(name: str, *, allow_import: bool, key: str = "model") -> ModelSpec:
    """A model of the zoo by its name, a generated one, or the user's own where importing it is allowed.

    A refusal names the parameter that the model was given as.
    """
    try:
        if name.startswith(generated.PREFIX):
            return generated.generated_model(name)
        if not is_reference(name):
            return MODELS.registry().get(name)
        if not allow_import:
            message = (
                f"model '{name}' is refused: a model given as module:factory runs code, so it is taken from the "
                "command line and from local suites, but not from the network; name a model of the zoo"
            )
            raise InputError("not-from-network", message, value=name)
        return load_user_model(name)
    except InputError as error:
        raise error.within("", key=key) from error.__cause__


def check_model(name: str, *, is_local: bool) -> None:
    """Refuse an unknown model, and a user's own in a job from the network, without importing anything."""
    if not is_reference(name) or not is_local:
        find_model(name, allow_import=False)


def load_user_model(reference: str) -> ModelSpec:
    """The model behind `package.module:factory`; the current folder is on the import path.

    The factory takes nothing, or a keyword `scale` ("full" or "tiny"), and returns a `Workload` or a `ModelSpec`.
    It is called here once, to see which (at the tiny scale where it takes one), unless it is annotated to return a
    `Workload`: then only a case calls it, and a large model is not built merely to be inspected.
    """
    factory = _attribute(reference)
    if isinstance(factory, ModelSpec):
        return factory
    if not callable(factory):
        message = f"model '{reference}' is an object of type {type(factory).__name__}, not a function: {_FORM}"
        raise InputError("not-a-function", message, value=reference)
    takes_scale = _takes_scale(reference, factory)

    def build(scale: Scale) -> Workload:
        built = factory(scale=scale) if takes_scale else factory()
        if isinstance(built, ModelSpec):
            return built.build(scale)
        return _checked(reference, built)

    annotation = getattr(factory, "__annotations__", {}).get("return")
    if annotation is not Workload and str(annotation).rpartition(".")[2] != "Workload":
        try:
            probe = factory(scale="tiny") if takes_scale else factory()
        except PacelineError:
            raise
        except Exception as error:
            message = f"model '{reference}' failed when called: {type(error).__name__}: {error}"
            raise InputError("failing-factory", message, value=reference) from error
        if isinstance(probe, ModelSpec):
            return probe
        _checked(reference, probe)
    return ModelSpec(
        name=reference,
        family="user",
        task="custom",
        summary=next(iter((inspect.getdoc(factory) or "").splitlines()), "a model of the user's own"),
        build=build,
    )


def _attribute(reference: str) -> Any:
    def refusal(code: str, message: str) -> InputError:
        return InputError(code, f"model '{reference}'{message}", value=reference)

    module_name, colon, attribute = reference.partition(":")
    parts = module_name.split(".")
    if not colon or not attribute.isidentifier() or not all(part.isidentifier() for part in parts):
        raise refusal("malformed-reference", f" is malformed: {_FORM}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise refusal("missing-dependency", f": its module needs '{error.name}', which is not installed") from error
        where = f"in {here} or among the installed packages"
        raise refusal("missing-module", f": there is no module '{error.name}' {where}") from error
    except (Exception, SystemExit) as error:
        why = f"importing '{module_name}' failed: {type(error).__name__}: {error}"
        raise refusal("failing-import", f": {why}") from error
    try:
        return getattr(module, attribute)
    except AttributeError as error:
        public = ", ".join(sorted(name for name in vars(module) if not name.startswith("_"))[:20]) or "no public names"
        why = f"module '{module_name}' has no '{attribute}'; it has {public}"
        raise refusal("missing-attribute", f": {why}") from error


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
        needs = f"model '{reference}' needs {', '.join(required)}"
        message = f"{needs}: a factory takes no arguments, or only the keyword scale"
        raise InputError("factory-needs-arguments", message, value=reference)
    return any(
        one.kind is one.VAR_KEYWORD or (one.name == "scale" and one.kind is not one.POSITIONAL_ONLY)
        for one in parameters
    )


def _checked(reference: str, built: object) -> Workload:
    if isinstance(built, Workload):
        return built
    message = (
        f"model '{reference}' returned an object of type {type(built).__name__}: "
        "return a paceline.models.Workload or a paceline.models.ModelSpec"
    )
    raise InputError("not-a-workload", message, value=reference)
