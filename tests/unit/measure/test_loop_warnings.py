"""What the samples themselves say against their result: every boundary has a known answer."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

from paceline.measure.loop import Drift, Stop, Timed, WarmUp, warnings
from support.scripted_loop import parameters

STEADY = WarmUp([0.1] * 6, steady=True)


def kinds(samples: list[float], warmed: WarmUp = STEADY, **values: Any) -> list[str]:
    return [warning.kind for warning in warnings(warmed, Timed(samples, Stop.BUDGET), parameters(**values))]


def test_good_samples_raise_no_warning() -> None:
    assert kinds([0.1, 0.101, 0.099, 0.1, 0.1005] * 10) == []


def test_an_unsteady_warm_up_is_warned_with_what_it_took() -> None:
    warmed = WarmUp([2.0, 1.0], steady=False)
    found = warnings(warmed, Timed([0.1, 0.13, 0.1, 0.12] * 5, Stop.BUDGET), parameters())[0]
    assert found.kind == "unsteady"
    assert re.match(r"the step time may change by up to \d+\.\d%: neither 2 warm-up steps \(3 s\) nor ", found.message)
    assert found.message.endswith("nor 20 measured steps rule that out")
    assert "paceline doctor" in found.remedy


def test_a_warm_up_that_was_not_steady_is_forgiven_where_the_measured_steps_are() -> None:
    assert kinds([0.1] * 20, WarmUp([2.0, 1.0], steady=False)) == []


@pytest.mark.parametrize(("after", "word"), [(0.12, "20.0% slower"), (0.08, "20.0% faster")])
def test_a_last_quarter_unlike_the_first_is_drifting(after: float, word: str) -> None:
    found = {d.kind: d for d in warnings(STEADY, Timed([0.1] * 20 + [after] * 20, Stop.BUDGET), parameters())}
    assert word in found["drifting"].message


def test_a_change_of_less_than_two_percent_is_not_yet_drifting() -> None:
    assert kinds([0.1] * 20 + [0.1019] * 20) == []


@pytest.mark.parametrize("samples", [[1.0] * 4, [0.0005] * 39])
def test_few_steps_or_little_time_is_short(samples: list[float]) -> None:
    assert "short" in kinds(samples)


@pytest.mark.parametrize("samples", [[1.0] * 5, [0.0005] * 41])
def test_enough_steps_and_time_is_not_short(samples: list[float]) -> None:
    assert kinds(samples) == []


def test_an_interval_beyond_five_percent_is_imprecise() -> None:
    assert kinds([0.1, 0.13] * 20) == ["imprecise"]
    assert kinds([0.1, 0.104] * 20) == []


def test_an_interval_as_wide_as_was_asked_for_is_precise_enough() -> None:
    assert kinds([0.1, 0.13] * 20, interval=0.3) == []


def test_one_step_has_an_unknown_interval() -> None:
    found = {d.kind: d for d in warnings(STEADY, Timed([1.0], Stop.BUDGET), parameters())}
    assert set(found) == {"short", "imprecise"}
    assert "unknown" in found["imprecise"].message


def test_more_than_a_tenth_far_away_is_noisy() -> None:
    far = [0.1] * 8 + [0.104]
    assert kinds(far * 3) == ["noisy"]
    assert kinds([0.1] * 27 + [0.104] * 3) == []


def test_rare_stalls_widen_the_mean_and_that_is_warned() -> None:
    assert kinds(([0.005] * 99 + [0.105]) * 2) == ["imprecise"]


def test_every_warning_says_what_to_do() -> None:
    found = warnings(WarmUp([1.0], steady=False), Timed([0.001], Stop.BUDGET), parameters())
    assert all(warning.message and warning.remedy for warning in found)


def test_a_device_that_waits_for_the_host_is_warned() -> None:
    steady = WarmUp([0.1] * 6, steady=True)
    starving = Timed([0.1] * 20, Stop.PRECISE, starved=15)
    assert [warning.kind for warning in warnings(steady, starving, parameters())] == ["host-bound"]
    fed = Timed([0.1] * 20, Stop.PRECISE, starved=5)
    assert warnings(steady, fed, parameters()) == []


def test_two_percent_is_the_least_drift() -> None:
    assert "drifting" not in kinds([0.1] * 20 + [0.1019] * 20)
    assert "drifting" in kinds([0.1] * 20 + [0.1021] * 20)
    assert "drifting" in kinds([0.1] * 20 + [0.0979] * 20)


# ---- the span


LONG = WarmUp([0.1] * 20, steady=True)  # 2 s


def quiet(count: int, noise: float = 0.001) -> list[float]:
    return list(0.01 * (1.0 + noise * np.random.default_rng(5).standard_normal(count)))


def test_quiet_steps_over_the_whole_span_raise_no_warning() -> None:
    assert kinds(quiet(600), LONG, span=8.0) == []


def test_less_than_the_usual_span_is_short_and_says_how_short() -> None:
    (short,) = warnings(LONG, Timed(quiet(100), Stop.PRECISE), parameters(span=1.0))
    assert short.kind == "short"
    assert short.message == "under load for 3 s, warm-up included: what settles or changes later was not seen"
    assert short.remedy == "measure longer: --span 60s --warm-up 30s --budget 60s"
    assert kinds(quiet(100), LONG, span=0.0) == []
    assert kinds(quiet(100), LONG, span=8.0, steps=100) == []  # as many as somebody asked for


def test_too_many_steps_to_cover_the_span_are_short_with_that_remedy() -> None:
    (short,) = warnings(LONG, Timed(quiet(100), Stop.STEPS), parameters(span=8.0))
    assert short.remedy.endswith("--max-steps 1000000")


def test_slow_settling_that_noise_would_hide_is_short_with_how_much_it_may_be() -> None:
    (short,) = warnings(LONG, Timed(quiet(600, noise=0.02), Stop.BUDGET), parameters(span=8.0))
    assert short.kind == "short"
    assert re.search(r"^measured for 6 s: noise would hide slow settling of up to \d+\.\d%$", short.message)


def test_slow_settling_that_is_seen_is_drifting_with_what_it_would_come_to() -> None:
    settling = [one * (1.0 + 0.1 * math.exp(-k / 1000)) for k, one in enumerate(quiet(600))]
    (drifting,) = warnings(LONG, Timed(settling, Stop.BUDGET), parameters(span=8.0))
    assert drifting.kind == "drifting"
    assert "faster than the first" in drifting.message
    assert kinds([one * (1.0 + 0.004 * (k > 300)) for k, one in enumerate(quiet(600))], LONG, span=8.0) == ["drifting"]
    assert kinds([one * (1.0 + 0.004 * (k > 300)) for k, one in enumerate(quiet(600))], LONG, span=0.0) == []


def test_what_a_change_comes_to_is_exact_for_the_slowest_settling() -> None:
    constant = 30.0
    level = [math.exp(-(k + 0.5) * 0.01 / constant) for k in range(1000)]
    drift = Drift.of([0.01 * (1.0 + 0.01 * one) for one in level], slow=True)
    assert drift is not None
    assert drift.off == pytest.approx(0.01 * float(np.mean(level)), rel=0.02)


def test_half_of_the_steps_may_wait_for_the_host() -> None:
    for starved, expected in ((10, []), (11, ["host-bound"])):
        seen = warnings(STEADY, Timed([0.1] * 20, Stop.PRECISE, starved=starved), parameters())
        assert [one.kind for one in seen] == expected


def test_an_imprecise_median_is_named_with_its_width_and_the_mean_only_without_it() -> None:
    (median,) = warnings(STEADY, Timed([0.1, 0.2] * 20, Stop.BUDGET), parameters())
    assert median.message == "the interval of the median is ± 33 % after 40 steps"
    (mean,) = warnings(STEADY, Timed(([0.005] * 99 + [0.105]) * 2, Stop.BUDGET), parameters())
    assert mean.message == "the interval of the mean is 4.52 to 8.61 ms after 200 steps"


def test_a_short_measurement_says_how_short() -> None:
    (short, *_) = warnings(STEADY, Timed([1.5] * 2, Stop.BUDGET), parameters())
    assert short.message == "only 2 steps in 3 s"
