"""A run as a workbook: numbers exactly as measured, text that is never a formula."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest

from paceline.core.errors import MissingDependency
from paceline.core.record import Measurement
from paceline.core.run import RunRecords
from paceline.report.export import xlsx
from support.records import LOSS, RUN_ID, case, hostile_run, record, run_of, sample_run

openpyxl: Any = pytest.importorskip("openpyxl", reason="install it with: pip install '.[exports]'")


def sheets(run: RunRecords) -> dict[str, list[dict[str, Any]]]:
    """The rows of each sheet by their headings; of the run's own sheet, one row of names and values."""
    book = openpyxl.load_workbook(io.BytesIO(xlsx.render(run)))
    read: dict[str, list[dict[str, Any]]] = {}
    for sheet in book:
        rows = list(sheet.iter_rows(values_only=True))
        read[sheet.title] = (
            [dict(rows)] if sheet.title == "Run" else [dict(zip(rows[0], one, strict=True)) for one in rows[1:]]
        )
    return read


def test_every_case_and_every_measurement_has_a_row_with_exact_figures() -> None:
    run = sample_run()
    book = sheets(run)
    assert list(book) == ["Run", "Cases", "Measurements"]
    assert (book["Run"][0]["run"], book["Run"][0]["host"]) == (RUN_ID, "node-07")
    assert [row["Outcome"] for row in book["Cases"]] == [one.outcome.value for one in run.records]
    measured = iter(book["Measurements"])
    for one, row in zip(run.records, book["Cases"], strict=True):
        if one.cause is not None:
            assert row["Cause"] == one.cause.message
            assert next(measured)["message"] == one.cause.message
        for measurement in one.measurements:
            figures, interval = next(measured), measurement.interval
            ends = (interval.low, interval.high, interval.confidence) if interval else (None, None, None)
            assert (figures["metric"], figures["unit"] or "") == (measurement.metric.name, measurement.metric.unit)
            assert (figures["value"], figures["low"], figures["high"], figures["confidence"]) == (
                measurement.value,
                *ends,
            )
    assert next(measured, None) is None
    first = run.records[0].measurement("throughput")
    assert first is not None and first.interval is not None
    row = book["Cases"][0]
    assert (row["Metric"], row["Value"], row["Low"], row["High"]) == (
        "throughput", first.value, first.interval.low, first.interval.high,
    )  # fmt: skip
    assert (row["Unit"], row["Better"]) == ("sequences/s", "higher")


def test_text_is_never_a_formula() -> None:
    book = openpyxl.load_workbook(io.BytesIO(xlsx.render(hostile_run())))
    kinds = {cell.data_type for sheet in book for row in sheet.iter_rows() for cell in row}
    assert "f" not in kinds


def test_what_a_cell_cannot_hold_is_text() -> None:
    run = run_of([record(case(0, "train", "a"), [Measurement.of_value(LOSS, math.nan)])])
    assert sheets(run)["Measurements"][0]["value"] == "nan"


def test_without_openpyxl_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "openpyxl", None)
    with pytest.raises(MissingDependency, match=r"pip install '\.\[exports\]'"):
        xlsx.render(sample_run())
