"""Everything that can be measured: one folder per kind, one file per benchmark."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

# Helper processes below this package start in a fraction of the time without pydantic: see serving/load/_worker.py.
if TYPE_CHECKING:
    from types import ModuleType

    from paceline.core.benchmark import Benchmark
    from paceline.core.registry import Registry

__all__ = ["PrimaryMetrics", "find", "registry"]


@lru_cache(maxsize=1)
def registry() -> Registry[type[Benchmark[Any]]]:
    """Every benchmark that can be found, by name."""
    from paceline.core.registry import scan

    return scan("benchmark", "benchmarks", _benchmarks)


@cache
def find(name: str) -> type[Benchmark[Any]]:
    """One benchmark; where its module is called like it, no other one is imported."""
    from paceline.core.registry import named_like

    for module in named_like(name, "benchmarks"):
        with suppress(Exception):  # the registry tells what is wrong with it
            found = dict(_benchmarks(importlib.import_module(module)))
            if name in found:
                return found[name]
    return registry().get(name)


class PrimaryMetrics(Mapping[str, str]):
    """Which metric leads each benchmark's row, as the benchmark itself says; looked up when asked for."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        if name not in self._known:
            from paceline.core.errors import InputError

            try:
                self._known[name] = find(name).primary
            except InputError:
                raise KeyError(name) from None
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(registry().entries)

    def __len__(self) -> int:
        return len(registry().entries)

    def __bool__(self) -> bool:
        return True


def _benchmarks(module: ModuleType) -> Iterator[tuple[str, type[Benchmark[Any]]]]:
    from paceline.core.benchmark import Benchmark

    for value in vars(module).values():
        if not inspect.isclass(value) or not issubclass(value, Benchmark) or inspect.isabstract(value):
            continue
        if value.__module__ == module.__name__:
            yield value.name, value
