"""One registry for every kind of plug-in: benchmarks, models, servers, devices, exports, pages, verbs and more.

A *provider* is a package with a folder (or module) for each kind, or one module that holds things of any kind. Paceline
itself is the first provider; others name theirs under the entry point group `paceline.plugins`:

    [project.entry-points."paceline.plugins"]
    mine = "my_package"

Every module below `my_package.benchmarks` is imported and its public `Benchmark` subclasses are registered, every
`ModelSpec` at module level below `my_package.models`, and so on; of a provider that is one module, everything in it.
A module that fails to import disables itself alone: `broken` says why. Modules whose name starts with an underscore
are not looked at. The kinds themselves stand where their base class does: `Kind(...)`.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from paceline.core.errors import InputError, unknown

BUILTIN = "paceline"
GROUP = "paceline.plugins"  # of entry points
FILE = "PACELINE_PLUGIN_FILE"  # in the environment, so that every process of a run knows it: a file of the user's own

T = TypeVar("T")


class PlugIn:
    """Base of an object that stands for a thing of a kind: a function that was made a benchmark, for example."""

    plugin: Any  # that thing


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
            is_own = FILE in os.environ and failure.module == file_module(os.environ[FILE])
            if is_own or failure.module.rpartition(".")[2].replace("_", "-") == name:
                message = f"{self.kind} '{name}' is disabled: {failure.reason}"
                raise InputError(f"disabled-{self.kind}", message, value=name)
        raise unknown(self.kind, name, self.entries)

    def add(self, name: str, entry: T, where: str) -> None:
        """Register one entry; two of one name are refused, and the first stays."""
        if name in self.entries and self.entries[name] is not entry:
            self.broken.append(Broken(where, f"the name '{name}' is taken already"))
            return
        self.entries[name] = entry

    def fail(self, module: str, error: BaseException) -> None:
        """Keep why a module cannot be used."""
        self.broken.append(Broken(module, f"{type(error).__name__}: {error}"))


@dataclass(frozen=True)
class Kind(Generic[T]):
    """A kind of plug-in: things of one base, each known by its name."""

    name: str  # as messages say it: benchmark, report section
    folder: str  # of a provider, where they are; one more place is looked into for others than Paceline
    base: type
    key: Callable[[Any], str] = attrgetter("name")
    others_folder: str = ""

    def registry(self) -> Registry[T]:
        """Everything of this kind that can be found."""
        return _scanned(self, providers())

    def of_others(self) -> Registry[T]:
        """What others than Paceline add; nothing of ours is imported."""
        return _scanned(self, tuple(name for name in providers() if name != BUILTIN))

    def get(self, name: str) -> T:
        """The thing of this name; where its module is called like it, no other one is imported."""
        own = file_module(os.environ[FILE]) if FILE in os.environ else ""
        for provider in providers():
            for module in _called(self, name.replace("-", "_"), own, provider):
                with suppress(Exception, SystemExit):  # the registry says what is wrong with it
                    for entry_name, entry in self.things_in(importlib.import_module(module)):
                        if entry_name == name:
                            return entry
        return self.registry().get(name)

    def modules(self, provider: str, registry: Registry[T]) -> list[str]:
        """Where a provider may have things of this kind."""
        folders = [self.folder] if provider == BUILTIN or not self.others_folder else [self.folder, self.others_folder]
        try:
            spec = importlib.util.find_spec(provider)
        except (Exception, SystemExit) as error:
            registry.fail(provider, error)
        else:
            if spec is not None and spec.submodule_search_locations is None:
                return [provider]
        names: list[str] = []
        for package_name in (f"{provider}.{folder}" for folder in folders):
            try:
                if importlib.util.find_spec(package_name) is None:  # imports the provider; it need not have the folder
                    continue
                package = importlib.import_module(package_name)
            except (Exception, SystemExit) as error:
                missing = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
                # Where a folder above it is missing, so is this one, and nothing is wrong.
                if "." not in missing or not f"{package_name}.".startswith(f"{missing}."):
                    registry.fail(package_name, error)
                continue
            paths = getattr(package, "__path__", [])
            names += [package_name, *(name for path in paths for name in _walk(path, package_name))]
        return names

    def things_in(self, module: ModuleType) -> Iterator[tuple[str, T]]:
        """Classes of the base that are defined in a module, or instances of it at its top level or in its lists."""
        values: list[Any] = []
        for value in list(vars(module).values()):
            values += value if isinstance(value, list | tuple) else [value]
        named: dict[str, T] = {}
        for value in values:
            if isinstance(value, PlugIn):
                value = value.plugin
                is_one = inspect.isclass(value) and issubclass(value, self.base)
            elif inspect.isclass(value):
                is_own = issubclass(value, self.base) and value.__module__ == module.__name__
                is_one = is_own and not inspect.isabstract(value) and hasattr(value, "name")
            else:
                is_one = isinstance(value, self.base)
            if is_one:
                named.setdefault(self.key(value), value)
        return iter(named.items())


@lru_cache(maxsize=64)
def _scanned(kind: Kind[T], providers: tuple[str, ...]) -> Registry[T]:
    """Import every module where things of a kind may be, and register them."""
    registry: Registry[T] = Registry(kind.name)
    for provider in providers:
        for name in kind.modules(provider, registry):
            try:
                entries = list(kind.things_in(importlib.import_module(name)))
            except (Exception, SystemExit) as error:  # whatever a plug-in does, the rest must live
                registry.fail(name, error)
                continue
            for entry_name, entry in entries:
                registry.add(entry_name, entry, name)
    return registry


@lru_cache(maxsize=256)
def _called(kind: Kind[Any], stem: str, own: str, provider: str) -> tuple[str, ...]:
    """Modules that are called like this, and the user's own: every record asks, and to go through folders takes ms."""
    names = kind.modules(provider, Registry(kind.name))
    return tuple(name for name in names if name == own or name.rpartition(".")[2] == stem)


