"""Work for a joule and for an hour at several limits, and which one is the best that is fast enough."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.analysis.cost import LimitSweep, limit_sweeps
from paceline.analysis.summary import summarize_run
from paceline.core.case import Case
from paceline.core.metric import Better, Metric
from paceline.core.record import Measurement, Record
from paceline.core.subject import ServedLoad, SweptLoad
from paceline.report.run.sections.energy import SECTION
from support.records import ENERGY, STEP_TIME, case, record, run_of, throughput

POWER = Metric(name="power", unit="W", better=Better.LOWER)
RATE = Metric(name="compute_rate", unit="FLOP/s", better=Better.HIGHER)


def limited(index: int, watts: float | None, **more: Any) -> Case:
    made = case(index, "train", f"resnet50 bf16 at {watts:g} W" if watts else "resnet50 bf16", **more)
    return made.model_copy(update={"power_limit": watts})


def trained(index: int, watts: float | None, seconds: float, joules: float | None, spread: float = 0.0) -> Record:
    times = Measurement.of_samples(STEP_TIME, [seconds, seconds * (1 - spread), seconds * (1 + spread)] * 4)
    figures = [Measurement.of_rate(throughput("images/s"), 100, times), times]
    figures += [Measurement.of_value(ENERGY, joules)] if joules else []
    return record(limited(index, watts), figures, facts={"energy_source": "NVML total energy counter of cuda:0"})


def served(made: Record, *, met: bool, steps: tuple[str, ...] = ()) -> Record:
    loads = tuple(SweptLoad(at=place, begun=0.0, slo=slo) for place, slo in enumerate(steps))
    return made.model_copy(update={"load": ServedLoad(loop="open", slo_met=met, loads=loads)})


def swept(*records: Record) -> list[LimitSweep]:
    return list(limit_sweeps(summarize_run(run_of(list(records))).rows))


SWEEP = (trained(0, None, 0.1, 0.70), trained(1, 600, 0.104, 0.60), trained(2, 400, 0.14, 0.45))


def test_the_best_takes_the_least_energy_of_those_that_are_fast_enough() -> None:
    (sweep,) = swept(*SWEEP)
    assert sweep.work == "train resnet50 bf16"
    assert sweep.unit == "images"
    assert [point.limit for point in sweep.points] == ["", "600 W", "400 W"]
    assert [point.rate for point in sweep.points] == pytest.approx([1000, 100 / 0.104, 100 / 0.14])
    assert [point.per_joule for point in sweep.points] == pytest.approx([1 / 0.7, 1 / 0.6, 1 / 0.45])
    assert [point.meets_slo for point in sweep.points] == [True, True, False], "400 W is 29 % slower"
    assert sweep.best is sweep.points[1]


def test_repetitions_are_one_point() -> None:
    (sweep,) = swept(*SWEEP[:2], trained(3, 600, 0.102, 0.62), trained(4, 600, 0.106, 0.61))
    assert len(sweep.points) == 2
    assert sweep.points[1].rate == pytest.approx(100 / 0.104)
    assert sweep.points[1].joules == pytest.approx(0.61)


def test_a_single_limit_is_no_sweep() -> None:
    assert swept(SWEEP[1]) == []


def test_without_a_counter_no_limit_is_the_best() -> None:
    records = [trained(0, 700, 0.1, None), trained(1, 400, 0.101, None)]
    (sweep,) = swept(*records)
    assert sweep.best is None
    assert "no counter of energy" in shown(*records)


def test_the_power_of_a_product_over_its_rate() -> None:
    records = []
    for index, (watts, rate) in enumerate(((700, 6e14), (500, 5.9e14))):
        made = limited(index, watts).model_copy(update={"benchmark": "gemm"})
        times = Measurement.of_samples(STEP_TIME, [1 / rate] * 5)
        records.append(record(made, [Measurement.of_rate(RATE, 1.0, times), Measurement.of_value(POWER, watts)]))
    (sweep,) = swept(*records)
    assert [point.joules for point in sweep.points] == pytest.approx([700 / 6e14, 500 / 5.9e14])
    assert sweep.best is sweep.points[1]


def shown(*records: Record) -> str:
    section = SECTION.build(summarize_run(run_of(list(records))))
    return repr(section)


def test_the_report_says_which_limit_and_what_it_saves() -> None:
    text = shown(*SWEEP)
    assert (
        "train resnet50 bf16 takes the least energy at 600 W: 14 % less for the same work than without a limit" in text
    )
    assert "images/J" in text
    assert SECTION.build(summarize_run(run_of([SWEEP[0]]))) is None


def test_a_served_case_that_misses_its_slo_is_not_the_best() -> None:
    records = served(SWEEP[0], met=True), served(SWEEP[1], met=False)
    (sweep,) = swept(*records)
    assert [point.meets_slo for point in sweep.points] == [True, False]
    assert "least energy where it is fastest: without a limit" in shown(*records)


def test_a_sweep_of_loads_is_judged_by_the_load_of_its_figures() -> None:
    steps = ("held", "missed: p99 is 80 ms")
    (sweep,) = swept(*(served(one, met=True, steps=steps) for one in SWEEP[:2]))
    assert all(point.meets_slo for point in sweep.points)


def test_where_no_limit_meets_the_slo_that_is_said() -> None:
    text = shown(*(served(one, met=False) for one in SWEEP))
    assert "no limit meets the SLO" in text
    assert "no counter of energy" not in text


def test_the_best_is_compared_with_the_fastest_that_meets_the_slo_and_has_joules() -> None:
    cheap_and_fast = served(trained(0, None, 0.1, 0.55), met=False)
    assert "14 % less for the same work than at 700 W, at 99 % of its speed" in shown(
        cheap_and_fast, trained(1, 700, 0.102, 0.70), trained(2, 600, 0.103, 0.60)
    )
    without_joules = trained(0, None, 0.1, None)
    text = shown(without_joules, trained(1, 600, 0.102, 0.60))
    assert "where it is fastest of the limits that meet the SLO and whose energy is known: at 600 W" in text


@pytest.mark.parametrize(
    ("joules", "spread", "is_shown"), [(0.6999, 0.0, False), (0.68, 0.0, True), (0.68, 0.2, False)]
)
def test_a_saving_below_what_the_figures_vary_by_is_not_claimed(joules: float, spread: float, is_shown: bool) -> None:
    text = shown(trained(0, None, 0.1, 0.70, spread), trained(1, 600, 0.102, joules, spread))
    assert ("takes the least energy at 600 W" in text) is is_shown
    assert ("repeat (--repeat 5)" in text) is not is_shown


def test_repetitions_say_how_much_a_rate_varies() -> None:
    alike = [trained(0, None, 0.1, 0.70), trained(1, None, 0.1, 0.70), trained(2, 600, 0.102, 0.68)]
    assert "takes the least energy at 600 W" in shown(*alike)
    apart = [trained(0, None, 0.09, 0.70), trained(1, None, 0.11, 0.70), trained(2, 600, 0.102, 0.68)]
    assert "repeat (--repeat 5)" in shown(*apart)


def test_a_rate_of_zero_is_slower_than_all() -> None:
    nothing = [
        record(limited(index, watts), [Measurement.of_value(RATE, 0.0), Measurement.of_value(POWER, 300)])
        for index, watts in enumerate((700, 500))
    ]
    (sweep,) = swept(*nothing)
    assert [(point.keeps, point.joules) for point in sweep.points] == [(0.0, None)] * 2
    assert "so no limit can be called the best" in shown(*nothing)
