"""A store that Paceline 0.1.0 wrote, one case of everything, is read after its migration with the same figures."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.core.case import current_names
from paceline.core.run import RunRecords
from paceline.report.export import EXPORTS
from paceline.report.run.document import to_markdown
from paceline.store import open_store
from support.postgres import PostgresServer

DATA = Path(__file__).parents[2] / "data" / "stores"
NEW_FIELDS = {"primary", "subject", "work", "counts_work", "ceilings", "aliases", "load", "economy", "trace", "timing"}
NEW_FIELDS |= {"pace", "fingerprint"}


def kept(name: str) -> str:
    """What version 0.1.0 wrote; what it called a doubt is a warning now, in every export."""
    text = gzip.decompress((DATA / f"every.{name}.gz").read_bytes()).decode()
    return text if name == "sql" else text.replace("doubts", "warnings").replace("Doubts", "Warnings")


@pytest.fixture(scope="module")
def of_file(tmp_path_factory: pytest.TempPathFactory) -> RunRecords:
    path = tmp_path_factory.mktemp("store") / "store.db"
    path.write_bytes(gzip.decompress((DATA / "every.db.gz").read_bytes()))
    with open_store(path) as store:
        return store.load(store.find_run("last"))


@pytest.fixture(scope="module")
def of_server(postgres: PostgresServer) -> RunRecords:
    url = postgres.new_database()
    plain = url.replace("postgresql+psycopg://", "postgresql://")
    subprocess.run(["psql", "-q", "-v", "ON_ERROR_STOP=1", plain], input=kept("sql"), text=True, check=True)
    with open_store(url) as store:
        return store.load(store.find_run("last"))


def test_both_databases_give_the_same_records(of_file: RunRecords, of_server: RunRecords) -> None:
    assert of_server == of_file


def test_every_record_says_what_it_is(of_file: RunRecords) -> None:
    assert len(of_file.records) == 37
    assert [record.case.title for record in of_file.records if not record.is_described] == []
    assert not any("not_described_because" in record.facts for record in of_file.records)


def test_text_exports_are_unchanged(of_file: RunRecords) -> None:
    assert rendered(of_file, "mlperf") == kept("mlperf")
    # The run's info is a gauge since: other readers refused its type. Its sample is the same, and so are all others.
    head, _, values = kept("openmetrics").partition("paceline_run_info{")
    assert [line.split()[1:3] for line in head.splitlines()] == [["TYPE", "paceline_run"], ["HELP", "paceline_run"]]
    info, _, rest = values.partition("} 1\n")
    assert rendered(of_file, "openmetrics").partition("paceline_run_info{")[2] == f"{info}}} 1.0\n{rest}"
    before, after = (list(csv.DictReader(io.StringIO(text))) for text in (kept("csv"), rendered(of_file, "csv")))
    for old, new in zip(before, after, strict=True):
        named = current_names(old["benchmark"], json.loads(old.pop("parameters")))
        assert json.loads(new.pop("parameters")) == named
        assert new == old


def rendered(records: RunRecords, name: str) -> str:
    text = EXPORTS.get(name).render(records)
    return text if isinstance(text, str) else text.decode()


def test_the_page_in_markdown_has_every_case_with_the_same_figure(of_file: RunRecords) -> None:
    figures = re.compile(r"^\| ([^|]+?) +\| +([\d.,]+ \S+) +\|", flags=re.MULTILINE)
    before, after = set(figures.findall(kept("md"))), set(figures.findall(to_markdown(of_file)))
    assert len(before) > 10
    missing = {figure for _, figure in before} - {figure for _, figure in after}
    assert not missing


def test_superbench_has_the_same_keys_and_figures(of_file: RunRecords) -> None:
    assert json.loads(EXPORTS.get("superbench").render(of_file)) == json.loads(kept("superbench"))


def test_json_lines_have_more_fields_and_the_same_in_the_old_ones(of_file: RunRecords) -> None:
    before = [json.loads(line) for line in kept("jsonl").splitlines()]
    after = [json.loads(line) for line in str(EXPORTS.get("jsonl").render(of_file)).splitlines()]
    for old, new in zip(before, after, strict=True):
        assert new.keys() - old.keys() == NEW_FIELDS
        assert new["case"].pop("expected") is None
        assert new["case"].pop("position") is None
        assert [new["case"].pop(f"{name}_limit") for name in ("memory", "power", "clock")] == [None, None, None]
        assert [new["case"].pop(name) for name in ("sends", "env", "superbench", "at_once")] == ["", {}, "", False]
        old["case"]["parameters"] = current_names(old["case"]["benchmark"], old["case"]["parameters"])
        assert {name: new[name] for name in old if name != "run"} == {name: old[name] for name in old if name != "run"}


def test_pytest_benchmark_differs_in_how_timers_are_joined(of_file: RunRecords) -> None:
    def without_timer(text: str | bytes) -> Any:
        document = json.loads(text)
        for benchmark in document["benchmarks"]:
            benchmark["options"].pop("timer")
            benchmark["params"] = current_names(benchmark["group"], benchmark["params"])
        document.pop("datetime", None)
        return document

    assert without_timer(EXPORTS.get("pytest-benchmark").render(of_file)) == without_timer(kept("pytest-benchmark"))


@pytest.mark.parametrize(
    ("of", "wanted"),
    [
        (lambda record: record.work is not None, {"gemm", "matmul", "stream", "train", "inference", "parallel"}),
        (lambda record: record.load is not None, {"serve"}),
    ],
)
def test_what_could_be_counted_was(of_file: RunRecords, of: Callable[[Any], bool], wanted: set[str]) -> None:
    assert {record.case.benchmark for record in of_file.records if of(record)} == wanted
