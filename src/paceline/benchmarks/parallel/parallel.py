"""Training GPT-2, BERT, Llama or Mixtral over a mesh of ranks, on native PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from paceline.benchmarks._model import session as formats
from paceline.benchmarks._model.benchmark import switches_of, usual_alternatives
from paceline.benchmarks._model.checks import compare_gradients, loss_warnings, scale_warnings
from paceline.benchmarks._model.measuring import (
    AUDIO_THROUGHPUT,
    COMMON,
    DEVICE_MEMORY,
    FLOP_RATE,
    LOSS,
    STEP_TIME,
    StepSession,
    StepWork,
    add_trace,
    higher,
    lower,
    measure_steps,
)
from paceline.benchmarks._model.session import peak_of, whether_to_compile
from paceline.benchmarks._model.traffic import counted, mesh_work
from paceline.benchmarks.parallel._parameters import (
    FLOPS_FORMULA,
    LAYOUT_KEYS,
    LEARNING_RATE,
    ParallelParameters,
    ideal_bubble,
)
from paceline.benchmarks.ranks import Ranks, emulated, join
from paceline.core.benchmark import Benchmark, Context, Progress
from paceline.core.case import Case
from paceline.core.environment import Environment
from paceline.core.errors import InputError, Unsupported
from paceline.core.metric import Merge, Metric
from paceline.core.parameters import MeasuringParameters
from paceline.core.record import Measurement, Record, Result
from paceline.core.subject import Description
from paceline.core.trace_events import TraceEvent, innermost, length, overlap, read_events, union
from paceline.devices import Device, open_device
from paceline.measure import trace
from paceline.models.base import set_fp32_mode

if TYPE_CHECKING:
    from torch import Tensor

    from paceline.benchmarks.parallel._megatron_trainer import MegatronTrainer
    from paceline.benchmarks.parallel._stage import Mesh
    from paceline.benchmarks.parallel._trainer import ParallelTrainer

    Trainer = ParallelTrainer | MegatronTrainer  # takes the steps of one rank

LOSS_OF_ALL = LOSS.model_copy(update={"merge": Merge.FIRST})  # of the whole batch, the same on every rank
GRADIENT_NORM = Metric(
    name="gradient_norm",
    unit="",
    description="norm of the whole gradient in the first steps from the seed, before clipping; shows a wrong scale of "
    "gradients, which the loss hardly does under AdamW",
)
THROUGHPUT_PER_RANK = higher(
    "throughput_per_gpu", "sequences/s", Merge.MEAN, "throughput divided by the number of ranks"
)
MEMORY_PARTS = {
    name: lower(name, "B", Merge.MAXIMUM, description)
    for name, description in {
        "parameter_memory": "weights that a rank holds",
        "gradient_memory": "gradients that a rank holds at the end of a step",
        "optimizer_memory": "the optimizer's state on a rank",
    }.items()
}
ACTIVATION_MEMORY = lower(
    "activation_memory",
    "B",
    Merge.MAXIMUM,
    "the device's peak less weights, gradients and optimizer: activations and the buffers of the mesh",
)
BUBBLE = lower(
    "pipeline_bubble",
    "%",
    Merge.MEAN,
    "share of the schedule's time in which a rank computes neither forward nor backward: it waits for its "
    "neighbours, or for gradients to be reduced",
)
EXPOSED = lower(
    "exposed_communication",
    "s",
    Merge.MAXIMUM,
    "time of a step in which a rank's data travels while it computes nothing, from a trace of a few steps; "
    "waiting for a slower rank counts, as the travelling then takes longer",
)
COMMUNICATION = lower(
    "communication",
    "s",
    Merge.MAXIMUM,
    "time of a step in which a rank's data travels, hidden behind computation or not",
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


STEPS = 2
_WAITING = ("c10d::", "_c10d_functional::", "_c10d_functional_autograd::", "record_param_comms", "##")


def exposed(events: Sequence[TraceEvent], *, on_device: bool) -> tuple[int, int]:
    """Nanoseconds of communication, and of those that no computation hides."""
    working = [event for event in events if (event.on_device if on_device else event.is_operator)]
    mine = [event for event in working if event.end > event.start]
    talking = union((event.start, event.end) for event in mine if event.is_talking)
    others = [event for event in mine if not event.is_talking and not event.name.startswith(_WAITING)]
    computing = union((event.start, event.end) for event in (others if on_device else innermost(others)))
    total = length(talking)
    return total, total - length(overlap(talking, computing))


TRACED_STEPS = 5  # whose losses are recorded: enough to compare two layouts
WATCHED_STEPS = 3  # after the measured ones, for the time in which stages compute


Training = StepSession[ParallelParameters]


class Parallel(Benchmark[ParallelParameters]):
    """One training step over a mesh of ranks."""

    name = "parallel"
    category = "training"
    summary = "train GPT-2, BERT, Llama or Mixtral over data x tensor x pipeline ranks: throughput, MFU, memory, bubble"
    metrics = METRICS
    primary = "throughput"
    distributed = True
    traceable = True

    @classmethod
    def title(cls, parameters: ParallelParameters) -> str:
        """The word of the layout, and whatever else is not as usual."""
        usual = {*LAYOUT_KEYS, "case", "checkpointing", *MeasuringParameters.model_fields}
        more = parameters.model_dump(exclude_defaults=True, exclude=usual, mode="json")
        return " ".join([str(parameters.layout), *(f"{key}={value}" for key, value in more.items())])

    @classmethod
    def check(cls, parameters: ParallelParameters, case: Case) -> None:
        """Refuse numbers that contradict each other, with the arithmetic shown."""
        parameters.refuse_contradictions()

    @classmethod
    def ranks(cls, parameters: ParallelParameters) -> int:
        """One for each position in the mesh."""
        return parameters.layout.world_size

    @classmethod
    def nodes(cls, parameters: ParallelParameters) -> int | None:
        """Those that the word names."""
        return parameters.layout.nodes if parameters.case is not None else None

    @classmethod
    def imports(cls, parameters: Mapping[str, Any]) -> tuple[str, ...]:
        """What every rank would otherwise import again."""
        return (
            "torch",
            "torch._dynamo",
            "torch.distributed.fsdp",
            "torch.distributed.pipelining",
            "torch.distributed.tensor.parallel",
            "paceline.benchmarks.parallel._trainer",
        )

    @classmethod
    def describe(cls, record: Record, parameters: ParallelParameters, environment: Environment) -> Description:
        description = super().describe(record, parameters, environment)
        counts = record.measurement(FLOP_RATE.name) is not None
        # From the parameters, as a failed case has no facts.
        subject = description.subject.model_copy(update={"layout": str(parameters.layout)})
        trace = description.trace
        if trace is not None:
            given = cls._alternatives(record, parameters)
            words = {setting: word for setting, word in given.items() if word != setting}
            more = {"switches": switches_of(given), "alternatives": tuple(given), "given": words}
            trace = trace.model_copy(update=more)
        work = counted(mesh_work, record) if parameters.mode == "training" else None  # bytes are those of training
        return Description(subject=subject, trace=trace, work=work, counts_work=counts)

    @classmethod
    def _alternatives(cls, record: Record, parameters: ParallelParameters) -> dict[str, str]:
        """Settings that could make the same work faster, and how each is given."""
        is_graph = bool(record.facts.get("graph", parameters.graph == "on"))
        found = usual_alternatives(record, parameters.layout.precision, "fp8", is_graph=is_graph)
        found["graph=on"] &= not _why_no_graph(parameters)
        found["checkpointing=false"] = parameters.layout.checkpointing
        given = {}
        for setting in (one for one, is_open in found.items() if is_open):
            name, _, value = setting.partition("=")
            changed = parameters.given(name, value)
            key, _, word = changed.partition("=")
            with suppress(Unsupported, InputError):
                other = ParallelParameters.read(parameters.model_dump(mode="json") | {key: word}, is_typed=True)
                other.refuse_contradictions()
                cls.refuse_impossible(other)
                given[setting] = changed
        return given

    def measure(self, parameters: ParallelParameters, context: Context) -> Result:
        device = open_device(context.target)
        training = self.prepare(parameters, device)
        with join(context, device.kind) as ranks:
            from paceline.benchmarks.parallel._stage import Mesh
            from paceline.benchmarks.parallel._trainer import ParallelTrainer

            training.ranks = ranks
            mesh = Mesh.of(parameters.layout, ranks.rank, device.torch().type)
            trainer = self.trainer(training, mesh)
            training.facts |= self.facts(trainer)
            context.report(Progress(phase="compiling" if training.compiled else "first step"))
            recorded = _RecordedSteps(trainer, ranks)
            first_seconds = device.seconds_of(recorded.step)
            device.reset_peak_memory()
            for _ in range(TRACED_STEPS - 1):
                recorded.step()
            scale_before = trainer.loss_scale
            peak = device.peak_memory()
            # A rank that lacks memory would leave the others waiting.
            trains = parameters.mode == "training"
            if training.compiled and ranks.world_size == 1 and trains and isinstance(trainer, ParallelTrainer):
                compare_gradients(training, trainer.gradients)
            if training.is_graph:
                training.recorded = recorded.take
                recorded.capture()
            layout = parameters.layout
            work = StepWork(  # a rank's share: the ranks of a mesh work on the same samples
                samples=layout.global_batch / layout.world_size,
                sample_name="sequence",
                tokens=layout.global_batch * parameters.tokens / layout.world_size,
                flops=parameters.transformer.step_flops(layout.global_batch) / layout.world_size / (1 if trains else 3),
                peak=peak_of(device, layout.precision),
            )
            result = measure_steps(training, recorded.take, work, first_seconds, context)
            if training.is_graph and peak is not None:
                result.measurements.append(Measurement.of_value(DEVICE_MEMORY, peak[0]))
            result.measurements += _memory(trainer, result)
            result.measurements += _bubble(trainer, ranks)
            result.measurements += _communication(trainer, training)
            recorded.step()
            step_time = next(one for one in result.measurements if one.metric.name == STEP_TIME.name)
            result.measurements += [
                Measurement.of_rate(THROUGHPUT_PER_RANK, work.samples, step_time),
                Measurement.of_samples(LOSS_OF_ALL, recorded.losses[:TRACED_STEPS], statistic="single"),
            ]
            if trains:
                norms = recorded.norms[:TRACED_STEPS]
                result.measurements.append(Measurement.of_samples(GRADIENT_NORM, norms, statistic="single"))
            result.facts |= {
                "batch_size": layout.micro_batch,
                "global_batch_size": layout.global_batch,
                "last_loss": recorded.losses[-1],
            }
            result.warnings += loss_warnings(recorded.losses)
            result.warnings += scale_warnings(scale_before, trainer.loss_scale)
            add_trace(result, training, recorded.take, context)
        return result

    @classmethod
    def refuse_impossible(cls, parameters: ParallelParameters) -> None:
        """Raise Unsupported for what can be computed on no device."""
        layout = parameters.layout
        if layout.precision == "fp8" and layout.tensor > 1:
            raise Unsupported("fp8 layers are not split over tensor-parallel ranks: use tensor = 1, or bf16")
        if parameters.schedule_kind.splits_backward and parameters.compile == "on":
            raise Unsupported(
                f"{parameters.schedule_name} takes the backward pass apart, which compiled layers do not allow: "
                "--compile off"
            )

    def prepare(self, parameters: ParallelParameters, device: Device) -> Training:
        """Whether this device can do it, and how."""
        layout = parameters.layout
        self.refuse_impossible(parameters)
        formats.check(layout.precision, device, fp8_model=True, model=layout.model)
        set_fp32_mode(layout.precision)
        splits, schedule = parameters.schedule_kind.splits_backward, parameters.schedule_name
        compiled, why_not = whether_to_compile(parameters.compile, device)
        if splits and compiled:
            compiled, why_not = False, f"{schedule} takes the backward pass apart"
        training = Training(device, parameters, compiled, warnings=emulated(layout.precision, device))
        training.is_graph = _whether_to_capture(parameters, device, compiled=compiled)
        training.facts |= {"compiled": compiled, "graph": training.is_graph}
        if training.is_graph:
            training.facts["memory_of"] = "the same step without the graph, which cannot tell"
        if why_not:
            training.facts["not_compiled_because"] = why_not
        if splits and layout.checkpointing:
            reason = f"several times: {schedule} takes the backward pass apart, and each part pays"
            training.facts["recomputed"] = reason
        return training

    def facts(self, trainer: Trainer) -> dict[str, Any]:
        """What the record has to say about the training."""
        import torch

        from paceline.benchmarks.parallel._optimizer import BETAS, CLIP, EPSILON, WEIGHT_DECAY
        from paceline.benchmarks.parallel._trainer import ParallelTrainer

        parameters, layout = trainer.parameters, trainer.parameters.layout
        facts: dict[str, Any] = {
            "layout": str(layout),
            "mode": parameters.mode,
            "mesh": f"data {layout.data} x tensor {layout.tensor} x pipeline {layout.pipeline}"
            + (f" x context {layout.context}" if layout.context > 1 else "")
            + (f", experts over {layout.expert} of data" if layout.expert > 1 else ""),
            "parameter_count": trainer.parameter_count,
            "precision": layout.precision,
            "device": trainer.device.name,
            "sequence": parameters.tokens,
            "vocabulary": parameters.padded_vocabulary,
            "dropout": 0.0,
            "micro_batches": layout.micro_batches,
            "checkpointing": layout.checkpointing,
            "sequence_parallel": parameters.sequence_parallel,
            "data_parallel": parameters.shard if layout.data > 1 else "none",
            "flops_formula": FLOPS_FORMULA[layout.model]
            + ("; a third of it" if parameters.mode == "inference" else ""),
            "threads": torch.get_num_threads(),
            "input": "synthetic, on the device before the timed region; no input pipeline is measured",
        }
        if parameters.mode != "inference":
            facts["optimizer"] = (
                f"AdamW, fused, betas {BETAS}, eps {EPSILON:g}, weight decay {WEIGHT_DECAY:g} (0 for norms "
                f"and biases), constant rate {LEARNING_RATE[layout.model]:g}, gradient clipped to norm {CLIP:g}"
            )
        if isinstance(trainer, ParallelTrainer) and trainer.masters is not None:
            facts["weights"] = f"fp32; linear layers hold copies in {layout.precision}, which the optimizer writes"
        if isinstance(trainer, ParallelTrainer) and layout.precision == "fp8":
            facts |= {"fp8_layers": trainer.fp8_layers, "fp8_recipe": parameters.fp8_recipe}
        if layout.pipeline > 1:
            facts |= {"schedule": parameters.schedule_name, "layers_of_stages": trainer.layers}
            per_rank = parameters.schedule_kind.stages_per_rank
            ideal = ideal_bubble(parameters.schedule_name, layout.pipeline, layout.micro_batches, per_rank)
            if ideal is not None:
                facts["ideal_bubble"] = f"{100 * ideal[0]:.3g} % if all stages took equally long: {ideal[1]}"
        return facts

    def trainer(self, training: Training, mesh: Mesh) -> Trainer:
        """What takes the steps."""
        from paceline.benchmarks.parallel._trainer import ParallelTrainer

        return ParallelTrainer(
            training.parameters, training.device, mesh, compiled=training.compiled, capturable=training.is_graph
        )


class _RecordedSteps:
    """Steps whose loss and gradient norm are read, which the measured ones do not wait for."""

    def __init__(self, trainer: Trainer, ranks: Ranks) -> None:
        self._trainer = trainer
        self._ranks = ranks
        self._loss: Tensor | None = None  # of the last step; a graph writes it where it lies
        self.take: Callable[[], object] = self._take
        self.losses: list[float] = []
        self.norms: list[float] = []

    def _take(self) -> None:
        self._loss = self._trainer.step()

    def capture(self) -> None:
        """From now on, replay the step as a CUDA graph."""
        self.take = self._trainer.device.capture(self._take)

    def step(self) -> None:
        """Take a step, and read the loss of the whole batch and the norm of its gradient, the same on every rank."""
        self.take()
        loss = self._loss
        # Ranks with the last stage have the loss of their part of the batch.
        parts = [one for one in self._ranks.gather(None if loss is None else float(loss)) if one is not None]
        self.losses.append(sum(parts) / len(parts))
        if self._trainer.norm is not None:  # None where nothing is learned
            self.norms.append(float(self._trainer.norm))


def _whether_to_capture(parameters: ParallelParameters, device: Device, *, compiled: bool) -> bool:
    """Whether to replay the step as a CUDA graph: the host of one GPU is then out of the way."""
    has_experts = parameters.layout.model == "mixtral"
    why = _why_no_graph(parameters) if device.kind.supports_graphs else f"a {device.kind.noun} has none"
    if parameters.graph == "on" and why:
        raise Unsupported(f"graph = on replays CUDA graphs on one GPU, but {why}: use --graph auto or off")
    return parameters.graph == "on" or (parameters.graph == "auto" and not why and compiled and not has_experts)


def _why_no_graph(parameters: ParallelParameters) -> str:
    """What keeps a step from being replayed where a device has graphs; empty where nothing does."""
    layout = parameters.layout
    # Only in bf16 the experts of a mixture are one product that does not wait for the host, and not on every GPU.
    if layout.model == "mixtral" and layout.precision not in ("bf16", "fp8"):
        return "experts wait for the host unless in bf16"
    return f"{layout.world_size} ranks talk with each other" if layout.world_size > 1 else ""


def _memory(trainer: Trainer, result: Result) -> list[Measurement]:
    """What a rank's memory is made of; the rest of the peak only on devices with memory of their own."""
    parts = trainer.memory()
    measurements = [Measurement.of_value(MEMORY_PARTS[name], size) for name, size in parts.items()]
    peak = next((one for one in result.measurements if one.metric.name == DEVICE_MEMORY.name), None)
    if peak is not None:
        measurements.append(Measurement.of_value(ACTIVATION_MEMORY, max(0.0, peak.value - sum(parts.values()))))
    return measurements


