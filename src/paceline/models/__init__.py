"""The zoo: one file per family, plain single-device modules, random weights, synthetic data."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from types import ModuleType

from paceline.core.registry import Registry, scan
from paceline.models.base import Batch, ModelSpec, Workload

__all__ = ["Batch", "ModelSpec", "Workload", "registry"]


@lru_cache(maxsize=1)
def registry() -> Registry[ModelSpec]:
    """Every model that can be found, by name."""
    return scan("model", "models", _specs)


def _specs(module: ModuleType) -> Iterator[tuple[str, ModelSpec]]:
    """A module lists its models as `MODELS`, or has them as module-level names."""
    seen: list[ModelSpec] = [value for value in vars(module).values() if isinstance(value, ModelSpec)]
    seen += [spec for spec in getattr(module, "MODELS", ()) if isinstance(spec, ModelSpec)]
    for spec in dict.fromkeys(spec.name for spec in seen):
        yield spec, next(found for found in seen if found.name == spec)
