"""Everything that can be measured: one folder per kind, one file per benchmark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# Helper processes below this package start in a fraction of the time without pydantic.
if TYPE_CHECKING:
    from paceline.core.benchmark import Benchmark
    from paceline.core.registry import Registry

__all__ = ["find", "registry"]


def registry() -> Registry[type[Benchmark[Any]]]:
    """Every benchmark that can be found, by name."""
    from paceline.core.benchmark import BENCHMARKS

    return BENCHMARKS.registry()


def find(name: str) -> type[Benchmark[Any]]:
    """One benchmark; where its module is called like it, no other one is imported."""
    from paceline.core.benchmark import BENCHMARKS

    return BENCHMARKS.get(name)
