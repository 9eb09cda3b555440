"""What the batches of the language models hold."""

from __future__ import annotations

import pytest
import torch

from paceline.models import MODELS
from paceline.models.bert import MASK_TOKEN, BertShape, build_bert
from paceline.models.gpt2 import Gpt2Shape, build_gpt2


def test_gpt2_targets_are_the_next_tokens() -> None:
    batch = MODELS.registry().get("gpt2-small").build("tiny").make_batch(3, torch.Generator())
    (tokens,), (targets,) = batch.inputs, batch.targets
    assert tokens.shape == targets.shape == (3, 64)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])


def test_bert_masks_the_same_number_of_distinct_positions_in_every_row() -> None:
    batch = MODELS.registry().get("bert-base").build("tiny").make_batch(5, torch.Generator().manual_seed(2))
    (tokens, types, masked), (targets,) = batch.inputs, batch.targets
    assert masked.shape == targets.shape == (5, 10)
    assert (masked.diff(dim=1) > 0).all()
    assert (tokens.gather(1, masked) == MASK_TOKEN).all()
    assert types.sum(dim=1).tolist() == [32] * 5


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="does not fit into a context of 16"):
        build_gpt2(Gpt2Shape(layers=1, hidden=8, heads=2, context=16, sequence=17))
    with pytest.raises(ValueError, match="masked <= sequence"):
        build_bert(BertShape(layers=1, hidden=8, heads=2, sequence=16, masked=17))
    with pytest.raises(ValueError, match="not a multiple of 3 heads"):
        build_gpt2(Gpt2Shape(layers=1, hidden=8, heads=3))
