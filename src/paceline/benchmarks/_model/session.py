"""A session: a model built on a device in a precision, ready to take steps, as a graph and of the largest batch."""

from __future__ import annotations

import gc
import importlib.util
import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from paceline.benchmarks._model.benchmark import Action, P
from paceline.benchmarks._model.measuring import StepSession, StepWork
from paceline.benchmarks.ranks import Ranks, emulated
from paceline.core.benchmark import Context, Progress
from paceline.core.errors import MissingDependency, OutOfMemory, Unsupported
from paceline.core.transformer import TRAINING_FACTOR
from paceline.devices import Device
from paceline.devices.timeline import monotonic
from paceline.measure.memory import Peak, exhausted, host_limit, measured_peak_flops, peak_flops
from paceline.models.base import Batch, ModelSpec, Traits, Workload, low_dtype, seed_everything, set_fp32_mode
from paceline.models.flops import forward_flops, training_flops

if TYPE_CHECKING:
    from torch import nn

Fp8Recipe = Literal["tensorwise", "rowwise", "rowwise_with_gw_hp"]


def check(precision: str, device: Device, *, fp8_model: bool, model: str) -> None:
    """Raise Unsupported, with the reason, for what this device or model cannot do; `fp8` is emulated on a host."""
    if precision.startswith("fp8") and not fp8_model:
        raise Unsupported(f"{precision} is for models made of linear layers (BERT, GPT-2); {model} is not: use bf16")
    support = device.format(precision)
    if support.how == "none" and (device.kind.is_accelerator or precision != "fp8"):
        raise Unsupported(support.reason)


def autocast(precision: str, device: Device) -> AbstractContextManager[object]:
    """The context in which a training step computes its forward."""
    import torch

    dtype = low_dtype(precision)
    return nullcontext() if dtype is None else torch.autocast(device.torch().type, dtype=dtype)


def convert_to_fp8(
    module: nn.Module, precision: str, *, recipe: Fp8Recipe = "tensorwise", least_size: int = 16, emulate: bool = False
) -> int:
    """Swap every linear layer whose sizes fit for an fp8 one; returns how many were swapped.

    `recipe` says how values are scaled into 8 bits, `least_size` which layers are too small to gain. `emulate` computes
    the products in fp32 with values rounded to 8 bits, for devices without them.
    """
    from torch import nn

    try:
        from torchao.float8 import CastConfig, Float8LinearConfig, convert_to_float8_training
        from torchao.float8.config import e4m3_dtype
    except ImportError as error:
        raise MissingDependency("torchao (for fp8)", f"pip install '.[fp8]' ({error})") from None

    config = Float8LinearConfig.from_recipe_name(recipe)  # tensorwise is hybrid: e4m3 forward, e5m2 gradients
    if precision == "fp8_e4m3" and recipe == "tensorwise":
        config = Float8LinearConfig(cast_config_grad_output=CastConfig(target_dtype=e4m3_dtype))
    config = replace(config, emulate=emulate)
    swapped = 0

    def fits(layer: nn.Module, name: str) -> bool:
        nonlocal swapped
        # The tensor cores' 8-bit product wants multiples of 16; the head over the vocabulary has none.
        if not isinstance(layer, nn.Linear):
            return False
        sizes = (layer.in_features, layer.out_features)
        ok = all(size % 16 == 0 for size in sizes) and max(sizes) >= least_size
        swapped += ok
        return ok

    convert_to_float8_training(module, config=config, module_filter_fn=fits)
    return swapped


# More rows than this repeat: drawing tens of thousands of images on the CPU would take longer than the benchmark.
DISTINCT_ROWS = 256


def draw_rows(workload: Workload, seed: int, first_row: int, size: int) -> Batch:
    """Rows of the one endless batch that the seed defines, on the CPU."""
    import torch

    distinct = min(first_row + size, DISTINCT_ROWS)
    drawn = workload.make_batch(distinct, torch.Generator().manual_seed(seed))
    index = torch.arange(first_row, first_row + size) % distinct
    return Batch(tuple(t[index] for t in drawn.inputs), tuple(t[index] for t in drawn.targets))


