"""Training one model on one device, or data parallel over several ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from paceline.benchmarks._model import session as formats
from paceline.benchmarks._model.benchmark import ModelBenchmark, ModelParameters
from paceline.benchmarks._model.checks import (
    Gradients,
    caught_warnings,
    compare_gradients,
    compare_runs,
    loss_warnings,
    scale_warnings,
)
from paceline.benchmarks._model.measuring import COMMON, LOSS, PHASES, add_trace, measure_steps
from paceline.benchmarks._model.session import (
    ModelSession,
    TooFewSamples,
    as_graph,
    choose_batch_size,
    open_session,
)
from paceline.benchmarks._model.traffic import count_saved
from paceline.benchmarks.ranks import Ranks, join
from paceline.core.benchmark import Context, Progress
from paceline.core.errors import Unsupported
from paceline.core.record import Measurement, Result
from paceline.devices import Device, open_device
from paceline.models.base import Batch, ModelSpec
from paceline.models.sources import find_model

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import SGD

_ONE_VALUE = "Expected more than 1 value per channel"  # what torch says of batch normalisation over a single value
TRACED_STEPS = 5  # whose losses are recorded: enough to see that it trains and to compare two computations


class TrainParameters(ModelParameters):
    """A model and how it is trained."""

    optimizer: Literal["adamw", "sgd"] = "adamw"
    """Which optimizer takes the step (fused)"""
    phases: bool = False
    """Time forward, criterion, backward and optimizer apart as well; the model and its loss are then compiled apart"""


class Train(ModelBenchmark[TrainParameters]):
    """Forward, loss, backward and optimizer step of one model."""

    name = "train"
    action = "train"
    category = "training"
    summary = "train a model on synthetic data: throughput, step time, memory, MFU, energy"
    metrics = (*COMMON, *PHASES.values(), LOSS)

    @classmethod
    def title(cls, parameters: TrainParameters) -> str:
        words = super().title(parameters)
        return words if parameters.optimizer == "adamw" else f"{words} {parameters.optimizer}"

    def measure(self, parameters: TrainParameters, context: Context) -> Result:
        is_local = context.case.origin == "local"
        spec = find_model(parameters.model, allow_import=is_local, inputs=parameters.input)
        device = open_device(context.target)
        with join(context, device.kind) as ranks:
            size = choose_batch_size(spec, parameters, device, ranks, context, partial(_trial, spec, device, ranks))
            with caught_warnings(parameters.deterministic) as caught:
                reference = None
                if parameters.deterministic:
                    first = Trainer(open_session(spec, parameters, device, ranks, "train"))
                    first.load(size)
                    reference = [float(first.step()) for _ in range(TRACED_STEPS)]
                    del first
                trainer = Trainer(open_session(spec, parameters, device, ranks, "train"))
                trainer.load(size)
                session = trainer.session
                context.report(Progress(phase="compiling" if session.compiled else "first step"))
                losses: list[Tensor] = []
                first_seconds = session.time_first(lambda: losses.append(trainer.step()))
                losses.append(count_saved(session, trainer.step))
                losses += [trainer.step() for _ in range(TRACED_STEPS - 2)]
                trace = [float(loss) for loss in losses]
                if reference is not None:
                    compare_runs(reference, trace, parameters.seed, caught)
            if session.compiled and ranks.world_size == 1:  # who lacks memory would leave other ranks waiting
                compare_gradients(session, trainer.gradients)
            step = as_graph(session, trainer.step, trainer.capture)
            scale_before = trainer.loss_scale
            marks = trainer.marks if parameters.phases else None
            result = measure_steps(session, step, session.work(size, training=True), first_seconds, context, marks)
            last_loss = float(trainer.step())
            result.measurements.append(Measurement.of_samples(LOSS, trace, statistic="single"))
            result.facts |= {"optimizer": f"{parameters.optimizer}, fused", "last_loss": last_loss}
            if reference is not None:
                result.facts["deterministic"] = f"the first {TRACED_STEPS} losses are the same twice"
            result.warnings += loss_warnings([*trace, last_loss])
            result.warnings += scale_warnings(scale_before, trainer.loss_scale)
            add_trace(result, session, step, context)
        return result


class Trainer:
    """A session that trains: its optimizer, its loss scale and its batch."""

    def __init__(self, session: ModelSession[TrainParameters]) -> None:
        import torch
        from torch.nn.parallel import DistributedDataParallel

        self.session = session
        parameters = session.parameters
        workload = session.workload
        self.marks = workload.marks
        apart = parameters.phases or not workload.loss_compiles
        both: torch.nn.Module = _with_loss(session, compiled=session.compiled and apart)
        self._both = both
        if parameters.optimizer == "adamw":
            capturable = parameters.graph != "off" and session.device.kind.supports_graphs
            self._optimizer: torch.optim.Optimizer = torch.optim.AdamW(
                both.parameters(), lr=1e-4, fused=True, capturable=capturable
            )
        else:
            self._optimizer = fused_sgd(list(both.parameters()))
        self._scaler = torch.amp.GradScaler(session.device.torch().type, enabled=parameters.precision == "fp16")
        if session.ranks.world_size > 1:
            ids = [session.device.torch()] if session.device.kind.is_accelerator else None
            both = DistributedDataParallel(both, device_ids=ids, gradient_as_bucket_view=True)

        def forward(batch: Batch) -> Tensor:
            with formats.autocast(parameters.precision, session.device):
                loss: Tensor = both(batch)
                return loss

        whole = session.compiled and not apart
        self._forward: Callable[[Batch], Tensor] = torch.compile(forward) if whole else forward
        self._batch: Batch  # there is none before load()

    def load(self, size: int) -> None:
        """Put this rank's rows of the joined batch on the device."""
        self._batch = self.session.batch(size, first_row=self.session.ranks.rank * size)

    def step(self) -> Tensor:
        """One training step; returns its loss, still on the device."""
        loss = self._backward()
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self.marks("optimizer")
        return loss

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """What is trained, of the model and of its loss."""
        return self._both.named_parameters()

    def gradients(self) -> Gradients:
        """What the weights as they are give; no step is taken."""
        try:
            loss = self._backward()
            return Gradients.of(loss, self._both.named_parameters(), self.loss_scale)
        finally:
            self._optimizer.zero_grad(set_to_none=True)

    def _backward(self) -> Tensor:
        self._optimizer.zero_grad(set_to_none=True)
        try:
            loss = self._forward(self._batch)
        except Exception as error:  # a compiler raises its own
            if _ONE_VALUE not in str(error):
                raise
            model = self.session.spec.name
            raise TooFewSamples(
                f"{model} normalises over its batch, and of one sample some channels have a single value: "
                "use --batch-size 2 or more"
            ) from error
        self.marks("criterion")
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        self.marks("backward")
        return loss.detach()

    @property
    def loss_scale(self) -> float:
        """What fp16 multiplies its loss by; it falls when gradients overflow."""
        return float(self._scaler.get_scale())

    def capture(self) -> Callable[[], object]:
        """The step as one CUDA graph; only what never waits for the host can be one."""
        if self.session.ranks.world_size > 1:
            raise Unsupported("graph = on goes with one rank: use --graph off")
        if self.session.parameters.phases:
            raise Unsupported("a graph does not show the phases of a step: use --graph off, or leave out --phases")
        if not self.session.workload.loss_compiles:
            raise Unsupported(f"the loss of {self.session.spec.name} goes to the host: use --graph off")
        return self.session.device.capture(self.step)


