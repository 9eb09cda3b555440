"""Takes live objects of a user's Python to a process that Paceline starts here: by cloudpickle, and only there."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from paceline.core.errors import InputError

SUFFIX = ".cloudpickle"
is_arriving = False  # whether an object is being read, and modules of the user's imported for it


@dataclass(frozen=True)
class Shipped:
    """An object, and where the modules are that it needs."""

    path: list[str]  # the import path of the process that it comes from
    content: bytes


def ship(value: object, what: str) -> bytes:
    """The object for another process; what cannot be taken there is refused, with `what` it was given as."""
    try:
        import cloudpickle
    except ImportError:
        message = f"{what} is an object, which goes to a process of its own by cloudpickle: pip install cloudpickle"
        raise InputError("missing-dependency", message, key=what) from None
    try:
        with _by_value(cloudpickle, value):
            content = cloudpickle.dumps(value)
    except Exception as error:
        kind = type(value).__name__
        message = (
            f"{what}: an object of type {kind} cannot be taken to a process of its own: {type(error).__name__}: "
            f"{error}; give a function that makes it there"
        )
        raise InputError("not-picklable", message, key=what, value=kind) from None
    return pickle.dumps(Shipped([entry for entry in sys.path if entry], content))


def unship(content: bytes) -> Any:
    """The object in the process that it was taken to; also one that somebody pickled by himself."""
    loaded = pickle.loads(content)
    if not isinstance(loaded, Shipped):
        return loaded
    global is_arriving
    sys.path += [entry for entry in loaded.path if entry not in sys.path]
    is_arriving = True
    try:
        return pickle.loads(loaded.content)
    finally:
        is_arriving = False


@contextmanager
def _by_value(cloudpickle: Any, value: object) -> Iterator[None]:
    """Let functions and classes travel whole whose module another process would not find by its name.

    Such are modules that a test runner, or `paceline run FILE`, has imported from a file.
    """
    parts = value if isinstance(value, tuple) else (value,)
    names = {getattr(one, "__module__", None) or type(one).__module__ for one in parts}
    names |= {type(one).__module__ for one in parts}
    modules = [module for name in names if (module := sys.modules.get(name)) and not _is_importable(module)]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _is_importable(module: ModuleType) -> bool:
    file, name = getattr(module, "__file__", None), module.__name__
    if file is None or name == "__main__":  # built in, or taken whole by cloudpickle anyway
        return True
    path = Path(file)
    stem = path.parent if path.stem == "__init__" else path.parent / path.name.partition(".")[0]
    return any(stem == Path(entry or ".").absolute().joinpath(*name.split(".")) for entry in sys.path)
