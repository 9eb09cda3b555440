"""What may be written under `load:`: every arrival takes its own knobs and refuses the others'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.core.errors import InputError
from paceline.load.distribution import Distribution
from paceline.load.parameters import KINDS, PRESETS, LoadParameters, RequestParameters, link_of
from support.refused import refused

WRITTEN: dict[str, dict[str, Any]] = {
    "constant": {"rate": "50/s", "duration": "2s"},
    "poisson": {"rate": 50, "duration": "2s"},
    "gamma": {"rate": 50, "burstiness": 0.5, "requests": 100},
    "ramp": {"rate": 10, "to_rate": 90, "duration": "2s"},
    "spike": {"rate": 20, "spike_rate": 200, "spike_at": "500ms", "spike_length": "300ms", "duration": "2s"},
    "diurnal": {"rate": 50, "amplitude": "80%", "period": "1s", "duration": "2s"},
    "on-off": {"rate": 100, "busy": "200ms", "pause": "200ms", "duration": "2s"},
    "server": {"rate": 50, "requests": 100},
    "offline": {"requests": 100},
}


def read(arrival: str, **values: Any) -> LoadParameters:
    return LoadParameters.read({"arrival": arrival, **values})


@pytest.mark.parametrize("arrival", WRITTEN)
def test_every_open_arrival_makes_about_a_hundred_and_the_same_for_the_same_seed(arrival: str) -> None:
    load = read(arrival, **WRITTEN[arrival])
    first, again, other = (load.schedule(np.random.default_rng(seed)).intended for seed in (5, 5, 6))
    assert 50 <= len(first) <= 150
    assert np.array_equal(first, again)
    assert arrival in ("constant", "offline") or not np.array_equal(first, other)
    assert np.all(np.diff(first) >= 0) and first[0] >= 0


@pytest.mark.parametrize("arrival", ["closed", "single-stream", "multi-stream"])
def test_a_closed_loop_has_no_schedule(arrival: str) -> None:
    load = read(arrival, **({"users": 3} if arrival == "closed" else {}))
    assert load.loop == "closed"
    with refused("closed-loop", key="load.arrival", value=arrival):
        load.schedule(np.random.default_rng(1))


def expected_until(t: np.ndarray[Any, np.dtype[np.float64]], arrival: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """How many of the arrivals above are expected until a moment."""
    if arrival == "ramp":
        return np.asarray(10 * t + 80 * t**2 / 4)
    if arrival == "spike":
        return np.asarray(20 * t + 180 * np.clip(t - 0.5, 0, 0.3))
    if arrival == "diurnal":
        return np.asarray(50 * (t + 0.8 / (2 * np.pi) * (1 - np.cos(2 * np.pi * t))))
    return np.asarray(100 * (np.floor(t / 0.4) * 0.2 + np.minimum(t % 0.4, 0.2)))


@pytest.mark.parametrize("arrival", ["ramp", "spike", "diurnal", "on-off"])
def test_a_changing_rate_is_the_one_that_was_written(arrival: str) -> None:
    times = read(arrival, **WRITTEN[arrival]).schedule(np.random.default_rng(5)).intended
    unit = np.cumsum(np.random.default_rng(5).exponential(1.0, len(times)))
    assert expected_until(times, arrival) == pytest.approx(unit, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(
    ("values", "equal"),
    [
        ({"arrival": "spike", "rate": 20, "spike_rate": 90, "spike_at": 0, "spike_length": "10s"}, {"rate": 90}),
        ({"arrival": "diurnal", "rate": 90, "amplitude": 0, "period": "1s"}, {"rate": 90}),
        ({"arrival": "on-off", "rate": 90, "busy": "1s", "pause": "1s", "pause_rate": 90}, {"rate": 90}),
    ],
)
def test_a_rate_that_does_not_change_is_that_of_a_plain_ramp(values: dict[str, Any], equal: dict[str, Any]) -> None:
    plain = read("ramp", to_rate=equal["rate"], **equal)
    one, other = (load.schedule(np.random.default_rng(5)).intended for load in (LoadParameters.read(values), plain))
    assert one == pytest.approx(other, rel=1e-9)


def test_gamma_takes_its_burstiness_and_poisson_its_rate() -> None:
    gamma = read("gamma", rate=50, burstiness=0.5, requests=4).schedule(np.random.default_rng(5)).intended
    assert gamma == pytest.approx(np.cumsum(np.random.default_rng(5).gamma(0.5, 0.04, 4)))
    poisson = read("poisson", rate=50, requests=4).schedule(np.random.default_rng(5)).intended
    assert poisson == pytest.approx(np.cumsum(np.random.default_rng(5).gamma(1.0, 0.02, 4)))
    assert read("constant", rate=50, requests=4).schedule(np.random.default_rng(5)).intended.tolist() == pytest.approx(
        [0.0, 0.02, 0.04, 0.06]
    )


@pytest.mark.parametrize(
    ("values", "seconds", "concurrency", "samples"),
    [
        ({"arrival": "poisson", "rate": 5}, 10.0, 1, 1),
        ({"arrival": "poisson", "rate": 5, "duration": "3s"}, 3.0, 1, 1),
        ({"arrival": "closed", "users": 3, "duration": "500ms"}, 0.5, 3, 1),
        ({"arrival": "offline", "requests": 9}, 10.0, 64, 1),
        ({"arrival": "offline", "requests": 9, "users": 2}, 10.0, 2, 1),
        ({"arrival": "multi-stream"}, 10.0, 1, 8),
    ],
)
def test_what_holds_where_nothing_is_written(
    values: dict[str, Any], seconds: float, concurrency: int, samples: int
) -> None:
    load = LoadParameters.read(values)
    assert (load.seconds, load.concurrency, load.samples_per_request) == (seconds, concurrency, samples)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"arrival": "poisson", "rate": "1M/s", "duration": "1d"}, "at most 100,000,000 requests"),
        ({"arrival": "ramp", "rate": 1, "to_rate": "1G/s"}, "at most 100,000,000 requests"),
        ({"arrival": "offline", "requests": 100_000_001}, "at most 100,000,000 requests"),
        ({"arrival": "constant", "rate": 1e-9, "requests": 4}, "more than 100 years"),
    ],
)
def test_a_load_that_no_memory_or_clock_holds_is_refused(values: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        LoadParameters.read(values)


def test_the_rate_of_a_spike_counts_for_as_long_as_it_lasts() -> None:
    values = {"arrival": "spike", "rate": 10, "spike_rate": 1e7, "spike_at": "1s", "duration": "20s"}
    assert read(**values, spike_length="9s").spike_rate == 1e7
    with pytest.raises(InputError, match="at most 100,000,000 requests"):
        read(**values, spike_length="11s")


@pytest.mark.parametrize("text", ["timestamp\n0\n1e12\n", "gap\n1e308\n1e308\n", "timestamp\n1e308\n-1e308\n"])
def test_a_trace_that_never_ends_is_refused_where_it_is_read(tmp_path: Path, text: str) -> None:
    file = tmp_path / "arrivals.csv"
    file.write_text(text)
    with refused("too-long", key="load.file"):
        read("trace", file=str(file)).recorded()


@pytest.mark.parametrize(
    "values",
    [
        {"arrival": "constant", "rate": 0.1, "duration": "10s"},
        {"arrival": "constant", "rate": 0.01, "requests": 1},
        {"arrival": "poisson", "rate": 0.01, "duration": "1s"},
        {"arrival": "spike", "rate": 5, "spike_rate": 6, "spike_at": "9.9s", "spike_length": 1},
        {"arrival": "trace", "file": "x.csv", "duration": "1s", "requests": 5},
        {"arrival": "poisson", "rate": 5, "network": "wifi"},
        {"arrival": "closed", "users": 1, "think_time": 0},
    ],
)
def test_what_just_goes_together_is_accepted(values: dict[str, Any]) -> None:
    LoadParameters.read(values)


def test_scenarios_of_mlperf_mean_what_they_mean_there() -> None:
    assert read("single-stream").concurrency == 1
    assert (read("multi-stream").concurrency, read("multi-stream").samples_per_request) == (1, 8)
    assert read("multi-stream", samples=4).samples_per_request == 4
    assert read("offline", requests=5).schedule(np.random.default_rng(1)).intended.tolist() == [0.0] * 5
    server, poisson = (read(name, rate=50).schedule(np.random.default_rng(3)) for name in ("server", "poisson"))
    assert np.array_equal(server.intended, poisson.intended)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"arrival": "poisson"}, "needs rate"),
        ({"arrival": "poisson", "rate": 5, "users": 3}, "users does not belong to arrival = poisson"),
        ({"arrival": "closed", "users": 3, "rate": 5}, "rate does not belong to arrival = closed"),
        ({"arrival": "poisson", "rate": 5, "duration": 1, "requests": 5}, "give one of them"),
        ({"arrival": "offline"}, "needs requests"),
        ({"arrival": "gamma", "rate": 5}, "needs burstiness"),
        ({"arrival": "ramp", "rate": 5, "to_rate": 6, "requests": 10}, "requests does not belong"),
        ({"arrival": "poison", "rate": 5}, "did you mean 'poisson'"),
        ({"arrival": "poisson", "raet": 5}, "did you mean 'rate'"),
        ({"arrival": "poisson", "rate": 0}, "greater than 0"),
        (
            {"arrival": "spike", "rate": 5, "spike_rate": 6, "spike_at": "11s", "spike_length": 1, "duration": "10s"},
            "not within",
        ),
        (
            {"arrival": "spike", "rate": 5, "spike_rate": 6, "spike_at": "10s", "spike_length": 1},
            "spike_at = 10 s is not within the duration of 10 s",
        ),
        ({"arrival": "constant", "rate": 0.04, "duration": "10s"}, "not a single request"),
        ({"arrival": "poisson", "rate": 5, "network": "5g"}, "network"),
    ],
)
def test_what_does_not_go_together_is_refused_with_the_reason(values: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        LoadParameters.read(values)


def test_every_knob_is_documented_and_belongs_to_some_arrival() -> None:
    used = {name for kind in KINDS.values() for name in (*kind.needs, *kind.allows)}
    assert set(LoadParameters.model_fields) == used | {"arrival", "network", "client"}
    assert all(field.description for field in LoadParameters.model_fields.values())


def test_a_trace_is_cut_and_scaled(tmp_path: Path) -> None:
    path = tmp_path / "arrivals.csv"
    path.write_text("timestamp,kind\n0,0\n1,1\n2,0\n3,1\n4,0\n")
    random = np.random.default_rng(1)
    assert len(read("trace", file=str(path)).schedule(random)) == 5
    assert len(read("trace", file=str(path), requests=3).schedule(random)) == 3
    assert len(read("trace", file=str(path), requests=50).schedule(random)) == 5
    assert read("trace", file=str(path), duration="2s").schedule(random).intended.tolist() == [0, 1]
    assert len(read("trace", file=str(path), duration="3s", requests=2).schedule(random)) == 2
    scaled = read("trace", file=str(path), rate=10, duration="250ms").schedule(random)
    assert scaled.intended.tolist() == pytest.approx([0.0, 0.1, 0.2])
    assert scaled.kind is not None and scaled.kind.tolist() == [0, 1, 0]
    path.write_text("0\n1\n")
    assert read("trace", file=str(path)).schedule(random).kind is None


def test_a_network_is_a_name_or_its_figures() -> None:
    load = read("poisson", rate=5, network={"delay": "10ms", "up": "1MB"})
    assert load.network is not None
    link = link_of(load.network)
    up = link.way_up(np.array([0.0, 1e6]), np.random.default_rng(1))
    assert up.tolist() == pytest.approx([0.01, 1.01])
    named = read("poisson", rate=5, network="4g").network
    assert named is not None and link_of(named) == PRESETS["4g"]


def test_jitter_is_added_to_the_delay_and_never_taken_from_it() -> None:
    down = PRESETS["4g"].way_down(4000, np.random.default_rng(1))
    assert down.min() >= PRESETS["4g"].delay
    assert np.mean(down) == pytest.approx(PRESETS["4g"].delay + PRESETS["4g"].jitter, rel=0.1)


@pytest.mark.parametrize(
    ("written", "text", "numbers", "weights", "ends"),
    [
        (4, "4", (4.0,), (1.0,), (4, 4)),
        (0, "0", (0.0,), (1.0,), (0, 0)),
        (" 10000000 ", "10000000", (1e7,), (1.0,), (10_000_000, 10_000_000)),
        ("uniform(1, 8)", "uniform(1, 8)", (1.0, 8.0), (), (1, 8)),
        (" uniform ( 4 , 4 ) ", "uniform(4, 4)", (4.0, 4.0), (), (4, 4)),
        ("normal(128, 32)", "normal(128, 32)", (128.0, 32.0), (), (1, None)),
        ("normal(0, 1)", "normal(0, 1)", (0.0, 1.0), (), (1, None)),
        ("lognormal(0.5, 2)", "lognormal(0.5, 2)", (0.5, 2.0), (), (1, None)),
        ({4: 0.3, 1: 0.1}, "{1: 0.1, 4: 0.3}", (1.0, 4.0), (0.25, 0.75), (1, 4)),
        ("{4: 0, 1: 3}", "{1: 3, 4: 0}", (1.0, 4.0), (1.0, 0.0), (1, 4)),
    ],
)
def test_a_distribution_is_read_as_it_is_written(
    written: object,
    text: str,
    numbers: tuple[float, ...],
    weights: tuple[float, ...],
    ends: tuple[int, int | None],
) -> None:
    read = Distribution.parse(written)
    assert (str(read), read.numbers) == (text, numbers)
    assert read.weights == pytest.approx(weights)
    assert (read.lowest, read.highest) == ends
    assert Distribution.parse(read) is read


@pytest.mark.parametrize(
    ("written", "says"),
    [
        (True, "not a distribution"),
        (2.5, "not a distribution"),
        ("gauss(1, 2)", "not a distribution"),
        (-1, "numbers are from 0 to 10,000,000"),
        (10_000_001, "numbers are from 0 to 10,000,000"),
        ({-1: 1, 4: 1}, "numbers are from 0"),
        ({1: 1, 10_000_001: 1}, "numbers are from 0"),
        ("uniform(8, 1)", "the first number is the smallest"),
        ("lognormal(0, 1)", "the median of a lognormal is positive"),
        ({}, "not all of them zero"),
        ({1: 0, 2: 0}, "not all of them zero"),
        ({1: -0.5, 2: 1}, "not negative"),
        ({1: 1, 2: "inf"}, "weights are finite"),
        ({"a": 1}, "whole numbers with their weights"),
    ],
)
def test_what_is_no_distribution_is_refused(written: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Distribution.parse(written)


@pytest.mark.parametrize(
    ("written", "drawn"),
    [
        (3, {3}),
        ("uniform(3, 5)", {3, 4, 5}),
        ("normal(7.4, 0)", {7}),
        ("lognormal(7.4, 0)", {7}),
        ("normal(0, 0)", {1}),
        ({2: 1, 5: 1, 9: 0}, {2, 5}),
        ("{0: 1}", {0}),
    ],
)
def test_only_numbers_of_the_distribution_are_drawn(written: object, drawn: set[int]) -> None:
    numbers = Distribution.parse(written).draw(400, np.random.default_rng(1))
    assert (len(numbers), numbers.dtype, set(numbers.tolist())) == (400, np.dtype(np.int64), drawn)


def test_the_parameters_of_a_distribution_are_its_mean_its_deviation_and_its_median() -> None:
    normal = Distribution.parse("normal(5000, 300)").draw(4000, np.random.default_rng(1))
    assert [np.mean(normal), np.std(normal)] == pytest.approx([5000, 300], rel=0.05)
    lognormal = Distribution.parse("lognormal(5000, 0.5)").draw(4000, np.random.default_rng(1))
    assert np.median(lognormal) == pytest.approx(5000, rel=0.05)
    assert np.std(np.log(lognormal)) == pytest.approx(0.5, rel=0.05)
    assert Distribution.parse("lognormal(10000000, 1)").draw(50, np.random.default_rng(1)).max() == 10_000_000


def test_a_distribution_is_kept_as_a_number_or_a_text() -> None:
    values = RequestParameters.read({"samples": "4", "prompt_tokens": "normal(128, 32)"}).model_dump()
    assert (values["samples"], values["prompt_tokens"]) == (4, "normal(128, 32)")


@pytest.mark.parametrize(
    ("values", "read_by_server"),
    [
        ({}, None),
        ({"form": "image"}, "image"),
        ({"form": "text", "processing": "client"}, None),
        ({"samples": 1, "prompt_tokens": 1, "output_tokens": "uniform(1, 4)"}, None),
    ],
)
def test_who_reads_what_is_sent(values: dict[str, Any], read_by_server: str | None) -> None:
    assert RequestParameters.read(values).read_by_server == read_by_server


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"samples": 0}, "at least one sample"),
        ({"samples": "uniform(0, 4)"}, "at least one sample"),
        ({"processing": "client"}, "tensors need none"),
        ({"prompt_tokens": 0}, "prompt_tokens = 0: at least one token"),
        ({"output_tokens": 0}, "output_tokens = 0: at least one token"),
    ],
)
def test_requests_that_carry_nothing_are_refused(values: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        RequestParameters.read(values)


def test_a_word_alone_is_a_profile() -> None:
    one, many = (LoadParameters.model_validate(name) for name in ("synchronous", "throughput"))
    assert (one.loop, one.concurrency) == ("closed", 1)
    assert (many.loop, many.concurrency) == ("closed", 64)
    assert LoadParameters.model_validate({"arrival": "throughput", "users": 8}).concurrency == 8


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"arrival": "sweep", "points": 4}, "points is how many rates"),
        ({"arrival": "sweep", "rate": 4}, "rate does not belong to arrival = sweep"),
        ({"arrival": "closed", "users": 2, "over": "rate"}, "over does not belong to arrival = closed"),
        ({"arrival": "synchronous", "users": 2}, "users does not belong to arrival = synchronous"),
    ],
)
def test_a_sweep_takes_what_a_sweep_has(given: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        LoadParameters.model_validate(given)
