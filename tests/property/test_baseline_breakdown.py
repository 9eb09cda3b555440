"""Fewer than half of the nodes, whatever they measure, cannot move a baseline out of what the others measured."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paceline.analysis.baseline import column_medians, column_spreads, make_baseline, medians_of_others
from paceline.analysis.diagnose.judge import State, diagnose
from paceline.analysis.diagnose.rules import default_rules
from paceline.analysis.diagnose.superbench import nodes_results
from paceline.analysis.diagnose.table import assemble

_GOOD = st.floats(95.0, 105.0)
_BAD = st.floats(-1e30, 1e30, allow_nan=False)


@st.composite
def mixed(draw: st.DrawFn) -> tuple[list[float], list[float]]:
    """Good nodes, and fewer bad ones."""
    good = draw(st.lists(_GOOD, min_size=2, max_size=12))
    return good, draw(st.lists(_BAD, max_size=len(good) - 1))


@given(mixed(), st.randoms(use_true_random=False))
def test_the_breakdown_point_is_one_half(nodes: tuple[list[float], list[float]], random: object) -> None:
    good, bad = nodes
    values = [*good, *bad]
    random.shuffle(values)  # type: ignore[attr-defined]
    column = np.array(values)[:, None]
    assert min(good) <= column_medians(column)[0] <= max(good)
    # Half of the distances are at most the width of the good ones, so that the spread is bounded by it, too.
    assert column_spreads(column)[0] <= 1.4826 * (max(good) - min(good)) + 1e-9


@given(st.lists(_GOOD, min_size=3, max_size=12), st.data())
def test_others_that_are_bad_cannot_move_the_reference_of_a_node(good: list[float], data: st.DataObject) -> None:
    bad = data.draw(st.lists(_BAD, max_size=len(good) - 2))
    found = medians_of_others(np.array([*good, *bad])[:, None])[:, 0]
    assert all(min(good) <= one <= max(good) for one in found)


@given(st.integers(3, 9), st.data())
def test_bad_nodes_cannot_hide_behind_each_other(count: int, data: st.DataObject) -> None:
    bad = data.draw(st.lists(st.floats(1.0, 85.0), min_size=1, max_size=count - 2))
    # Within 1 % of each other: a node that is further behind others which are all alike is rightly an outlier.
    good = data.draw(st.lists(st.floats(99.6, 100.4), min_size=count, max_size=count))
    parts = [nodes_results(f"good-{place}", {"mem-bw/h2d_bw": value}) for place, value in enumerate(good)]
    parts += [nodes_results(f"bad-{place}", {"mem-bw/h2d_bw": value}) for place, value in enumerate(bad)]
    found = diagnose(assemble(parts), default_rules())
    states = {verdict.node: verdict.state for verdict in found.verdicts}
    assert all((state is State.DEFECTIVE) == node.startswith("bad") for node, state in states.items())
    made = make_baseline(assemble(parts)).metrics["mem-bw/h2d_bw"]
    assert 99.6 <= made.value <= 100.4
