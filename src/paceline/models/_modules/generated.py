"""Modules of any size for the model generator; no layer looks beyond its own sample."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from paceline.models._modules.transformer import PreNormBlock, initialise


class LstmClassifier(nn.Module):
    """Features [batch, length, inputs] to logits [batch, classes]."""

    def __init__(self, *, layers: int, inputs: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden, layers, batch_first=True)
        self.classifier = nn.Linear(hidden, classes)

    def forward(self, features: Tensor) -> Tensor:
        outputs, _ = self.lstm(features)
        return self.classifier(outputs[:, -1])  # type: ignore[no-any-return]


class FcClassifier(nn.Module):
    """Vectors [batch, width] to logits [batch, classes]."""

    def __init__(self, *, layers: int, width: int, classes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.classifier = nn.Linear(width, classes)
        self.apply(keep_variance)

    def forward(self, vectors: Tensor) -> Tensor:
        for layer in self.layers:
            vectors = layer(vectors).relu()
        return self.classifier(vectors)  # type: ignore[no-any-return]


class CnnClassifier(nn.Module):
    """Images [batch, channels, height, width] to logits [batch, classes]; every layer keeps the image's size."""

    def __init__(self, *, layers: int, width: int, kernel: int, channels: int, classes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Conv2d(width if layer else channels, width, kernel, padding=kernel // 2) for layer in range(layers)
        )
        self.classifier = nn.Linear(width, classes)
        self.apply(keep_variance)

    def forward(self, images: Tensor) -> Tensor:
        for layer in self.layers:
            images = layer(images).relu()
        return self.classifier(images.mean(dim=(2, 3)))  # type: ignore[no-any-return]


class TransformerClassifier(nn.Module):
    """Token numbers [batch, sequence] to logits [batch, classes] from the mean over the tokens."""

    def __init__(self, *, layers: int, width: int, heads: int, sequence: int, vocabulary: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.empty(sequence, width))
        self.blocks = nn.ModuleList(PreNormBlock(width, heads) for _ in range(layers))
        self.final_norm = nn.LayerNorm(width)
        self.classifier = nn.Linear(width, classes)
        self.apply(initialise)
        nn.init.normal_(self.positions, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.classifier(self.final_norm(x).mean(dim=1))  # type: ignore[no-any-return]


def keep_variance(module: nn.Module) -> None:
    """Weights that neither shrink nor grow what passes a rectifier: deep stacks must not compute with zeros."""
    if isinstance(module, nn.Linear | nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        if module.bias is not None:
            nn.init.zeros_(module.bias)