@dataclass(kw_only=True)
class ModelSession(StepSession[P]):
    """A model with everything that its steps need."""

    spec: ModelSpec
    workload: Workload
    channels_last: bool

    def batch(self, size: int, *, first_row: int = 0) -> Batch:
        """Rows of the one endless batch that the seed defines, on the device."""
        import torch

        memory_format = torch.channels_last if self.channels_last else torch.contiguous_format
        rows = draw_rows(self.workload, self.parameters.seed, first_row, size)
        return rows.to(self.device.torch(), memory_format=memory_format)

    def time_first(self, step: Callable[[], object]) -> float | None:
        """Seconds that the very first step takes; None if something ran before it: another model, or other batches."""
        seconds = self.device.seconds_of(step)
        return None if self.parameters.deterministic or self.parameters.batch_size == "auto" else seconds

    def _flops_per_sample(self, training: bool) -> float:
        """By the documented formula; the record says which part of it."""
        partly_frozen = any(not parameter.requires_grad for parameter in self.workload.module.parameters())
        spec, scale = self.spec, self.parameters.scale
        try:
            if not training:
                formula, flops = "forward", forward_flops(spec, scale)
            elif partly_frozen:
                formula, flops = "forward and backward, counted", training_flops(spec, scale, partly_frozen=True)
            else:
                formula, flops = "3 x forward", training_flops(spec, scale)
            if training and self.workload.loss_flops:
                formula, flops = f"{formula}, loss included", flops + TRAINING_FACTOR * self.workload.loss_flops
        except Exception as error:  # a user's model need not run without data; then its FLOPs are unknown, not wrong
            self.facts["flops_unknown_because"] = f"{type(error).__name__}: {error}"
            return 0.0
        self.facts["flops_formula"] = f"{formula}; 2 per multiply-add of products, convolutions and attention"
        return flops

    def work(self, size: int, *, training: bool) -> StepWork:
        """What a step with a batch of this size does."""
        tokens, audio = self.workload.tokens_per_sample, self.workload.audio_per_sample
        return StepWork(
            samples=size,
            sample_name=self.spec.sample,
            tokens=tokens * size if tokens else None,
            audio=audio * size if audio else None,
            flops=self._flops_per_sample(training) * size,
            together=training,
            peak=peak_of(self.device, self.parameters.precision),
        )


def peak_of(device: Device, precision: str) -> Peak | None:
    """The datasheet's, otherwise what this machine was measured to reach: ranks on one CPU have a part of it each."""
    sharing = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if not device.kind.is_accelerator else 1
    return peak_flops(device.name, precision) or measured_peak_flops(device.name, precision, sharing=sharing)


def open_session(spec: ModelSpec, parameters: P, device: Device, ranks: Ranks, mode: Action) -> ModelSession[P]:
    """Build the model with the seed's weights on the device."""
    import torch

    check(parameters.precision, device, fp8_model=spec.fp8, model=spec.name)
    if parameters.graph == "on" and not device.kind.supports_graphs:
        raise Unsupported(f"graph = on replays CUDA graphs, which a {device.kind.noun} does not have; leave it out")
    set_fp32_mode(parameters.precision)
    if parameters.deterministic:
        # cuBLAS reads this when its handle is made, which no case has done yet.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
    compiled, not_compiled_because = whether_to_compile(parameters.compile, device)
    autotune = compiled if parameters.autotune == "auto" else parameters.autotune == "on"
    autotuned = autotune and device.kind.is_accelerator and not parameters.deterministic
    torch.backends.cudnn.benchmark = autotuned
    seed_everything(parameters.seed)
    with torch.device(device.torch()):
        workload = spec.build(parameters.scale)
    module = workload.module.to(device.torch())
    channels_last = parameters.channels_last == "on"
    if parameters.channels_last == "auto":
        channels_last = spec.channels_last and device.kind.prefers_channels_last
    if channels_last:
        module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    module.train(mode == "train")
    loss, loss_weights = workload.loss, 0
    if isinstance(loss, torch.nn.Module):
        loss = loss.to(device.torch())
        loss_weights = sum(p.numel() for p in loss.parameters())
    facts: dict[str, Any] = {
        "model": spec.name,
        "parameter_count": sum(p.numel() for p in module.parameters()),
        **({"loss_parameter_count": loss_weights} if loss_weights else {}),
        "precision": parameters.precision,
        "device": device.name,
        "channels_last": channels_last,
        "compiled": compiled,
        "autotuned": autotuned,
        "threads": torch.get_num_threads(),
        "input": "synthetic, on the device before the timed region; no input pipeline is measured",
        **({"loss_function": workload.loss_name} if mode == "train" and workload.loss_name else {}),
        **workload.facts,
    }
    if parameters.precision.startswith("fp8"):
        module = module.to(torch.bfloat16) if mode == "inference" else module
        facts["fp8_layers"] = convert_to_fp8(module, parameters.precision)
    if not_compiled_because:
        facts["not_compiled_because"] = not_compiled_because
    return ModelSession(
        spec=spec,
        parameters=parameters,
        device=device,
        workload=replace(workload, module=module, loss=loss),
        channels_last=channels_last,
        compiled=compiled,
        ranks=ranks,
        facts=facts,
        warnings=emulated(parameters.precision, device),
    )


