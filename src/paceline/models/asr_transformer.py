"""A transformer that recognises speech, trained with CTC on random frames of audio and random letters.

It is the speech model of Flashlight's task benchmark. Every utterance has 15 s of audio and 100 letters, so that shapes
never change; symbol 0 is the blank, which no utterance contains. The loss is the mean over utterances and letters.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

from paceline.models.base import Batch, ModelSpec, Workload, build_scaled

if TYPE_CHECKING:
    import torch

FRAME_SECONDS = 0.01


@dataclass(frozen=True, kw_only=True)
class AsrShape:
    """The sizes that make one model; a sample has `frames` of audio and `letters` to recognise in them."""

    layers: int = 36
    hidden: int = 768
    heads: int = 4
    feed_forward: int = 3072
    frames: int = 1500
    features: int = 80
    symbols: int = 30
    letters: int = 100
    input_dropout: float = 0.3
    dropout: float = 0.4
    layer_drop: float = 0.4


FULL = AsrShape()
TINY = AsrShape(
    layers=2,
    hidden=64,
    heads=2,
    feed_forward=128,
    frames=60,
    features=16,
    symbols=10,
    letters=6,
    input_dropout=0.0,
    dropout=0.0,
    layer_drop=0.0,
)


def build_asr(shape: AsrShape) -> Workload:
    """A speech recogniser of any shape with random audio to train it on."""
    from paceline.models._modules.asr_transformer import STRIDE, AsrTransformer, ctc_loss

    if shape.frames % STRIDE or shape.frames // STRIDE < 2 * shape.letters:
        raise ValueError(
            f"{shape.frames} frames do not fit {shape.letters} letters: choose a multiple of {STRIDE}, "
            f"and at least {2 * STRIDE} for a letter"
        )
    return Workload(
        module=AsrTransformer(shape),
        make_batch=partial(_make_batch, shape),
        loss=lambda logits, batch: ctc_loss(logits, batch.targets[0]),
        audio_per_sample=shape.frames * FRAME_SECONDS,
    )


def _make_batch(shape: AsrShape, samples: int, generator: torch.Generator) -> Batch:
    import torch

    frames = torch.empty(samples, shape.frames, shape.features, device=generator.device)
    letters = torch.empty(samples, shape.letters, dtype=torch.int64, device=generator.device)
    for row in range(samples):  # row by row: the first samples must not depend on how many follow
        frames[row].normal_(generator=generator)
        letters[row].random_(1, shape.symbols, generator=generator)
    return Batch(inputs=(frames,), targets=(letters,))


ASR_TRANSFORMER = ModelSpec(
    name="asr-transformer",
    family="transformer",
    task="speech recognition",
    summary=f"{FULL.layers} post-norm layers, hidden size {FULL.hidden}, {FULL.heads} heads, behind a convolution with "
    f"stride 3, CTC over {FULL.symbols} symbols; {FULL.frames} frames of 10 ms a sample, dropout {FULL.dropout}, "
    f"layer-drop {FULL.layer_drop}",
    build=partial(build_scaled, build_asr, FULL, TINY),
    parameters=255_688_880,
    flops=283_335_168_000,
    batch_size=8,
    sample="utterance",
    settings=asdict(FULL),
)
