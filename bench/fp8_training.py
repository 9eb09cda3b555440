"""Training in fp8 beside bf16 at hidden sizes of 2048 and 4096: their pace in turns, and loss beside loss.

Both begin with the same weights and see the same batches, a fresh one in every step, of a language in which each token
has few successors: the losses fall alike, and to the entropy of that language instead of to zero, where gradients would
vanish and the device would draw less power.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from bench.ratio import Ratio, Wanted
from bench.training import TURNS, Step, sustained
from paceline.benchmarks.parallel._parameters import ParallelParameters
from paceline.devices import Device, open_device

if TYPE_CHECKING:
    from torch import Tensor

STEPS = 200
READ = (1, 50, 100, 150, 200)
BATCH = 16
TOKENS, SUCCESSORS = 512, 4  # of the language; its entropy is log(4) for each token
# By hidden size. On a CPU, which emulates fp8, small ones show that both train alike, and nothing of the pace.
ON_A_GPU = {2048: {"layers": 12, "heads": 16}, 4096: {"layers": 8, "heads": 32}}
ON_A_CPU = {64: {"layers": 1, "heads": 2, "sequence": 32, "vocabulary": 512, "batch": 2}}
CPU_STEPS = 6


def fp8_ratios(wanted: Wanted) -> Iterator[Ratio]:
    """Samples per second in fp8 over those in bf16, and the last loss of the one over that of the other."""
    import torch

    device = open_device(wanted.target or ("cuda:0" if torch.cuda.is_available() else "cpu"))
    on_gpu = device.kind.is_accelerator
    for hidden, shape in (ON_A_GPU if on_gpu else ON_A_CPU).items():
        pace_name, loss_name = f"fp8 / bf16, hidden {hidden}", f"loss apart, hidden {hidden}"
        is_compared, is_timed = wanted(loss_name), wanted(pace_name) and on_gpu
        if not (is_compared or is_timed):
            continue
        sizes: dict[str, Any] = dict(shape)
        batch, layers = sizes.pop("batch", BATCH), sizes.pop("layers")
        trained: dict[str, _Trained] = {}
        losses: dict[str, list[float]] = {}
        for kind in ("fp8", "bf16"):
            click.echo(f"hidden {hidden}, {layers} layers, batch {batch}: training in {kind}", err=True)
            layout = f"gpt2/nl{layers}_{kind}_1x1x1_mb{batch}_gb{batch}_1n1g"
            trained[kind] = _Trained(ParallelParameters(case=layout, hidden=hidden, **sizes), device)
            steps = STEPS if on_gpu else CPU_STEPS
            losses[kind] = trained[kind].train(steps if is_compared else 1)
        if is_compared:
            yield _losses(loss_name, losses)
        if is_timed:
            for one in trained.values():
                one.step = device.capture(one.step)
            turns = [[sustained(one.step, device) for one in trained.values()] for _ in range(TURNS)]
            pace = median(theirs / ours for ours, theirs in turns)
            made_of = " / ".join(f"{batch / median(times):.1f}" for times in zip(*turns, strict=True))
            yield Ratio(pace_name, pace, "> 1", pace > 1, f"{made_of} samples/s")
        del trained
        device.release_memory()


def _losses(name: str, losses: dict[str, list[float]]) -> Ratio:
    beside = ", ".join(
        f"step {number}: {losses['fp8'][number - 1]:.4f} / {losses['bf16'][number - 1]:.4f}"
        for number in READ
        if number <= len(losses["fp8"])
    )
    distance = abs(losses["fp8"][-1] - losses["bf16"][-1]) / losses["bf16"][0]
    return Ratio(name, distance, "< 0.02", distance < 0.02, f"of the first; {beside}")


class _Trained:
    """A trainer and the loss of its last step."""

    def __init__(self, parameters: ParallelParameters, device: Device) -> None:
        from paceline.benchmarks.parallel._stage import Mesh
        from paceline.benchmarks.parallel._trainer import ParallelTrainer

        on_gpu, mesh = device.kind.is_accelerator, Mesh.of(parameters.layout, 0, device.torch().type)
        trainer = ParallelTrainer(parameters, device, mesh, compiled=on_gpu, capturable=on_gpu)
        assert trainer._batch is not None
        self._inputs, self._labels = trainer._batch.inputs[0], trainer._batch.targets[0]
        self._loss: Tensor | None = None

        def step() -> None:
            self._loss = trainer.step()

        self.step: Step = step

    def train(self, steps: int) -> list[float]:
        """The loss of each step."""
        losses = []
        for number in range(steps):
            sentences = _sentences(self._inputs.shape[0], self._inputs.shape[1], seed=number).to(self._inputs.device)
            self._inputs.copy_(sentences[:, :-1])
            self._labels.copy_(sentences[:, 1:])
            self.step()
            assert self._loss is not None
            losses.append(float(self._loss))
            if number + 1 in READ:
                click.echo(f"step {number + 1}: {losses[-1]:.4f}", err=True)
        return losses


def _sentences(rows: int, length: int, seed: int) -> Tensor:
    """Rows of tokens, one more than the length, in which each is drawn from the few that may follow the one before."""
    import torch

    following = torch.randint(TOKENS, (TOKENS, SUCCESSORS), generator=torch.Generator().manual_seed(0))
    drawn = torch.Generator().manual_seed(seed + 1)
    choices = torch.randint(SUCCESSORS, (rows, length), generator=drawn)
    sentences = [torch.randint(TOKENS, (rows,), generator=drawn)]
    for column in choices.T:
        sentences.append(following[sentences[-1], column])
    return torch.stack(sentences, dim=1)
