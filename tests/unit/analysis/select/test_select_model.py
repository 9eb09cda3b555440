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
    assert model.probability == pytest.approx(-math.expm1(-30.0 / PRIOR_DAYS), rel=0.4)
    assert learn_kinds(history([])).share == pytest.approx(1 / 3, rel=0.01)


def test_clean_checks_make_a_defect_less_likely_than_none_at_all() -> None:
    assert learn(history(weekly())).probability.max() < learn(history([])).probability.min() / 5


def test_a_node_with_earlier_defects_is_the_most_likely_one() -> None:
    model = learn(history(weekly((2, 2, "copy"), (2, 5, "copy"), (2, 8, "rdma"), (0, 3, "copy"))))
    assert np.argmax(model.probability) == 2
    assert model.reason(2) == "earlier defects" and model.rate[2] > 1.5 * model.rate[0] > 1.5 * model.rate[1]


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
    shown = kinds.shown[np.argmax(kinds.share)]
    assert min(shown[0], shown[2]) > 0.85 and shown[1] < 0.1
    assert kinds.share.sum() == pytest.approx(1.0)


def test_what_benchmarks_show_together_is_learned_from_checks_that_ended_early() -> None:
    generator, true = np.random.default_rng(3), np.array([[0.9, 0.5, 0.0], [0.0, 0.0, 0.8]])
    rows = []
    for node in range(400):
        found = generator.random(3) < true[int(node % 4 == 0)]
        ran, order = np.zeros(3, dtype=bool), generator.permutation(3)
        ends = 1 + int(np.argmax(np.append(found[order], True)))  # with what accuses the node
        ran[order[: ends if node % 3 == 0 else 3]] = True
        rows.append((node, 60.0, ran, found & ran, True))
    kinds = learn_kinds(history(rows, nodes=400))
    for names in (("gemm",), ("copy",), ("rdma",), ("gemm", "copy"), ("gemm", "rdma"), BENCHMARKS):
        missed = float(kinds.missed(mask(*names)) @ kinds.share)
        assert missed == pytest.approx([0.75, 0.25] @ np.prod(np.where(mask(*names), 1 - true, 1.0), axis=1), abs=0.06)


def test_rates_are_those_of_which_defects_were_drawn() -> None:
    generator = np.random.default_rng(5)
    true = 0.02 * generator.gamma(0.5, 2.0, 300)
    found = generator.random((300, 29)) < 7 * true[:, None]
    rows = [check(node, 7.0 * (week + 1), *["copy"] * int(bad)) for (node, week), bad in np.ndenumerate(found)]
    rate = learn(history(rows, nodes=300, now=210.0)).rate
    assert rate.mean() == pytest.approx(true.mean(), rel=0.15)
    assert np.corrcoef(rate, true)[0, 1] > 0.85


def test_a_repair_may_not_have_helped() -> None:
    left = learn(history(weekly((1, 9, "rdma")), now=66.0)).mass[1]
    usual = learn(history(weekly((1, 2, "rdma")), now=66.0)).mass[1]
    assert left.max() > 3 * usual.max()


def test_days_after_an_event_say_more_than_the_same_days_without() -> None:
    bad = [(node, 2 + node, "copy") for node in range(8)]
    before = [(node, 7.0 * week - 1.0) for node, week, _ in bad]
    model = learn(history(weekly(*bad, nodes=16), nodes=16, events=tuple(before)))
    news = history([check(13, 71.5)], nodes=16, now=72.0, events=((12, 71.0), (13, 71.0)))
    later = model.follow(news)
    assert later.probability[12] > 0.3 > 10 * later.probability[14], "an event is worth a look on the same day"
    assert later.probability[13] < 0.4 * later.probability[12], "a check that shows nothing takes most of it back"
    assert later.probability[14] > model.probability[14]
    assert learn(history(weekly(*bad, nodes=16), nodes=16, now=66.0, events=((12, 65.0),))).of_nodes(["n12"]).reason(
        0
    ) == ("recent events")


def test_a_lost_job_counts_as_a_defect_that_no_benchmark_showed() -> None:
    lost = (1, 40.0, mask(), mask(), True)
    model = learn(history([*weekly(), lost]))
    assert model.defects == 1
    assert np.argmax(model.probability) == 1
    assert learn_kinds(history([*weekly(), lost])).share == pytest.approx(1 / 3, rel=0.01)


def test_of_nodes_keeps_what_was_learned_from_all() -> None:
    model = learn(history(weekly((2, 2, "copy"), (2, 5, "copy"))))
    some = model.of_nodes(["n2", "n0"])
    assert some.history.nodes == ("n0", "n2")
    assert some.defects == 2
    assert some.probability == pytest.approx(model.probability[[0, 2]])
    assert [some.reason(node) for node in (0, 1)] == [model.reason(node) for node in (0, 2)]


def test_a_check_counts_however_many_smaller_ones_came_after_it() -> None:
    daily = [check(node, 150.0 + day, ran=("copy",)) for node in (0, 1) for day in range(20)]
    model = learn(history([check(0, 149.0), *daily, check(2, 100.0, "rdma")], now=170.0))
    left = model.mass @ model.kinds.shown
    assert left[0, 2] < 0.7 * left[1, 2], "only the first node was ever looked at with rdma"


def test_time_without_a_check_counts_as_long_as_a_defect_stays_unseen() -> None:
    long, longer = (learn(history([], now=now)).probability[0] for now in (3650.0, 36500.0))
    assert long == pytest.approx(longer, rel=0.01) == pytest.approx(-math.expm1(-LASTS / PRIOR_DAYS), rel=0.4)