def fused_sgd(weights: list[nn.Parameter]) -> SGD:
    """SGD with momentum that begins at zero.

    Left to itself, torch makes the buffers at the first step without filling them; where fp16 overflows in that step,
    nothing is written to them, and the next step adds whatever lay in that memory.
    """
    import torch

    optimizer = torch.optim.SGD(weights, lr=1e-3, momentum=0.9, fused=True)
    for weight in weights:
        optimizer.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
    return optimizer


def _with_loss(session: ModelSession[Any], *, compiled: bool) -> nn.Module:
    """Model and loss as one module, so that the weights of both are trained and reduced; compiled each by itself."""
    import torch
    from torch import nn

    workload = session.workload
    network: Callable[..., Any] = workload.module
    loss_of: Callable[..., Any] = workload.loss
    if compiled:
        network = torch.compile(network)
        loss_of = torch.compile(loss_of) if workload.loss_compiles else loss_of

    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = workload.module
            if isinstance(workload.loss, nn.Module):
                self.loss = workload.loss

        def forward(self, batch: Batch) -> Tensor:
            output = network(*batch.inputs)
            workload.marks("forward")
            loss: Tensor = loss_of(output, batch)
            return loss

    return WithLoss()


def _trial(spec: ModelSpec, device: Device, ranks: Ranks, parameters: TrainParameters) -> Callable[[int], None]:
    import torch

    # Alone, because a rank that runs out of memory inside a reduction would leave the others waiting.
    trainer = Trainer(open_session(spec, parameters, device, Ranks(0, 1), "train"))
    count = trainer.session.facts["parameter_count"] if ranks.world_size > 1 else 0
    buckets = torch.empty(count, device=device.torch())  # what the reduction will take as well

    def attempt(size: int, *, _held: Tensor = buckets) -> None:
        trainer.load(size)
        for _ in range(2):
            trainer.step()

    return attempt
