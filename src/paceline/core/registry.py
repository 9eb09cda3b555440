"""One registry for every kind of plug-in: benchmarks, models, servers, pages, suites.

A *provider* is a package that may hold a sub-package or module for each kind (`benchmarks`, `models`, ...). Paceline
itself is the first provider; others name theirs under the entry point group `paceline.plugins`:

    [project.entry-points."paceline.plugins"]
    mine = "my_package"

Every module below `my_package.benchmarks` is imported and its public `Benchmark` subclasses are registered,
every `ModelSpec` at module level below `my_package.models`, and so on. A module that fails to import disables
itself alone: `broken` says why. Modules whose name starts with an underscore are not looked at.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import entry_points
from types import ModuleType
from typing import Generic, TypeVar

from paceline.core.errors import InputError, unknown

GROUP = "paceline.plugins"
BUILTIN = "paceline"

T = TypeVar("T")


@dataclass(frozen=True)
class Broken:
    """A module that could not be imported, and why."""

    module: str
    reason: str


@dataclass
class Registry(Generic[T]):
    """Everything of one kind that could be found, by name."""

    kind: str
    entries: dict[str, T] = field(default_factory=dict)
    broken: list[Broken] = field(default_factory=list)

    def get(self, name: str) -> T:
        """The entry of this name; an unknown one is refused with the nearest known name."""
        if name in self.entries:
            return self.entries[name]
        for failure in self.broken:
            if failure.module.rsplit(".", 1)[-1].replace("_", "-") == name:
                raise InputError(f"{self.kind} '{name}' is disabled: {failure.reason}")
        raise unknown(self.kind, name, self.entries)

    def add(self, name: str, entry: T, where: str) -> None:
        """Register one entry; two of one name are refused, and the first stays."""
        if name in self.entries and self.entries[name] is not entry:
            self.broken.append(Broken(where, f"the name '{name}' is taken already"))
            return
        self.entries[name] = entry


def scan(
    kind: str, folder: str, find: Callable[[ModuleType], Iterator[tuple[str, T]]], *more_folders: str
) -> Registry[T]:
    """Import every module in the folders of every provider and register what `find` sees in it."""
    registry: Registry[T] = Registry(kind)
    for provider in providers():
        names = [name for one in (folder, *more_folders) for name in _module_names(f"{provider}.{one}", registry)]
        for name in names:
            try:
                module = importlib.import_module(name)
                found = list(find(module))
            except (Exception, SystemExit) as error:  # whatever a plug-in does, the rest must live
                registry.broken.append(Broken(name, f"{type(error).__name__}: {error}"))
                continue
            for entry_name, entry in found:
                registry.add(entry_name, entry, name)
    return registry


def named_like(name: str, folder: str) -> Iterator[str]:
    """Modules in the folder of every provider that are called as an entry is: where to look first for one alone."""
    stem = name.replace("-", "_")
    for provider in providers():
        found = _module_names(f"{provider}.{folder}", Registry(folder))
        yield from (module for module in found if module.rpartition(".")[2] == stem)


@lru_cache(maxsize=1)
def providers() -> tuple[str, ...]:
    """Packages that hold plug-ins; ours first, also when it runs from a folder without being installed."""
    named = [point.value for point in entry_points(group=GROUP)]
    return tuple(dict.fromkeys([BUILTIN, *named]))


def _module_names(package_name: str, registry: Registry[T]) -> list[str]:
    try:
        if importlib.util.find_spec(package_name) is None:  # imports the provider; one that has no such folder is fine
            return []
        package = importlib.import_module(package_name)
    except ModuleNotFoundError as error:
        if error.name and f"{package_name}.".startswith(f"{error.name}.") and error.name.count("."):
            return []  # a folder above it is not there either
        registry.broken.append(Broken(package_name, f"{type(error).__name__}: {error}"))
        return []
    except (Exception, SystemExit) as error:
        registry.broken.append(Broken(package_name, f"{type(error).__name__}: {error}"))
        return []
    names = [package_name]
    for path in getattr(package, "__path__", []):
        names += [found.name for found in _walk(path, package_name)]
    return names


def _walk(path: str, prefix: str) -> Iterator[pkgutil.ModuleInfo]:
    """Like pkgutil.walk_packages, but imports nothing: a broken sub-package must not stop the walk."""
    for found in pkgutil.iter_modules([path]):
        full = pkgutil.ModuleInfo(found.module_finder, f"{prefix}.{found.name}", found.ispkg)
        if found.name.startswith("_"):
            continue
        yield full
        if found.ispkg:
            yield from _walk(f"{path}/{found.name}", full.name)
