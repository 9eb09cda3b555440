"""Everything that can be measured: one folder per kind, one file per benchmark."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

# Helper processes below this package start in a fraction of the time without pydantic: see serving/load/_worker.py.
if TYPE_CHECKING:
    from types import ModuleType

    from paceline.core.benchmark import Benchmark
    from paceline.core.registry import Registry

__all__ = ["registry"]


@lru_cache(maxsize=1)
def registry() -> Registry[type[Benchmark[Any]]]:
    """Every benchmark that can be found, by name."""
    from paceline.core.registry import scan

    return scan("benchmark", "benchmarks", _benchmarks)


def _benchmarks(module: ModuleType) -> Iterator[tuple[str, type[Benchmark[Any]]]]:
    from paceline.core.benchmark import Benchmark

    for value in vars(module).values():
        if not inspect.isclass(value) or not issubclass(value, Benchmark) or inspect.isabstract(value):
            continue
        if value.__module__ == module.__name__:
            yield value.name, value
