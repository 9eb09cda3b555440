"""Formulas fitted on a third of the published throughputs predict the others, of both systems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from paceline.analysis.plan.calibrate import FREE, LIBAI, START, Observation, System, calibrate, observations
from paceline.analysis.plan.timing import Cluster, samples_per_second
from paceline.analysis.published.table import published_rows
from paceline.core.errors import PacelineError
from support.docs_markdown import ROOT

FAMILIES = ("bert", "gpt2")
MODELS = {"bert": "BERT", "gpt2": "GPT-2"}
SYSTEMS = {"libai": "LiBai", "megatron": "Megatron-LM"}


def of_family(found: Sequence[Observation], family: str) -> list[Observation]:
    return [one for one in found if one.model.family == family]


def every_third(found: Sequence[Observation]) -> list[Observation]:
    return [one for family in FAMILIES for one in of_family(found, family)[::3]]


def predicted(found: Sequence[Observation], cluster: Cluster) -> list[float]:
    return [samples_per_second(one.model, one.layout, cluster) for one in found]


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
    rows = {(row["model"], row["case"]) for row in published_rows("libai_vs_megatron")}
    found = observations("libai")
    assert len(found) == len(rows) - 1
    assert not [one for one in found if one.layout.mesh == "8x1x1" and one.layout.machines == "1n4g"]
    assert len({one.layout for one in found}) == len(found)


@pytest.mark.parametrize("system", ["libai", "megatron"])
def test_a_third_of_the_published_rows_predicts_the_others(system: System) -> None:
    found = observations(system)
    known = every_third(found)
    cluster = calibrate(known, START)
    guide = (ROOT / "docs" / "guide" / "planning.md").read_text(encoding="utf-8")
    for family in FAMILIES:
        others = [one for one in of_family(found, family) if one not in known]
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
    found = observations(system)
    cluster = calibrate(every_third(found), START)
    for family in FAMILIES:
        same = [one for one in of_family(found, family) if one.layout.world_size == gpus and one.model.layers == 24]
        assert len(same) >= 4
        assert rank_correlation(predicted(same, cluster), [one.samples_per_s for one in same]) >= 0.7, family


def test_what_stands_in_for_unknown_gpus_is_the_fit_to_all_rows() -> None:
    fitted = calibrate(observations("libai"), START)
    for free in FREE:
        assert getattr(LIBAI, free.name) == pytest.approx(getattr(fitted, free.name), rel=0.02), free.name


def test_a_calibration_finds_the_cluster_that_made_the_numbers() -> None:
    true = replace(START, rate=80e12, intra_bandwidth=120e9, inter_bandwidth=5e9)
    made = [
        replace(one, samples_per_s=samples_per_second(one.model, one.layout, true)) for one in observations("libai")
    ]
    fitted = calibrate(made, START)
    assert fitted.rate == pytest.approx(true.rate, rel=0.05)
    assert fitted.intra_bandwidth == pytest.approx(true.intra_bandwidth, rel=0.1)
    assert predicted(made, fitted) == pytest.approx([one.samples_per_s for one in made], rel=0.03)


def test_a_calibration_on_one_row_moves_only_what_that_row_tells() -> None:
    (single,) = [one for one in observations("libai") if one.layout.world_size == 1 and one.layout.micro_batch == 24]
    fitted = calibrate([single], START)
    assert predicted([single], fitted) == pytest.approx([single.samples_per_s], rel=0.02)
    assert fitted.inter_bandwidth == pytest.approx(START.inter_bandwidth)


def test_a_calibration_on_nothing_is_refused() -> None:
    with pytest.raises(PacelineError, match="nothing to calibrate on"):
        calibrate([], START)
