"""Fingerprints of whole training steps: the same on every node with the same device and software."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from paceline.benchmarks._micro.parameters import join_words, time_metric
from paceline.benchmarks._model.checks import caught_warnings, excuses, float_tensors
from paceline.benchmarks._model.measuring import LOSS
from paceline.benchmarks._model.session import open_session
from paceline.benchmarks.ranks import Ranks
from paceline.benchmarks.training.train import Train, Trainer, TrainParameters
from paceline.core.benchmark import Benchmark, Context, Progress
from paceline.core.case import Case
from paceline.core.environment import Environment
from paceline.core.errors import CaseError, SilentCorruption, Unsupported
from paceline.core.metric import Metric
from paceline.core.parameters import Parameters
from paceline.core.record import Measurement, Outcome, Record, Result
from paceline.core.subject import SUPERBENCH, Alias, Description, ModelPrecision, key_word
from paceline.devices import open_device
from paceline.measure.digest import digest, fingerprint_of, joined_digest
from paceline.models.base import Scale
from paceline.models.sources import MODEL_NAME, check_model, find_model

if TYPE_CHECKING:
    from torch import Tensor

STEP_TIME = time_metric("step_time", "time of one deterministic step with its digests")
ACTIVATION = Metric(name="activation_mean", unit="", description="mean of the model's output, by step")


class FingerprintParameters(Parameters):
    """What is trained, and for how many steps."""

    model: Annotated[str, MODEL_NAME] = "gpt2-small"
    """A model of the zoo (paceline list models), or generated/FAMILY:knob=value"""
    scale: Scale = "full"
    """full, or tiny: the same kind of model, small enough for a slow machine"""
    precision: ModelPrecision = "bf16"
    """fp32 (true), tf32, fp16 or bf16 (mixed), fp8_hybrid, fp8_e4m3"""
    batch_size: int = Field(default=2, ge=1)
    """Samples in a step"""
    steps: int = Field(default=10, ge=1)
    """How many steps have a fingerprint"""
    times: int = Field(default=2, ge=1)
    """How often all of it is computed from the seed; a difference is silent corruption on this very device"""
    seed: int = Field(default=1234, ge=0, lt=2**63)
    """Seed of weights and data"""

    def training(self) -> TrainParameters:
        """The same for the trainer; nothing that may choose another kernel from time to time."""
        fixed = {"deterministic": True, "compile": "off", "graph": "off", "autotune": "off"}
        same = self.model_dump(include={"model", "scale", "precision", "batch_size", "seed"})
        return TrainParameters.read(fixed | same)


@dataclass(frozen=True)
class StepPrint:
    """What one step computed, bit for bit."""

    loss: float
    activation: float  # mean of the model's output
    parts: Mapping[str, int]  # digests by name: loss, output, gradient of ..., weights of ...
    seconds: float

    @property
    def digest(self) -> str:
        """All of it in a word."""
        return joined_digest(self.parts)


class TrainingFingerprint(Benchmark[FingerprintParameters]):
    """Loss, output, gradients and weights of a few steps as digests; nodes that differ in one do not compute alike."""

    name = "training-fingerprint"
    summary = "digests of whole training steps, comparable across nodes: does this one compute what the others do?"
    category = "training"
    is_within_device = True
    metrics = (STEP_TIME, LOSS, ACTIVATION)

    @classmethod
    def title(cls, parameters: FingerprintParameters) -> str:
        scale = "" if parameters.scale == "full" else parameters.scale
        return join_words(parameters.model, parameters.precision, scale, f"{parameters.steps} steps")

    @classmethod
    def check(cls, parameters: FingerprintParameters, case: Case) -> None:
        check_model(parameters.model, is_local=case.origin == "local")

    @classmethod
    def imports(cls, parameters: Mapping[str, Any]) -> tuple[str, ...]:
        return Train.imports(parameters)

    @classmethod
    def describe(cls, record: Record, parameters: FingerprintParameters, environment: Environment) -> Description:
        return Description(
            fingerprint=fingerprint_of(record, environment), aliases={SUPERBENCH: _superbench_names(record, parameters)}
        )

    def measure(self, parameters: FingerprintParameters, context: Context) -> Result:
        device = open_device(context.target)
        with caught_warnings(enabled=True) as caught:
            runs = []
            for time in range(parameters.times):
                context.report(Progress(phase=f"steps, {time + 1} of {parameters.times} times"))
                runs.append(_deterministic_prints(parameters, context))
            first, *others = runs
            found = next((text for other in others if (text := difference(first, other))), "")
            reasons = excuses(caught)
        result = Result(
            measurements=[
                Measurement.of_samples(STEP_TIME, [one.seconds for one in first]),
                Measurement.of_samples(LOSS, [one.loss for one in first], statistic="single"),
                Measurement.of_samples(ACTIVATION, [one.activation for one in first], statistic="single"),
            ],
            facts={
                "device": device.name,
                "precision": parameters.precision,
                **_threads(),
                "fingerprint": {
                    "digest": joined_digest({str(n): int(one.digest, 16) for n, one in enumerate(first)}),
                    "steps": [one.digest for one in first],
                },
                "of": f"loss, output, gradients and weights: {len(first[0].parts)} tensors in each step",
                "not_deterministic": reasons,
            },
        )
        if found:
            context.keep(result)
            where = f"{context.target} ({device.name})"
            message = f"{where} trained {parameters.times} times from seed {parameters.seed} and differs: {found}"
            if reasons:
                raise CaseError(f"{message}, but that proves nothing: {'; '.join(reasons)}")
            raise SilentCorruption(f"{message}. Take it out of use, and run 'known-answers' and 'burn' on it")
        return result


def _deterministic_prints(parameters: FingerprintParameters, context: Context) -> list[StepPrint]:
    try:
        return train_prints(parameters, context)
    except RuntimeError as error:
        if "deterministic" not in str(error):
            raise
        reason = str(error).partition(",")[0]
        raise Unsupported(f"{parameters.model} has no fingerprint here: {reason}; choose another --model") from error


def train_prints(parameters: FingerprintParameters, context: Context) -> list[StepPrint]:
    """Train from the seed, with the fingerprint of every step."""
    is_local = context.case.origin == "local"
    spec, device = find_model(parameters.model, allow_import=is_local), open_device(context.target)
    trainer = Trainer(open_session(spec, parameters.training(), device, Ranks(0, 1), "train"))
    trainer.load(parameters.batch_size)
    printer = StepPrinter(trainer)
    return [printer.step() for _ in range(parameters.steps)]


class StepPrinter:
    """Takes the steps of a trainer, each with its fingerprint."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self._outputs: list[Tensor] = []
        trainer.session.workload.module.register_forward_hook(
            lambda _module, _inputs, output: self._outputs.extend(one.detach() for one in float_tensors(output))
        )

    def step(self) -> StepPrint:
        """One step; everything is read back at once, at its end."""
        import torch

        device = self.trainer.session.device
        self._outputs.clear()
        device.synchronize()
        begun = device.clock()
        # More than a warning: the backward pass of attention has a deterministic way, and takes it only then.
        torch.use_deterministic_algorithms(True)
        try:
            loss = self.trainer.step()
        finally:
            torch.use_deterministic_algorithms(True, warn_only=True)
        parts: dict[str, Tensor] = {"loss": loss}
        parts |= {f"output {number}": one for number, one in enumerate(self._outputs)}
        for name, weight in self.trainer.named_parameters():
            parts |= {f"gradient of {name}": weight.grad} if weight.grad is not None else {}
            parts[f"weights of {name}"] = weight
        digests = torch.stack([digest(one) for one in parts.values()]).tolist()
        seconds = device.clock() - begun
        mean = float(self._outputs[0].double().mean()) if self._outputs else math.nan
        return StepPrint(float(loss), mean, dict(zip(parts, digests, strict=True)), seconds)


