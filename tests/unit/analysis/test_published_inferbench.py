"""Serving on a GPU beside what was published: the ratio where batch and model are the same, nothing where not."""

from __future__ import annotations

from paceline.analysis.published import PublishedTable, published_rows, published_tables
from paceline.benchmarks.serving import trace_metrics
from paceline.core.metric import Metric
from paceline.core.record import Measurement, Outcome, Record
from paceline.core.subject import Subject
from support.records import case, record, run_of


def served(
    model: str, batch: int, rate: float, *, target: str = "cuda:0", wire: str | None = None, **more: Outcome
) -> Record:
    load = {"arrival": "closed", "users": 8}
    parameters = {"model": model, "precision": "bf16", "requests": {"samples": batch}, "wire": wire, "load": load}
    found = [
        # where a request is a sample, there is no rate of its own for those
        of(trace_metrics.SAMPLE_THROUGHPUT, rate) if batch > 1 else of(trace_metrics.THROUGHPUT, rate),
        of(trace_metrics.ENERGY, 0.5 * batch),
        of(trace_metrics.GPU, 61.0),
        *(of(metric, 0.0123) for metric in trace_metrics.PERCENTILES.values()),
    ]
    return record(case(0, "serve", f"{model} {batch}", target=target, **parameters), found, **more)


def of(metric: Metric, value: float) -> Measurement:
    return Measurement.of_value(metric, value)


def tables_of(*records: Record) -> tuple[PublishedTable, ...]:
    return published_tables(run_of(list(records), name="serving-batches"))


def test_the_published_rows_of_both_gpus_are_there() -> None:
    rows = published_rows("inferbench_resnet50")
    assert [int(row["batch"]) for row in rows if row["platform"] == "Tesla T4"] == [1, 2, 4, 8, 16, 32, 64, 128]
    assert {row["platform"] for row in published_rows("inferbench_platforms")} >= {"Tesla T4", "Tesla V100"}


def test_a_batch_that_was_published_has_its_ratio() -> None:
    table, platforms = tables_of(served("resnet50", 16, 4380.0))
    line = dict(zip(table.headers, table.lines[0], strict=True))
    assert line["Model"] == "resnet50 bf16"
    assert line["Samples/s"].startswith("4,380")
    assert (line["p99"], line["GPU busy"], line["J per request"], line["J per sample"]) == (
        "12.3 ms",
        "61 %",
        "8",
        "0.5",
    )
    assert line["Tesla V100"] == "438 (p95 38.3 ms, 10x)"
    assert line["Tesla T4"] == "243.6 (p95 69.5 ms, 18x)"
    assert "V100" in platforms.lines[0][0]


def test_a_request_of_one_sample_has_its_rate_and_ratio_too() -> None:
    table, _ = tables_of(served("resnet50", 1, 1992.0))
    line = dict(zip(table.headers, table.lines[0], strict=True))
    assert line["Samples/s"].startswith("1,992")
    assert line["Tesla T4"] == "66.4 (p95 19.1 ms, 30x)"


def test_what_was_not_published_stays_empty_and_batches_are_in_order() -> None:
    table, _ = tables_of(served("resnet50", 128, 9.0), served("bert-base", 16, 9.0), served("resnet50", 2, 9.0))
    assert [line[:2] for line in table.lines] == [
        ("bert-base bf16", "16"),
        ("resnet50 bf16", "2"),
        ("resnet50 bf16", "128"),
    ]
    assert table.lines[0][-2:] == ("", "")
    assert table.lines[1][-1] == ""


def test_what_did_not_travel_is_told_apart() -> None:
    table, _ = tables_of(served("resnet50", 8, 9.0, wire="kserve-shm"), served("resnet50", 128, 9.0))
    assert [line[0] for line in table.lines] == ["resnet50 bf16", "resnet50 bf16, shared memory"]
    assert "Shared memory:" in table.source
    assert "Shared memory:" not in tables_of(served("resnet50", 8, 9.0))[0].source


def test_a_processor_is_not_put_beside_a_gpu() -> None:
    assert tables_of(served("resnet50", 16, 9.0, target="cpu")) == ()


def shown(table: PublishedTable, line: int = 0) -> dict[str, str]:
    return dict(zip(table.headers, table.lines[line], strict=True))


def test_what_failed_or_was_not_served_is_not_shown() -> None:
    failed = served("resnet50", 16, 9.0, outcome=Outcome.FAILED)
    bare = served("resnet50", 16, 9.0).model_copy(update={"load": None})
    for other in (failed, bare):
        assert tables_of(other) == ()
        assert tables_of(other, served("resnet50", 8, 9.0)) == tables_of(served("resnet50", 8, 9.0))
    assert len(tables_of(served("resnet50", 8, 9.0, target="cpu"), served("resnet50", 8, 9.0))[0].lines) == 1


def test_a_request_of_two_samples_is_rated_by_its_samples() -> None:
    table, platforms = tables_of(served("resnet50", 2, 244.2))
    assert shown(table)["Samples/s"] == "244.2"
    assert (shown(table)["Tesla T4"], shown(table)["Tesla V100"]) == ("122.1 (2x)", "")
    assert (table.named, platforms.named) == (2, 2)
    assert (shown(table)["p50"], shown(table)["p95"]) == ("12.3 ms", "12.3 ms")


def test_what_was_not_measured_is_empty_beside_what_was_published() -> None:
    bare = [served("resnet50", batch, 9.0).model_copy(update={"measurements": []}) for batch in (2, 16)]
    table, _ = tables_of(*bare)
    assert table.lines[0] == ("resnet50 bf16", "2", "", "", "", "", "", "", "", "122.1", "")
    assert table.lines[1][2:] == ("", "", "", "", "", "", "", "243.6 (p95 69.5 ms)", "438 (p95 38.3 ms)")


def test_a_model_without_a_name_or_a_precision_comes_first() -> None:
    nameless = served("resnet50", 16, 9.0).model_copy(update={"subject": Subject()})
    plain = served("resnet50", 16, 9.0).model_copy(update={"subject": Subject(model="resnet50")})
    table, _ = tables_of(plain, nameless)
    assert [line[0] for line in table.lines] == ["", "resnet50"]
    assert [line[-1] for line in table.lines] == ["", "438 (p95 38.3 ms, 0.0205x)"]
