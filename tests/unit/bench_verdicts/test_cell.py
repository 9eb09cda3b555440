"""Cells of the table of verdicts: shares that were drawn apart are one cell again."""

from __future__ import annotations

from typing import Any

import pytest
from bench.verdicts.cell import Cell, pooled


def share(**values: Any) -> Cell:
    return Cell("mean", "normal", "covers", 0.93, **values)


def test_shares_of_a_cell_are_added_up() -> None:
    shares = [
        share(hits=9, tries=10, withheld=2, wrong_of=12, width=1.0, known_width=1.0, note="one"),
        share(hits=18, tries=20, withheld=1, wrong_of=21, width=1.3, known_width=7.0, note="two"),
    ]
    (both,) = pooled([[one] for one in shares])
    assert (both.hits, both.tries, both.withheld, both.wrong_of) == (27, 30, 3, 33)
    assert both.width == pytest.approx(1.2)
    assert both.known_width == pytest.approx(5.0)
    assert both.note == "of one share: one"


def test_a_width_counts_where_not_most_intervals_were_withheld_in_all_shares_together() -> None:
    wide = {"width": 3.0, "known_width": 2.0, "most_width": 1.3, "least_shown": 0.5}
    rare = share(hits=4, tries=4, withheld=6, **wide)
    common = share(hits=6, tries=6, withheld=4, **wide)
    assert (rare.relative_width, rare.is_met()) == (None, True)
    assert (common.relative_width, common.is_met()) == (1.5, False)
    assert [one.relative_width for one in pooled([[rare], [common]])] == [1.5]
    assert [one.relative_width for one in pooled([[rare], [rare], [common]])] == [None]


def test_a_value_is_the_mean_of_its_shares_with_a_smaller_error() -> None:
    (both,) = pooled([[Cell("ab", "x", "rounds", 1.0, value=value, error=0.3)] for value in (1.0, 2.0)])
    assert (both.value, both.error) == (1.5, pytest.approx(0.3 / 2**0.5))


def test_a_share_may_lack_a_cell() -> None:
    found = Cell("rate", "slow", "covers", 0.93, hits=1, tries=1)
    pools = list(pooled([[share(hits=1, tries=1)], [found, share(hits=2, tries=3)]]))
    assert [(one.part, one.hits, one.tries) for one in pools] == [("mean", 3, 4), ("rate", 1, 1)]
