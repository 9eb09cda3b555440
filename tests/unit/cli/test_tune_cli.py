"""What `paceline tune` refuses and says before it measures or stores anything."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result

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
