"""What may be written under `load:`: every arrival takes its own knobs and refuses the others'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.core.errors import InputError
from paceline.load.network import PRESETS, Link, link_of, shaped
from paceline.load.parameters import KINDS, LoadParameters
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
        ({"arrival": "poisson", "rate": 5, "network": "5g"}, "network"),
        ({"arrival": "poisson", "rate": 5, "network_by": "tc"}, "name it as network"),
    ],
)
def test_what_does_not_go_together_is_refused_with_the_reason(values: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        LoadParameters.read(values)


def test_every_knob_is_documented_and_belongs_to_some_arrival() -> None:
    used = {name for kind in KINDS.values() for name in (*kind.needs, *kind.allows)}
    assert set(LoadParameters.model_fields) == used | {"arrival", "network", "network_by"}
    assert all(field.description for field in LoadParameters.model_fields.values())


def test_a_trace_is_cut_and_scaled(tmp_path: Path) -> None:
    path = tmp_path / "arrivals.csv"
    path.write_text("timestamp,kind\n0,0\n1,1\n2,0\n3,1\n4,0\n")
    random = np.random.default_rng(1)
    assert len(read("trace", file=str(path)).schedule(random)) == 5
    assert len(read("trace", file=str(path), requests=3).schedule(random)) == 3
    scaled = read("trace", file=str(path), rate=10, duration="250ms").schedule(random)
    assert scaled.intended.tolist() == pytest.approx([0.0, 0.1, 0.2])
    assert scaled.kind is not None and scaled.kind.tolist() == [0, 1, 0]


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


def test_tc_is_told_each_direction_of_a_link() -> None:
    link = link_of("4g")
    words = "netem limit 100000 delay 35000us 10000us rate"
    assert " ".join(shaped(link, link.up)) == f"{words} 8000000bit"
    assert " ".join(shaped(link, link.down)) == f"{words} 32000000bit"
    assert " ".join(shaped(Link(delay="1ms"), None)) == "netem limit 100000 delay 1000us"
