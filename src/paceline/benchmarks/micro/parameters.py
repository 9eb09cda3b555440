"""Parameters that every micro benchmark takes."""

from __future__ import annotations

from pydantic import Field

from paceline.core.parameters import MeasuringParameters
from paceline.core.quantity import Duration


class MicroParameters(MeasuringParameters):
    """How long to measure one point; a sweep of sizes has many of them."""

    budget: Duration = Field(default=1.0, gt=0)
    """Time to spend on measuring each point, at most"""
    warm_up: Duration = 0.5
    """Time to spend on warming up each point, at most; it ends sooner when the time is steady"""
    max_steps: int = Field(default=2_000, ge=1)
    """Take at most this many samples of each point"""
    seed: int = Field(default=1234, ge=0, lt=2**63)
    """Seed of the data"""
