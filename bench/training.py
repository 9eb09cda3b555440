"""Training and inference next to loops by hand, on one device, in the same process and in turns.

Of `parallel`, by hand: the same model and batch, model and loss compiled as one on a GPU, autocast, clipping, fused
AdamW. Twice: a burst, 5 steps and then 12 on the clock after a rest, which on a GPU can be over before its power limit
slows it down; and sustained, seconds on the clock after seconds of warming up. Of `train` the same without clipping; of
`inference`, by hand: the model in 16 bits and channels last, compiled with frozen weights and replayed as a graph.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from bench.idle import prepared
from bench.ratio import Ratio, Wanted
from paceline.api.cases import expand_here
from paceline.benchmarks.parallel._parameters import LEARNING_RATE, ParallelParameters
from paceline.core.suite import Suite
from paceline.devices import Device, open_device

if TYPE_CHECKING:
    from torch import Tensor

ON_A_GPU = ("gpt2/nl24_bf16_1x1x1_mb32_gb32_1n1g", "bert/nl24_bf16_1x1x1_mb24_gb24_1n1g")
ON_A_CPU = ("gpt2/nl2_fp32_1x1x1_mb4_gb4_1n1g", "bert/nl2_fp32_1x1x1_mb4_gb4_1n1g")
SMALL = {"hidden": 128, "heads": 4, "sequence": 128, "vocabulary": 512}
TURNS = 3
MODELS: tuple[dict[str, Any], ...] = (
    {"benchmark": "train", "model": "resnet50", "batch": 256, "sample": "images", "least": 7000},
    {"benchmark": "train", "model": "vit-base", "batch": 128, "sample": "images", "least": 3300},
    {"benchmark": "inference", "model": "resnet50", "batch": 512, "sample": "images", "least": 33000},
    {"benchmark": "inference", "model": "gpt2-small", "batch": 8, "sample": "sequences", "least": 2042},
)
SMALL_MODEL = {"scale": "tiny", "precision": "fp32", "batch_size": 2, "compile": "off"}
REST, WARM_UP, MEASURED = 4.0, 2.0, 5.0  # seconds
BURST = (5, 12)  # steps

Step = Callable[[], object]
Taken = Callable[[Step, Device], float]


def training_ratios(wanted: Wanted) -> Iterator[Ratio]:
    """Samples per second of ours over those of the loop by hand, the median of the turns; then rates on one device."""
    import torch

    target = wanted.target or ("cuda:0" if torch.cuda.is_available() else "cpu")
    device = open_device(target)
    small = not device.kind.is_accelerator
    for case in ON_A_CPU if small else ON_A_GPU:
        parameters = ParallelParameters(case=case, **(SMALL if small else {}))
        names = {f"{parameters.layout.model} {name} / by hand": taken for name, taken in TAKEN.items()}
        names = {name: taken for name, taken in names.items() if wanted(name)}
        if names:
            click.echo(f"compiling {case}, ours and by hand", err=True)
            steps = [_ours(parameters, device), _by_hand(parameters, device)]
            for name, taken in names.items():
                yield _in_turns(name, steps, taken, device, parameters.layout.global_batch)
            del steps
            _forget(device)
    for model in MODELS:
        name = f"{model['benchmark']} {model['model']}, {model['sample']}/s"
        if wanted(name):
            click.echo(f"compiling {name}, ours and by hand", err=True)
            yield _rate(name, model, device, target)
            _forget(device)


def _in_turns(name: str, steps: list[Step], taken: Taken, device: Device, samples: int) -> Ratio:
    turns = [[taken(step, device) for step in steps] for _ in range(TURNS)]
    ours, theirs = (samples / median(times) for times in zip(*turns, strict=True))
    ratios = sorted(by_hand / our for our, by_hand in turns)
    value = median(ratios)
    # A small step on a CPU varies by a few percent from turn to turn.
    least = 1.10 if device.kind.is_accelerator else 0.95
    made_of = f"{ours:.1f} / {theirs:.1f} samples/s, {ratios[0]:.3f} to {ratios[-1]:.3f} in {TURNS} turns"
    return Ratio(name, value, f">= {least}", value >= least, made_of)


def _rate(name: str, model: dict[str, Any], device: Device, target: str) -> Ratio:
    """Samples per second of a case as it is measured, and by hand in the same turns."""
    on_gpu = device.kind.is_accelerator
    asked = {"benchmark": model["benchmark"], "model": model["model"], "precision": "fp16", "compile": "on"}
    asked |= {"batch_size": model["batch"]} if on_gpu else SMALL_MODEL
    (case,) = expand_here(Suite(name="training", cases=[asked]), {"target": target})
    with prepared(case) as made:
        session = made.session
        size = session.parameters.batch_size
        steps = [made.step, _model_by_hand(session, size)]
        turns = [[sustained(step, device) for step in steps] for _ in range(TURNS)]
    ours, theirs = (size / median(times) for times in zip(*turns, strict=True))
    ratio, least = ours / theirs, model["least"] if on_gpu else 0
    made_of = (
        f"batch {size}; by hand {theirs:,.0f}, {ratio:.3f} times; {'a graph' if made.session.is_graph else 'no graph'}"
    )
    return Ratio(name, ours, f">= {least}", ours >= least, made_of)


def _model_by_hand(session: Any, size: int) -> Step:
    """The same model and batch, as people write it."""
    import torch
    from torch._inductor import config

    from paceline.models.base import has_batch_norm, seed_everything, settle_batch_norm

    device, spec, precision = session.device, session.spec, session.parameters.precision
    on_gpu = device.kind.is_accelerator
    seed_everything(session.parameters.seed)
    is_training, batch = not torch.is_inference_mode_enabled(), session.batch(size)
    with torch.device(device.torch()):
        workload = spec.build(session.parameters.scale)
    layout = torch.channels_last if session.channels_last else torch.contiguous_format
    module = workload.module.to(memory_format=layout).train(is_training)
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(precision)
    if not is_training:
        if has_batch_norm(module):
            settle_batch_norm(module, batch.inputs)
        config.freezing = on_gpu
        inputs = [one.to(dtype) if one.is_floating_point() else one for one in batch.inputs]
        module = module.to(dtype)
        forward: Callable[..., object] = torch.compile(module) if on_gpu else module
        infer = partial(forward, *inputs)
        infer()
        return device.capture(infer) if on_gpu else infer
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True)
    scaler = torch.amp.GradScaler(device.torch().type, enabled=precision == "fp16")

    def loss_of() -> Tensor:
        with torch.autocast(device.torch().type, dtype, enabled=dtype is not None):
            loss: Tensor = workload.loss(module(*batch.inputs), batch)
            return loss

    computed: Callable[[], Tensor] = torch.compile(loss_of) if on_gpu else loss_of

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(computed()).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizer)
        scaler.update()

    step()
    return step


def _forget(device: Device) -> None:
    import torch

    torch._dynamo.reset()
    gc.collect()
    device.release_memory()


def _ours(parameters: ParallelParameters, device: Device) -> Step:

    from paceline.benchmarks.parallel._stage import Mesh
    from paceline.benchmarks.parallel._trainer import ParallelTrainer

    on_gpu = device.torch().type != "cpu"
    mesh = Mesh.of(parameters.layout, 0, device.torch().type)
    trainer = ParallelTrainer(parameters, device, mesh, compiled=on_gpu, capturable=on_gpu)
    trainer.step()
    return device.capture(trainer.step) if on_gpu else trainer.step


def _by_hand(parameters: ParallelParameters, device: Device) -> Step:
    import torch

    from paceline.benchmarks.parallel._optimizer import CLIP
    from paceline.benchmarks.parallel._parameters import build, draw
    from paceline.models.base import seed_everything

    seed_everything(parameters.seed)
    with torch.device(device.torch()):
        workload = build(parameters)
    batch = draw(parameters, workload, 0).to(device.torch())
    optimizer = torch.optim.AdamW(workload.module.parameters(), lr=LEARNING_RATE[parameters.layout.model], fused=True)

    def loss_of() -> Tensor:
        with torch.autocast(device.torch().type, torch.bfloat16, enabled=parameters.layout.precision == "bf16"):
            return workload.loss(workload.module(*batch.inputs), batch)

    computed = torch.compile(loss_of) if device.torch().type != "cpu" else loss_of

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        computed().backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(workload.module.parameters(), CLIP)
        optimizer.step()

    step()
    return step


def _burst(step: Step, device: Device) -> float:
    warm_up, measured = BURST
    device.synchronize()
    time.sleep(REST if device.torch().type != "cpu" else 0.0)
    _seconds(step, device, warm_up)
    return _seconds(step, device, measured) / measured


def sustained(step: Step, device: Device) -> float:
    """Seconds of a step, over seconds of them after seconds of warming up."""
    each = _seconds(step, device, 1)
    _seconds(step, device, max(1, round(WARM_UP / each)))
    count = max(1, round(MEASURED / each))
    return _seconds(step, device, count) / count


def _seconds(step: Step, device: Device, count: int) -> float:
    device.synchronize()
    begun = time.perf_counter()
    for _ in range(count):
        step()
    device.synchronize()
    return time.perf_counter() - begun


TAKEN: dict[str, Taken] = {"burst": _burst, "sustained": sustained}
