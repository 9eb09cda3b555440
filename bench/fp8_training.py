"""Training in fp8 beside bf16 at hidden sizes of 2048 and 4096: their pace in turns, and loss beside loss.

Both begin with the same weights and see the same batches, a fresh one in every step, of a language in which each token
has few successors: the losses fall alike, and to the entropy of that language instead of to zero, where gradients would
vanish and the device would draw less power.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import TYPE_CHECKING

from bench.ratio import Ratio
from bench.training import TURNS, Step, sustained
from paceline.benchmarks.parallel._parameters import ParallelParameters
from paceline.devices import Device, open_device

if TYPE_CHECKING:
    from torch import Tensor

STEPS = 200
READ = (1, 50, 100, 150, 200)
BATCH = 16
TOKENS, SUCCESSORS = 512, 4  # of the language; its entropy is log(4) for each token
SHAPES = {12: {"hidden": 2048, "heads": 16}, 8: {"hidden": 4096, "heads": 32}}  # by layers


def fp8_ratios() -> Iterator[Ratio]:
    """Samples per second in fp8 over those in bf16, and the last loss of the one over that of the other."""
    import torch

    if not torch.cuda.is_available():
        raise LookupError("a CPU only emulates fp8: run it where there is a GPU with 8-bit units")
    device = open_device("cuda:0")
    for layers, sizes in SHAPES.items():
        cases = {
            kind: ParallelParameters(case=f"gpt2/nl{layers}_{kind}_1x1x1_mb{BATCH}_gb{BATCH}_1n1g", **sizes)
            for kind in ("fp8", "bf16")
        }
        trained = {kind: _Trained(parameters, device) for kind, parameters in cases.items()}
        losses = {kind: one.train(STEPS) for kind, one in trained.items()}
        for one in trained.values():
            one.step = device.capture(one.step)
        turns = [[sustained(one.step, device) for one in trained.values()] for _ in range(TURNS)]
        pace = median(theirs / ours for ours, theirs in turns)
        made_of = " / ".join(f"{BATCH / median(times):.1f}" for times in zip(*turns, strict=True))
        yield Ratio(f"fp8 / bf16, hidden {sizes['hidden']}", pace, "> 1", pace > 1, f"{made_of} samples/s")
        last = {kind: found[-1] for kind, found in losses.items()}
        beside = ", ".join(
            f"step {number}: {losses['fp8'][number - 1]:.4f} / {losses['bf16'][number - 1]:.4f}" for number in READ
        )
        distance = abs(last["fp8"] - last["bf16"]) / losses["bf16"][0]
        yield Ratio(
            f"loss apart, hidden {sizes['hidden']}", distance, "< 0.02", distance < 0.02, f"of the first; {beside}"
        )


class _Trained:
    """A trainer and the loss of its last step."""

    def __init__(self, parameters: ParallelParameters, device: Device) -> None:
        from paceline.benchmarks.parallel._stage import Mesh
        from paceline.benchmarks.parallel._trainer import ParallelTrainer

        mesh = Mesh.of(parameters.layout, 0, device.torch().type)
        trainer = ParallelTrainer(parameters, device, mesh, compiled=True, capturable=True)
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
