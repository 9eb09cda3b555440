"""How CPUs are divided among instances, and to which sizes batches are padded."""

from __future__ import annotations

import pytest

from paceline.servers._embedded.__main__ import batch_sizes, placed


@pytest.mark.parametrize(
    ("instances", "cpus", "available", "expected"),
    [
        (1, None, [0, 1], [None]),
        (2, None, [0, 1, 2, 3], [(0, 1), (2, 3)]),
        (2, None, [4, 5, 6], [(4, 5), (6,)]),
        (3, None, [0, 1], [None, None, None]),
        (1, (2, 3), [0, 1, 2, 3], [(2, 3)]),
        (2, (1, 3), [0, 1, 2, 3], [(1,), (3,)]),
        (2, (1,), [0, 1], [(1,), (1,)]),
    ],
)
def test_every_instance_has_its_cpus(
    instances: int, cpus: tuple[int, ...] | None, available: list[int], expected: list[tuple[int, ...] | None]
) -> None:
    assert [share for share, _ in placed(instances, cpus, None, available)] == expected


def test_as_many_threads_as_cpus_unless_told() -> None:
    assert placed(1, (0, 1), None, [0, 1, 2]) == [((0, 1), 2)]
    assert placed(1, None, None, [0, 1, 2]) == [(None, 3)]
    assert placed(2, None, None, [0, 1, 2]) == [((0, 1), 2), ((2,), 1)]
    assert placed(1, (0, 1), 5, [0, 1, 2]) == [((0, 1), 5)]


@pytest.mark.parametrize(
    ("max_batch", "preferred", "expected"),
    [(1, (), [1]), (8, (), [1, 2, 4, 8]), (6, (), [1, 2, 4, 6]), (8, (3,), [3, 8]), (8, (8, 2), [2, 8])],
)
def test_batches_are_padded_to_powers_of_two_or_to_what_is_preferred(
    max_batch: int, preferred: tuple[int, ...], expected: list[int]
) -> None:
    assert batch_sizes(max_batch, preferred) == expected
