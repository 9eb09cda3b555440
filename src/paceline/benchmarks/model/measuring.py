"""Times a step of a model: warm-up, measured steps, memory, energy, conditions, doubts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.benchmarks.model.metrics import (
    COMPILE_TIME,
    DEVICE_MEMORY,
    DEVICE_RESERVED,
    ENERGY,
    FIRST_STEP,
    HOST_MEMORY,
    StepWork,
    step_measurements,
)
from paceline.benchmarks.model.session import Session
from paceline.benchmarks.ranks import Ranks
from paceline.core.benchmark import Context, Progress
from paceline.core.record import Measurement, Result
from paceline.machine import conditions
from paceline.measure import loop
from paceline.measure.energy import open_meter
from paceline.measure.memory import HostPeak
from paceline.measure.timeline import monotonic

# The GPU's energy counter advances in steps of up to a tenth of a second: less than this tells nothing.
MIN_ENERGY_SECONDS = 0.5


def time_once(session: Session, step: Callable[[], object]) -> float:
    """Seconds that one step takes: the very first one pays for everything lazy."""
    session.device.synchronize()
    begun = monotonic()
    step()
    session.device.synchronize()
    return monotonic() - begun


def measure_steps(
    session: Session,
    step: Callable[[], object],
    work: StepWork,
    first_seconds: float,
    *,
    in_flight: int,
    ranks: Ranks,
    context: Context,
) -> Result:
    """Everything that repeating the step tells."""
    entered = monotonic()
    device, parameters = session.device, session.parameters

    agree = ranks.agree if ranks.world_size > 1 else None

    def report(phase: str, samples: list[float]) -> None:
        context.report(
            Progress(
                phase=phase,
                metric="step_time" if phase == "measuring" else "",
                unit="s",
                samples=tuple(samples),
                work=work.samples * ranks.world_size,
                rate_unit=f"{work.sample_name}s/s",
            )
        )

    warm = loop.warm_up(step, device.timeline(in_flight), parameters, agree=agree, report=report)
    warmed = monotonic()
    meter = open_meter(context.target)
    host = HostPeak()
    device.synchronize()
    device.reset_peak_memory()
    host.start()
    before = conditions.observe(context.target, ranks.siblings)
    timeline = device.timeline(in_flight)
    energy_before = meter.read() if meter else 0.0
    timed = loop.measure(step, timeline, parameters, agree=agree, report=report)
    energy = meter.read() - energy_before if meter else 0.0
    after = conditions.observe(context.target, ranks.siblings)

    found = step_measurements(timed.samples, work)
    step_time = found[1]
    found.append(Measurement.of_value(FIRST_STEP, first_seconds))
    if session.compiled:
        found.append(Measurement.of_value(COMPILE_TIME, max(0.0, first_seconds - step_time.value)))
    peak = device.peak_memory()
    if peak is not None:
        found.append(Measurement.of_value(DEVICE_MEMORY, peak[0]))
        found.append(Measurement.of_value(DEVICE_RESERVED, peak[1]))
    found.append(Measurement.of_value(HOST_MEMORY, host.read()))
    facts: dict[str, Any] = session.facts | {
        "batch_size": work.samples,
        "global_batch_size": work.samples * ranks.world_size,
        "timing": timeline.description,
        "stopped": timed.stopped.value,
        "spent": {
            "preparing": entered - context.began - first_seconds,
            "first step": first_seconds,
            "warming up": warmed - entered,
            "measuring": monotonic() - warmed,
        },
        "warm_up": {"steps": len(warm.samples), "seconds": warm.seconds, "steady": warm.steady},
        "flops_per_step": work.flops,
        "peak_flops": work.peak.flops if work.peak else None,
        "peak_flops_source": work.peak.source if work.peak else "unknown for this device, so there is no MFU",
        "conditions": {"before": before.model_dump(mode="json"), "after": after.model_dump(mode="json")},
    }
    seconds = sum(timed.samples)
    if meter is not None and energy > 0 and not meter.late and seconds >= MIN_ENERGY_SECONDS:
        whole_host = context.target == "cpu"
        if not whole_host or context.local_rank == 0:
            # The CPU's counter sees every rank on this host, a GPU's only its own.
            samples = timed.executed * work.samples * (ranks.world_size if whole_host else 1)
            found.append(Measurement.of_value(ENERGY, energy / samples))
            facts["energy_source"] = meter.source
    return Result(
        measurements=found,
        facts=facts,
        doubts=[
            *session.doubts,
            *loop.doubts(warm, timed, parameters),
            *conditions.doubts(before, after),
        ],
    )
