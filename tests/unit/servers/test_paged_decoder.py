"""Decoders over a paged cache say what they say alone: the strongest check of paging, batching and positions."""

from __future__ import annotations

import random

import pytest

from paceline.servers._embedded.continuous_batching import Scheduler, TokenSequence
from paceline.servers._embedded.kv_blocks import BlockPool
from paceline.servers.base import Need
from support.token_models import SEED, greedy

torch = pytest.importorskip("torch", reason="needs it: pip install '.[torch]'")

CASES = [(8, 60), (24, 1), (40, 24), (1, 40), (33, 20), (40, 12), (15, 18)]  # tokens of the prompt, and of the answer


@pytest.mark.parametrize(
    ("model", "blocks", "prefix_caching"),
    [
        ("llama3-8b", 64, False),
        ("llama3-8b", 6, False),
        ("llama3-8b", 64, True),
        ("llama3-8b", 6, True),
        ("llama2-7b", 6, False),
        ("qwen3-0.6b", 6, False),
        pytest.param("mixtral-8x7b", 6, False, marks=pytest.mark.long),
    ],
)
def test_sequences_that_overlap_say_what_each_says_alone(model: str, blocks: int, prefix_caching: bool) -> None:
    from paceline.servers._embedded.paged_decoder import PagedDecoder

    need = Need(model, "tiny", "fp32", "cpu", SEED)
    decoder = PagedDecoder(need, max_sequences=4, max_length=None, blocks=blocks, with_graphs=True)
    pool = BlockPool(decoder.blocks, prefix_caching=prefix_caching)
    scheduler = Scheduler(pool, max_sequences=4, prefill_tokens=24)
    generator = random.Random(1)
    shared = [generator.randrange(1024) for _ in range(20)]
    sequences = []
    for prompt, answer in CASES:
        tokens = (shared + [generator.randrange(1024) for _ in range(prompt)])[:prompt]
        answer = min(answer, 64 - prompt)
        sequences.append(TokenSequence(tokens, answer, on_token=lambda *_: None, on_error=lambda _: None))
    arriving = list(sequences)
    together = 0
    while arriving or scheduler.waiting or scheduler.running:
        if arriving:  # one more at every step, while the others are at work
            scheduler.waiting.append(arriving.pop(0))
        chunks = scheduler.decodes()
        together = max(together, len(chunks))
        if chunks:
            scheduler.advance(chunks, decoder.decode(chunks))
        chunks = scheduler.prefills()
        if chunks:
            scheduler.advance(chunks, decoder.prefill(chunks))
    assert together >= 2
    assert (scheduler.preemptions > 0) == (blocks == 6)
    if prefix_caching and blocks == 64:
        assert sum(one.cached for one in sequences) > 0
    for one in sequences:
        alone = greedy(model, one.tokens[: one.prompt_length], one.max_tokens)
        assert one.tokens[one.prompt_length :] == alone


def test_a_temperature_draws_and_leaves_the_others_alone() -> None:
    from paceline.servers._embedded.paged_decoder import PagedDecoder

    need = Need("llama3-8b", "tiny", "fp32", "cpu", SEED)
    decoder = PagedDecoder(need, max_sequences=4, max_length=48, blocks=None, with_graphs=True)
    assert decoder.blocks == 4 * 3
    scheduler = Scheduler(BlockPool(decoder.blocks), max_sequences=4, prefill_tokens=64)
    prompt = [5, 6, 7, 8]
    sequences = [
        TokenSequence(list(prompt), 20, on_token=lambda *_: None, on_error=lambda _: None, temperature=temperature)
        for temperature in (0.0, 5.0, 5.0)
    ]
    scheduler.waiting.extend(sequences)
    scheduler.advance(chunks := scheduler.prefills(), decoder.prefill(chunks))
    while chunks := scheduler.decodes():
        scheduler.advance(chunks, decoder.decode(chunks))
    plain, *drawn = [one.tokens[4:] for one in sequences]
    assert plain == greedy("llama3-8b", prompt, 20)
    assert plain != drawn[0] != drawn[1]


def test_a_cache_that_is_too_small_for_one_sequence_is_refused() -> None:
    from paceline.servers._embedded.paged_decoder import PagedDecoder

    need = Need("llama3-8b", "tiny", "fp32", "cpu", SEED)
    with pytest.raises(ValueError, match="3 blocks, room for 48 tokens; a sequence of max_length = 64 does not fit"):
        PagedDecoder(need, max_sequences=4, max_length=None, blocks=3, with_graphs=True)
