"""Running one model forward, on one device or on several at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from paceline.benchmarks import _superbench
from paceline.benchmarks._model.benchmark import ModelBenchmark, ModelParameters, Switch
from paceline.benchmarks._model.checks import (
    caught_warnings,
    compare_outputs,
    compare_runs,
    float_tensors,
    kept_output,
    leaves,
)
from paceline.benchmarks._model.measuring import (
    COMMON,
    DEVICE_MEMORY,
    DEVICE_RESERVED,
    STEP_TIME,
    add_trace,
    measure_steps,
)
from paceline.benchmarks._model.session import ModelSession, as_graph, choose_batch_size, open_session
from paceline.benchmarks._model.traffic import count_results
from paceline.benchmarks.inference import _tensorrt
from paceline.benchmarks.inference._fused import fuse_convolutions
from paceline.benchmarks.ranks import Ranks, join
from paceline.core.benchmark import Context, Progress
from paceline.core.environment import Environment
from paceline.core.errors import InputError
from paceline.core.kept_output import FACT
from paceline.core.record import Record, RecordWarning, Result
from paceline.core.subject import Description, key_word
from paceline.devices import Device, open_device
from paceline.models.base import SETTLING_ROWS, ModelSpec, Traits, has_batch_norm, low_dtype, settle_batch_norm
from paceline.models.sources import find_model

if TYPE_CHECKING:
    from torch import Tensor, nn

    from paceline.servers.base import Artifact


class InferenceParameters(ModelParameters):
    """A model and how it is run."""

    min_steps: int = Field(default=30, ge=1)
    """Measure at least this many steps, however precise they are (the budget still ends it)"""
    in_flight: int = Field(default=1, ge=1)
    """On a GPU, steps issued before the first is waited for: 1 gives the latency that one client sees"""
    frozen: Switch = "auto"
    """Compile with the weights as constants, so that batch norms are folded into them and layouts are chosen once; in
    16 bits with cuDNN, convolutions then add and rectify as well; auto does on a GPU"""
    engine: Literal["auto", "torch", "onnxruntime", "tensorrt"] = "auto"
    """What computes the model in process: auto takes ONNX Runtime for an ONNX file and torch for all others;
    onnxruntime and tensorrt export another model first"""


class Inference(ModelBenchmark[InferenceParameters]):
    """The forward pass of one model."""

    name = "inference"
    action = "inference"
    category = "inference"
    summary = "run a model forward on synthetic data: step-time percentiles, throughput, memory, MFU, energy"
    metrics = COMMON

    @classmethod
    def title(cls, parameters: InferenceParameters) -> str:
        words = super().title(parameters)
        return words if parameters.engine == "auto" else f"{words} {parameters.engine}"

    @classmethod
    def describe(cls, record: Record, parameters: InferenceParameters, environment: Environment) -> Description:
        description = super().describe(record, parameters, environment)
        time = record.measurement(STEP_TIME.name)
        if parameters.engine != "tensorrt" or time is None or not time.samples:
            return description
        name = key_word(parameters.model)
        figures = {"mean": time.summary.mean, "99": float(np.percentile(time.samples, 99))}
        values = {f"{name}_gpu_time_{key}": value / _superbench.MS for key, value in figures.items()}
        aliases = _superbench.alias(record, "tensorrt-inference", values, part=name, gpu=True)
        return description.model_copy(update={"aliases": aliases})

    @classmethod
    def check_traits(cls, parameters: InferenceParameters, traits: Traits) -> None:
        engine = traits.engine if parameters.engine == "auto" else parameters.engine
        if engine == "torch" and traits.engine != "torch":
            message = (
                f"engine = torch: the {traits.noun} {parameters.model} is computed by {traits.engine}; leave it out"
            )
            raise InputError("fixed-engine", message, key="engine", value="torch")
        formats = _tensorrt.PRECISIONS if engine == "tensorrt" else ("fp32",)
        if engine != traits.engine and parameters.precision not in formats:
            instead = f"in {' or '.join(formats)}, not in {parameters.precision}"
            message = f"engine = {engine}: a model is exported for it {instead}"
            raise InputError("fixed-precision", message, key="precision", value=parameters.precision)
        if engine == "tensorrt" and parameters.channels_last == "on":
            message = "channels_last = on: TensorRT takes inputs row by row and chooses layouts itself; leave it out"
            raise InputError("fixed-engine", message, key="channels_last", value="on")
        if engine == "tensorrt" and parameters.batch_size == "auto":
            message = "batch_size = auto: TensorRT builds an engine for each size, which takes too long: name one"
            raise InputError("fixed-engine", message, key="batch_size", value="auto")
        super().check_traits(parameters, replace(traits, engine=engine))

    def measure(self, parameters: InferenceParameters, context: Context) -> Result:
        import torch

        is_local = context.case.origin == "local"
        spec = find_model(parameters.model, allow_import=is_local, inputs=parameters.input)
        device = open_device(context.target)
        artifact = None
        if parameters.engine not in ("auto", spec.traits.engine):
            spec, artifact = _exported(spec, parameters, device, is_local, context)
        is_tensorrt = parameters.engine == "tensorrt"
        if is_tensorrt:  # there is nothing left to compile
            parameters = parameters.model_copy(update={"compile": "off"})
        with join(context, device.kind) as ranks, torch.inference_mode():
            size = choose_batch_size(spec, parameters, device, ranks, context, partial(_trial, spec, device))
            with caught_warnings(parameters.deterministic) as caught:
                reference = None
                if parameters.deterministic:
                    other = Predictor(open_session(spec, parameters, device, ranks, "inference"))
                    other.load(size)
                    reference = _flat(other.step())
                    del other
                predictor = Predictor(open_session(spec, parameters, device, ranks, "inference"))
                predictor.load(size)
                session = predictor.session
                context.report(Progress(phase="compiling" if session.compiled else "first step"))
                first_seconds = session.time_first(predictor.step)
                output = count_results(session, predictor.step)
                if reference is not None:
                    compare_runs(*_differing(reference, _flat(output)), parameters.seed, caught)
            if artifact is not None and is_tensorrt:
                session.facts["checked"] = _checked(predictor, output, artifact, is_local)
            is_finite = all(bool(edge.isfinite()) for part in float_tensors(output) for edge in part.aminmax())
            kept = kept_output(output)
            del output
            if session.compiled and ranks.world_size == 1:
                exact = parameters.precision == "fp32"
                compare_outputs(session, predictor.step, exact=exact, plain=predictor.plain_step)
            step = as_graph(session, predictor.step, partial(device.capture, predictor.recorded_step))
            if session.is_graph:  # what is measured is what is to be compared
                step()
                kept = kept_output(predictor.output)
            predictor.output = None
            if not session.is_graph:
                device.release_memory()  # that of a graph that was recorded and not taken
            session.facts |= {FACT: kept.model_dump()} if kept is not None else {}
            result = measure_steps(session, step, session.work(size, training=False), first_seconds, context)
            if is_tensorrt:
                unseen = (DEVICE_MEMORY.name, DEVICE_RESERVED.name)
                result.measurements = [one for one in result.measurements if one.metric.name not in unseen]
                result.facts["memory_unknown_because"] = "TensorRT's memory is its own, and torch does not see it"
            if reference is not None:
                result.facts["deterministic"] = "the first outputs are the same twice"
            if not is_finite:
                remedy = "use bf16 or fp32; a step that computes nothing sensible may take another time"
                message = "the model's output is not finite"
                result.warnings.append(RecordWarning(kind="diverged", message=message, remedy=remedy))
            add_trace(result, session, step, context)
        return result


def _exported(
    spec: ModelSpec, parameters: InferenceParameters, device: Device, is_local: bool, context: Context
) -> tuple[ModelSpec, Artifact]:
    """The model as ONNX Runtime or TensorRT computes it, and the file that they read."""
    from paceline.models.sources.model_file import file_facts, through_onnx
    from paceline.servers.base import Need
    from paceline.servers.export import export

    package = _tensorrt.require(device) if parameters.engine == "tensorrt" else None
    context.report(Progress(phase="exporting"))
    precision = "fp16" if parameters.precision == "fp16" else "fp32"
    named = (parameters.model, parameters.scale, precision)
    need = Need(*named, seed=parameters.seed, allow_import=is_local, inputs=parameters.input)
    artifact = export(need, "onnx")
    assert artifact.path is not None
    if package is None:
        return through_onnx(spec, artifact.path), artifact
    facts = file_facts(artifact.path) | {"engine": f"tensorrt {package.__version__}", "exported": "as for serving"}
    tf32 = parameters.precision == "tf32"
    return _tensorrt.through_tensorrt(spec, artifact.path, device, facts, tf32=tf32), artifact


def _checked(predictor: Predictor, output: object, artifact: Artifact, is_local: bool) -> str:
    """That the engine answers as the eager model does; otherwise the case fails."""
    from paceline.servers.export import CHECKED_ROWS, check_answers

    session = predictor.session
    rows = session.spec.traits.batch_size or max(CHECKED_ROWS)
    inputs = tuple(one[:rows] for one in predictor.inputs)
    answers: list[Any] = [one[:rows] for one in leaves(output)]  # type: ignore[index]
    precision = session.parameters.precision
    deviation = check_answers(artifact, inputs, answers, precision, allow_import=is_local)
    return f"the first {len(inputs[0])} answers differ from the eager model's by {deviation:.2g} of the largest at most"


class Predictor:
    """A session that runs forward, and its batch."""

    def __init__(self, session: ModelSession[InferenceParameters]) -> None:
        import torch

        self.session = session
        session.in_flight = session.parameters.in_flight
        module = session.workload.module
        if has_batch_norm(module):
            settle_batch_norm(module, session.batch(SETTLING_ROWS).inputs)
        dtype = low_dtype(session.parameters.precision) if session.spec.traits.engine == "torch" else None
        if dtype is not None:
            module = module.to(dtype)
        self._dtype = dtype
        self._plain: Callable[..., Any] = module
        self._forward: Callable[..., Any] = module
        if session.compiled:
            session.facts["frozen"] = _freeze(session)
            self._forward = torch.compile(self._fused(module))
        self.inputs: tuple[Tensor, ...]  # there are none before load()
        self.output: object = None  # of a recorded step

    def load(self, size: int) -> None:
        """Put this rank's rows of the joined batch on the device, in the format of the weights."""
        self.inputs = self._rows(size, self.session.ranks.rank * size)

    def step(self) -> object:
        """One forward pass; its output stays on the device."""
        return self._forward(*self.inputs)

    def recorded_step(self) -> object:
        """The same for a graph: a replay writes its output where that of the recorded step lies."""
        self.output = None  # before the next one is made
        self.output = self.step()
        return self.output

    def plain_step(self) -> object:
        """The same, computed by the model as it is written."""
        return self._plain(*self.inputs)

    def _rows(self, size: int, first: int) -> tuple[Tensor, ...]:
        rows = self.session.batch(size, first_row=first).inputs
        if self._dtype is None:
            return rows
        return tuple(one.to(self._dtype) if one.is_floating_point() else one for one in rows)

    def _fused(self, module: nn.Module) -> nn.Module:
        """With convolutions that do more, where weights are constants and cuDNN computes them in 16 bits."""
        facts, spec = self.session.facts, self.session.spec
        is_known = spec.traits == Traits() or self.session.parameters.frozen == "on"
        can_fuse = "cudnn" in self.session.device.kind.libraries and spec.channels_last
        if not (facts["frozen"] and self._dtype is not None and is_known and can_fuse):
            return module
        try:
            fused, facts["fused_convolutions"] = fuse_convolutions(module, self._rows(1, 0))
        except Exception as error:  # not every model can be traced; as it is, it is measured all the same
            facts["not_fused_because"] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            return module
        return fused


