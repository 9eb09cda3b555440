"""The categories of benchmarks, which are the sections of a report, in their order; others may add their own."""

from __future__ import annotations

from enum import StrEnum


class Category(StrEnum):
    """What kind of thing a benchmark measures."""

    COMPUTE = "compute"
    MEMORY = "memory"
    COMMUNICATION = "communication"
    STORAGE = "storage"
    TRAINING = "training"
    INFERENCE = "inference"
    PARALLEL = "parallel"
    SERVING = "serving"
    HARNESS = "harness"


_OF_MODELS = frozenset({Category.TRAINING, Category.INFERENCE, Category.PARALLEL, Category.SERVING, Category.HARNESS})
_ORDER = {category.value: place for place, category in enumerate(Category)}


def is_micro(category: str) -> bool:
    """Whether its benchmarks measure one operation each; so do those of a category that somebody added."""
    return category not in _OF_MODELS and category not in ("", "other")


def section_order(category: str) -> int:
    """Where its section stands in a report: ours first, others after them."""
    return _ORDER.get(category, len(_ORDER))