def _forget() -> None:
    """What was found in modules that are no longer the ones to be found."""
    _scanned.cache_clear()
    _called.cache_clear()


class _FileFinder:
    """Lets a file be imported under a name of its own, wherever it is."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        file = os.environ.get(FILE, "")
        if name != file_module(file):
            return None
        return importlib.util.spec_from_file_location(name, file, loader=_MendingLoader(name, file))


class _MendingLoader(SourceFileLoader):
    """Lets a file import what the models of the zoo can; by its name, as these stand above the core."""

    def exec_module(self, module: ModuleType) -> None:
        mended = importlib.import_module("paceline.models.sources.importing").mended
        mended(partial(super().exec_module, module))


def file_module(file: str) -> str:
    """The name under which a file is imported."""
    return "paceline_file_" + re.sub(r"\W", "_", Path(file).stem)


def use_file(path: Path) -> str:
    """Look for plug-ins in a file, too, in this process and in all that it starts; the name of its module."""
    file = os.environ[FILE] = str(path.absolute())
    name = file_module(file)
    loaded = sys.modules.get(name)
    if loaded is not None and loaded.__file__ != file:  # another one of this name
        del sys.modules[name]
        _forget()
    providers.cache_clear()
    return name


@contextmanager
def file_used(path: Path) -> Iterator[str]:
    """The same for a while."""
    before = os.environ.get(FILE)
    try:
        yield use_file(path)
    finally:
        if before is None:
            del os.environ[FILE]
        else:
            os.environ[FILE] = before
        providers.cache_clear()


@lru_cache(maxsize=1)
def providers() -> tuple[str, ...]:
    """Packages that hold plug-ins; ours first, also when it runs from a folder without being installed."""
    file = os.environ.get(FILE)
    if file is None:
        return _packages()
    if not any(isinstance(finder, _FileFinder) for finder in sys.meta_path):
        sys.meta_path.append(_FileFinder())
    return (*_packages(), file_module(file))


def _packages() -> tuple[str, ...]:
    if not _has_plugins():
        return (BUILTIN,)
    from importlib.metadata import entry_points

    named = [point.value for point in entry_points(group=GROUP)]
    return tuple(dict.fromkeys([BUILTIN, *named]))


def _has_plugins() -> bool:
    """Whether any package may name plug-ins; importlib.metadata would tell, but takes a third of the time of --help."""
    if any(hasattr(finder, "find_distributions") for finder in sys.meta_path if finder is not PathFinder):
        return True
    for folder in map(Path, sys.path):
        if folder.is_file():  # an archive
            return True
        with suppress(OSError):
            for information in folder.iterdir():
                if information.suffix in (".dist-info", ".egg-info"):
                    with suppress(OSError):
                        if GROUP.encode() in (information / "entry_points.txt").read_bytes():
                            return True
    return False


def _walk(path: str, prefix: str) -> Iterator[str]:
    """Like pkgutil.walk_packages, but imports nothing: a broken sub-package must not stop the walk."""
    for module in pkgutil.iter_modules([path]):
        if not module.name.startswith("_"):
            yield f"{prefix}.{module.name}"
            if module.ispkg:
                yield from _walk(f"{path}/{module.name}", f"{prefix}.{module.name}")
