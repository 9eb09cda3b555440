"""What a parallel training tells beside what every training tells."""

from __future__ import annotations

from paceline.benchmarks.model.metrics import AUDIO_THROUGHPUT, COMMON, LOSS
from paceline.core.metric import Better, Merge, Metric

LOSS_OF_ALL = LOSS.model_copy(update={"merge": Merge.FIRST})  # of the whole batch: every rank knows it
GRADIENT_NORM = Metric(
    name="gradient_norm",
    unit="",
    description="norm of the whole gradient in the first steps from the seed, before clipping; shows a wrong scale of "
    "gradients, which the loss hardly does under AdamW",
)
THROUGHPUT_PER_RANK = Metric(
    name="throughput_per_gpu",
    unit="sequences/s",
    better=Better.HIGHER,
    merge=Merge.MEAN,
    description="throughput divided by the number of ranks",
)
MEMORY_PARTS = {
    name: Metric(name=name, unit="B", better=Better.LOWER, merge=Merge.MAXIMUM, description=description)
    for name, description in {
        "parameter_memory": "weights that a rank holds",
        "gradient_memory": "gradients that a rank holds at the end of a step",
        "optimizer_memory": "the optimizer's state on a rank",
    }.items()
}
ACTIVATION_MEMORY = Metric(
    name="activation_memory",
    unit="B",
    better=Better.LOWER,
    merge=Merge.MAXIMUM,
    description="the device's peak less weights, gradients and optimizer: activations and the buffers of the mesh",
)
BUBBLE = Metric(
    name="pipeline_bubble",
    unit="%",
    better=Better.LOWER,
    merge=Merge.MEAN,
    description="share of the schedule's time in which a rank computes neither forward nor backward: it waits for its "
    "neighbours, or for gradients to be reduced",
)
EXPOSED = Metric(
    name="exposed_communication",
    unit="s",
    better=Better.LOWER,
    merge=Merge.MAXIMUM,
    description="time of a step in which a rank's data travels while it computes nothing, from a trace of a few steps; "
    "waiting for a slower rank counts, as the travelling then takes longer",
)
COMMUNICATION = Metric(
    name="communication",
    unit="s",
    better=Better.LOWER,
    merge=Merge.MAXIMUM,
    description="time of a step in which a rank's data travels, hidden behind computation or not",
)
METRICS = (
    *(metric for metric in COMMON if metric is not AUDIO_THROUGHPUT),
    THROUGHPUT_PER_RANK,
    *MEMORY_PARTS.values(),
    ACTIVATION_MEMORY,
    BUBBLE,
    COMMUNICATION,
    EXPOSED,
    LOSS_OF_ALL,
    GRADIENT_NORM,
)
