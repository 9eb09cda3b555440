"""Settings are searched with known truths behind them: what is found, what it costs, and what is claimed of it."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence

import pytest

from paceline.analysis.tune import search as tune
from paceline.analysis.tune.search import LENGTHS, PROOF, Space, Trial, TrialResult, leader, promising, proof, search

SHAPE = (5, 3, 3)
PLACES = list(itertools.product(*map(range, SHAPE)))
Truth = Callable[[tuple[int, ...]], float | None]


def hill(place: tuple[int, ...]) -> float:
    """One peak, away from the corner where the first setting is."""
    return 100.0 * math.exp(-0.2 * abs(place[0] - 3) - 0.15 * abs(place[1] - 2) - 0.1 * abs(place[2] - 1))


def run(truth: Truth, *, seed: int = 0, noise: float = 0.0, rounds: int = 4) -> tuple[list[TrialResult], list[Trial]]:
    draw, made = random.Random(seed), []

    def measure(trial: Trial) -> TrialResult:
        value = truth(PLACES[trial.setting])
        score = None if value is None else math.log(value) + draw.gauss(0.0, noise)
        made.append(TrialResult(trial, score))
        return made[-1]

    searching = search(Space(PLACES), rounds, seed)
    try:
        batch = next(searching)
        while True:
            batch = searching.send([measure(trial) for trial in batch])
    except StopIteration:
        return made, [one.trial for one in made]


def cost(trials: Sequence[Trial]) -> float:
    """The time of the loads of the search, in whole trials."""
    return sum(LENGTHS[trial.rung] for trial in trials if trial.rung < PROOF)


def test_the_best_is_found_in_a_part_of_the_time_of_the_grid() -> None:
    best = max(map(hill, PLACES))
    for seed in range(20):
        results, trials = run(hill, seed=seed, noise=0.01)
        winner = leader(results)
        assert winner is not None
        assert hill(PLACES[winner]) >= 0.95 * best
        assert cost(trials) < 0.25 * len(PLACES)


def test_each_rung_has_fewer_settings_than_the_one_before() -> None:
    _, trials = run(hill, noise=0.01)
    counts = [len({trial.setting for trial in trials if trial.rung == rung}) for rung in range(PROOF)]
    assert counts == sorted(counts, reverse=True)
    assert counts[1] <= math.ceil(counts[0] / tune.KEPT)


def test_a_better_setting_is_said_to_be_better_by_rounds_that_alternate() -> None:
    results, trials = run(hill, noise=0.01)
    winner = leader(results)
    assert winner is not None
    found = proof(results, winner)
    assert tune.is_better(found)
    assert found is not None
    assert found.value == pytest.approx(hill(PLACES[winner]) / hill(PLACES[0]), rel=0.05)
    order = [trial.setting for trial in trials if trial.rung == PROOF]
    assert order == [winner, 0, 0, winner] * 2


def test_of_equal_settings_few_are_said_to_be_better() -> None:
    claims = 0
    for seed in range(100):
        results, _ = run(lambda _: 100.0, seed=seed, noise=0.05)
        winner = leader(results)
        claims += winner not in (None, 0) and tune.is_better(proof(results, winner or 0))
    # One in forty is expected; of 100, chance hardly makes eight.
    assert claims <= 8


def test_settings_that_fail_are_not_tried_again_and_never_win() -> None:
    def truth(place: tuple[int, ...]) -> float | None:
        return None if place[0] >= 3 else hill(place)

    results, trials = run(truth, noise=0.01)
    failed = {one.trial.setting for one in results if one.score is None}
    assert failed
    assert all(trial.rung == 0 for trial in trials if trial.setting in failed)
    assert leader(results) not in failed
    assert tune.is_better(proof(results, leader(results) or 0))


def test_nothing_is_left_where_all_fail() -> None:
    results, trials = run(lambda _: None)
    assert leader(results) is None
    assert all(trial.rung == 0 for trial in trials)


def test_a_winner_that_fails_in_its_proof_is_replaced() -> None:
    seen: list[int] = []

    def measure(trial: Trial) -> TrialResult:
        if trial.rung == PROOF and trial.setting != 0 and (not seen or trial.setting in seen):
            seen.append(trial.setting)
            return TrialResult(trial, None)
        return TrialResult(trial, math.log(hill(PLACES[trial.setting])))

    made: list[TrialResult] = []
    searching = search(Space(PLACES), 2, 0)
    try:
        batch = next(searching)
        while True:
            results = [measure(trial) for trial in batch]
            made += results
            batch = searching.send(results)
    except StopIteration:
        pass
    winner = leader(made)
    assert winner is not None
    assert winner not in seen
    assert proof(made, winner) is not None


def test_the_first_setting_needs_no_proof_against_itself() -> None:
    results, trials = run(lambda place: 100.0 * math.exp(-sum(place)), noise=0.01)
    assert leader(results) == 0
    assert all(trial.rung < PROOF for trial in trials)


def test_noise_is_learned_from_trials_of_the_same_setting() -> None:
    quiet, loud = (
        [
            TrialResult(Trial(setting, rung), math.log(100.0) + sign * spread)
            for setting in range(10)
            for rung, sign in ((0, 1.0), (1, -1.0))
        ]
        for spread in (0.001, 0.3)
    )
    assert tune.noise(quiet) < tune.NOISE < tune.noise(loud)


def test_what_is_clearly_worse_does_not_go_on() -> None:
    sure = [TrialResult(Trial(one, 0), math.log(value)) for one, value in enumerate((100.0, 99.0, 50.0, 40.0, 30.0))]
    assert promising(sure, 0) == [0, 1]
    assert promising([sure[0], *sure[2:]], 0) == [0]


def test_the_same_results_lead_to_the_same_trials() -> None:
    assert run(hill, seed=3, noise=0.1)[1] == run(hill, seed=3, noise=0.1)[1]
    assert run(hill, seed=3)[1] != run(hill, seed=4)[1]


def test_a_sample_is_spread_and_has_the_first_setting() -> None:
    chosen = Space(PLACES).spread(8, seed=1)
    assert chosen[0] == 0
    assert len(set(chosen)) == 8
    assert {PLACES[one][0] for one in chosen} >= {0, 4}


def test_neighbours_are_one_step_away_on_one_axis() -> None:
    near = {PLACES[one] for one in Space(PLACES).neighbours(PLACES.index((1, 0, 1)))}
    assert near == {(0, 0, 1), (2, 0, 1), (1, 1, 1), (1, 0, 0), (1, 0, 2)}
