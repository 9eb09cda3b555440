"""Markdown, CSV, JSON lines and PNG."""

from __future__ import annotations

import csv as standard_csv
import io
import json
import math
import re
import sys

import pytest

from paceline.core.errors import MissingDependency
from paceline.core.record import Cause, CauseKind, Measurement, Outcome, Record, RecordWarning
from paceline.report.export import csv, jsonl
from paceline.report.run.document import to_markdown, to_png
from support.records import LOSS, STEP_TIME, case, hostile_run, literal_run, record, run_of, sample_run
from support.refused import refused

MARKDOWN = """\
# node-check

**All 2 cases measured; fastest train in images/s: resnet50 fp16, 320 ± &lt;0.1 %.**

| Case | Throughput | ± | Step time | Samples |
|---|---:|---:|---:|---:|
| train resnet50 fp16 | 320 images/s | &lt;0.1 % | 100 ms | 20 |
| train resnet50 fp32 | 160 images/s | &lt;0.1 % | 200 ms | 20 |

Run `20260314-092653-k7qd` on node-07, 2026-03-14 09:26 UTC, Paceline 0.1.0: \
`paceline run node-check.yaml --set budget=10s`
"""


def rows_of(text: str) -> list[dict[str, str]]:
    return list(standard_csv.DictReader(io.StringIO(text)))


def test_markdown_of_two_cases() -> None:
    assert to_markdown(literal_run()) == MARKDOWN


def test_markdown_tells_warnings_and_failures() -> None:
    text = to_markdown(sample_run())
    assert "- **T throttled**: in train resnet50 bf16. To do: improve the cooling" in text
    assert "- **train mixtral-8x7b bf16**: out-of-memory. the device has 139.8 GiB" in text


def test_markdown_escapes_what_it_would_read() -> None:
    text = to_markdown(hostile_run())
    outside_code = re.sub(r"(?<!\\)`[^`]*`", "", text)
    assert "<script" not in outside_code and "\x1b" not in text
    table = [line for line in text.splitlines() if line.startswith("|")]
    bars = {line.replace("\\|", "").count("|") for line in table}
    assert len(bars) == 1


def test_csv_has_one_row_per_measurement_and_one_for_a_failed_case() -> None:
    run = sample_run()
    rows = rows_of(csv.render(run))
    assert len(rows) == sum(len(record.measurements) or 1 for record in run.records)
    assert (rows[-1]["outcome"], rows[-1]["metric"], rows[-1]["value"]) == ("failed", "", "")


def test_csv_of_a_literal() -> None:
    first = rows_of(csv.render(literal_run()))[0]
    assert (
        first
        | {
            "run": "20260314-092653-k7qd",
            "case": "0",
            "benchmark": "train",
            "target": "cuda:0",
            "outcome": "ok",
            "metric": "throughput",
            "unit": "images/s",
            "better": "higher",
            "statistic": "mean",
            "count": "20",
            "confidence": "0.95",
            "relative_half_width": "0.0",
            "warnings": "",
        }
        == first
    )
    assert float(first["value"]) == float(first["low"]) == pytest.approx(320)
    assert json.loads(first["parameters"])["batch_size"] == 32


def test_csv_text_is_no_formula() -> None:
    titles = [row["title"] for row in rows_of(csv.render(hostile_run()))]
    assert titles[-1].startswith("'=")


def test_jsonl_is_complete() -> None:
    run = sample_run()
    lines = [json.loads(line) for line in jsonl.render(run).splitlines()]
    assert len(lines) == 9
    assert lines[0]["run"]["environment"]["host"] == "node-07"
    back = [Record.model_validate({k: v for k, v in line.items() if k != "run"}) for line in lines]
    assert back == run.records


def test_jsonl_is_valid_where_a_loss_diverged() -> None:
    run = run_of([record(case(0, "train", "a"), [Measurement.of_value(LOSS, math.nan)])])
    (line,) = jsonl.render(run).splitlines()
    assert json.loads(line)["measurements"][0]["samples"] == [None]
    assert "NaN" not in line


def test_png_is_a_picture() -> None:
    assert to_png(literal_run()).startswith(b"\x89PNG")


def test_png_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    with refused("nothing-to-draw"):
        to_png(run_of([]))
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(MissingDependency, match=r"\.\[charts\]"):
        to_png(literal_run())


def test_csv_rows_are_in_the_order_of_the_run_with_all_that_is_told_of_them() -> None:
    cause = Cause(kind=CauseKind.TIMEOUT, message="too long")
    warnings = [RecordWarning(kind=kind, message="", remedy="") for kind in ("noisy", "short", "noisy")]
    times = Measurement.of_samples(STEP_TIME, [1.0, 2.0, 3.0, 6.0], at={"size": 3, "kind": "b"}, scope="rank 1")
    records = [
        record(case(1, "train", "b", z=1, a=2), [], outcome=Outcome.TIMEOUT, cause=cause),
        record(case(0, "train", "a"), [times, Measurement.of_value(LOSS, 2.5)], warnings=warnings),
    ]
    first, second, third = rows_of(csv.render(run_of(records)))
    assert [row["case"] for row in (first, second, third)] == ["0", "0", "1"]
    assert (first["at"], first["scope"], first["warnings"]) == ("size=3;kind=b", "rank 1", "noisy;short")
    assert (first["value"], first["median"], first["mean"], first["p50"]) == ("2.5", "2.5", "3.0", "2.5")
    assert times.interval is not None
    assert float(first["relative_half_width"]) == pytest.approx(times.interval.relative(2.5))
    assert [first["low"], first["high"]] == [str(times.interval.low), str(times.interval.high)]
    assert [second[name] for name in ("value", "low", "high", "confidence", "relative_half_width", "at")] == [
        "2.5",
        *[""] * 5,
    ]
    assert (first["cause"], first["message"]) == ("", "")
    assert (third["outcome"], third["cause"], third["message"]) == ("timeout", "timeout", "too long")
    assert third["parameters"] == '{"a": 2, "z": 1}'


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_a_text_that_a_spreadsheet_would_compute_is_marked(start: str) -> None:
    assert csv.harmless(f"{start}1") == f"'{start}1"
    assert csv.harmless(f"1{start}") == f"1{start}"


def test_numbers_below_zero_and_what_is_no_column_need_no_mark() -> None:
    assert csv.harmless(-1.5) == -1.5
    assert csv.csv_text(("a", "b"), [{"b": -1, "c": 3}, {"a": "-x"}]) == "a,b\n,-1\n'-x,\n"
