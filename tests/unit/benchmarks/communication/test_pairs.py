"""The rounds of a tournament."""

from __future__ import annotations

import pytest

from paceline.benchmarks.communication.pairs import partners


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8, 13, 64])
def test_every_pair_meets_once_and_nobody_is_in_two_places(ranks: int) -> None:
    rounds = ranks - 1 + ranks % 2
    seen: list[tuple[int, int]] = []
    for number in range(rounds):
        met = partners(number, ranks).tolist()
        assert all(other < 0 or (met[other] == rank and other != rank) for rank, other in enumerate(met))
        assert sum(other < 0 for other in met) == ranks % 2, "one rests where their number is odd"
        seen += [(rank, other) for rank, other in enumerate(met) if rank < other]
    assert len(seen) == len(set(seen)) == ranks * (ranks - 1) // 2
