"""`paceline.compare` and `paceline.diagnose`, over runs with planted changes."""

from __future__ import annotations

from pathlib import Path

import pytest

import paceline
from paceline.core.metric import Better, Metric
from paceline.core.record import Measurement
from paceline.store import open_store
from support.compare_records import before_and_after
from support.records import case, record, run_of
from support.refused import refused

BEFORE, AFTER = ([paceline.Result(run) for run in runs] for runs in before_and_after())
RATE = Metric(name="compute_rate", unit="FLOP/s", better=Better.HIGHER)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "results.db"
    with open_store(path) as opened:
        for results, tag in ((BEFORE, "main"), (AFTER, "branch")):
            for result in results:
                opened.begin(result.records.run.model_copy(update={"tags": [tag]}))
                for one in result.records.records:
                    opened.add(one)
                opened.finish(result.run_id)
    return path


def test_results_that_count_as_one_side() -> None:
    comparison = paceline.compare(BEFORE, AFTER)
    assert {row.label.split()[1] for row in comparison.changed} == {"bert-large", "vit-base"}
    assert [row.label.split()[1] for row in comparison.worse] == ["bert-large"]
    assert comparison.verdict.startswith("1 of 5 worse (train bert-large bf16, slower by 4.")
    assert repr(comparison) == comparison.verdict
    assert comparison.verdicts["train bert-large bf16, throughput"].startswith("slower by 4.")


def test_tags_and_ids_of_a_store_say_the_same(store: Path) -> None:
    by_tag = paceline.compare("main", "branch", store=store)
    assert by_tag.verdict == paceline.compare(BEFORE, AFTER).verdict
    alone = paceline.compare(BEFORE[0].run_id, AFTER[0], store=store)
    assert len(alone.rows) == 5


def test_undecided_is_not_changed_and_says_what_would_decide_it() -> None:
    comparison = paceline.compare(BEFORE[0], AFTER[0])
    assert not comparison.changed
    assert "repeat with at least 3" in comparison.verdicts["train bert-large bf16, throughput"]


def test_other_metrics() -> None:
    assert {row.metric.name for row in paceline.compare(BEFORE, AFTER, metrics="step_time").rows} == {"step_time"}
    every = paceline.compare(BEFORE, AFTER, all_metrics=True)
    assert {row.metric.name for row in every.rows} == {"step_time", "throughput"}


def test_a_notebook_and_files_show_it(tmp_path: Path) -> None:
    comparison = paceline.compare(BEFORE, AFTER)
    page = comparison._repr_html_()
    assert "bert-large" in page
    assert "<table>" in page
    assert "<html" not in page
    assert "bert-large" in comparison.report(tmp_path / "compare.html").read_text()
    assert comparison.report(tmp_path / "compare.md").is_file()
    with refused("unknown-format"):
        comparison.report(tmp_path / "compare.doc")


def test_a_data_frame(tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="install it with: pip install pandas")
    frame = paceline.compare(BEFORE, AFTER).to_dataframe()
    assert list(frame["verdict"]).count("worse") == 1
    assert {"ratio", "low", "high", "sentence"} <= set(frame.columns)


def test_what_is_not_a_side_is_refused(store: Path) -> None:
    with refused("one-side"):
        paceline.compare("main", store=store)
    with refused("not-a-side", value="int"):
        paceline.compare(BEFORE, [3])  # type: ignore[list-item]
    with refused("not-a-side", value="an empty list"):
        paceline.compare(BEFORE, [])
    with refused("unknown-run", suggestion="main"):
        paceline.compare("mian", "branch", store=store)


def of_host(host: str, rate: float) -> paceline.Result:
    measured = record(case(0, "gemm", "fp32 4096", precision="fp32", size=4096), [Measurement.of_value(RATE, rate)])
    made = run_of([measured], environment={"host": host})
    made.run.id = f"20260314-000000-{host}"
    made.records[0].run_id = made.run.id
    return paceline.Result(made)


def test_a_node_that_is_slower_than_the_others_is_defective() -> None:
    fleet = [of_host(f"n{number}", 1e12 + number * 1e8) for number in range(8)]
    diagnosis = paceline.diagnose(*fleet, of_host("slow", 5e11))
    assert diagnosis.defective == ("slow",)
    assert "slow" in repr(diagnosis)
    assert "slow" in diagnosis._repr_html_()
    assert paceline.diagnose(fleet).defective == ()
    with refused("one-node-alone"):
        paceline.diagnose(fleet[0])
