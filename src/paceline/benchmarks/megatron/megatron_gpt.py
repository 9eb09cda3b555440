"""GPT pretraining by Megatron-LM or Megatron-DeepSpeed: their own script, launched as they are, and its log read."""

from __future__ import annotations

import shlex
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.benchmarks import _superbench
from paceline.benchmarks._micro.metrics import rate_metric
from paceline.benchmarks._micro.parameters import join_words
from paceline.benchmarks._micro.tools import ToolError, follow_tool
from paceline.benchmarks._model.metrics import DEVICE_MEMORY, STEP_TIME, THROUGHPUT, TOKEN_THROUGHPUT
from paceline.benchmarks.megatron import _command, _log
from paceline.benchmarks.megatron._command import MegatronParameters
from paceline.benchmarks.megatron._log import Iteration, Log, explained
from paceline.core.benchmark import Benchmark, Context, Progress
from paceline.core.case import Case
from paceline.core.device import ALL, split_target
from paceline.core.environment import Environment
from paceline.core.errors import InputError, Unsupported
from paceline.core.metric import Better, Merge, Metric
from paceline.core.parameters import MeasuringParameters
from paceline.core.record import Measurement, Record, RecordWarning, Result
from paceline.core.stats import drift
from paceline.core.subject import Description
from paceline.devices import kind_of
from paceline.machine import conditions
from paceline.machine.software import git, scrub
from paceline.measure import loop

RESOLUTION = 1e-4  # seconds: the log has a tenth of a millisecond

FLOPS_PER_GPU = rate_metric(
    "flops_per_gpu", "by Megatron's own formula, as its log says; absent where the log does not", Merge.MEAN, "FLOP/s"
)
ALLOCATED = Metric(
    name="device_memory",
    unit="B",
    better=Better.LOWER,
    merge=Merge.MAXIMUM,
    description="allocated on the fullest GPU when the log reports it, after the first iterations; also of each rank",
)
PEAK_ALLOCATED = DEVICE_MEMORY.model_copy(
    update={"description": "most that was allocated until then, on the fullest GPU; also of each rank that reports it"}
)
LOSS = Metric(name="loss", unit="", description="the log's 'lm loss' in the measured iterations")
_REMEDIES = {
    "unsteady": "allow more of them (--warm-up-iterations)",
    "drifting": "look for throttling or other load (paceline doctor), and measure more --iterations",
    "short": "measure more --iterations",
    "imprecise": "quieten the machine (paceline doctor) or measure more --iterations",
}


