"""Who is accused without any rule: what chance explains, components, baselines, and what could not be seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from paceline.analysis.baseline import make_baseline
from paceline.analysis.diagnose.judge import Diagnosis, diagnose
from paceline.analysis.diagnose.outliers import SHAPES, lost_together, spreads
from paceline.analysis.diagnose.rules import default_rules
from paceline.analysis.diagnose.table import MetricColumn, NodeTable
from paceline.core.metric import Better
from paceline.report.diagnose import unseen

COLUMNS = tuple(
    MetricColumn(f"{part}/{name}", "B/s", Better.HIGHER, component=part)
    for part in ("compute", "memory")
    for name in "abcdefgh"
)
MEMORY = slice(8, 16)


def table_of(logs: NDArray[np.float64]) -> NodeTable:
    return NodeTable(tuple(f"n{node}" for node in range(len(logs))), COLUMNS, np.exp(logs), {}, {})


def noise(nodes: int, *, seed: int = 1, size: float = 0.02) -> NDArray[np.float64]:
    return size * np.random.default_rng(seed).standard_normal((nodes, 16))


def judged(logs: NDArray[np.float64]) -> Diagnosis:
    return diagnose(table_of(logs), default_rules())


def accused(diagnosis: Diagnosis) -> list[str]:
    return [verdict.node for verdict in diagnosis.defective]


def test_noise_accuses_nobody_and_a_defect_beyond_it_is_found() -> None:
    logs = noise(60)
    assert not accused(judged(logs))
    logs[7, 3] -= 0.25
    (verdict,) = judged(logs).defective
    assert (verdict.node, verdict.categories) == ("n7", ("compute",))
    assert [(one.kind, one.metric, one.text) for one in verdict.findings] == [
        ("variance", "compute/d", "worse than chance explains")
    ]


def test_a_small_loss_in_all_metrics_of_a_component_is_a_defect_of_the_component() -> None:
    logs = noise(60)
    logs[7, MEMORY] -= 0.08
    (verdict,) = judged(logs).defective
    finding = verdict.accusations[0]
    assert (finding.kind, finding.category, finding.metric) == ("group", "memory", "memory")
    assert finding.metrics == tuple(column.name for column in COLUMNS[MEMORY])
    assert finding.change == pytest.approx(-0.08, abs=0.02)


def test_a_component_that_does_nothing_at_all_lost_everything() -> None:
    logs = noise(30, size=0.1)
    logs[7, MEMORY] = -np.inf  # the logarithm of zero
    logs[8, MEMORY] -= 0.5
    dead, slow = judged(logs).defective
    assert (dead.node, dead.categories) == ("n7", ("memory",))
    assert {one.change for one in dead.findings} == {-1.0}
    group = next(one for one in slow.findings if one.kind == "group")
    assert (group.metric, group.change) == ("memory", pytest.approx(np.expm1(-0.5), abs=0.04))
    nothing = lost_together(np.zeros(2), np.asarray([26.0, 5.0]), COLUMNS[:2])
    assert nothing == pytest.approx(1.0)
    without = logs.copy()
    without[7, MEMORY] = -10.0
    assert unseen(judged(logs)) == unseen(judged(without))  # how little it does changes nothing for the others
    times = tuple(MetricColumn(name, better=Better.LOWER) for name in "ab")
    half = lost_together(np.asarray([2.0, 0.0]), np.asarray([1.0, 1.0]), times)
    assert half == pytest.approx((0.5 - 1.0) / 2)  # twice the time is half the speed; none at all is a gain


def test_a_slow_node_is_one_finding_and_not_one_for_each_component() -> None:
    logs = noise(60)
    logs[7] -= 0.06
    (verdict,) = judged(logs).defective
    assert [one.metric for one in verdict.accusations if one.kind == "group"] == ["whole node"]


def test_being_better_is_no_defect() -> None:
    logs = noise(60)
    logs[7] += 0.3
    assert not accused(judged(logs))


@pytest.mark.parametrize("better", [(2,), (2, 5)])
def test_nodes_that_are_far_better_in_a_component_hide_no_defect(better: tuple[int, ...]) -> None:
    for seed in range(10):
        logs = noise(20, seed=seed, size=0.01)
        logs[better, MEMORY] += 0.2
        logs[7, MEMORY] -= 0.1
        diagnosis = judged(logs)
        assert accused(diagnosis) == ["n7"]
        (caveat,) = (one for one in diagnosis.caveats if one.kind == "far better")
        assert all(f"n{node} (memory, +2" in caveat.message for node in better)


def test_a_node_that_is_far_better_in_one_metric_is_taken_for_chance() -> None:
    logs = noise(20, size=0.01)
    logs[2, 10] += 1.0
    assert "far better" not in {one.kind for one in judged(logs).caveats}


def test_nodes_that_do_nothing_at_all_are_not_called_healthy_without_a_warning() -> None:
    values = np.exp(noise(20))
    values[:12, 10] = 0.0
    diagnosis = diagnose(replace(table_of(noise(20)), values=values), default_rules())
    assert accused(diagnosis) == []
    assert [one.message for one in diagnosis.caveats] == [
        "most nodes reached 0 in memory/c, and nothing can be worse than that"
    ]


def test_correlated_metrics_are_no_evidence_of_each_other() -> None:
    shared = np.random.default_rng(3).standard_normal((200, 1))
    assert not accused(judged(noise(200) * 0.1 + 0.02 * shared))


def test_a_heavy_tailed_metric_accuses_nobody() -> None:
    logs = 0.02 * np.random.default_rng(3).standard_t(2, (300, 16))
    assert len(accused(judged(logs))) <= 1


def test_less_than_one_per_cent_is_no_defect_however_alike_the_others_are() -> None:
    logs = noise(60, size=1e-5)
    logs[7] -= 0.008
    assert not accused(judged(logs))
    logs[7] -= 0.008
    assert accused(judged(logs)) == ["n7"]


def test_bad_nodes_do_not_hide_behind_each_other() -> None:
    logs = noise(60)
    logs[:20, 3] -= 0.5
    found = accused(judged(logs))
    assert {f"n{node}" for node in range(20)} <= set(found)
    assert len(found) <= 22


def test_one_node_is_judged_by_the_spread_of_a_baseline() -> None:
    baseline = make_baseline(table_of(noise(40)))
    logs = noise(1, seed=9)
    assert not accused(diagnose(table_of(logs), default_rules(), baseline))
    logs[0, 3] -= 0.3
    assert accused(diagnose(table_of(logs), default_rules(), baseline)) == ["n0"]


def test_what_could_have_gone_unseen_grows_with_the_noise_and_shrinks_with_the_nodes() -> None:
    def smallest(nodes: int, size: float = 0.02) -> float:
        made = (judged(noise(nodes, seed=seed, size=size)).sensitivities for seed in range(5))
        return float(np.median([one.together for each in made for one in each]))

    assert 0.01 < smallest(500) < smallest(10) < 0.2
    assert smallest(500, 0.04) == pytest.approx(2 * smallest(500), rel=0.1)


def test_the_sentence_names_sizes_components_and_the_count() -> None:
    (sentence,) = unseen(judged(noise(500)))
    assert sentence.startswith("Defects smaller than ")
    assert " % of compute, " in sentence
    assert sentence.endswith(" % of memory could have gone unseen with 500 nodes.")


def test_few_nodes_have_a_fixed_limit_and_no_claim() -> None:
    logs = noise(4, size=0.001)
    logs[2, 3] -= 0.1
    diagnosis = judged(logs)
    assert accused(diagnosis) == ["n2"]
    assert diagnosis.sensitivities == ()
    (caveat,) = diagnosis.caveats
    assert caveat.message.endswith("and 5 % is the limit, since so few do not show what is usual")


@pytest.mark.parametrize(("freedom", "expected"), SHAPES)
def test_the_spread_of_each_shape_is_what_the_table_says(freedom: float, expected: float) -> None:
    random = np.random.default_rng(11)
    drawn = random.standard_normal(400_000) if freedom == np.inf else random.standard_t(freedom, 400_000)
    assert spreads(drawn[:, None])[0] == pytest.approx(expected, rel=0.01)
