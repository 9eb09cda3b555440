"""A metric: its name, its unit, which direction is better, and how ranks are merged."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict


class Better(StrEnum):
    """Which direction of a metric a user wants."""

    HIGHER = "higher"
    LOWER = "lower"
    NEITHER = "neither"


class Merge(StrEnum):
    """How the values of several ranks become one."""

    SLOWEST = "slowest"  # the rank that took longest: ranks that step together
    POOLED = "pooled"  # the samples of all: ranks that go their own ways; their rates add up
    SUM = "sum"
    MAXIMUM = "maximum"
    MINIMUM = "minimum"
    MEAN = "mean"
    FIRST = "first"  # every rank knows the same


class Metric(BaseModel):
    """What a number means."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    unit: str
    better: Better = Better.NEITHER
    merge: Merge = Merge.FIRST
    description: str = ""