def _bubble(trainer: Trainer, ranks: Ranks) -> list[Measurement]:
    """In a few steps more, which share of a schedule's time this rank does not compute."""
    if trainer.pipeline is None:
        return []
    ranks.meet()
    shares = []
    for _ in range(WATCHED_STEPS):
        trainer.pipeline.watch.start()
        trainer.step()
        spent = trainer.pipeline.watch.stop()
        shares.append(100.0 * (1.0 - spent["busy"] / spent["schedule"]))
    return [Measurement.of_samples(BUBBLE, shares)]


def _communication(trainer: Trainer, training: Training) -> list[Measurement]:
    """How long data travels in a step, and how much of that nothing hides."""
    device, ranks, in_flight = training.device, training.ranks, training.in_flight
    if ranks.world_size == 1:
        return []
    ranks.meet()
    has_gpu = device.kind.is_accelerator
    steps = STEPS - 1  # and one before them
    try:
        taken = trace.take(trainer.step, device, steps=steps, in_flight=in_flight, all_ready=ranks.all_agree)
    except trace.TraceFailed:
        return []
    events = read_events(taken)
    if not any(event.is_talking and event.on_device == has_gpu for event in events):
        return []  # a build whose profiler does not record it
    total, bare = (part / STEPS / 1e9 for part in exposed(events, on_device=has_gpu))
    return [Measurement.of_value(COMMUNICATION, total), Measurement.of_value(EXPOSED, bare)]
