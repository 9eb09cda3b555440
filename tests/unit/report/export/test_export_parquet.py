"""One typed row per measurement, with its samples."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest

from paceline.core.errors import MissingDependency
from paceline.core.record import Measurement, RecordWarning
from paceline.report.export import parquet
from support.micro_records import micro_run
from support.records import (
    LOSS,
    RUN_ID,
    STEP_TIME,
    case,
    hostile_run,
    literal_run,
    run_of,
    sample_run,
    throughput,
)
from support.records import record as record_of

parquet_library = pytest.importorskip("pyarrow.parquet", reason="install it with: pip install '.[exports]'")


def read(run: Any) -> Any:
    return parquet_library.read_table(io.BytesIO(parquet.render(run)))


@pytest.mark.parametrize("make", [literal_run, sample_run, micro_run, hostile_run], ids=lambda run: run.__name__)
def test_every_measurement_is_a_row_and_no_case_is_missed(make: Any) -> None:
    run = make()
    rows = read(run).to_pylist()
    assert len(rows) == sum(max(1, len(record.measurements)) for record in run.records)
    assert {row["case_index"] for row in rows} == {record.case.index for record in run.records}


def test_values_come_back_to_the_bit_and_typed() -> None:
    run = sample_run()
    table = read(run)
    rows = iter(table.to_pylist())
    for record in run.records:
        for measurement in record.measurements or [None]:
            row = next(rows)
            if measurement is None:
                assert row["metric"] is None and row["cause"] == record.cause.kind.value  # type: ignore[union-attr]
                continue
            assert row["samples"] == measurement.samples
            assert row["value"] == measurement.value
            assert (row["metric"], row["unit"], row["scope"]) == (
                measurement.metric.name,
                measurement.metric.unit,
                measurement.scope,
            )
            assert json.loads(row["parameters"]) == record.case.parameters
            assert row["started_at"] == record.started_at
            assert row["case_key"] == record.case.key
    types = {field.name: str(field.type) for field in table.schema}
    assert types["value"] == "double"
    assert types["samples"].startswith("list<")
    assert types["run_started_at"] == "timestamp[us, tz=UTC]"


def test_runs_can_be_put_together() -> None:
    import pyarrow

    both = pyarrow.concat_tables([read(literal_run()), read(micro_run())])
    assert both.num_rows == read(literal_run()).num_rows + read(micro_run()).num_rows


def test_it_is_compressed() -> None:
    file = parquet_library.ParquetFile(io.BytesIO(parquet.render(sample_run())))
    column = file.metadata.row_group(0).column(0)
    assert column.compression == "ZSTD"


def test_a_missing_library_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependency, match=r"pip install '\.\[exports\]'"):
        parquet.render(literal_run())


def test_a_row_has_its_point_its_percentiles_and_what_it_came_from() -> None:
    times = Measurement.of_samples(STEP_TIME, [1.0, 2.0, 3.0, 4.0], at={"size": 3})
    rate = Measurement.of_rate(throughput("images/s"), 8.0, times)
    lone = Measurement.of_value(LOSS, 2.5)
    warnings = [RecordWarning(kind="noisy", message="", remedy="")]
    one = record_of(case(1, "train", "b"), [times, rate, lone], facts={"z": 1, "a": [2]}, warnings=warnings)
    rows = read(run_of([one, record_of(case(0, "train", "a"), [])])).to_pylist()
    assert [row["case_index"] for row in rows] == [0, 1, 1, 1]
    bare, first, second, third = rows
    assert [row["at"] for row in rows] == [None, '{"size": 3}', '{"size": 3}', None]
    assert [row["derived_from"] for row in rows] == [None, None, "step_time", None]
    assert [row["work"] for row in rows] == [None, None, 8.0, None]
    assert (first["p50"], first["p99_9"]) == (2.5, times.summary.percentiles.get("99.9"))
    assert (first["effective_count"], first["count"]) == (times.summary.effective_count, 4)
    assert (third["value"], third["low"], third["statistic"]) == (2.5, None, "single")
    assert second["samples"] == []
    assert (first["facts"], first["warnings"]) == ('{"a": [2], "z": 1}', ["noisy"])
    assert (bare["warnings"], bare["value"], bare["seconds"], bare["attempt"]) == ([], None, 21.4, 1)
    assert (bare["run_id"], bare["run_name"], bare["host"], bare["commit"], bare["dirty"]) == (
        *(RUN_ID, "node-check", "node-07", "3f9c1d2e"),
        False,
    )
