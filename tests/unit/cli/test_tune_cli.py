"""What `paceline tune` refuses and says before it measures or stores anything."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result

from paceline.analysis.tune import space_of
from paceline.api.cases import expand_here, find_suite
from paceline.cli.main import paceline
from paceline.core.errors import InputError

CLOSED = ("--load.arrival", "closed", "--load.users", "2")
SPIKE = ("--load", "{arrival: spike, rate: 5, spike_rate: 9, spike_at: 2s, spike_length: 1s, duration: 9s}")


def tune(store: Path, *words: str) -> Result:
    done = CliRunner().invoke(paceline, ["tune", *words, "--store", str(store)])
    assert not store.exists()
    return done


def test_a_load_that_is_none_when_it_is_short_is_refused(tmp_path: Path) -> None:
    done = tune(tmp_path / "store.db", "serve", "--scale", "tiny", "--server.max-batch", "1,4", *SPIKE)
    assert isinstance(done.exception, InputError), done.output
    assert "a trial of 11% of the time" in str(done.exception) and "spike_at" in str(done.exception)


def test_a_benchmark_without_a_budget_is_refused(tmp_path: Path) -> None:
    done = tune(tmp_path / "store.db", "known-answers", "--rounds", "2", "--set", "seed=1,2")
    assert isinstance(done.exception, InputError), done.output
    assert done.exception.code == "no-budget"


def test_limits_are_said_to_be_those_of_a_trial(tmp_path: Path) -> None:
    words = ("serve", "--scale", "tiny", "--server.max-batch", "1,4", "--dry-run", *CLOSED)
    assert "for each trial" not in tune(tmp_path / "store.db", *words).output
    limited = tune(tmp_path / "store.db", *words, "--limits.requests", "500")
    assert limited.exit_code == 0 and "limits hold for each trial" in limited.output


def test_settings_that_are_equal_are_refused(tmp_path: Path) -> None:
    done = tune(tmp_path / "store.db", "gemm", "--target", "cpu", "--timeout", "10m,20m", "--dry-run")
    assert isinstance(done.exception, InputError), done.output
    assert done.exception.code == "equal-settings"
    assert "settings 1 and 2 are equal" in str(done.exception)


def test_power_limits_and_variables_are_settings(tmp_path: Path) -> None:
    words = ("gemm", "--target", "cpu", "--power-limit", "300W,400W")
    done = tune(tmp_path / "store.db", *words, "--dry-run")
    assert done.exit_code == 0, done.output
    cases = expand_here(find_suite("gemm"), {"target": "cpu", "power_limit": [300, 400]})
    space, labels = space_of(cases)
    assert list(space.places) == [(0,), (1,)]
    assert labels == ["power_limit=300", "power_limit=400"]
    variables = [cases[0].model_copy(update={"env": {"THREADS": one}}) for one in ("1", "2")]
    assert space_of(variables)[1] == ["env.THREADS=1", "env.THREADS=2"]


def test_too_many_settings_are_refused(tmp_path: Path) -> None:
    seeds = ",".join(map(str, range(2001)))
    done = tune(tmp_path / "store.db", "gemm", "--target", "cpu", "--set", f"seed={seeds}", "--dry-run")
    assert isinstance(done.exception, InputError), done.output
    assert done.exception.code == "too-many-settings"
