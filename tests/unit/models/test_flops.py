"""The FLOP formula against sums done by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from paceline.models import MODELS, Batch, ModelSpec, Workload
from paceline.models.flops import count_flops, forward_flops, training_flops

GPT2 = ("gpt2-small", "gpt2-medium", "gpt2-large", "gpt2-xl")


def transformer_flops(settings: dict[str, int]) -> float:
    """Per block: 12 h^2 weights for every token, and two products of the sequence with itself."""
    length, hidden = settings["sequence"], settings["hidden"]
    return float(settings["layers"] * (2 * 12 * hidden**2 * length + 4 * length**2 * hidden))


@pytest.mark.parametrize("name", GPT2)
def test_gpt2(name: str) -> None:
    settings = MODELS.registry().get(name).settings
    head = 2 * settings["sequence"] * settings["hidden"] * settings["vocabulary"]
    assert forward_flops(MODELS.registry().get(name)) == pytest.approx(transformer_flops(settings) + head, rel=1e-3)


@pytest.mark.parametrize("name", ["bert-base", "bert-large"])
def test_bert_counts_its_head_at_the_masked_positions_only(name: str) -> None:
    settings = MODELS.registry().get(name).settings
    head = 2 * settings["masked"] * settings["hidden"] * (settings["vocabulary"] + settings["hidden"])
    assert forward_flops(MODELS.registry().get(name)) == pytest.approx(transformer_flops(settings) + head, rel=1e-3)


def test_gpt2_small_is_near_two_per_parameter_and_token() -> None:
    attention = 12 * 4 * 1024**2 * 768
    assert forward_flops(MODELS.registry().get("gpt2-small")) == pytest.approx(2 * 124.4e6 * 1024 + attention, rel=0.02)


@pytest.mark.parametrize(("name", "giga"), [("resnet50", 8.18), ("vgg16", 30.94), ("inception_v3", 11.43)])
def test_convolutions(name: str, giga: float) -> None:
    assert forward_flops(MODELS.registry().get(name)) == pytest.approx(giga * 1e9, rel=0.02)


def test_lstm() -> None:
    steps = 512 * (2 * 4 * 1024 * (256 + 1024) + 7 * 2 * 4 * 1024 * 2048)
    assert forward_flops(MODELS.registry().get("lstm")) == pytest.approx(steps + 2 * 1024 * 100, rel=1e-6)


@pytest.mark.parametrize("name", ["gpt2-small", "bert-base", "lstm", "resnet18", "inception_v3"])
def test_the_tiny_scale_counts_less(name: str) -> None:
    spec = MODELS.registry().get(name)
    assert 0 < forward_flops(spec, "tiny") < forward_flops(spec, "full")


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_recurrent_layers_count_their_gates(layer: type[nn.RNNBase], bidirectional: bool, batch_first: bool) -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrent = layer(6, 8, 2, bidirectional=bidirectional, batch_first=batch_first)

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            outputs, state = self.recurrent(features)
            last = state[0] if isinstance(state, tuple) else state
            assert outputs.shape == (*features.shape[:2], 16 if bidirectional else 8)
            assert last.shape == (4 if bidirectional else 2, features.shape[0 if batch_first else 1], 8)
            return last @ last.mT

    def build(scale: str) -> Workload:
        def make_batch(samples: int, generator: torch.Generator) -> Batch:
            return Batch((torch.zeros(samples, 3, 6),), (torch.zeros(samples),))

        return Workload(Recurrent(), make_batch, lambda output, batch: output.sum(), extra_flops=1000.0)

    spec = ModelSpec("recurrent", "test", "custom", "for this test", build)
    layers, rows = (4 if bidirectional else 2), (1 if batch_first else 3)
    gates, directions = {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1}[layer], 2 if bidirectional else 1
    steps = 3  # one row of three steps, or three rows of one
    recurrent = sum(2 * gates * 8 * (inputs + 8) * directions * steps for inputs in (6, 8 * directions))
    assert forward_flops(spec) == 1000.0 + layers * 2 * rows * 8 * rows + recurrent


def test_a_partly_frozen_model_is_counted_not_multiplied() -> None:
    def build(scale: str) -> Workload:
        module = nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(4)))
        module[:3].requires_grad_(False)
        return Workload(
            module, lambda n, _: Batch((torch.zeros(n, 8),), (torch.zeros(n),)), lambda output, _: output.sum()
        )

    spec = ModelSpec("frozen", "test", "custom", "for this test", build)
    layer = 2 * 8 * 8
    assert training_flops(spec, partly_frozen=True) == 4 * layer + layer  # forward, and the last weight's gradient
    assert training_flops(spec) == 3 * 4 * layer


# A smaller one of the same family is counted by the same code; these take a second or two each.
LARGER_SIBLINGS = [
    *("gpt2-large", "gpt2-xl", "resnet101", "resnet152", "resnext101_32x8d", "wide_resnet101_2"),
    *("densenet161", "densenet169", "densenet201"),
    *("llama2-13b", "llama2-70b", "llama3-8b", "llama3-70b", "qwen2.5-7b", "qwen3-8b", "llama2-7b"),
    *("mixtral-8x7b", "mixtral-8x22b", "deepseek-v2-lite", "t5-large", "dit-l-2", "dit-xl-2"),
]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.long] if name in LARGER_SIBLINGS else [])
        for name in sorted(MODELS.registry().entries)
    ],
)
def test_the_flops_in_the_spec_are_those_that_counting_gives(name: str) -> None:
    spec = MODELS.registry().get(name)
    assert spec.flops == count_flops(spec, "full")
