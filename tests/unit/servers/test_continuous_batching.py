"""Blocks, admission, chunks and preemption, without a model."""

from __future__ import annotations

import random

import pytest

from paceline.servers._embedded.continuous_batching import Scheduler, TokenSequence
from paceline.servers._embedded.kv_blocks import BLOCK, BlockPool


def sequence(prompt: int, answer: int = 4, first: int = 0) -> TokenSequence:
    return TokenSequence(list(range(first, first + prompt)), answer, on_token=lambda *_: None, on_error=lambda _: None)


def finish(scheduler: Scheduler) -> int:
    """Run until nothing is left; how many steps that took."""
    for step in range(10_000):
        if not scheduler.waiting and not scheduler.running:
            return step
        for plan in (scheduler.decodes, scheduler.prefills):
            chunks = plan()
            check(scheduler)
            scheduler.advance(chunks, [chunk.sequence.tokens[-1] + 1 for chunk in chunks])
    raise AssertionError("it never ends")


def check(scheduler: Scheduler) -> None:
    """No block is used by two, none is lost, and every token has its place."""
    used = [block for one in scheduler.running for block in one.blocks]
    assert len(used) == len(set(used)) or scheduler.pool.prefix_caching
    assert len(set(used)) + scheduler.pool.free == scheduler.pool.count
    assert 0 not in used  # where padding is written
    for one in scheduler.running:
        assert one.computed <= len(one.tokens) <= len(one.blocks) * BLOCK + 1


def test_running_sequences_are_decoded_together() -> None:
    scheduler = Scheduler(BlockPool(64), max_sequences=8, prefill_tokens=256)
    scheduler.waiting.extend(sequence(5) for _ in range(3))
    chunks = scheduler.prefills()
    assert [chunk.size for chunk in chunks] == [5, 5, 5]
    scheduler.advance(chunks, [1, 1, 1])
    scheduler.waiting.append(sequence(7))
    assert len(scheduler.decodes()) == 3
    assert [chunk.size for chunk in scheduler.prefills()] == [7]  # the new one does not wait for the others


def test_a_long_prompt_is_computed_in_chunks_and_padding_counts() -> None:
    scheduler = Scheduler(BlockPool(64), max_sequences=8, prefill_tokens=32)
    scheduler.waiting.extend([sequence(70), sequence(10), sequence(10), sequence(30)])
    sizes = []
    while scheduler.waiting or any(one.missing > 1 for one in scheduler.running):
        chunks = scheduler.prefills()
        sizes.append([chunk.size for chunk in chunks])
        scheduler.advance(chunks, [1] * len(chunks))
    # 6 and 10 are padded to 10 each; 30 more would be padded to 3 times 30.
    assert sizes == [[32], [32], [6, 10, 10], [30]]


def test_no_more_sequences_run_than_asked_for() -> None:
    scheduler = Scheduler(BlockPool(64), max_sequences=2, prefill_tokens=256)
    scheduler.waiting.extend(sequence(5) for _ in range(5))
    assert len(scheduler.prefills()) == 2
    assert len(scheduler.waiting) == 3


@pytest.mark.parametrize("prefix_caching", [False, True])
def test_blocks_are_neither_lost_nor_shared_when_they_run_out(prefix_caching: bool) -> None:
    generator = random.Random(3)
    pool = BlockPool(8, prefix_caching=prefix_caching)
    scheduler = Scheduler(pool, max_sequences=5, prefill_tokens=64)
    sequences = [sequence(generator.randrange(1, 60), generator.randrange(1, 60)) for _ in range(40)]
    scheduler.waiting.extend(sequences)
    finish(scheduler)
    assert scheduler.preemptions > 0
    assert all(one.made == one.max_tokens for one in sequences)
    assert all(one.tokens == list(range(len(one.tokens))) for one in sequences)
    assert pool.free == pool.count


def test_the_youngest_is_put_back_and_comes_first_again() -> None:
    scheduler = Scheduler(BlockPool(2), max_sequences=2, prefill_tokens=64)
    old, young = sequence(15, 10), sequence(15, 10)
    scheduler.waiting.extend([old, young])
    scheduler.advance(scheduler.prefills(), [15, 15])
    scheduler.waiting.append(sequence(1))
    scheduler.advance(scheduler.decodes(), [16, 16])
    assert [chunk.sequence for chunk in scheduler.decodes()] == [old]
    assert scheduler.waiting[0] is young
    assert young.computed == 0
    assert young.made == 2  # what was said stays said


def test_the_end_of_the_text_and_the_fewest_tokens() -> None:
    scheduler = Scheduler(BlockPool(8), max_sequences=4, prefill_tokens=64)
    ends, least, ignores = sequence(3, 9), sequence(3, 9), sequence(3, 9)
    ends.end, least.end = 4, 4
    least.min_tokens = 3
    scheduler.waiting.extend([ends, least, ignores])
    finish(scheduler)
    assert ends.tokens[3:] == [3, 4]
    assert len(least.tokens) == len(ignores.tokens) == 12  # its end came too early, and does not come again


def test_a_beginning_that_was_computed_is_found_again() -> None:
    pool = BlockPool(8, prefix_caching=True)
    scheduler = Scheduler(pool, max_sequences=4, prefill_tokens=256)
    first, second, other = sequence(40), sequence(40), sequence(40, first=500)
    for one in (first, second, other):
        scheduler.waiting.append(one)
        finish(scheduler)
    assert (first.cached, second.cached, other.cached) == (0, 2 * BLOCK, 0)
    whole = sequence(2 * BLOCK)
    scheduler.waiting.append(whole)
    finish(scheduler)
    assert whole.cached == BLOCK  # the last token is computed always


def test_a_kept_beginning_gives_way_when_blocks_are_needed() -> None:
    pool = BlockPool(4, prefix_caching=True)
    scheduler = Scheduler(pool, max_sequences=1, prefill_tokens=256)
    scheduler.waiting.extend([sequence(40), sequence(60, 3, first=500), again := sequence(40)])
    finish(scheduler)
    assert again.cached == 0