def _freeze(session: ModelSession[InferenceParameters]) -> bool:
    """Whether what is compiled from now on in this process takes the weights as constants."""
    from torch._inductor import config

    choice = session.parameters.frozen
    # What casts weights to 8 bits in every step does more than to multiply by them.
    is_auto = session.device.kind.is_accelerator and not session.parameters.precision.startswith("fp8")
    config.freezing = choice == "on" or (choice == "auto" and is_auto)
    return bool(config.freezing)


def _trial(spec: ModelSpec, device: Device, parameters: InferenceParameters) -> Callable[[int], None]:
    predictor = Predictor(open_session(spec, parameters, device, Ranks(0, 1), "inference"))

    def attempt(size: int) -> None:
        predictor.load(size)
        predictor.step()

    return attempt


def _differing(first: Tensor, second: Tensor) -> tuple[list[float], list[float]]:
    """Where two outputs differ: the first few numbers of each; nothing if they are the same."""
    import torch

    if torch.equal(first, second):
        return [], []
    where = ((first != second) & ~(first.isnan() & second.isnan())).nonzero().flatten()[:5]
    return first[where].tolist(), second[where].tolist()


def _flat(output: object) -> Tensor:
    """Every number of a model's output in one row."""
    import torch

    rows = []
    for leaf in leaves(output):
        if not isinstance(leaf, torch.Tensor):
            raise TypeError(f"a model's output of type {type(leaf).__name__} cannot be compared")
        rows.append(leaf.flatten().float())
    return torch.cat(rows)
