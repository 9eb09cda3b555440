"""Formulas fitted on a third of the published throughputs predict the others, of both systems."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from paceline.analysis.plan import LIBAI, Cluster
from paceline.analysis.plan_calibration import (
    FREE,
    NOISE,
    ROUNDS,
    STEP,
    V100_NODES,
    Observation,
    System,
    Vector,
    _least_squares,
    calibrate,
    calibration,
    published_observations,
    samples_per_second,
)
from paceline.analysis.published import published_rows
from paceline.core.errors import PacelineError
from support.docs_markdown import ROOT

FAMILIES = ("bert", "gpt2")
MODELS = {"bert": "BERT", "gpt2": "GPT-2"}
SYSTEMS = {"libai": "LiBai", "megatron": "Megatron-LM"}


def of_family(rows: Sequence[Observation], family: str) -> list[Observation]:
    return [one for one in rows if one.model.family == family]


def every_third(rows: Sequence[Observation]) -> list[Observation]:
    return [one for family in FAMILIES for one in of_family(rows, family)[::3]]


def predicted(rows: Sequence[Observation], cluster: Cluster) -> list[float]:
    return [samples_per_second(one.model, one.layout, cluster) for one in rows]


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's, for numbers that all differ."""
    assert len({*first}) == len(first)
    assert len({*second}) == len(second)
    ranks = [np.argsort(np.argsort(numbers)) for numbers in (first, second)]
    return float(np.corrcoef(*ranks)[0, 1])


