"""`paceline.run`: measures on this machine, in processes of their own, as `paceline run` does."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from paceline.api.cases import find_suite, suite_of_file
from paceline.api.functions import as_benchmark, installed
from paceline.core import shipping
from paceline.core.errors import InputError
from paceline.core.shipping import SUFFIX, ship

if TYPE_CHECKING:
    from paceline.api.result import Result
    from paceline.core.suite import Suite

DEFAULT_SUITE = "quick"


def run(
    what: str | Path | Callable[..., Any] = DEFAULT_SUITE,
    /,
    *,
    model: Any = None,
    inputs: Any = None,
    loss: Callable[[Any], Any] | None = None,
    store: str | Path | None = None,
    tags: str | Sequence[str] = (),
    progress: bool = True,
    **parameters: Any,
) -> Result:
    """Measure `what`, and keep the result in the store.

    `what` is a benchmark, a suite (by its name or its file), a Python file with benchmarks, or a function. Parameters
    are those of the command line with underscores (`batch_size=8`); a list measures every value. Each case runs in a
    process of its own.

    `model` is a name, or anything that `--model` takes; or an `nn.Module`, or a function that returns one, which then
    goes to these processes by cloudpickle, with `inputs` (tensors whose first size is that of the batch) and `loss` (of
    the output; unset is its mean, and the record says so).

    What is wrong with the arguments raises InputError. A case that fails does not raise: its record says why, and
    `result.ok` is false. An interrupt passes, and what was measured until then is in the store.
    """
    from paceline.api.cases import expand_here
    from paceline.api.progress import listener_for
    from paceline.api.result import Result
    from paceline.api.running import begin, check_tag, measure
    from paceline.core.interrupt import interrupts_caught
    from paceline.core.suite import command_line
    from paceline.store import open_store

    if shipping.is_arriving:  # otherwise each process would start another
        message = 'a module that a measurement imports calls paceline.run: do so under if __name__ == "__main__"'
        raise InputError("run-while-importing", message)
    tags = (tags,) if isinstance(tags, str) else tuple(tags)
    for tag in tags:
        check_tag(tag, "tags")
    overrides = {key: plain(value, key) for key, value in parameters.items()}
    with _suite_of(what) as suite, _model_of(model, inputs, loss) as names:
        overrides |= {"model": names} if names is not None else {}
        with _in_words_of_python():
            cases = expand_here(suite, overrides)
        with open_store(store) as opened, interrupts_caught():
            todo = begin(opened, suite.name, cases, tags=tags, command=command_line("run", suite.name, overrides))
            measured = measure(opened, todo, listener_for(progress))
    return Result(measured.records, None if store is None else str(store))


def plain(value: Any, key: str) -> Any:
    """A value as a suite's file could have it; anything else is refused."""
    if isinstance(value, str | int | float | bool | None):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): plain(part, f"{key}.{name}") for name, part in value.items()}
    if isinstance(value, list | tuple | range | set | frozenset):
        return [plain(part, key) for part in value]
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a number of numpy or torch
        return value.item()
    kind = type(value).__name__
    message = f"{key}: an object of type {kind} is not a parameter; those are numbers, texts, truth values and lists"
    raise InputError("not-a-parameter", message, key=key, value=kind)


@contextmanager
def _in_words_of_python() -> Iterator[None]:
    """Refusals name a keyword, and not the flag of the command line that would set it."""
    try:
        yield
    except InputError as error:
        error.where = ", ".join(part for part in error.where.split(", ") if not part.startswith("--set "))
        raise


@contextmanager
def _suite_of(what: Any) -> Iterator[Suite]:
    """The suite that is meant, for as long as its benchmarks are known."""
    from paceline.core.suite import Suite

    if not isinstance(what, str | Path):
        if not callable(what):
            message = f"{what!r} is not something to run: name a benchmark, a suite or a file, or give a function"
            raise InputError("not-a-suite", message, value=type(what).__name__)
        with installed(as_benchmark(what)) as name:
            yield Suite.of_benchmark(name)
        return
    if not str(what).endswith(".py"):
        yield find_suite(f"{what}" if isinstance(what, str) else str(what.absolute()))
        return
    from paceline.core.registry import file_used

    with file_used(Path(what).expanduser()):
        yield suite_of_file(str(what))


@contextmanager
def _model_of(model: Any, inputs: Any, loss: Any) -> Iterator[Any]:
    """The value of the parameter `model`; None where none was given."""
    models = list(model) if isinstance(model, list | tuple) else [model]
    is_live = any(map(is_object, models))
    if model is None and (inputs is not None or loss is not None):
        word = "inputs" if inputs is not None else "loss"
        raise InputError(f"{word}-without-object", f"{word} goes with a model that is an object: give model=", key=word)
    context = named(models, inputs, loss) if is_live or inputs is not None or loss is not None else nullcontext(models)
    with context as names:
        texts = [str(one) for one in names]
        yield None if model is None else texts if isinstance(model, list | tuple) else texts[0]


def is_object(model: object) -> bool:
    """Whether it is something else than a text that names a model."""
    return model is not None and not isinstance(model, str | Path)


@contextmanager
def named(models: Sequence[object], inputs: object, loss: Callable[[Any], Any] | None) -> Iterator[list[str]]:
    """The names under which a run finds these models, for as long as it lasts; a text is a name already."""
    from paceline.models.sources import OBJECT, trying
    from paceline.models.sources.factory import FOLDER, LiveModel

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
