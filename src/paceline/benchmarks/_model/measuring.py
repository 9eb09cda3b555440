"""Times a step of a model: its metrics, warm-up, measured steps, memory, energy, conditions, warnings."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from paceline.benchmarks.ranks import Ranks
from paceline.core.benchmark import Context, Progress
from paceline.core.metric import Better, Merge, Metric
from paceline.core.parameters import MeasuringParameters
from paceline.core.record import Measurement, RecordWarning, Result
from paceline.core.trace_events import read_events, time_spent
from paceline.core.trace_signs import Sign, StepDetails, step_details
from paceline.devices import Device, kind_of
from paceline.devices.base import is_energy_known
from paceline.devices.timeline import Phases, monotonic
from paceline.machine import conditions
from paceline.measure import loop, trace
from paceline.measure.memory import HostPeak, Peak
from paceline.measure.pace import lasting_pace
from paceline.models.base import Marks


def lower(name: str, unit: str, merge: Merge, description: str) -> Metric:
    """A metric of which less is better."""
    return Metric(name=name, unit=unit, better=Better.LOWER, merge=merge, description=description)


def higher(name: str, unit: str, merge: Merge, description: str) -> Metric:
    """A metric of which more is better."""
    return Metric(name=name, unit=unit, better=Better.HIGHER, merge=merge, description=description)


STEP_TIME = lower("step_time", "s", Merge.SLOWEST, "time of one step")
STEP_TIME_APART = STEP_TIME.model_copy(update={"merge": Merge.POOLED})
THROUGHPUT = higher(
    "throughput", "samples/s", Merge.SUM, "samples over time, all steps together; never a mean of rates"
)
TOKEN_THROUGHPUT = higher("token_throughput", "tokens/s", Merge.SUM, "tokens over time, for sequence models")
AUDIO_THROUGHPUT = higher("audio_throughput", "s/s", Merge.SUM, "seconds of audio over time, for models of speech")
FLOP_RATE = higher(
    "achieved_flops", "FLOP/s", Merge.SUM, "the model's FLOPs by formula over time; recomputation earns nothing"
)
MFU = higher(
    "mfu",
    "%",
    Merge.MEAN,
    "achieved FLOP/s as a part of the device's peak in this precision; absent for an unknown device",
)
DEVICE_MEMORY = lower(
    "peak_device_memory", "B", Merge.MAXIMUM, "most bytes allocated on the device during measured steps"
)
DEVICE_RESERVED = lower(
    "peak_device_reserved", "B", Merge.MAXIMUM, "most bytes that the allocator held on the device, graphs included"
)
HOST_MEMORY = lower("peak_host_memory", "B", Merge.MAXIMUM, "most resident memory of the process during measured steps")
ENERGY = lower("energy_per_sample", "J", Merge.MEAN, "energy of the device per sample, from its own counter")
ENERGY_PER_TOKEN = lower("energy_per_token", "J", Merge.MEAN, "the same per token, for sequence models")
FIRST_STEP = lower(
    "first_step_time", "s", Merge.MAXIMUM, "time of the very first step: lazy initialisation, autotuning, compilation"
)
COMPILE_TIME = lower("compile_time", "s", Merge.MAXIMUM, "what compiling cost: the first step beyond a steady one")
PHASES = {
    # The mean over ranks: that they step together makes the sums alike, whoever waits for whom in which phase.
    phase: lower(f"{phase}_time", "s", Merge.MEAN, description)
    for phase, description in {
        "forward": "the model's forward pass, from the end of the step before",
        "matcher": "matching predictions to targets, where the loss has to",
        "criterion": "the loss",
        "backward": "the backward pass; with several ranks until gradients are reduced",
        "optimizer": "the optimizer's step",
    }.items()
}
LOSS = Metric(name="loss", unit="", merge=Merge.MEAN, description="loss of the first steps from the seed")

COMMON = (
    THROUGHPUT,
    STEP_TIME,
    TOKEN_THROUGHPUT,
    AUDIO_THROUGHPUT,
    MFU,
    FLOP_RATE,
    DEVICE_MEMORY,
    DEVICE_RESERVED,
    HOST_MEMORY,
    ENERGY,
    ENERGY_PER_TOKEN,
    FIRST_STEP,
    COMPILE_TIME,
)


@dataclass(frozen=True)
class StepWork:
    """What one step of one rank does."""

    samples: float  # its share, where several ranks work on the same samples
    sample_name: str
    tokens: float | None
    flops: float
    peak: Peak | None
    audio: float | None = None  # seconds of it
    together: bool = True  # whether the ranks step together, as data-parallel training does


def step_measurements(times: list[float], work: StepWork) -> list[Measurement]:
    """Throughput, step time and everything else that is work over the same times."""
    step_time = Measurement.of_samples(STEP_TIME if work.together else STEP_TIME_APART, times)
    throughput = THROUGHPUT.model_copy(update={"unit": f"{work.sample_name}s/s"})
    rates = {
        TOKEN_THROUGHPUT: work.tokens,
        AUDIO_THROUGHPUT: work.audio,
        FLOP_RATE: work.flops,
        MFU: 100.0 * work.flops / work.peak.rate if work.peak is not None else None,
    }
    return [
        Measurement.of_rate(throughput, work.samples, step_time),
        step_time,
        *(Measurement.of_rate(metric, amount, step_time) for metric, amount in rates.items() if amount),
    ]


def phase_measurements(phases: list[Phases]) -> list[Measurement]:
    """The time of each phase of the steps, where they were marked."""
    if not phases or not all(phases):
        return []
    return [Measurement.of_samples(PHASES[name], [step[name] for step in phases]) for name in phases[0]]


LOST = "the process ended before it was taken"
P = TypeVar("P", bound=MeasuringParameters)


@dataclass
class StepSession(Generic[P]):
    """What takes the steps, and what the record has to say about it."""

    device: Device
    parameters: P
    compiled: bool  # whether a compiler made a part of it
    is_graph: bool = False  # whether its steps are replayed as a graph
    step_memory: int | None = None  # bytes that a step takes which is not replayed
    recorded: Callable[[], object] | None = None  # the step that the graph was recorded from
    ranks: Ranks = field(default_factory=lambda: Ranks(0, 1))  # those that take the steps together
    in_flight: int = 2  # on a GPU, steps issued before the first is waited for
    facts: dict[str, Any] = field(default_factory=dict)
    warnings: list[RecordWarning] = field(default_factory=list)  # from before it was measured


def add_trace(result: Result, session: StepSession[Any], step: Callable[[], object], context: Context) -> None:
    """If the case asks for a trace, take one of a few more steps, and put its summary into the facts."""
    path = context.case.trace
    if not path:
        return
    context.keep(result.model_copy(update={"facts": result.facts | {"trace": {"missing": LOST}}}))
    context.report(Progress(phase="tracing"))
    device, ranks, in_flight = session.device, session.ranks, session.in_flight
    facts: dict[str, Any] = {}
    try:
        measured = next(one.value for one in result.measurements if one.metric.name == STEP_TIME.name)
        steps = ranks.smallest(trace.steps_to_trace(measured))
        taken = trace.take(step, device, steps=steps, in_flight=in_flight, all_ready=ranks.all_agree)
        details = _details(session, session.recorded or step, min(steps, DETAILED_STEPS))
        if ranks.rank > 0:
            return
        on_device = device.kind.is_accelerator
        spent = time_spent(read_events(taken), on_device=on_device, steps_queue=on_device and in_flight > 1)
        if spent is not None:
            facts |= {"spent": spent.model_dump(mode="json"), "slowdown": spent.step_seconds / measured}
            facts |= {"details": details.model_dump(mode="json")} if details is not None else {}
            facts |= {"launch_cost": trace.launch_cost(device)} if session.is_graph else {}
            # With several ranks, a step issued by one alone would wait for the others.
            alone = on_device and ranks.world_size == 1
            facts |= {"issue_seconds": trace.issue_seconds(step, device)} if alone else {}
        elif on_device:
            facts["missing"] = (
                "the profiler saw no kernel on the GPU, only the host's side: its CUPTI library is missing, or another "
                "profiler or monitor holds the GPU"
            )
        else:
            facts["missing"] = "the profiler saw no operator"
        try:
            facts |= {"bytes": trace.keep(taken, Path(path).expanduser()), "file": path}
        except trace.TraceFailed as error:
            facts["no_file"] = str(error)  # the summary stays
    except Exception as error:  # the profiler's, the memory's, the disk's: there is no trace, and that is all
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:500]
        facts = {"missing": str(error) if isinstance(error, trace.TraceFailed) else reason}
    result.facts["trace"] = facts


DETAILED_STEPS = 2  # after one that is left out: recompiling alternates


def _details(session: StepSession[Any], step: Callable[[], object], steps: int) -> StepDetails | None:
    """What a second, slower trace shows of the operators; None where there is none."""
    device, before = session.device, _recompiled()
    try:
        agree = session.ranks.all_agree
        taken = trace.take(step, device, steps=steps, in_flight=1, all_ready=agree, detailed=True)
    except Exception:  # as above; the first trace has what the report needs
        return None
    details = step_details(read_events(taken), on_device=device.kind.is_accelerator)
    recompiled = [
        Sign(kind="recompilation", calls=(count - before.get(where, (0, ""))[0]) / steps, where=where,
             detail=f"compiled again {count} times in all: {reason}")
        for where, (count, reason) in _recompiled().items()
        if count > 1
    ]  # fmt: skip
    return details.model_copy(update={"signs": (*details.signs, *recompiled)})


def _recompiled() -> dict[str, tuple[int, str]]:
    """How often each function was compiled again so far in this process, and the last reason."""
    if "torch._dynamo.utils" not in sys.modules:
        return {}
    from torch._dynamo.utils import get_compilation_metrics

    found: dict[str, tuple[int, str]] = {}
    for one in get_compilation_metrics():
        reason = (one.recompile_reason or "").splitlines()
        if reason:
            where = f"{one.co_filename}:{one.co_firstlineno} ({one.co_name})"
            found[where] = found.get(where, (0, ""))[0] + 1, reason[0]
    return found


def measure_steps(
    session: StepSession[Any],
    step: Callable[[], object],
    work: StepWork,
    first_seconds: float | None,
    context: Context,
    marks: Marks | None = None,
) -> Result:
    """Everything measured by repeating the step; `marks` are called by a step whose phases are to be timed apart."""
    entered = monotonic()
    device, parameters, ranks, marks = session.device, session.parameters, session.ranks, marks or Marks()
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

    boost, warming = device.kind.boost_seconds, device.timeline(session.in_flight)
    warm = loop.warm_up(step, warming, parameters, boost=boost, agree=agree, report=report)
    warmed = monotonic()
    graphs = _compiled_graphs() if session.compiled else {}
    timeline = device.timeline(session.in_flight)
    marks.listener = timeline.mark
    meter = kind_of(context.target).meter(context.target)
    host = HostPeak()
    device.synchronize()
    device.reset_peak_memory()
    host.start()
    with loop.quiet_collector():  # before the counters are read: collecting is not part of the work
        before = conditions.observe(context.target, ranks.siblings)
        ranks.meet()
        joules = meter.read() if meter else 0.0
        timed = loop.measure(step, timeline, parameters, agree=agree, report=report)
        joules = meter.read() - joules if meter else 0.0
        after = conditions.observe(context.target, ranks.siblings)
    marks.listener = None
    spent = {
        "preparing": entered - context.began - (first_seconds or 0.0),
        "first step": first_seconds,
        "warming up": warmed - entered,
        "measuring": monotonic() - warmed,
    }

    measurements = [*step_measurements(timed.samples, work), *phase_measurements(timed.phases)]
    values: dict[Metric, float] = {}
    if first_seconds is not None:
        values[FIRST_STEP] = first_seconds
    if session.compiled and first_seconds is not None:
        values[COMPILE_TIME] = max(0.0, first_seconds - sum(timed.samples) / len(timed.samples))
    values[HOST_MEMORY] = host.read()
    peak = device.peak_memory()
    if peak is not None:
        # Replaying a graph allocates nothing, so that the allocator's peak would leave out what the graph holds.
        in_use = session.step_memory if session.is_graph else peak[0]
        values |= {} if in_use is None else {DEVICE_MEMORY: in_use}
        values[DEVICE_RESERVED] = peak[1]
    # The CPU's counter sees every rank on this host, so that one of them reports for all; a GPU's sees only its own.
    whole_host = not kind_of(context.target).is_accelerator
    is_known = is_energy_known(meter, joules, sum(timed.samples))
    if is_known and (not whole_host or context.local_rank == 0):
        values[ENERGY] = joules / (timed.executed * work.samples * (1 + len(ranks.siblings) if whole_host else 1))
        values |= {ENERGY_PER_TOKEN: values[ENERGY] * work.samples / work.tokens} if work.tokens else {}
    measurements += [Measurement.of_value(metric, value) for metric, value in values.items()]

    no_peak = "unknown for this device, so there is no MFU; 'paceline machine --measure' measures one"
    facts = {
        **session.facts,
        **graphs,
        "batch_size": work.samples,
        "global_batch_size": work.samples * ranks.world_size,
        "timing": timeline.description,
        "stopped": timed.stopped.value,
        "starved_steps": timed.starved,
        "pace": lasting_pace(device.kind, warm.seconds, sum(timed.samples), before, after).model_dump(mode="json"),
        "warm_up": {"steps": len(warm.samples), "seconds": warm.seconds, "steady": warm.steady},
        "flops_per_step": work.flops,
        "peak_flops": work.peak.rate if work.peak else None,
        "peak_flops_source": work.peak.source if work.peak else no_peak,
        "energy_source": meter.source if meter is not None else "no counter that this process may read",
        "conditions": {"before": before.model_dump(mode="json"), "after": after.model_dump(mode="json")},
        "spent": spent,
    }
    if not host.exact:
        facts["peak_host_memory_since"] = "the start of the process: this system does not let the peak be reset"
    return Result(
        measurements=measurements,
        facts=facts,
        warnings=[
            *session.warnings,
            *_compile_warnings(graphs, _compiled_graphs() if session.compiled else {}),
            *loop.warnings(warm, timed, parameters),
            *conditions.warnings(before, after),
            *_peak_warnings(measurements, work),
        ],
    )


def _compiled_graphs() -> dict[str, int]:
    """What the compiler has done so far in this process."""
    from torch._dynamo.utils import counters

    return {
        "compiled_graphs": int(counters["stats"]["unique_graphs"]),
        "graph_breaks": sum(counters["graph_break"].values()),
    }


def _compile_warnings(before: dict[str, int], after: dict[str, int]) -> list[RecordWarning]:
    warnings = []
    if before.get("graph_breaks"):
        message = f"the compiler gave up in {before['graph_breaks']} places, so that parts ran uncompiled"
        remedy = "compare with --compile off before believing"
        warnings.append(RecordWarning(kind="partly-compiled", message=message, remedy=remedy))
    if after.get("compiled_graphs", 0) > before.get("compiled_graphs", 0):
        message = "something was compiled again while steps were measured"
        remedy = "allow more warm-up, for example --warm-up 60s"
        warnings.append(RecordWarning(kind="recompiled", message=message, remedy=remedy))
    return warnings


def _peak_warnings(measurements: list[Measurement], work: StepWork) -> list[RecordWarning]:
    """Nothing is faster than its ceiling: either that, or the count of FLOPs, is wrong."""
    mfu = next((one for one in measurements if one.metric.name == MFU.name), None)
    if mfu is None or work.peak is None or mfu.value <= 100.0:
        return []
    message = f"the model computes at {mfu.value:.0f} % of what is taken for the peak: {work.peak.source}"
    remedy = "measure the peak again on a quiet machine (paceline machine --measure); until then trust no MFU"
    return [RecordWarning(kind="beyond-peak", message=message, remedy=remedy)]
