"""The adaptive embedding and softmax against plain computations of the same thing, for any words."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from paceline.models import Batch
from paceline.models._modules.adaptive import AdaptiveEmbedding, AdaptiveSoftmax, WordCluster, tail_positions

HIDDEN, CUTOFFS, DIVISOR = 32, (8, 20, 50), 4

# Rows that differ in how many words each cluster has, and every border of a cluster.
UNEVEN = torch.tensor([[0, 7, 8, 19, 20, 49], [1, 2, 3, 4, 5, 6], [21, 22, 48, 9, 8, 30], [0, 10, 11, 12, 13, 14]])
WORDS = {"uneven": UNEVEN, "only frequent": UNEVEN.remainder(8), "only the rarest": 20 + UNEVEN.remainder(30)}


@pytest.fixture(params=list(WORDS))
def words(request: pytest.FixtureRequest) -> Tensor:
    return WORDS[request.param]


def batch_of(words: Tensor) -> Batch:
    return Batch((words,), (words, *tail_positions(words, CUTOFFS)))


def word_by_word(module: AdaptiveEmbedding, words: Tensor) -> Tensor:
    """One vector at a time: look it up in its cluster and project it with the cluster's own matrix."""
    widths = [HIDDEN // DIVISOR**cluster for cluster in range(len(CUTOFFS))]
    projections = torch.split(module.projection.weight, widths, dim=1)
    vectors = []
    for word in words.flatten().tolist():
        number = sum(word >= cutoff for cutoff in CUTOFFS)
        cluster = module.clusters[number]
        assert isinstance(cluster, WordCluster)
        vectors.append(projections[number] @ cluster.weight[word - (0, *CUTOFFS)[number]])
    return torch.stack(vectors).view(*words.shape, HIDDEN)


def test_the_embedding_is_that_of_a_loop_over_the_words(words: Tensor) -> None:
    module = AdaptiveEmbedding(HIDDEN, CUTOFFS, DIVISOR)
    ours, theirs = module(words), word_by_word(module, words)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    weights = list(module.parameters())
    direction = torch.randn_like(ours)
    for mine, plain in zip(
        torch.autograd.grad(ours, weights, direction),
        torch.autograd.grad(theirs, weights, direction, materialize_grads=True),
        strict=True,
    ):
        torch.testing.assert_close(mine, plain, rtol=1e-5, atol=1e-5)


def test_every_cluster_embeds_words_at_the_same_scale() -> None:
    module = AdaptiveEmbedding(256, (500, 1000, 2000), 4)
    lengths = module(torch.arange(2000)).detach().square().mean(dim=1).sqrt() * math.sqrt(256)
    for cluster in (lengths[:500], lengths[500:1000], lengths[1000:]):
        assert 0.7 < cluster.mean() < 1.6


def twin(module: AdaptiveSoftmax) -> nn.AdaptiveLogSoftmaxWithLoss:
    """torch's own, with the same weights."""
    other = nn.AdaptiveLogSoftmaxWithLoss(HIDDEN, CUTOFFS[-1], CUTOFFS[:-1], div_value=DIVISOR)
    other.load_state_dict({name.replace("tails.", "tail."): weight for name, weight in module.state_dict().items()})
    return other


def test_the_softmax_is_that_of_torch(words: Tensor) -> None:
    module = AdaptiveSoftmax(HIDDEN, CUTOFFS, DIVISOR)
    other = twin(module)
    hidden = torch.randn(*words.shape, HIDDEN, requires_grad=True)
    ours, theirs = module(hidden, batch_of(words)), other(hidden.flatten(0, 1), words.flatten()).loss
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    mine = torch.autograd.grad(ours, [hidden, *module.parameters()])
    plain = torch.autograd.grad(theirs, [hidden, *other.parameters()], allow_unused=True, materialize_grads=True)
    for one, two in zip(mine, plain, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)


def test_the_probabilities_of_all_words_sum_to_one() -> None:
    module = AdaptiveSoftmax(HIDDEN, CUTOFFS, DIVISOR).double()
    hidden = 3 * torch.randn(1, 1, HIDDEN, dtype=torch.float64)
    costs = torch.stack([module(hidden, batch_of(torch.tensor([[word]]))) for word in range(CUTOFFS[-1])])
    torch.testing.assert_close((-costs).exp().sum(), torch.ones((), dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(-costs, twin(module).double().log_prob(hidden[0])[0], rtol=0, atol=1e-12)


def test_positions_name_the_words_of_each_tail_in_order() -> None:
    middle, rarest = tail_positions(UNEVEN, CUTOFFS)
    assert middle.tolist() == [[2, 3, -1, -1, -1], [-1] * 5, [3, 4, -1, -1, -1], [1, 2, 3, 4, 5]]
    assert rarest.tolist() == [[4, 5, -1, -1], [-1] * 4, [0, 1, 2, 5], [-1] * 4]


def test_a_share_of_the_rows_costs_its_part() -> None:
    module = AdaptiveSoftmax(HIDDEN, CUTOFFS, DIVISOR)
    hidden, batch = torch.randn(*UNEVEN.shape, HIDDEN), batch_of(UNEVEN)
    shares = [module(hidden[start : start + 2], batch.rows(start, start + 2)) for start in (0, 2)]
    torch.testing.assert_close(torch.stack(shares).mean(), module(hidden, batch))
