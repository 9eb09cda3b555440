"""GPT pretraining by Megatron-LM or Megatron-DeepSpeed: their own script, launched as they are, and its log read."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from paceline.benchmarks import _superbench
from paceline.benchmarks._micro.parameters import OneOrMore, join_words, rate_metric
from paceline.benchmarks._micro.tools import ToolError, run_tool
from paceline.benchmarks._model.measuring import DEVICE_MEMORY, STEP_TIME, THROUGHPUT, TOKEN_THROUGHPUT
from paceline.benchmarks.megatron import _log
from paceline.benchmarks.megatron._log import SCRIPT, Iteration, Log, explained, heard_by_first, part_of, rank_variables
from paceline.benchmarks.ranks import join
from paceline.core import die_with_parent
from paceline.core.benchmark import Benchmark, Context, Progress
from paceline.core.case import Case
from paceline.core.device import ALL, HOST, split_target
from paceline.core.environment import Environment
from paceline.core.errors import InputError, Unsupported
from paceline.core.metric import Better, Merge, Metric
from paceline.core.network import MACHINE_FILES, PROGRAM, FromNetwork
from paceline.core.parameters import MeasuringParameters, Parameters
from paceline.core.record import Measurement, Record, RecordWarning, Result
from paceline.core.subject import Description, FloatPrecision
from paceline.devices import accelerators, kind_named, kind_of
from paceline.machine import conditions
from paceline.machine.software import git, scrub
from paceline.measure import loop

Word = Annotated[str, Field(coerce_numbers_to_str=True)]  # YAML reads some arguments as numbers
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
DIE_WITH_PARENT = Path(die_with_parent.__file__)
LOSS_SCALE_POWER = 16  # Megatron's own 2^32 would skip the first twenty steps or so
CLIP = 1.0
# What SuperBench trains with.
RECIPE = {
    "--lr": "1.2e-4",
    "--min-lr": "1.0e-6",
    "--lr-decay-style": "cosine",
    "--adam-beta1": "0.9",
    "--adam-beta2": "0.95",
    "--weight-decay": "0.1",
    "--clip-grad": str(CLIP),
    "--init-method-std": "0.009",
    "--attention-dropout": "0.0",
    "--hidden-dropout": "0.0",
    "--eval-iters": "0",
}
# Arguments of the script that are parameters as they are.
SIZES = {
    "--num-layers": "layers",
    "--hidden-size": "hidden_size",
    "--num-attention-heads": "attention_heads",
    "--seq-length": "sequence_length",
    "--max-position-embeddings": "sequence_length",
    "--micro-batch-size": "micro_batch_size",
    "--tensor-model-parallel-size": "tensor_parallel",
    "--pipeline-model-parallel-size": "pipeline_parallel",
    "--seed": "seed",
}
# Arguments that figures are computed from: given twice, the last one would silently win.
RESERVED = {
    **{name: parameter for name, parameter in SIZES.items() if name != "--max-position-embeddings"},
    "--global-batch-size": "global_batch_size",
    "--train-iters": "iterations",
    "--train-samples": "iterations",
    "--log-interval": "",
    "--fp16": "precision",
    "--bf16": "precision",
    "--mock-data": "data_path",
    "--data-path": "data_path",
    "--vocab-size": "vocabulary",
    "--vocab-file": "vocab_file",
    "--merge-file": "merge_file",
    "--deepspeed": "zero_stage",
    "--deepspeed_config": "zero_stage",
    "--zero-stage": "zero_stage",
}


class MegatronParameters(Parameters):
    """A checkout, a model, a mesh, and how long it trains."""

    code_base: Annotated[str, FromNetwork(never="names code to run")]
    """Folder of a checkout of Megatron-LM or Megatron-DeepSpeed, with its pretrain_gpt.py; its code is run"""
    python: Annotated[str | None, PROGRAM] = None
    """Interpreter that has what the checkout needs; unset takes the one that runs Paceline"""
    precision: FloatPrecision = "bf16"
    """Number format; fp16 scales the loss"""
    layers: int = Field(default=32, ge=1)
    """Transformer layers"""
    hidden_size: int = Field(default=4096, ge=1)
    """Hidden size; the feed-forward layer is four times as wide"""
    attention_heads: int = Field(default=32, ge=1)
    """Attention heads"""
    sequence_length: int = Field(default=2048, ge=1)
    """Tokens of a sample"""
    vocabulary: int = Field(default=50257, ge=1)
    """Tokens of the vocabulary of mock data; with data_path the tokenizer has its own"""
    micro_batch_size: int = Field(default=2, ge=1)
    """Samples of a micro-batch on one rank"""
    global_batch_size: int | None = Field(default=None, ge=1)
    """Samples of an iteration, all ranks together; unset takes one micro-batch on each data-parallel rank"""
    tensor_parallel: int = Field(default=1, ge=1)
    """Ranks that share each layer"""
    pipeline_parallel: int = Field(default=1, ge=1)
    """Ranks that divide the layers among them"""
    processes: int | None = Field(default=None, ge=1)
    """Ranks, one on each GPU; unset takes one for each GPU of the target, or all those of --hosts"""
    iterations: int = Field(default=50, ge=1)
    """Iterations to measure"""
    warm_up_iterations: int = Field(default=10, ge=1)
    """Iterations before them, whose times are dropped"""
    data_path: Annotated[str | None, MACHINE_FILES] = None
    """Prefix of a tokenized data set; unset trains on mock data"""
    vocab_file: Annotated[str | None, MACHINE_FILES] = None
    """GPT-2's vocabulary, for data_path"""
    merge_file: Annotated[str | None, MACHINE_FILES] = None
    """GPT-2's merges, for data_path"""
    zero_stage: int | None = Field(default=None, ge=0, le=3)
    """Train through DeepSpeed at this stage of ZeRO, for which it takes Megatron-DeepSpeed; unset trains without"""
    extra: Annotated[list[Word], OneOrMore, FromNetwork(never="is arguments of a program")] = Field(default=[])
    """More arguments for pretrain_gpt.py, each word of its own: [--use-flash-attn, --num-workers, 4]"""
    seed: int = Field(default=1234, ge=0, lt=2**31)
    """Seed of weights and data"""

    @property
    def all_iterations(self) -> int:
        """Iterations of the whole training."""
        return self.warm_up_iterations + self.iterations

    def batch_over(self, processes: int) -> int:
        """Samples of an iteration over so many ranks."""
        return self.global_batch_size or self.micro_batch_size * self._data_parallel(processes)

    def refuse_contradictions(self) -> None:
        """Raise InputError for what cannot be, whatever the machine."""
        for what, whole, by, part in (
            ("hidden_size", self.hidden_size, "attention_heads", self.attention_heads),
            ("attention_heads", self.attention_heads, "tensor_parallel", self.tensor_parallel),
            ("layers", self.layers, "pipeline_parallel", self.pipeline_parallel),
        ):
            if whole % part:
                message = f"{what} = {whole} is not a multiple of {by} = {part}"
                raise InputError("not-a-multiple", message, key=what, value=whole)
        if (self.zero_stage or 0) > 1 and self.pipeline_parallel > 1:
            message = (
                f"zero_stage = {self.zero_stage} with pipeline_parallel = {self.pipeline_parallel}: DeepSpeed's "
                "pipelines take stage 0 or 1"
            )
            raise InputError("conflicting-keys", message, key="zero_stage", value=self.zero_stage)
        files = {"vocab_file": self.vocab_file, "merge_file": self.merge_file}
        given = [name for name, value in files.items() if value is not None]
        if self.data_path is None and given:
            message = f"{' and '.join(given)} without data_path: mock data has a tokenizer of its own"
            raise InputError("key-does-not-apply", message, key=given[0], value=files[given[0]])
        if self.data_path is not None and len(given) < len(files) and "--tokenizer-type" not in self.extra:
            message = "data_path needs vocab_file and merge_file, or another --tokenizer-type in 'extra'"
            raise InputError("missing-key", message, key=next(name for name in files if name not in given))
        for word in self.extra:
            name = word.partition("=")[0]
            if name.startswith("--") and any(sign.isspace() for sign in name):
                message = f"extra: '{word}' is several arguments; write each of them as an element of the list"
                raise InputError("several-words", message, key="extra", value=word)
            if name in RESERVED:
                parameter = RESERVED[name] or None
                instead = f"use the parameter {parameter}" if parameter else "every iteration must be reported"
                message = f"extra: {name} is Paceline's to set; {instead}"
                raise InputError("reserved-argument", message, key="extra", value=word, suggestion=parameter)
        if self.processes is not None:
            self.refuse_mesh(self.processes)

    def refuse_mesh(self, processes: int) -> None:
        """Raise InputError, with the arithmetic shown, for a mesh or a batch that does not fit so many ranks."""
        model_parallel = self.tensor_parallel * self.pipeline_parallel
        if processes % model_parallel:
            message = (
                f"tensor_parallel x pipeline_parallel = {self.tensor_parallel} x {self.pipeline_parallel} = "
                f"{model_parallel} does not divide {processes} processes"
            )
            raise InputError("not-divisible", message, key="processes", value=processes)
        data = self._data_parallel(processes)
        batch = self.batch_over(processes)
        if batch % (self.micro_batch_size * data):
            message = (
                f"global_batch_size = {batch} is not a multiple of micro_batch_size x data-parallel ranks = "
                f"{self.micro_batch_size} x {data} = {self.micro_batch_size * data}"
            )
            raise InputError("not-a-multiple", message, key="global_batch_size", value=batch)

    def _data_parallel(self, processes: int) -> int:
        return max(1, processes // (self.tensor_parallel * self.pipeline_parallel))


class MegatronGpt(Benchmark[MegatronParameters]):
    """One training, from the start of its ranks to the end of its log."""

    name = "megatron-gpt"
    category = "training"
    summary = "pretrain GPT by a checkout of Megatron-LM or Megatron-DeepSpeed: step time, throughput, FLOPS, memory"
    metrics = (THROUGHPUT, STEP_TIME, TOKEN_THROUGHPUT, FLOPS_PER_GPU, ALLOCATED, PEAK_ALLOCATED, LOSS)
    primary = "throughput"
    distributed = True
    launches_ranks = True

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
        script = script_of(parameters.code_base, case)
        parameters.refuse_contradictions()
        refuse_unknown(parameters, script.parent)
        kind, index = split_target(case.target)
        if case.ranks > 1:
            parameters.refuse_mesh(case.ranks)
        elif index != ALL:
            processes = parameters.processes or 1
            if processes > 1 and case.target != "cpu":
                message = f"processes = {processes} on {case.target}, which is one GPU: use --target '{kind}:*'"
                raise InputError("one-device-for-several-ranks", message, key="target", value=case.target)
            parameters.refuse_mesh(processes)

    @classmethod
    def ranks(cls, parameters: MegatronParameters) -> int | None:
        return parameters.processes

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
        aliases = _superbench.alias(record, "megatron-gpt", values, part=start, gpu=True)
        return Description(aliases=aliases)

    def measure(self, parameters: MegatronParameters, context: Context) -> Result:
        script = script_of(parameters.code_base, context.case)
        python = parameters.python or sys.executable
        with join(context, kind_named(HOST)) as ranks:
            processes = ranks.world_size if ranks.world_size > 1 else _processes_here(parameters, context)
            parameters.refuse_mesh(processes)
            follower = _LogFollower(parameters, context)
            with tempfile.TemporaryDirectory() as folder:
                config = None
                if parameters.zero_stage is not None:
                    config = Path(folder) / "deepspeed.json"
                    config.write_text(deepspeed_config(parameters, processes), encoding="utf-8")
                arguments = script_arguments(parameters, processes, script.parent, config)
                command = launch_command(python, processes, script, arguments)
                environment = os.environ | launch_environment(context.case.target)
                if ranks.world_size > 1:
                    command = [python, str(DIE_WITH_PARENT), str(script), *arguments]
                    kind = split_target(context.case.target)[0]
                    environment = os.environ | launch_environment(kind) | rank_variables(ranks)
                context.report(Progress(phase=f"starting {SCRIPT}"))
                try:
                    with heard_by_first(ranks, follower.read_line) as read_line:
                        written = run_tool(command, on_line=read_line, environment=environment)
                except ToolError as error:
                    seen = len(follower.seconds) if ranks.rank in (0, ranks.world_size - 1) else None
                    raise explained(error, python, seen, parameters.all_iterations) from None
            texts = ranks.gather(f"{written.output}\n{written.errors}")
        batch = parameters.batch_over(processes)
        log = _log.parse("\n".join(texts), parameters.all_iterations, batch)
        result = _result(parameters, log, batch)
        first = parameters.warm_up_iterations + 1
        checkout = git(script.parent)
        result.facts |= {
            "timing": "the script's own clock, one time for each iteration in its log",
            "measured_iterations": f"{first} to {len(log.iterations)}; 1 to {first - 1} warmed up and were dropped",
            "first_iteration_seconds": log.iterations[0].seconds,
            "processes": processes,
            "global_batch_size": batch,
            "checkout": checkout.model_dump(mode="json") if checkout else None,
            "memory_told_after_iterations": sorted({one.after for one in log.memory.values()}),
            "skipped_iterations": [one.number for one in log.iterations if one.skipped],
            "last_loss": log.iterations[-1].loss,
            "command": scrub(shlex.join(command)),
        }
        before, after = follower.before, follower.after
        if before is not None and after is not None:
            result.warnings += conditions.warnings(before, after)
            observed = {"before": before, "after": after}
            result.facts["conditions"] = {name: one.model_dump(mode="json") for name, one in observed.items()}
        return part_of(result, context.rank) if context.world_size > 1 else result


def _processes_here(parameters: MegatronParameters, context: Context) -> int:
    """Ranks that torchrun starts on this machine."""
    processes = parameters.processes or 1
    if split_target(context.case.target)[1] == ALL:
        gpus = kind_of(context.case.target).count()
        if gpus < processes:
            raise Unsupported(f"Megatron needs a GPU for each process, and this machine has {gpus} of them")
        processes = parameters.processes or gpus
    return processes


@dataclass
class _LogFollower:
    """Follows the log as it is written, so that what was measured is recorded whatever happens later."""

    parameters: MegatronParameters
    context: Context
    seconds: dict[int, float] = field(default_factory=dict)  # of each iteration
    before: conditions.Conditions | None = None
    after: conditions.Conditions | None = None

    def read_line(self, line: str) -> None:
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
            elif iteration.number == self.parameters.all_iterations:
                self.after = conditions.observe(self.context.case.target)


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
    drift = loop.Drift.of(before[-loop.WINDOW_STEPS :], slow=False)
    # Too few iterations do not show it; the warning 'drifting' then says what they leave to the measured ones.
    steady = drift is None or drift.largest <= loop.BOUND
    timed = loop.Timed(times, loop.Stop.STEPS, executed=len(times))
    warnings = [
        warning.model_copy(update={"remedy": _REMEDIES.get(warning.kind, warning.remedy)})
        for warning in loop.warnings(loop.WarmUp(before, steady), timed, MeasuringParameters(span=0.0))
    ]
    skipped = sum(one.skipped for one in measured)
    if skipped:
        message = (
            f"{skipped} of {len(measured)} measured iterations took no optimizer step, because scaled gradients "
            "overflowed, which is cheaper than taking it"
        )
        remedy = "use bf16, or allow more warm-up so that the scale settles (--warm-up-iterations)"
        warnings.append(RecordWarning(kind="skipped-steps", message=message, remedy=remedy))
    if min(times) < 100 * RESOLUTION:
        message = f"the log reports times to {RESOLUTION * 1e3:g} ms, and an iteration took {min(times) * 1e3:.1f} ms"
        remedy = "train a larger model or batch, whose iterations take longer"
        warnings.append(RecordWarning(kind="imprecise", message=message, remedy=remedy))
    return warnings


def launch_command(python: str, processes: int, script: Path, arguments: Sequence[str]) -> list[str]:
    """torchrun on the loopback interface, at a port that the kernel chooses."""
    launcher = ["torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node"]
    return [python, "-m", *launcher, str(processes), str(DIE_WITH_PARENT), str(script), *arguments]


def script_arguments(parameters: MegatronParameters, processes: int, checkout: Path, config: Path | None) -> list[str]:
    """The arguments of pretrain_gpt.py; `config` is DeepSpeed's, where it is used."""
    options = {
        **{name: getattr(parameters, parameter) for name, parameter in SIZES.items()},
        "--global-batch-size": parameters.batch_over(processes),
        "--train-iters": parameters.all_iterations,
        "--log-interval": 1,
        "--eval-interval": parameters.all_iterations + 1,
        **RECIPE,
    }
    arguments = [text for name, value in options.items() for text in (name, str(value))]
    if parameters.precision != "fp32":
        arguments.append(f"--{parameters.precision}")
    if parameters.precision == "fp16":
        arguments += ["--initial-loss-scale", str(2**LOSS_SCALE_POWER)]
    if parameters.data_path is None:
        arguments += ["--mock-data", "--tokenizer-type", "NullTokenizer", "--vocab-size", str(parameters.vocabulary)]
    else:
        arguments += ["--data-path", parameters.data_path]
        if parameters.vocab_file is not None and parameters.merge_file is not None:
            arguments += ["--tokenizer-type", "GPT2BPETokenizer"]
            arguments += ["--vocab-file", parameters.vocab_file, "--merge-file", parameters.merge_file]
    if config is not None:
        arguments += ["--deepspeed", "--deepspeed_config", str(config), "--zero-stage", str(parameters.zero_stage)]
        arguments += ["--no-pipeline-parallel"] if parameters.pipeline_parallel == 1 else []
    else:
        arguments.append("--use-distributed-optimizer")
    arguments += ["--log-throughput"] if mentions(checkout, "log-throughput") else []
    return [*arguments, *parameters.extra]


def deepspeed_config(parameters: MegatronParameters, processes: int) -> str:
    """The file that DeepSpeed reads in addition to the script's arguments."""
    config: dict[str, Any] = {
        "train_batch_size": parameters.batch_over(processes),
        "train_micro_batch_size_per_gpu": parameters.micro_batch_size,
        "steps_per_print": parameters.all_iterations,
        "gradient_clipping": CLIP,
        "zero_optimization": {"stage": parameters.zero_stage},
    }
    if parameters.precision == "fp16":
        config["fp16"] = {"enabled": True, "loss_scale": 0, "initial_scale_power": LOSS_SCALE_POWER}
    elif parameters.precision == "bf16":
        config["bf16"] = {"enabled": True}
    return json.dumps(config, indent=2)


def launch_environment(target: str) -> dict[str, str]:
    """What the ranks need to find in their environment; a user's own setting stays."""
    # Megatron insists on it where layers are split, so that communication is issued in order.
    variables = {} if "CUDA_DEVICE_MAX_CONNECTIONS" in os.environ else {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    kind, index = split_target(target)
    if kind == HOST:
        for other in accelerators():
            variables |= other.hidden()  # or a GPU's figures would pass for the CPU's
    elif index.isdecimal():
        variables |= kind_named(kind).showing(index)
    return variables


def script_of(code_base: str, case: Case) -> Path:
    """The script of a checkout; a missing one is refused, and any in a case from the network."""
    if case.origin == "network":
        message = "megatron-gpt is not taken from the network, as it runs code: start it on the machine itself"
        raise InputError("not-from-network", message, key="benchmark", value="megatron-gpt")
    folder = Path(code_base).expanduser()
    if not folder.is_dir():
        message = f"code_base = {code_base} is not a folder: name a checkout of Megatron-LM or Megatron-DeepSpeed"
        raise InputError("not-a-folder", message, key="code_base", value=code_base)
    if not (folder / SCRIPT).is_file():
        message = (
            f"code_base = {code_base} has no {SCRIPT}: name the top folder of a checkout of Megatron-LM or "
            "Megatron-DeepSpeed"
        )
        raise InputError("not-a-checkout", message, key="code_base", value=code_base)
    return (folder / SCRIPT).resolve()


def refuse_unknown(parameters: MegatronParameters, checkout: Path) -> None:
    """Raise InputError for what this checkout's code cannot do."""
    if parameters.data_path is None and not mentions(checkout, "mock-data"):
        message = (
            f"{checkout.name} has no --mock-data, which newer checkouts of Megatron-LM have: give data_path, "
            "vocab_file and merge_file"
        )
        raise InputError("missing-key", message, key="data_path")
    if parameters.zero_stage is not None and not mentions(checkout, "import deepspeed"):
        message = (
            f"zero_stage = {parameters.zero_stage}, but {checkout.name} does not use DeepSpeed: name a checkout of "
            "Megatron-DeepSpeed, or leave zero_stage out"
        )
        raise InputError("key-does-not-apply", message, key="zero_stage", value=parameters.zero_stage)


@lru_cache(maxsize=64)
def mentions(checkout: Path, text: str) -> bool:
    """Whether the checkout's own code has this text; generations differ, and refuse arguments that they do not have."""
    pattern = re.compile(re.escape(text).replace(r"\-", "[-_]").encode())
    files = [*checkout.glob("*.py"), *(checkout / "megatron").rglob("*.py")]
    return any(pattern.search(file.read_bytes()) for file in files if file.is_file())
