"""Every chart of the page as a picture with its data."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from paceline.cli.report import command as report
from paceline.core.errors import InputError
from paceline.report.run import document as run_report
from paceline.report.run.document import to_html
from paceline.store import open_store
from support.micro_records import micro_run
from support.records import hostile_run, literal_run, run_of, sample_run
from support.refused import refused
from support.serving_records import capacity_run


@pytest.mark.parametrize("make", [literal_run, sample_run, micro_run, capacity_run], ids=lambda run: run.__name__)
def test_all_charts_of_the_page_are_there(make: Any) -> None:
    run = make()
    found = run_report.chart_files(run)
    assert len(found) == to_html(run).count('class="chart" role="img"')
    names = [one.name for one in found]
    assert len(set(names)) == len(names)
    for one in found:
        assert one.rows
        assert one.name.replace("-", "").isalnum()


def test_pictures_and_data_are_written(tmp_path: Path) -> None:
    written = run_report.write_charts(literal_run(), tmp_path / "new" / "folder")
    assert [path.suffix for path in written] == [".png", ".csv"] * 3
    for picture, data in zip(written[::2], written[1::2], strict=True):
        assert picture.stem == data.stem
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert len(data.read_text().splitlines()) > 1
    bars = list(csv.DictReader(io.StringIO(written[1].read_text())))
    assert [float(row["value"]) for row in bars] == pytest.approx([320, 160])
    samples = list(csv.DictReader(io.StringIO(written[3].read_text())))
    assert [float(row["step_time"]) for row in samples] == [0.1] * 20


def test_several_sets_of_data_are_told_apart() -> None:
    line = next(one for one in run_report.chart_files(capacity_run()) if len({row.get("part") for row in one.rows}) > 1)
    rows = list(csv.DictReader(io.StringIO(run_report.chart_csv(line.rows))))
    assert len(rows) == len(line.rows)


def test_hostile_names_stay_in_the_folder(tmp_path: Path) -> None:
    written = run_report.write_charts(hostile_run(), tmp_path)
    assert {path.parent for path in written} == {tmp_path}


def test_a_run_without_a_result_is_refused(tmp_path: Path) -> None:
    with refused("nothing-to-draw"):
        run_report.write_charts(run_of([]), tmp_path)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    path = str(tmp_path / "results.db")
    run = literal_run()
    with open_store(path) as opened:
        opened.begin(run.run)
        for record in run.records:
            opened.add(record)
        opened.finish(run.run.id)
    return path


def test_the_command_writes_them(store: str) -> None:
    done = CliRunner().invoke(report, ["last", "--charts", "drawn", "--store", store])
    assert done.exit_code == 0, done.output
    paths = [Path(line) for line in done.output.splitlines()]
    assert len(paths) == 6 and all(path.stat().st_size > 50 for path in paths)


@pytest.mark.parametrize(
    ("arguments", "start"),
    [
        (["--openmetrics"], "# TYPE paceline_run_info gauge"),
        (["--pytest-benchmark"], "{"),
        (["-o", "x.prom"], "x.prom"),
        (["-o", "x.parquet"], "x.parquet"),
        (["--parquet"], "paceline-report-"),
    ],
)
def test_formats_of_other_tools(store: str, arguments: list[str], start: str) -> None:
    done = CliRunner().invoke(report, ["last", *arguments, "--store", store])
    assert done.exit_code == 0, done.output
    assert done.output.startswith(start)


@pytest.mark.parametrize(
    "arguments", [["--charts", "x", "--html"], ["--charts", "x", "-o", "y.png"], ["-o", "x.json"], ["-o", "x.txt"]]
)
def test_what_cannot_be_meant_is_refused(store: str, arguments: list[str]) -> None:
    assert CliRunner().invoke(report, ["last", *arguments, "--store", store]).exit_code == 2


def test_a_folder_that_cannot_be_made_is_told(store: str) -> None:
    done = CliRunner().invoke(report, ["last", "--charts", "results.db/x", "--store", store])
    assert isinstance(done.exception, InputError)
    assert "results.db/x" in str(done.exception)
