"""Parameters that every micro benchmark takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from paceline.core.metric import Better, Merge, Metric
from paceline.core.parameters import MeasuringParameters
from paceline.core.quantity import Duration, Size, show_size

TIME = Metric(name="time", unit="s", better=Better.LOWER, merge=Merge.SLOWEST, description="time of one call")
COMPUTE_RATE = Metric(
    name="compute_rate",
    unit="FLOP/s",
    better=Better.HIGHER,
    merge=Merge.SUM,
    description="operations of the mathematical definition over time (OP/s for integers)",
)
BANDWIDTH = Metric(
    name="bandwidth",
    unit="B/s",
    better=Better.HIGHER,
    merge=Merge.SUM,
    description="bytes over time, all calls together; never a mean of rates",
)
PEAK_SHARE = Metric(
    name="peak_share",
    unit="%",
    better=Better.HIGHER,
    merge=Merge.MEAN,
    description="part of what the vendor promises; absent for a device whose datasheet is not known",
)


def _as_list(value: Any) -> Any:
    return value if value is None or isinstance(value, list | tuple) else [value]


# For a parameter that is a list: whoever writes a single value means a list of one.
OneOrMore = BeforeValidator(_as_list)

# A sweep goes upwards, each size once.
Upwards = AfterValidator(lambda sizes: sorted(set(sizes)))
Sizes = Annotated[list[Annotated[Size, Field(ge=1)]], OneOrMore, Field(min_length=1), Upwards]


def show_sizes(sizes: Sequence[int] | None) -> str:
    """A sweep in a title: where it begins and ends."""
    if not sizes:
        return ""
    return show_size(sizes[0]) if len(sizes) == 1 else f"{show_size(sizes[0])} to {show_size(sizes[-1])}"


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