def difference(first: Sequence[StepPrint], second: Sequence[StepPrint]) -> str:
    """Where two trainings part, in words; empty where they are the same."""
    for number, (one, other) in enumerate(zip(first, second, strict=True), start=1):
        names = [name for name, value in one.parts.items() if other.parts.get(name) != value]
        if names:
            more = f" and {len(names) - 1} more of {len(one.parts)} tensors" if len(names) > 1 else ""
            return f"from step {number} on, in the {names[0]}{more}"
    return ""


def _threads() -> dict[str, int]:
    import torch

    return {"threads": torch.get_num_threads()}


def _superbench_names(record: Record, parameters: FingerprintParameters) -> Alias:
    """SuperBench's determinism metrics: means over the checked steps, and the settings that must be the same."""
    loss, activation = record.measurement(LOSS.name), record.measurement(ACTIVATION.name)
    values: dict[str, float] = {}
    if record.outcome is Outcome.OK and loss is not None and activation is not None:
        settings = {"batch_size": parameters.batch_size, "num_steps": parameters.steps, "num_warmup": 0}
        settings |= {"deterministic_seed": parameters.seed, "check_frequency": 1}
        steps = range(1, parameters.steps + 1)
        values = {
            "deterministic_loss": loss.summary.mean,
            "deterministic_act_mean": activation.summary.mean,
            "deterministic_step": sum(steps) / len(steps),
            "deterministic_check_count": float(parameters.steps),
            **{f"deterministic_config_{name}": float(value) for name, value in settings.items()},
        }
    return Alias(
        group=f"model-benchmarks/pytorch-{key_word(parameters.model)}",
        part=f"{parameters.precision}_deterministic",
        note="" if parameters.scale == "full" else f"scale={key_word(parameters.scale)}",
        is_model=True,
        values=values,
    )