def test_the_rank_correlation_of_the_tests_knows_order_from_disorder() -> None:
    assert rank_correlation([1, 2, 3], [10, 200, 3000]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert rank_correlation([1, 2, 3, 4], [2, 1, 4, 3]) == pytest.approx(0.6)


def test_every_published_row_is_an_observation_once_but_the_one_that_contradicts_itself() -> None:
    published = {(row["model"], row["case"]) for row in published_rows("libai_vs_megatron")}
    rows = published_observations("libai")
    assert len(rows) == len(published) - 1
    assert not [one for one in rows if one.layout.mesh == "8x1x1" and one.layout.machines == "1n4g"]
    assert len({one.layout for one in rows}) == len(rows)


@pytest.mark.parametrize("system", ["libai", "megatron"])
def test_a_third_of_the_published_rows_predicts_the_others(system: System) -> None:
    rows = published_observations(system)
    known = every_third(rows)
    cluster = calibrate(known, V100_NODES)
    guide = (ROOT / "docs" / "guide" / "planning.md").read_text(encoding="utf-8")
    for family in FAMILIES:
        others = [one for one in of_family(rows, family) if one not in known]
        assert len(others) >= 2 * len(of_family(known, family)) - 2
        measured = [one.samples_per_s for one in others]
        guessed = predicted(others, cluster)
        agreement = rank_correlation(guessed, measured)
        assert agreement >= 0.9, family
        off = float(np.median(np.abs(np.array(guessed) / np.array(measured) - 1)))
        assert off < 0.1, family
        names = f"{SYSTEMS[system]} | {MODELS[family]}"
        assert f"| {names} | {agreement:.3f} | {100 * off:.1f} % |" in guide


@pytest.mark.parametrize("system", ["libai", "megatron"])
@pytest.mark.parametrize("gpus", [8, 16, 32])
def test_layouts_of_equally_many_gpus_are_ranked_as_they_were_measured(system: System, gpus: int) -> None:
    """The number of GPUs alone orders most of the table; a plan has to order layouts of one number."""
    rows = published_observations(system)
    cluster = calibrate(every_third(rows), V100_NODES)
    for family in FAMILIES:
        same = [one for one in of_family(rows, family) if one.layout.world_size == gpus and one.model.layers == 24]
        assert len(same) >= 4
        assert rank_correlation(predicted(same, cluster), [one.samples_per_s for one in same]) >= 0.7, family


def test_what_stands_in_for_unknown_gpus_is_the_fit_to_all_rows() -> None:
    fitted = calibrate(published_observations("libai"), V100_NODES)
    for free in FREE:
        assert getattr(LIBAI, free.name) == pytest.approx(getattr(fitted, free.name), rel=0.02), free.name


def test_a_calibration_finds_the_cluster_that_made_the_numbers() -> None:
    true = replace(V100_NODES, rate=80e12, intra_bandwidth=120e9, inter_bandwidth=5e9)
    made = [
        replace(one, samples_per_s=samples_per_second(one.model, one.layout, true))
        for one in published_observations("libai")
    ]
    fitted = calibrate(made, V100_NODES)
    assert fitted.rate == pytest.approx(true.rate, rel=0.05)
    assert fitted.intra_bandwidth == pytest.approx(true.intra_bandwidth, rel=0.1)
    assert predicted(made, fitted) == pytest.approx([one.samples_per_s for one in made], rel=0.03)


def test_a_calibration_on_one_row_moves_only_what_that_row_tells() -> None:
    (single,) = [
        one for one in published_observations("libai") if one.layout.world_size == 1 and one.layout.micro_batch == 24
    ]
    fitted = calibrate([single], V100_NODES)
    assert predicted([single], fitted) == pytest.approx([single.samples_per_s], rel=0.02)
    assert fitted.inter_bandwidth == pytest.approx(V100_NODES.inter_bandwidth)


def test_what_one_gpu_cannot_tell_stays_where_it_starts() -> None:
    (single,) = [
        one for one in published_observations("libai") if one.layout.world_size == 1 and one.layout.micro_batch == 24
    ]
    start = replace(V100_NODES, overlap=0.3, contention=0.7)
    fitted = calibrate([single], start)
    for name in ("overlap", "contention", "intra_bandwidth", "inter_bandwidth", "intra_latency"):
        assert getattr(fitted, name) == pytest.approx(getattr(start, name)), name


def test_a_fitted_number_strays_as_its_influence_and_its_freedom_allow() -> None:
    """At the nearest cluster, what a number gains by straying further is what that costs."""
    (single,) = [
        one for one in published_observations("libai") if one.layout.world_size == 1 and one.layout.micro_batch == 24
    ]
    observed = replace(single, samples_per_s=0.7 * predicted([single], V100_NODES)[0])
    fitted = calibrate([observed], V100_NODES)
    missed = math.log(predicted([observed], fitted)[0] / observed.samples_per_s)
    for free in FREE[:1] + FREE[4:7]:
        value = getattr(fitted, free.name)
        moved = replace(fitted, **{free.name: value * math.exp(1e-5)})
        influence = math.log(predicted([observed], moved)[0] / predicted([observed], fitted)[0]) / 1e-5
        strayed = math.log(value / getattr(V100_NODES, free.name))
        assert strayed / free.freedom**2 == pytest.approx(-missed * influence / NOISE**2, rel=0.01), free.name


def test_a_number_beyond_all_reason_stays_finite() -> None:
    rate, contention = FREE[0], FREE[-1]
    assert rate.write(1e9) == rate.write(50.5) == math.exp(50)
    assert rate.write(-1e9) == rate.write(-50.5) == math.exp(-50)
    assert rate.write(49.5) == math.exp(49.5)
    assert rate.write(-49.5) == math.exp(-49.5)
    assert contention.write(-1e9) == pytest.approx(math.exp(-50))
    assert contention.write(contention.read(0.2)) == pytest.approx(0.2)


def tried(residual: Callable[[float], float]) -> tuple[list[float], float]:
    """The points that a fit of one number from zero tries, and where it ends."""
    asked: list[float] = []

    def residuals(numbers: Vector) -> Vector:
        asked.append(float(numbers[0]))
        return np.array([residual(asked[-1])])

    end = float(_least_squares(residuals, np.zeros(1))[0])
    # Those that lie a small step after another one are for the slope there.
    points = [after for before, after in pairwise(asked) if after - before != pytest.approx(STEP, rel=1e-6)]
    return points, end


def test_a_fit_grows_bolder_with_every_step_that_gains() -> None:
    points, end = tried(lambda number: number - 5)
    assert [5 - point for point in points[:4]] == pytest.approx([5 / 2, 5 / 8, 5 / 80, 5 / 2240], rel=1e-6)
    assert end == pytest.approx(5, abs=1e-10)


def test_a_fit_does_not_take_a_step_without_a_gain_and_tries_a_shorter_one() -> None:
    points, end = tried(lambda number: 1 - number if number < 0.3 else 1)
    assert points[:2] == pytest.approx([1 / 2, 1 / 5])
    assert 0.29 < end < 0.3


def test_a_fit_ends_once_a_step_gains_next_to_nothing() -> None:
    points, _ = tried(lambda number: 1 + 1e-3 * (number - 1) ** 2)
    assert len(points) < ROUNDS / 2


def test_a_calibration_on_nothing_is_refused() -> None:
    with pytest.raises(PacelineError, match="nothing to calibrate on"):
        calibrate([], V100_NODES)


def test_each_layout_is_predicted_by_a_fit_to_the_others() -> None:
    rows = [one for one in published_observations("libai") if one.layout.nodes == 1][:6]
    made = calibration(rows, V100_NODES)
    for index, one in enumerate(rows):
        cluster = calibrate([other for other in rows if other is not one], V100_NODES)
        expected = samples_per_second(one.model, one.layout, cluster) / one.samples_per_s - 1
        assert made.misses[index] == pytest.approx(expected, abs=0.01)
    assert made.typical_miss == pytest.approx(float(np.median(np.abs(made.misses))))
    assert made.worst is not None
    assert abs(made.worst[0]) == max(map(abs, made.misses))


def test_the_error_out_of_sample_is_larger_than_that_of_the_fit() -> None:
    rows = [one for one in published_observations("libai") if one.layout.nodes == 1]
    made = calibration(rows, V100_NODES)
    of_fit = np.abs([predicted([one], made.cluster)[0] / one.samples_per_s - 1 for one in rows])
    assert np.mean(np.abs(made.misses)) > np.mean(of_fit)


def test_one_layout_has_no_error_out_of_sample() -> None:
    made = calibration(published_observations("libai")[:1], V100_NODES)
    assert made.misses == ()
    assert made.typical_miss is None
    assert made.worst is None


def test_what_the_layouts_do_not_depend_on_is_neither_fitted_nor_said_to_be() -> None:
    start = replace(V100_NODES, contention=0.0)
    made = calibration([one for one in published_observations("libai") if one.layout.world_size == 1], start)
    assert made.fitted == ("rate", "layer_overhead", "head_cost", "attention_cost")
    assert made.cluster.contention == 0.0
    assert calibrate(made.observations, start, only=["rate"]).layer_overhead == start.layer_overhead
