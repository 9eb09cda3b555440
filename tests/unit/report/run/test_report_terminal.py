"""The report on a terminal and in a pipe."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from paceline.core.record import Outcome
from paceline.report.document import Medium
from paceline.report.render import terminal
from paceline.report.run.document import LISTED, show
from support.records import HOSTILE, case, hostile_run, literal_run, record, run_of, sample_run

LITERAL = """\
All 2 cases measured; fastest train in images/s: resnet50 fp16, 320 +- <0.1 %.

Case                |   Throughput |     +- |   Step
--------------------+--------------+--------+-------
train resnet50 fp16 | 320 images/s | <0.1 % | 100 ms
train resnet50 fp32 | 160 images/s | <0.1 % | 200 ms
"""


def shown(run: object, **options: object) -> str:
    file = io.StringIO()
    show(run, Console(file=file, **({"width": 100} | options)))  # type: ignore[arg-type]
    return file.getvalue()


def test_the_whole_report_of_two_cases() -> None:
    assert shown(literal_run()) == LITERAL


def test_of_models_alone_a_column_is_spared_before_a_name_is_broken() -> None:
    name = "train generated/fc:layers=2,width=256 fp16"
    [first, _] = literal_run().records
    renamed = first.case.model_copy(update={"title": name.removeprefix("train ")})
    text = shown(run_of([first.model_copy(update={"case": renamed})]), width=len(f"{name} | 320 images/s | <0.1 %"))
    assert f"{name} | 320 images/s | <0.1 %" in text.splitlines()


def test_of_very_many_cases_those_that_say_the_most_are_listed_unless_all_are_asked_for() -> None:
    failed = record(case(150, "train", "the one that failed"), outcome=Outcome.FAILED)
    run = run_of([*(record(case(index, "train", f"number {index}")) for index in range(150)), failed])
    text = shown(run)
    assert "train the one that failed" in text
    assert text.count("train number") == LISTED[Medium.TERMINAL] - 1
    assert "51 more cases were measured; --all, --md and --csv list all of them" in text
    file = io.StringIO()
    show(run, Console(file=file, width=100), every=True)
    assert "more cases" not in file.getvalue()
    assert file.getvalue().count("train number") == 150


def test_a_pipe_gets_ascii_and_no_escape_codes() -> None:
    assert shown(sample_run()).isascii()
    assert "\x1b" not in shown(sample_run())


@pytest.mark.parametrize("terminal", [True, False])
def test_it_fits_into_100_columns(terminal: bool) -> None:
    text = shown(sample_run(), force_terminal=terminal, color_system=None)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 100
    assert "±" in text or not terminal


def test_every_case_warning_and_remedy_is_there() -> None:
    text = shown(sample_run())
    lines = text.splitlines()
    uncertain = next(line for line in lines if line.startswith("train resnet50 bf16"))
    assert uncertain.rstrip().endswith("| DT")
    assert "  D  drifting: let the device reach its working temperature first: raise 'warm_up'" in lines
    assert "  train mixtral-8x7b bf16: out-of-memory" in lines
    assert "    To do: lower 'batch_size' or the sizes, choose a narrower precision, or free device memory" in text
    tail = next(line for line in lines if line.startswith("inference resnet50 fp16"))
    assert tail.split("|")[4].strip() == "2.37 ms"


def test_cases_that_were_not_run_are_told() -> None:
    text = shown(run_of(literal_run().records, not_run=[case(2, "train", "vgg11")]))
    assert "1 not run." in text and "Not run: vgg11" in text


def test_markup_and_escape_codes_in_text_do_nothing() -> None:
    odd = record(case(0, "train", "[red]a[/red]\x1b[2J"))
    for text in (shown(run_of([odd])), shown(hostile_run())):
        assert "\x1b" not in text
    assert "[red]a" not in shown(literal_run())
    assert HOSTILE.split("|")[0] in shown(hostile_run(), width=300)


def test_an_old_terminal_loses_no_report() -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    show(run_of([record(case(0, "train", "größe"))]), Console(file=file, width=100))
    file.flush()
    assert b"1 of 1 case measured" in raw.getvalue()


def test_a_pipe_has_a_width_of_its_own() -> None:
    assert terminal.open_console(io.StringIO()).width == terminal.WIDTH


class _Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", ["1", "40", "60"])
def test_a_narrow_terminal_loses_no_column_and_no_half_of_a_number(
    columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    screen = _Screen()
    show(literal_run(), terminal.open_console(screen))
    for words in ("train resnet50 fp16", "320 images/s", "<0.1 %", "100 ms"):
        assert words in screen.getvalue()


def test_a_wide_terminal_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "180")
    monkeypatch.setenv("TERM", "xterm")
    assert terminal.open_console(_Screen()).width == 180