def whether_to_compile(switch: str, device: Device) -> tuple[bool, str]:
    """Whether to compile, and why not where `auto` decides against it.

    In the default mode of torch.compile: autotuning every kernel costs minutes and gains little.
    """
    compiler = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("gcc")
    obstacle = "no C++ compiler was found" if compiler is None else ""
    if device.kind.needs_triton and importlib.util.find_spec("triton") is None:
        obstacle = "triton is not installed"
    if switch == "on" and obstacle:
        raise Unsupported(f"compile = on is not possible here: {obstacle}; use --compile off")
    if switch != "auto":
        return switch == "on", ""
    if not device.kind.needs_triton:
        return False, "auto compiles on GPUs only"
    return not obstacle, obstacle


Step = Callable[[], object]

COMPARED = 10  # steps of each kind, or as many as fit into some time, which are a few at least
COMPARED_SECONDS, FEWEST = 0.2, 3
LONGEST = 0.5  # seconds: a host issues tens of thousands of kernels in that time
GAIN = 1.01  # what a graph has to gain, as it hides what memory a step takes


def as_graph(session: ModelSession[Any], step: Step, capture: Callable[[], Step]) -> Step:
    """The step that is measured from now on; the facts say whether it is a graph, and what that gained."""
    choice = session.parameters.graph
    if choice == "off":
        return step
    device, facts = session.device, session.facts
    why_not = _obstacle(session) if choice == "auto" else ""
    if not why_not:
        device.reset_peak_memory()
        seconds = _seconds(session, step)
        peak = device.peak_memory()
        if choice == "auto" and seconds > LONGEST:
            why_not = f"a step takes {seconds:.2g} s, so that the host is not what bounds it"
        elif choice == "auto" and peak is not None and device.free_memory() < peak[0]:
            why_not = "a graph holds the memory of a step once more, and so much is not free"
    if not why_not:
        try:
            replay = capture()
        except Exception as error:
            if choice == "on":
                raise
            memory = "the device's memory is full" if exhausted(error) else ""
            why_not = memory or f"{type(error).__name__}: {error}".splitlines()[0][:200]
            device.release_memory()
        else:
            gain = seconds / _seconds(session, replay)
            if choice == "on" or gain >= GAIN:
                session.is_graph, session.step_memory = True, peak[0] if peak is not None else None
                session.recorded = step
                facts |= {"graph": True, "graph_gain": gain}
                facts["memory_of"] = "the same step without the graph, which cannot tell"
                return replay
            why_not = f"it would be {gain:.3f} times as fast"
            del replay
            device.release_memory()
    facts |= {"graph": False, "no_graph_because": why_not}
    return step


def _obstacle(session: ModelSession[Any]) -> str:
    """Why `auto` does not even try."""
    if not session.device.kind.supports_graphs:
        return f"a {session.device.kind.noun} has none"
    if session.spec.traits.engine != "torch":
        return f"{session.spec.traits.engine} computes it, not torch"
    if session.spec.traits != Traits():
        return "what a model of your own does on the host would be left out: --graph on if it does nothing there"
    if session.ranks.world_size > 1:
        return "ranks talk with each other"
    if session.parameters.batch_size == "auto":
        return "the batch fills the memory"
    return ""


def _seconds(session: ModelSession[Any], step: Step) -> float:
    """Of a step, each waited for where the measured ones are: only then does the host's part of a step show."""
    device, waits = session.device, session.in_flight == 1
    each = device.seconds_of(step)
    if each > 2.0 * LONGEST:  # no doubt is left, and more of them would take many seconds
        return each
    count = max(FEWEST, min(COMPARED, round(COMPARED_SECONDS / max(each, 1e-6))))

    def several() -> None:
        for _ in range(count):
            step()
            if waits:
                device.synchronize()

    return device.seconds_of(several) / count


LARGEST_BATCH = 65_536
TRIAL_PART = 0.8  # of the free memory of the host: a measurement needs a little more than a trial


class TooFewSamples(Unsupported):
    """The model computes something of the whole batch that takes more samples than there are."""


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

    least = 1

    def fits(size: int) -> bool:
        nonlocal least
        begun = monotonic()
        try:
            fitted = runs_within_memory(lambda: attempt(size), device)
        except TooFewSamples:
            if size > 1:
                raise
            least = 2
            fitted = runs_within_memory(lambda: attempt(least), device)
        # A step that outlasts the budget could not be measured, however much memory is left. The very first one
        # pays for everything lazy, so it is not judged by its time.
        return fitted and (size == 1 or monotonic() - begun <= parameters.budget)

    batch_size = ranks.smallest(largest(fits))
    if batch_size == 0:
        raise OutOfMemory(
            f"{spec.name} does not fit on {device.name} with a batch of one; choose a smaller model or --scale tiny",
            where="device" if device.kind.is_accelerator else "host",
        )
    return max(batch_size, least)


def largest(fits: Callable[[int], bool], *, limit: int = LARGEST_BATCH) -> int:
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
