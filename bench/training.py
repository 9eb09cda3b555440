"""The trainer of `parallel` next to a loop by hand, on one device, interleaved.

By hand: the same model and batch, model and loss compiled as one on a GPU, autocast, clipping, fused AdamW. Twice: a
burst, 5 steps and then 12 on the clock after a rest, which on a GPU can be over before its power limit slows it down;
and sustained, seconds on the clock after seconds of warming up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import TYPE_CHECKING

from bench.ratio import Ratio
from paceline.benchmarks.parallel._parameters import LEARNING_RATE, ParallelParameters
from paceline.devices import Device, open_device

if TYPE_CHECKING:
    from torch import Tensor

ON_A_GPU = ("gpt2/nl24_bf16_1x1x1_mb32_gb32_1n1g", "bert/nl24_bf16_1x1x1_mb24_gb24_1n1g")
ON_A_CPU = ("gpt2/nl2_fp32_1x1x1_mb4_gb4_1n1g", "bert/nl2_fp32_1x1x1_mb4_gb4_1n1g")
SMALL = {"hidden": 128, "heads": 4, "sequence": 128, "vocabulary": 512}
TURNS = 3
REST, WARM_UP, MEASURED = 4.0, 2.0, 5.0  # seconds
BURST = (5, 12)  # steps

Step = Callable[[], object]


def training_ratios() -> Iterator[Ratio]:
    """Samples per second of ours over those of the loop by hand; the median of the turns."""
    import torch

    device = open_device("cuda:0" if torch.cuda.is_available() else "cpu")
    small = device.torch().type == "cpu"
    least = 0.95 if small else 1.0  # a small step on a CPU varies by a few percent from turn to turn
    for case in ON_A_CPU if small else ON_A_GPU:
        parameters = ParallelParameters(case=case, **(SMALL if small else {}))
        steps = [_ours(parameters, device), _by_hand(parameters, device)]
        for name, taken in (("burst", _burst), ("sustained", sustained)):
            turns = [[taken(step, device) for step in steps] for _ in range(TURNS)]
            ours, theirs = (parameters.layout.global_batch / median(times) for times in zip(*turns, strict=True))
            value = median(by_hand / our for our, by_hand in turns)
            made_of = f"{ours:.1f} / {theirs:.1f} samples/s, {TURNS} turns"
            yield Ratio(f"{parameters.layout.model} {name} / by hand", value, f">= {least}", value >= least, made_of)


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
