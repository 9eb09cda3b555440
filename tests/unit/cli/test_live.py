"""The running figure of a case, with its interval once there is one."""

from __future__ import annotations

import json

import pytest

from paceline.api import progress as progress_lines
from paceline.cli import _running
from paceline.core.record import Cause, CauseKind
from paceline.core.stats import Interval
from support.store_samples import a_failed_record, a_run

STEPS = {"phase": "measuring", "unit": "s", "work": None, "rate_unit": ""}
RATE = {"phase": "measuring", "unit": "s", "work": 100.0, "rate_unit": "images/s"}
SAMPLES = [0.101, 0.100, 0.102]
EVEN, SKEWED = (Interval(low=low, high=high, confidence=0.95) for low, high in ((0.1, 0.102), (0.1, 0.202)))


@pytest.mark.parametrize(
    ("progress", "interval", "text"),
    [
        ({"phase": "warming up"}, EVEN, "warming up"),
        (STEPS, None, "101 ms so far, 3 steps"),
        (STEPS, EVEN, "101 ms ± 1.0 % so far, 3 steps"),
        (RATE, EVEN, "990.1 images/s ± 1.0 % so far, 3 steps"),
        (STEPS, SKEWED, "101 ms (100 to 202 ms) so far, 3 steps"),
        (RATE, SKEWED, "990.1 images/s (495 to 1,000 images/s) so far, 3 steps"),
    ],
)
def test_the_running_figure(
    monkeypatch: pytest.MonkeyPatch, progress: dict[str, object], interval: Interval | None, text: str
) -> None:
    monkeypatch.setattr(progress_lines, "median_interval", lambda samples: interval)
    assert progress_lines.estimate(progress, SAMPLES) == text


@pytest.mark.parametrize(
    ("load", "text"),
    [
        ({"rate": 123.456, "failures": 0.0, "p50": 0.0042, "p99": 0.031}, "123.5/s, p50 4.2 ms, p99 31 ms, 0 failed/s"),
        ({"rate": 0.0, "failures": 12.0}, "0/s, 12 failed/s"),
    ],
)
def test_a_load_is_shown_while_it_runs(
    load: dict[str, float], text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert progress_lines.load_figures(load) == text
    case, shown = a_failed_record().case, []
    terminal = _running.Terminal()
    monkeypatch.setattr(terminal._bar, "update", lambda _task, description: shown.append(description))
    terminal.case_progress(case, {"phase": "measuring", "load": load}, [])
    assert shown == [f"{text}; {progress_lines.label(case)}: measuring"]
    _running.JsonLines().case_progress(case, {"phase": "measuring", "load": load}, [])
    assert json.loads(capsys.readouterr().out)["load"] == load


ESCAPES = "\x1b[2J\x1b]0;mine\x07\r\n\x9b31m\u202e\udcff"


@pytest.mark.parametrize("make", [progress_lines.PlainLines, _running.Terminal])
def test_what_a_case_says_cannot_drive_the_terminal(
    make: type[progress_lines.PlainLines | _running.Terminal], capsys: pytest.CaptureFixture[str]
) -> None:
    record = a_failed_record()
    case = record.case.model_copy(update={"title": ESCAPES})
    cause = Cause(kind=CauseKind.ERROR, message=ESCAPES)
    listener = make()
    listener.started(a_run().model_copy(update={"name": ESCAPES}), [case])
    listener.case_progress(case, {"phase": ESCAPES}, [])
    listener.case_ended(record.model_copy(update={"case": case, "cause": cause}))
    listener.trouble(ESCAPES)
    listener.close()
    captured = capsys.readouterr()
    printed = captured.out + captured.err
    assert all(char.isprintable() or char == "\n" for char in printed), ascii(printed)
    assert r"\x1b[2J" in printed
