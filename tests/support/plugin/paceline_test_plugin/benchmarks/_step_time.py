"""The one metric of this plug-in."""

from __future__ import annotations

from paceline.core.benchmark import Context, Progress
from paceline.core.metric import Better, Merge, Metric

STEP_TIME = Metric(name="step_time", unit="s", better=Better.LOWER, merge=Merge.SLOWEST, description="time of a step")


def report(context: Context, *samples: float) -> None:
    """Tell the runner of samples as soon as they exist."""
    context.report(Progress(phase="measuring", metric="step_time", unit="s", samples=samples))
