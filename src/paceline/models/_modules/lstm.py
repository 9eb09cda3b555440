"""A stack of LSTM layers that classifies a sequence by the last step's output."""

from __future__ import annotations

from torch import Tensor, nn


class LstmClassifier(nn.Module):
    """Features [batch, length, inputs] to logits [batch, classes]."""

    def __init__(self, *, layers: int, inputs: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden, layers, batch_first=True)
        self.classifier = nn.Linear(hidden, classes)

    def forward(self, features: Tensor) -> Tensor:
        outputs, _ = self.lstm(features)
        return self.classifier(outputs[:, -1])  # type: ignore[no-any-return]
