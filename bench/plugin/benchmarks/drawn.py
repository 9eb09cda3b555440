"""Waits as long as a job of some model and so many steps might take: the exact time is drawn, and cannot be known."""

from __future__ import annotations

import math
import random
import time
from statistics import NormalDist
from typing import Literal, get_args

from pydantic import Field

from paceline.core.benchmark import Benchmark, Context
from paceline.core.metric import Better, Metric
from paceline.core.parameters import Parameters
from paceline.core.record import Measurement, Result

WAITED = Metric(name="waited", unit="s", better=Better.NEITHER, description="how long it waited")
Model = Literal["swin", "lstm", "vgg", "bert", "unet", "gpt", "resnet", "t5", "dlrm", "vit", "mixtral", "whisper"]
MODELS: tuple[Model, ...] = get_args(Model)
MEDIAN, STEPS = 7.5, 100  # seconds that the median job of the median model takes, and its steps
# Deviations of logarithms: between models, of the number of steps, and of what neither of them says; together 1.31.
MODEL_SPREAD, STEPS_SPREAD, SPREAD = 0.95, 0.85, 0.3


class DrawnParameters(Parameters):
    """What a job is, and which draw."""

    model: Model = "swin"
    """Each has steps of its own duration"""
    steps: int = Field(default=STEPS, ge=1)
    """The duration is in proportion to them"""
    draw: int = Field(default=-1, le=-1)
    """Which draw; below zero, so that one is not taken for nearer to another than a third is"""


def seconds_of(model: Model, steps: int, draw: int) -> float:
    """How long a job takes."""
    of_model = NormalDist(0.0, MODEL_SPREAD).inv_cdf((MODELS.index(model) + 0.5) / len(MODELS))
    of_draw = random.Random(draw).normalvariate(0.0, SPREAD)
    return MEDIAN * steps / STEPS * math.exp(of_model + of_draw)


class Drawn(Benchmark[DrawnParameters]):
    """Leaves the processor alone, so that several fit beside each other on one machine."""

    name = "drawn"
    summary = "waits, for a drawn time"
    Parameters = DrawnParameters
    metrics = (WAITED,)
    primary = "waited"

    def measure(self, parameters: DrawnParameters, context: Context) -> Result:
        seconds = seconds_of(parameters.model, parameters.steps, parameters.draw)
        time.sleep(seconds)
        return Result(measurements=[Measurement.of_samples(WAITED, [seconds])])
