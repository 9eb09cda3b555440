"""The largest batch that fits, found by doubling and bisection, never by crashing the run."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import nullcontext

from paceline.benchmarks._model.benchmark import P
from paceline.benchmarks.ranks import Ranks
from paceline.core.benchmark import Context, Progress
from paceline.core.errors import OutOfMemory
from paceline.devices import Device
from paceline.devices.timeline import monotonic
from paceline.measure.memory import exhausted, host_limit
from paceline.models.base import ModelSpec

LIMIT = 65_536
TRIAL_PART = 0.8  # of the free memory of the host: a measurement needs a little more than a trial


def choose_batch_size(
    spec: ModelSpec,
    parameters: P,
    device: Device,
    ranks: Ranks,
    context: Context,
    trial: Callable[[P], Callable[[int], None]],
) -> int:
    """The batch size that was given, the model's own, or the largest with which a trial runs on every rank.

    `trial` builds what takes steps, neither compiled nor as a graph, and returns a function that takes some with a
    batch of a given size.
    """
    if isinstance(parameters.batch_size, int):
        return parameters.batch_size
    if parameters.batch_size is None or spec.traits.batch_size is not None:
        return spec.batch_size
    context.report(Progress(phase="finding the largest batch"))
    attempt = trial(parameters.model_copy(update={"compile": "off", "graph": "off"}))

    def fits(size: int) -> bool:
        begun = monotonic()
        fitted = runs_within_memory(lambda: attempt(size), device)
        # A step that outlasts the budget could not be measured, however much memory is left. The very first one
        # pays for everything lazy, so it is not judged by its time.
        return fitted and (size == 1 or monotonic() - begun <= parameters.budget)

    batch_size = ranks.smallest(largest(fits))
    if batch_size == 0:
        raise OutOfMemory(
            f"{spec.name} does not fit on {device.name} with a batch of one; choose a smaller model or --scale tiny",
            where="device" if device.kind.is_accelerator else "host",
        )
    return batch_size


def largest(fits: Callable[[int], bool], *, limit: int = LIMIT) -> int:
    """The largest size up to `limit` that fits, to a sixteenth; 0 if not even one does.

    Assumes that whatever is smaller than a size that fits, fits as well.
    """
    good, bad = 0, 1
    while fits(bad):
        if bad == limit:
            return limit
        good, bad = bad, min(bad * 2, limit)
    while bad - good > max(1, good // 16):
        middle = (good + bad) // 2
        if fits(middle):
            good = middle
        else:
            bad = middle
    return good


def runs_within_memory(attempt: Callable[[], object], device: Device) -> bool:
    """Whether the attempt ends without running out of memory; any other error is raised."""
    try:
        with nullcontext() if device.kind.is_accelerator else host_limit(TRIAL_PART):
            attempt()
            device.synchronize()
    except Exception as error:
        if exhausted(error) is None:
            raise
        return False
    finally:
        gc.collect()
        device.release_memory()
    return True
