"""Running one model forward, on one device or on several at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from paceline.benchmarks._model.batch_size import choose_batch_size
from paceline.benchmarks._model.benchmark import ModelBenchmark, ModelParameters, Switch
from paceline.benchmarks._model.checks import caught_warnings, compare_outputs, compare_runs, float_tensors, leaves
from paceline.benchmarks._model.graph import as_graph
from paceline.benchmarks._model.measuring import COMMON, add_trace, measure_steps
from paceline.benchmarks._model.session import ModelSession, open_session
from paceline.benchmarks._model.traffic import count_results
from paceline.benchmarks.inference._fused import fuse_convolutions
from paceline.benchmarks.ranks import Ranks, join
from paceline.core.benchmark import Context, Progress
from paceline.core.errors import InputError
from paceline.core.record import RecordWarning, Result
from paceline.devices import Device, open_device
from paceline.models.base import SETTLING_ROWS, ModelSpec, Traits, has_batch_norm, low_dtype, settle_batch_norm
from paceline.models.sources import find_model

if TYPE_CHECKING:
    from torch import Tensor, nn


class InferenceParameters(ModelParameters):
    """A model and how it is run."""

    min_steps: int = Field(default=30, ge=1)
    """Measure at least this many steps, however precise they are (the budget still ends it)"""
    in_flight: int = Field(default=1, ge=1)
    """On a GPU, steps issued before the first is waited for: 1 gives the latency that one client sees"""
    frozen: Switch = "auto"
    """Compile with the weights as constants, so that batch norms are folded into them and layouts are chosen once; in
    16 bits with cuDNN, convolutions then add and rectify as well; auto does on a GPU"""
    engine: Literal["auto", "torch", "onnxruntime"] = "auto"
    """What computes the model in process: auto takes ONNX Runtime for an ONNX file and torch for all others;
    onnxruntime exports another model first"""


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
    def check_traits(cls, parameters: InferenceParameters, traits: Traits) -> None:
        engine = traits.engine if parameters.engine == "auto" else parameters.engine
        if engine == "torch" and traits.engine != "torch":
            message = (
                f"engine = torch: the {traits.noun} {parameters.model} is computed by {traits.engine}; leave it out"
            )
            raise InputError("fixed-engine", message, key="engine", value="torch")
        if engine != traits.engine and parameters.precision != "fp32":
            message = f"engine = {engine}: a model is exported for it in fp32, not in {parameters.precision}"
            raise InputError("fixed-precision", message, key="precision", value=parameters.precision)
        super().check_traits(parameters, replace(traits, engine=engine))

    def measure(self, parameters: InferenceParameters, context: Context) -> Result:
        import torch

        is_local = context.case.origin == "local"
        spec = find_model(parameters.model, allow_import=is_local, inputs=parameters.input)
        if parameters.engine not in ("auto", spec.traits.engine):
            spec = _exported(spec, parameters, is_local, context)
        device = open_device(context.target)
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
            is_finite = all(bool(edge.isfinite()) for part in float_tensors(output) for edge in part.aminmax())
            del output
            if session.compiled and ranks.world_size == 1:
                exact = parameters.precision == "fp32"
                compare_outputs(session, predictor.step, exact=exact, plain=predictor.plain_step)
            step = as_graph(session, predictor.step, partial(device.capture, predictor.step))
            result = measure_steps(session, step, session.work(size, training=False), first_seconds, context)
            if reference is not None:
                result.facts["deterministic"] = "the first outputs are the same twice"
            if not is_finite:
                remedy = "use bf16 or fp32; a step that computes nothing sensible may take another time"
                message = "the model's output is not finite"
                result.warnings.append(RecordWarning(kind="diverged", message=message, remedy=remedy))
            add_trace(result, session, step, context)
        return result


def _exported(spec: ModelSpec, parameters: InferenceParameters, is_local: bool, context: Context) -> ModelSpec:
    """The model as ONNX Runtime computes it."""
    from paceline.models.sources.onnx_file import through_onnx
    from paceline.servers.base import Need
    from paceline.servers.export import export

    context.report(Progress(phase="exporting"))
    need = Need(
        parameters.model, parameters.scale, seed=parameters.seed, allow_import=is_local, inputs=parameters.input
    )
    artifact = export(need, "onnx")
    assert artifact.path is not None
    return through_onnx(spec, artifact.path)


class Predictor:
    """A session that runs forward, and its batch."""

    def __init__(self, session: ModelSession[InferenceParameters]) -> None:
        import torch

        self.session = session
        session.in_flight = session.parameters.in_flight
        module = session.workload.module
        if has_batch_norm(module):
            settle_batch_norm(module, session.batch(SETTLING_ROWS).inputs)
        dtype = low_dtype(session.parameters.precision)
        if dtype is not None:
            module = module.to(dtype)
        self._dtype = dtype
        self._plain: Callable[..., Any] = module
        self._forward: Callable[..., Any] = module
        if session.compiled:
            session.facts["frozen"] = _freeze(session)
            self._forward = torch.compile(self._fused(module))
        self._inputs: tuple[Tensor, ...]  # there are none before load()

    def load(self, size: int) -> None:
        """Put this rank's rows of the joined batch on the device, in the format of the weights."""
        self._inputs = self._rows(size, self.session.ranks.rank * size)

    def step(self) -> object:
        """One forward pass; its output stays on the device."""
        return self._forward(*self._inputs)

    def plain_step(self) -> object:
        """The same, computed by the model as it is written."""
        return self._plain(*self._inputs)

    def _rows(self, size: int, first: int) -> tuple[Tensor, ...]:
        rows = self.session.batch(size, first_row=first).inputs
        if self._dtype is None:
            return rows
        return tuple(one.to(self._dtype) if one.is_floating_point() else one for one in rows)

    def _fused(self, module: nn.Module) -> nn.Module:
        """With convolutions that do more, where weights are constants and cuDNN computes them in 16 bits."""
        facts, spec = self.session.facts, self.session.spec
        is_known = spec.traits == Traits() or self.session.parameters.frozen == "on"
        can_fuse = self.session.device.kind.fuses_convolutions and spec.channels_last
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
