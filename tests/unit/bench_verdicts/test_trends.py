"""The thousand series that Otava's answers are stored for: ours on the same ones."""

from __future__ import annotations

from functools import cache

import pytest
from bench.trend_series import KINDS, OF_EACH, Kind, Known, Score, stored_set
from bench.verdicts import trends
from bench.verdicts.cell import at_least
from bench.verdicts.trends import counted_scores, stored_scores

LEVEL = [kind for kind in KINDS if not kind.steps]
STEPPED = [kind for kind in KINDS if kind.has_steps]
WRONGLY = 0.005


own_scores = cache(trends.own_scores)


def test_the_set_has_a_thousand_series_and_its_answers_are_stored() -> None:
    scores = stored_scores()
    assert sum(score.series for score in scores.values()) == 1000
    assert {score.series for score in scores.values()} == {OF_EACH}


@pytest.mark.parametrize("kind", LEVEL, ids=lambda kind: kind.name)
def test_series_without_a_step_are_rarely_said_to_have_one(kind: Kind) -> None:
    score = own_scores()[kind.name]
    assert at_least(score.with_answers, score.series, 0.05) >= WRONGLY


def misses_more(own: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether ours (misses, tries) are more than chance makes of the share that both have together."""
    share = (own[0] + other[0]) / (own[1] + other[1])
    return at_least(own[0], own[1], share) < WRONGLY


@pytest.mark.parametrize("kind", STEPPED, ids=lambda kind: kind.name)
def test_no_class_of_steps_is_worse_than_otavas_beyond_chance(kind: Kind) -> None:
    own, other = own_scores()[kind.name], stored_scores()[kind.name]
    assert not misses_more((own.steps - own.found, own.steps), (other.steps - other.found, other.steps))
    assert not misses_more((own.answers - own.found, own.answers), (other.answers - other.found, other.answers))


@pytest.mark.parametrize("kind", STEPPED, ids=lambda kind: kind.name)
def test_no_class_of_steps_is_below_otavas_share_of_many_series_beyond_chance(kind: Kind) -> None:
    own, other = own_scores()[kind.name], counted_scores()[kind.name]
    assert other.series == 1800
    assert at_least(own.steps - own.found, own.steps, 1.0 - other.recall) >= WRONGLY
    assert at_least(own.answers - own.found, own.answers, 1.0 - other.precision) >= WRONGLY


def test_over_all_classes_more_steps_are_named_and_fewer_wrongly_than_by_otava() -> None:
    def together(scores: dict[str, Score]) -> tuple[float, float]:
        chosen = [scores[kind.name] for kind in STEPPED]
        found = sum(score.found for score in chosen)
        return found / sum(score.steps for score in chosen), found / sum(score.answers for score in chosen)

    own, other = together(own_scores()), together(stored_scores())
    assert own[0] > other[0]
    assert own[1] > other[1]


def test_an_answer_counts_once_and_within_its_tolerance() -> None:
    values = next(stored_set())[1].values[:20]
    known = Known(values, (5, 12))
    assert Score().plus(known, [6, 7, 15]) == Score(found=1, steps=2, answers=3, series=1, with_answers=1)
    assert Score().plus(known, [4, 13]).recall == 1.0
