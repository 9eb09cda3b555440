"""What a history says of nodes and benchmarks: small ones, whose answer is plain."""

from __future__ import annotations

import math

import numpy as np
import pytest

from paceline.analysis.select import LASTS, PRIOR_DAYS, CheckHistory, Mask, learn, learn_kinds

BENCHMARKS = ("gemm", "copy", "rdma")
Row = tuple[int, float, Mask, Mask, bool]


def mask(*names: str) -> Mask:
    return np.array([name in names for name in BENCHMARKS])


def check(node: int, day: float, *found: str, ran: tuple[str, ...] = BENCHMARKS) -> Row:
    return node, day, mask(*ran), mask(*found), False


def history(
    rows: list[Row], nodes: int = 4, now: float = 70.0, events: tuple[tuple[int, float], ...] = ()
) -> CheckHistory:
    names = tuple(f"n{node}" for node in range(nodes))
    return CheckHistory.of_rows(names, BENCHMARKS, np.array([6.0, 4.0, 2.0]), np.zeros(nodes), now, rows, list(events))


def weekly(*bad: tuple[int, int, str], nodes: int = 4) -> list[Row]:
    found = {(node, week): name for node, week, name in bad}
    return [
        check(node, 7.0 * week, *([found[node, week]] if (node, week) in found else []))
        for node in range(nodes)
        for week in range(1, 10)
    ]


def test_without_a_defect_the_prior_is_all_there_is() -> None:
    model = learn(history([], now=30.0))
    assert model.defects == 0
    assert model.probability == pytest.approx(-math.expm1(-30.0 / PRIOR_DAYS), rel=0.3)
    assert learn_kinds(history([])).share == pytest.approx(1 / 3)


def test_clean_checks_make_a_defect_less_likely_than_none_at_all() -> None:
    assert learn(history(weekly())).probability.max() < learn(history([])).probability.min() / 5


def test_a_node_with_earlier_defects_is_the_most_likely_one() -> None:
    model = learn(history(weekly((2, 2, "copy"), (2, 5, "copy"), (2, 8, "rdma"), (0, 3, "copy"))))
    assert np.argmax(model.probability) == 2
    assert model.reason(2) in ("earlier defects", "a recent defect")


def test_events_that_went_before_defects_raise_the_next_nodes_probability() -> None:
    bad = [(node, 2 + node, "copy") for node in range(8)]
    before = tuple((node, 7.0 * week - 1.0) for node, week, _ in bad)
    rows = weekly(*bad, nodes=16)
    model = learn(history(rows, nodes=16, events=(*before, (12, 69.0))))
    assert np.argmax(model.probability) == 12
    assert model.reason(12) == "recent events"


def test_what_a_check_did_not_look_at_stays_open() -> None:
    rows = weekly((0, 2, "copy"), (1, 3, "rdma"), (2, 4, "rdma"))
    rows += [check(node, 69.5, ran=("copy",)) for node in (2, 3)]
    model = learn(history(rows))
    left = model.mass @ model.kinds.shown
    assert left[3, 1] < left[3, 2], "rdma was not run on it, so that it would show more than copy"
    assert left[2, 1] < left[2, 2]


def test_kinds_are_shown_by_what_showed_them_and_guessed_where_it_did_not_run() -> None:
    rows = [check(0, 60.0 + day, "gemm", "rdma") for day in range(6)]
    rows.append(check(1, 66.0, "gemm", ran=("gemm",)))
    kinds = learn_kinds(history(rows))
    both, alone = kinds.shown[np.argmax(kinds.share)], kinds.shown[np.argsort(-kinds.share)[1]]
    assert both[0] == both[2] > 0.9 and both[1] < 0.1
    assert alone[2] > 0.6 > 0.3 > alone[1]
    assert kinds.share.sum() == pytest.approx(1.0)


def test_a_lost_job_counts_as_a_defect_that_no_benchmark_showed() -> None:
    lost = (1, 40.0, mask(), mask(), True)
    model = learn(history([*weekly(), lost]))
    assert model.defects == 1
    assert np.argmax(model.probability) == 1
    assert learn_kinds(history([*weekly(), lost])).share == pytest.approx(1 / 3)


def test_of_nodes_keeps_what_was_learned_from_all() -> None:
    model = learn(history(weekly((2, 2, "copy"), (2, 5, "copy"))))
    some = model.of_nodes(["n2", "n0"])
    assert some.history.nodes == ("n0", "n2")
    assert some.defects == 2
    assert some.probability == pytest.approx(model.probability[[0, 2]])


def test_a_check_counts_however_many_smaller_ones_came_after_it() -> None:
    daily = [check(node, 150.0 + day, ran=("copy",)) for node in (0, 1) for day in range(20)]
    model = learn(history([check(0, 149.0), *daily, check(2, 100.0, "rdma")], now=170.0))
    left = model.mass @ model.kinds.shown
    assert left[0, 2] < 0.7 * left[1, 2], "only the first node was ever looked at with rdma"


def test_time_without_a_check_counts_as_long_as_a_defect_stays_unseen() -> None:
    assert learn(history([], now=36500.0)).probability == pytest.approx(-math.expm1(-LASTS / PRIOR_DAYS), rel=0.3)