class MegatronGpt(Benchmark[MegatronParameters]):
    """One training, from the start of its ranks to the end of its log."""

    name = "megatron-gpt"
    category = "training"
    summary = "pretrain GPT by a checkout of Megatron-LM or Megatron-DeepSpeed: step time, throughput, FLOPS, memory"
    Parameters = MegatronParameters
    metrics = (THROUGHPUT, STEP_TIME, TOKEN_THROUGHPUT, FLOPS_PER_GPU, ALLOCATED, PEAK_ALLOCATED, LOSS)
    primary = "throughput"

    @classmethod
    def title(cls, parameters: MegatronParameters) -> str:
        """The model, its format and its mesh."""
        p = parameters
        return join_words(
            f"nl{p.layers} h{p.hidden_size} s{p.sequence_length} {p.precision} mb{p.micro_batch_size}",
            f"gb{p.global_batch_size}" if p.global_batch_size else "",
            f"tp{p.tensor_parallel}" if p.tensor_parallel > 1 else "",
            f"pp{p.pipeline_parallel}" if p.pipeline_parallel > 1 else "",
            f"zero{p.zero_stage}" if p.zero_stage is not None else "",
            f"on {p.processes}" if p.processes else "",
            " ".join(p.extra),
        )

    @classmethod
    def check(cls, parameters: MegatronParameters, case: Case) -> None:
        """Refuse code from elsewhere, a folder without the script, and numbers that do not go together."""
        _refuse_network(case)
        script = _command.script_of(parameters.code_base)
        parameters.refuse_contradictions()
        _command.refuse_unknown(parameters, script.parent)
        kind, index = split_target(case.target)
        if index != ALL:
            processes = parameters.processes or 1
            if processes > 1 and case.target != "cpu":
                message = f"processes = {processes} on {case.target}, which is one GPU: use --target '{kind}:*'"
                raise InputError("one-device-for-several-ranks", message, key="target", value=case.target)
            parameters.refuse_mesh(processes)

    @classmethod
    def ranks(cls, parameters: MegatronParameters) -> int:
        """One that launches; torchrun starts those that train."""
        return 1

    @classmethod
    def describe(cls, record: Record, parameters: MegatronParameters, environment: Environment) -> Description:
        start = f"{parameters.precision}_train"
        values = _superbench.means(
            record,
            {
                f"{start}_step_time": ("step_time", _superbench.MS),
                f"{start}_throughput": ("throughput", 1.0),  # of all ranks together, there too
                f"{start}_tflops": ("flops_per_gpu", _superbench.TERA),
            },
        )
        memory = {f"{start}_mem_allocated": "device_memory", f"{start}_max_mem_allocated": "peak_device_memory"}
        for key, metric in memory.items():  # there, the mean of the ranks that report it
            ranks = [m.value for m in record.measurements if m.metric.name == metric and m.scope]
            if ranks:
                values[key] = sum(ranks) / len(ranks) / _superbench.GIBI
        note = _superbench.cpu_note(record.case)
        aliases = _superbench.alias(record, "megatron-gpt", values, part=start, note=note)
        return super().describe(record, parameters, environment).model_copy(update={"aliases": aliases})

    def measure(self, parameters: MegatronParameters, context: Context) -> Result:
        _refuse_network(context.case)
        script = _command.script_of(parameters.code_base)
        python = parameters.python or sys.executable
        processes = _processes(parameters, context.case.target)
        parameters.refuse_mesh(processes)
        with tempfile.TemporaryDirectory() as folder:
            config = None
            if parameters.zero_stage is not None:
                config = Path(folder) / "deepspeed.json"
                config.write_text(_command.deepspeed_config(parameters, processes), encoding="utf-8")
            arguments = _command.arguments(parameters, processes, script.parent, config)
            command = _command.launch(python, processes, script, arguments)
            context.report(Progress(phase=f"starting {_log.SCRIPT}"))
            listener = _Listener(parameters, context)
            try:
                written = follow_tool(command, listener.hear, environment=_command.environment(context.case.target))
            except ToolError as error:
                raise explained(error, python, len(listener.seconds), listener.iterations) from None
        batch = parameters.batch_over(processes)
        log = _log.parse(f"{written.output}\n{written.errors}", listener.iterations, batch)
        result = _result(parameters, log, batch)
        result.facts |= _facts(parameters, log, processes, batch, script)
        before, after = listener.before, listener.after
        if before is not None and after is not None:
            result.warnings += conditions.warnings(before, after)
            looks = {"before": before.model_dump(mode="json"), "after": after.model_dump(mode="json")}
            result.facts["conditions"] = looks
        result.facts["command"] = scrub(shlex.join(command))
        return result


def _refuse_network(case: Case) -> None:
    if case.origin == "network":
        message = "megatron-gpt is not taken from the network, as it runs code: start it on the machine itself"
        raise InputError("not-from-network", message, key="benchmark", value="megatron-gpt")


@dataclass
class _Listener:
    """Follows the log as it is written, so that what was measured is recorded whatever happens later."""

    parameters: MegatronParameters
    context: Context
    seconds: dict[int, float] = field(default_factory=dict)  # of each iteration
    before: conditions.Conditions | None = None
    after: conditions.Conditions | None = None

    @property
    def iterations(self) -> int:
        return self.parameters.warm_up_iterations + self.parameters.iterations

    def hear(self, line: str) -> None:
        for iteration in _log.read_iterations(line):
            if iteration.number in self.seconds:
                continue
            self.seconds[iteration.number] = iteration.seconds
            if iteration.number <= self.parameters.warm_up_iterations:
                progress = Progress(phase="warming up")
            else:
                work, sample = float(iteration.batch), (iteration.seconds,)
                progress = Progress("measuring", STEP_TIME.name, STEP_TIME.unit, sample, work, THROUGHPUT.unit)
            self.context.report(progress)
            # Looked at while the ranks are there, so that they are not taken for strangers.
            if iteration.number == self.parameters.warm_up_iterations:
                self.before = conditions.observe(self.context.case.target)
            elif iteration.number == self.iterations:
                self.after = conditions.observe(self.context.case.target)


def _processes(parameters: MegatronParameters, target: str) -> int:
    """One for each GPU of the target; a script that trains without one is taken at its word."""
    if split_target(target)[1] != ALL:
        return parameters.processes or 1
    gpus = kind_of(target).count()
    if gpus < (parameters.processes or 1):
        raise Unsupported(f"Megatron needs a GPU for each process, and this machine has {gpus} of them")
    return parameters.processes or gpus


