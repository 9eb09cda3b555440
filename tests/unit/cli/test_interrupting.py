"""What a run says to somebody who interrupts it, and does so again before it has ended."""

from __future__ import annotations

import signal
from pathlib import Path

import click
import pytest

from paceline.api import running
from paceline.cli import _running
from paceline.runner.run import SuiteRun
from paceline.store import open_store
from support.store_samples import a_run


def _interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_an_impatient_person_is_told_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(SuiteRun, "go", _interrupt)
    monkeypatch.setattr(running, "finish", _interrupt)
    run = a_run()
    with open_store(tmp_path / "results.db") as store, click.Context(click.Command("run")):
        store.begin(run)
        todo = running.Todo(run, run.cases, {})
        assert _running._measure(store, todo, _running.Output(report=False), None) == 130
    assert "go on with: paceline run --resume run-1" in capsys.readouterr().err
