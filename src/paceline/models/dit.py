"""The diffusion transformer in its four published sizes, trained to find the noise in random latents.

The latents are those of images of 256 x 256 pixels, mixed with noise before the timed region. The loss is the squared
error of the noise; the variance that the model also gives is computed, but not scored.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from paceline.models.base import Batch, ModelSpec, Workload, build_scaled

if TYPE_CHECKING:
    import torch
    from torch import Tensor

STEPS = 1000  # of the diffusion
FREQUENCIES = 256  # cosines and sines of a time


@dataclass(frozen=True, kw_only=True)
class DitShape:
    """The sizes that make one diffusion transformer, and those of its latents."""

    layers: int
    hidden: int
    heads: int
    patch: int = 2
    side: int = 32
    channels: int = 4
    classes: int = 1000

    @property
    def forward_flops(self) -> int:
        """Of one sample: 2 for each weight and patch that meet, 4 for each pair of patches and number of a head."""
        patches, pixels, hidden = (self.side // self.patch) ** 2, self.channels * self.patch**2, self.hidden
        layer = patches * (12 * hidden**2 + 2 * patches * hidden) + 6 * hidden**2
        ends = patches * 3 * pixels * hidden + (FREQUENCIES + hidden + 2 * hidden) * hidden
        return 2 * (self.layers * layer + ends)


TINY = DitShape(layers=2, hidden=64, heads=4, side=8, classes=10)


def build_dit(shape: DitShape) -> Workload:
    """A diffusion transformer of any shape with random latents to train it on."""
    from paceline.models._modules.dit import Dit

    return Workload(module=Dit(shape), make_batch=partial(_make_batch, shape), loss=_noise_loss)


def _noise_loss(output: Tensor, batch: Batch) -> Tensor:
    import torch.nn.functional as F

    noise = batch.targets[0]
    return F.mse_loss(output[:, : noise.shape[1]], noise)


def _make_batch(shape: DitShape, samples: int, generator: torch.Generator) -> Batch:
    import torch

    size, device = (shape.channels, shape.side, shape.side), generator.device
    latents, noise = torch.empty(samples, *size, device=device), torch.empty(samples, *size, device=device)
    times = torch.empty(samples, dtype=torch.int64, device=device)
    classes = torch.empty(samples, dtype=torch.int64, device=device)
    for row in range(samples):  # row by row: the first samples must not depend on how many follow
        latents[row].normal_(generator=generator)
        noise[row].normal_(generator=generator)
        times[row].random_(STEPS, generator=generator)
        classes[row].random_(shape.classes, generator=generator)
    kept = torch.linspace(1.0 - 1e-4, 1.0 - 0.02, STEPS, device=device).cumprod(0)[times].view(-1, 1, 1, 1)
    noisy = kept.sqrt() * latents + (1.0 - kept).sqrt() * noise
    return Batch(inputs=(noisy, times, classes), targets=(noise,))


def _spec(size: str, parameters: int, batch_size: int, shape: DitShape) -> ModelSpec:
    return ModelSpec(
        name=f"dit-{size}-2",
        family="dit",
        task="image generation",
        summary=f"DiT-{size.upper()}/2: {shape.layers} layers with adaptive norms, hidden size {shape.hidden}, "
        f"{shape.heads} heads; latents of {shape.side} x {shape.side} in patches of {shape.patch}",
        build=partial(build_scaled, build_dit, shape, TINY),
        parameters=parameters,
        flops=shape.forward_flops,
        batch_size=batch_size,
        sample="image",
        fp8=True,
        settings=asdict(shape),
    )


SMALL = DitShape(layers=12, hidden=384, heads=6)
MODELS = (
    _spec("s", 32_865_056, 64, SMALL),
    _spec("b", 130_315_808, 64, replace(SMALL, hidden=768, heads=12)),
    _spec("l", 457_840_672, 32, replace(SMALL, layers=24, hidden=1024, heads=16)),
    _spec("xl", 674_834_720, 32, replace(SMALL, layers=28, hidden=1152, heads=16)),
)
