"""What trackers of experiments are sent, and their flags; the trackers themselves are in tests/integration."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from paceline.cli.report import command as report
from paceline.core.errors import MissingDependency
from paceline.core.record import Measurement
from paceline.report.export import mlflow, tracking, wandb
from paceline.store import open_store
from support.records import LOSS, STEP_TIME, case, hostile_run, literal_run, record, run_of, sample_run


def test_figures_have_their_intervals_and_say_where_they_were_taken() -> None:
    times = Measurement.of_samples(STEP_TIME, [0.1, 0.2, 0.3, 0.4])
    of_rank = Measurement.of_samples(STEP_TIME, [0.1, 0.2, 0.3, 0.5], scope="rank 1", at={"size": 1024})
    about = case(0, "train", "a", server={"kind": "embedded", "sizes": [1, 2]}, empty={})
    measured = [times, of_rank, Measurement.of_value(LOSS, math.nan)]
    (sent,) = tracking.tracked_cases(run_of([record(about, measured)]))
    assert times.interval is not None and of_rank.interval is not None
    assert sent.figures == {
        "step_time": times.value,
        "step_time_low": times.interval.low,
        "step_time_high": times.interval.high,
        "step_time_confidence": times.interval.confidence,
        "step_time size:1024 rank 1": of_rank.value,
        "step_time_low size:1024 rank 1": of_rank.interval.low,
        "step_time_high size:1024 rank 1": of_rank.interval.high,
        "step_time_confidence size:1024 rank 1": of_rank.interval.confidence,
    }
    assert sent.not_finite == {"loss": "nan"}
    assert sent.units == {"step_time": "s"}
    assert sent.better == {"step_time": "lower", "loss": "neither"}
    assert sent.parameters == {"server.kind": "embedded", "server.sizes": "[1, 2]", "empty": "{}"}


def test_a_run_and_its_cases_in_words() -> None:
    run = sample_run()
    assert (
        tracking.about_run(run.run).items() >= {"suite": "node-check", "host": "node-07", "commit": "3f9c1d2e"}.items()
    )
    words = [tracking.about_case(one) for one in tracking.tracked_cases(run)]
    assert [one["outcome"] for one in words[-2:]] == ["out-of-memory", "failed"]
    assert "drifting: the second half" in words[3]["warnings"]
    assert all(word for one in words for word in one.values())


def test_names_are_of_characters_that_mlflow_takes() -> None:
    for one in tracking.tracked_cases(hostile_run()):
        for name in [*one.figures, *one.parameters]:
            assert set(mlflow.legal(name)) <= set(
                "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-. :/"
            )
    assert mlflow.legal("bandwidth_low size:1024 rank 0") == "bandwidth_low size:1024 rank 0"
    assert mlflow.legal("=") == "_"


@pytest.fixture
def store(tmp_path: Path) -> str:
    path = str(tmp_path / "results.db")
    with open_store(path) as opened:
        opened.import_run(literal_run())
    return path


def asked(store: str, *words: str) -> Result:
    return CliRunner().invoke(report, ["last", "--store", store, *words])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--mlflow", "http://x", "--wandb", "p"], "exclude each other"),
        (["--mlflow", "http://x", "--html"], "--mlflow goes alone"),
        (["--wandb", "p", "-o", "x.csv"], "--wandb goes alone"),
        (["--wandb", "p", "--charts", "x"], "goes alone"),
    ],
)
def test_a_tracker_goes_alone(store: str, words: list[str], message: str) -> None:
    done = asked(store, *words)
    assert done.exit_code == 2
    assert message in done.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--mlflow", "last"],
            "'last' is not a tracking URI such as http://127.0.0.1:5000; a run is named before --mlflow",
        ),
        (["--wandb", "team/"], "'team/' is not a project: write PROJECT or ENTITY/PROJECT"),
    ],
)
def test_a_place_that_is_none_is_refused(store: str, words: list[str], message: str) -> None:
    assert str(asked(store, *words).exception) == message


@pytest.mark.parametrize(("tracker", "place"), [(mlflow, "http://127.0.0.1:1"), (wandb, "p")])
def test_without_its_client_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tracker: Any, place: str
) -> None:
    name = tracker.TRACKER.name
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingDependency, match=rf"pip install '\.\[{name}\]'"):
        tracker.send(literal_run(), place, {})