def _result(parameters: MegatronParameters, log: Log, batch: int) -> Result:
    """Figures of the measured iterations; a training that broke down has none."""
    warm, measured = log.iterations[: parameters.warm_up_iterations], log.iterations[parameters.warm_up_iterations :]
    broken = [one.number for one in measured if one.is_broken]
    if broken:
        raise ToolError(
            f"the training broke down: loss or gradient is not a number in {len(broken)} of {len(measured)} measured "
            f"iterations, first in iteration {broken[0]}, so that its times say nothing; use bf16 or fp32, or a lower "
            "learning rate (--lr in 'extra')"
        )
    step_time = Measurement.of_samples(STEP_TIME, [one.seconds for one in measured])
    figures = [
        Measurement.of_rate(THROUGHPUT, float(batch), step_time),
        step_time,
        Measurement.of_rate(TOKEN_THROUGHPUT, float(batch * parameters.sequence_length), step_time),
    ]
    flops = [one.flops * one.seconds for one in measured if one.flops is not None]
    if len(flops) == len(measured):  # back to work, so that the rate is all work over all time
        figures.append(Measurement.of_rate(FLOPS_PER_GPU, sum(flops) / len(flops), step_time))
    for metric, by_rank in (
        (ALLOCATED, {rank: one.allocated for rank, one in sorted(log.memory.items())}),
        (PEAK_ALLOCATED, {rank: one.peak for rank, one in sorted(log.memory.items())}),
    ):
        if by_rank:
            figures.append(Measurement.of_value(metric, max(by_rank.values())))
            figures += [Measurement.of_value(metric, value, scope=f"rank {rank}") for rank, value in by_rank.items()]
    losses = [one.loss for one in measured if one.loss is not None]
    if losses:
        figures.append(Measurement.of_samples(LOSS, losses, statistic="single"))
    return Result(measurements=figures, warnings=_warnings(warm, measured))


def _warnings(warm: list[Iteration], measured: list[Iteration]) -> list[RecordWarning]:
    before, times = [one.seconds for one in warm], [one.seconds for one in measured]
    window = before[-loop.WINDOW_STEPS :]
    # Fewer iterations do not show it; the warning 'drifting' then says what they leave to the measured ones.
    steady = len(window) < loop.WINDOW_STEPS or abs(drift(window)) <= loop.STEADY_TOLERANCE
    timed = loop.Timed(times, loop.Stop.STEPS, executed=len(times))
    warnings = [
        warning.model_copy(update={"remedy": _REMEDIES.get(warning.kind, warning.remedy)})
        for warning in loop.warnings(loop.WarmUp(before, steady), timed, MeasuringParameters())
    ]
    skipped = sum(one.skipped for one in measured)
    if skipped:
        warnings.append(
            RecordWarning(
                kind="skipped-steps",
                message=f"{skipped} of {len(measured)} measured iterations took no optimizer step, because scaled "
                "gradients overflowed, which is cheaper than taking it",
                remedy="use bf16, or allow more warm-up so that the scale settles (--warm-up-iterations)",
            )
        )
    if min(times) < 100 * RESOLUTION:
        resolution, fastest = f"{RESOLUTION * 1e3:g} ms", f"{min(times) * 1e3:.1f} ms"
        warnings.append(
            RecordWarning(
                kind="imprecise",
                message=f"the log reports times to {resolution}, and an iteration took {fastest}",
                remedy="train a larger model or batch, whose iterations take longer",
            )
        )
    return warnings


def _facts(parameters: MegatronParameters, log: Log, processes: int, batch: int, script: Path) -> dict[str, Any]:
    first, last = parameters.warm_up_iterations + 1, len(log.iterations)
    checkout = git(script.parent)
    return {
        "timing": "the script's own clock, one time for each iteration in its log",
        "measured_iterations": f"{first} to {last}; 1 to {first - 1} warmed up and were dropped",
        "first_iteration_seconds": log.iterations[0].seconds,
        "processes": processes,
        "global_batch_size": batch,
        "checkout": checkout.model_dump(mode="json") if checkout else None,
        "memory_told_after_iterations": sorted({one.after for one in log.memory.values()}),
        "skipped_iterations": [one.number for one in log.iterations if one.skipped],
        "last_loss": log.iterations[-1].loss,
    }
