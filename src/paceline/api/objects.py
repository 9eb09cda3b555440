"""Models that are objects of this process, for the processes that measure them."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from paceline.core.errors import InputError
from paceline.core.shipping import SUFFIX, ship


def is_object(model: object) -> bool:
    """Whether it is something else than a text that names a model."""
    return model is not None and not isinstance(model, str | Path)


@contextmanager
def named(models: Sequence[object], inputs: object, loss: Callable[[Any], Any] | None) -> Iterator[list[str]]:
    """The names under which a run finds these models, for as long as it lasts; a text is a name already."""
    from paceline.models.sources import OBJECT, trying
    from paceline.models.sources.pickled import FOLDER, LiveModel

    if (inputs is not None or loss is not None) and not all(map(is_object, models)):
        word = "inputs" if inputs is not None else "loss"
        instead = 'a name takes input="1x3x224x224"' if word == "inputs" else "a model that is named has its own"
        raise InputError(f"{word}-without-object", f"{word} goes with a model that is an object: {instead}", key=word)
    if loss is not None:
        _check_loss(loss)
    before = os.environ.get(FOLDER)
    with TemporaryDirectory(prefix="paceline-objects-") as folder:  # which only its owner may read
        names: list[str] = []
        for model in models:
            name = str(model)
            if is_object(model):
                name = _name_of(model, names)
                path = Path(folder, f"{name}{SUFFIX}")
                path.write_bytes(ship(LiveModel(model, inputs, loss), "model"))
                path.chmod(0o600)
                name = OBJECT + name
            names.append(name)
        trying.try_in_child.cache_clear()  # an object may have changed since, and kept its name
        os.environ[FOLDER] = folder
        try:
            yield names
        finally:
            if before is None:
                del os.environ[FOLDER]
            else:
                os.environ[FOLDER] = before


def _name_of(model: object, taken: Sequence[str]) -> str:
    """Its class, or the function that makes it: the same in every run, so that runs can be compared."""
    kind = model if inspect.isclass(model) or inspect.isroutine(model) else type(model)
    name = "".join(letter for letter in getattr(kind, "__name__", "") if letter.isidentifier() or letter.isdigit())
    name = name or "model"
    again = sum(one.rpartition(":")[2].partition("-")[0] == name for one in taken)
    return f"{name}-{again + 1}" if again else name


def _check_loss(loss: Any) -> None:
    if not callable(loss):
        message = f"loss = {loss!r} is not a function of the output: write loss=lambda output: output.mean()"
        raise InputError("not-a-function", message, key="loss")
    try:
        inspect.signature(getattr(loss, "forward", loss)).bind(object())
    except TypeError:
        message = "loss takes the model's output and nothing else: write loss=lambda output: f(output, targets)"
        raise InputError("loss-needs-arguments", message, key="loss") from None
    except ValueError:  # some callables written in C have no signature
        pass
