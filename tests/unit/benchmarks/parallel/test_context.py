"""Which tokens of a sample the ranks of a group have."""

from __future__ import annotations

import pytest
import torch

from paceline.benchmarks.parallel._trainer import local_tokens


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_token_is_on_one_rank(ranks: int) -> None:
    parts = [local_tokens(32, ranks, rank) for rank in range(ranks)]
    assert sorted(torch.cat(parts).tolist()) == list(range(32))
    assert {len(part) for part in parts} == {32 // ranks}


@pytest.mark.parametrize("ranks", [2, 4])
def test_under_a_causal_mask_every_rank_has_the_same_work(ranks: int) -> None:
    work = [int((local_tokens(64, ranks, rank) + 1).sum()) for rank in range(ranks)]
    assert len(set(work)) == 1
