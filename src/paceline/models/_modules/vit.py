"""A vision transformer as a plain module: patches, a class token, pre-norm blocks with drop-path, no dropout."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from paceline.models._modules.transformer import Attention, FeedForward, initialise

EPSILON = 1e-6
CHANNELS = 3


class DropPath(nn.Module):
    """Skips a residual branch for a random part of the samples while training, and scales up what it keeps.

    The mask is drawn on the device, one number a sample, so that nothing waits for the host.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, branch: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return branch
        drawn = torch.rand(branch.shape[0], 1, 1, device=branch.device)
        return branch * ((drawn >= self.rate).to(branch.dtype) / (1 - self.rate))


class VitBlock(nn.Module):
    """Attention, then the feed-forward layer, each on a normalised input and added to the residual stream."""

    def __init__(self, hidden: int, heads: int, drop_path: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(hidden, eps=EPSILON)
        self.attention = Attention(hidden, heads, causal=False)
        self.feed_forward_norm = nn.LayerNorm(hidden, eps=EPSILON)
        self.feed_forward = FeedForward(hidden, gelu="none")
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_path(self.attention(self.attention_norm(x)))
        return x + self.drop_path(self.feed_forward(self.feed_forward_norm(x)))  # type: ignore[no-any-return]


class Vit(nn.Module):
    """Images [batch, 3, image, image] to logits [batch, classes].

    Blocks skip their branches with a probability that grows linearly from 0 in the first to `drop_path` in the last.
    """

    def __init__(
        self, *, layers: int, hidden: int, heads: int, image: int, patch: int, classes: int, drop_path: float
    ) -> None:
        super().__init__()
        if image % patch:
            raise ValueError(f"an image of {image} pixels does not divide into patches of {patch}")
        self.patch = patch
        # A convolution whose stride is its kernel is a product of the patches, and as such it is faster.
        self.patch_embedding = nn.Linear(CHANNELS * patch**2, hidden)
        self.class_token = nn.Parameter(torch.empty(1, 1, hidden))
        self.positions = nn.Parameter(torch.empty(1, (image // patch) ** 2 + 1, hidden))
        self.blocks = nn.ModuleList(
            VitBlock(hidden, heads, drop_path * layer / max(1, layers - 1)) for layer in range(layers)
        )
        self.final_norm = nn.LayerNorm(hidden, eps=EPSILON)
        self.classifier = nn.Linear(hidden, classes)
        self.apply(initialise)
        nn.init.normal_(self.class_token, std=0.02)
        nn.init.normal_(self.positions, std=0.02)

    def patches(self, images: Tensor) -> Tensor:
        """The pixels of every patch in one row: [batch, patches, 3 * patch * patch]."""
        batch, _, height, width = images.shape
        rows, columns = height // self.patch, width // self.patch
        split = images.reshape(batch, CHANNELS, rows, self.patch, columns, self.patch)
        return split.permute(0, 2, 4, 1, 3, 5).reshape(batch, rows * columns, -1)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patch_embedding(self.patches(images))
        x = torch.cat((self.class_token.to(x.dtype).expand(x.shape[0], -1, -1), x), dim=1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.classifier(self.final_norm(x[:, 0]))  # type: ignore[no-any-return]
