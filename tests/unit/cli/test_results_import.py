"""`paceline results --import` with files of pyperf, that are no spool, or hold only some records that can be taken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from paceline.cli.results import command as results
from paceline.core.errors import InputError
from paceline.report.export import jsonl
from paceline.store import open_store, spool
from support.store_samples import a_record, a_store


@pytest.fixture
def store(tmp_path: Path) -> str:
    return str(a_store(tmp_path / "results.db"))


def take(store: str, path: Path) -> Result:
    return CliRunner().invoke(results, ["--store", store, "--import", str(path)])


@pytest.mark.parametrize(
    "content",
    [b"nonsense\n", b'{"a": 1}\n' * 9, b"\xff\xfe\n" * 9, b"[" * 100_000 + b"\n", b"[" * 500 + b"]" * 500 + b"\n"],
    ids=["text", "json", "binary", "very deep", "deep"],
)
def test_a_file_of_which_nothing_can_be_taken_is_refused_in_one_line_and_left_alone(
    store: str, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "other.jsonl"
    path.write_bytes(content)
    done = take(store, path)
    assert isinstance(done.exception, InputError)
    said = str(done.exception)
    assert said.startswith(f"no record could be imported: {path}, line 1: it is not a spooled record: ")
    assert len(said.splitlines()) == 1
    assert ("; 6 more lines" in said) == (content.count(b"\n") == 9)
    assert path.read_bytes() == content


def test_an_export_is_no_spool(store: str, tmp_path: Path) -> None:
    path = tmp_path / "export.jsonl"
    with open_store(store) as opened:
        path.write_text(jsonl.render(opened.load("run-1")))
    assert "it is not a spooled record: 'run'" in str(take(store, path).exception)


def test_what_stays_in_the_file_is_told_and_shows_in_the_exit_code(store: str, tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    spool.keep(a_record(index=1), [path])
    with path.open("a") as file:
        file.write("half a li")
    done = take(store, path)
    assert done.exit_code == 1
    assert "1 records imported" in done.output
    assert f"not imported: {path}, line 2: it is not a spooled record" in done.output
    assert "2 of 2" in done.output  # the list of runs comes all the same
    assert path.read_text() == "half a li\n"


def pyperf_file(path: Path, *values: object) -> Path:
    runs = [{"values": list(values), "metadata": {"date": "2026-03-14 09:26:53"}}]
    benchmark = {"metadata": {"name": "sort", "unit": "second"}, "runs": runs}
    path.write_text(json.dumps({"version": "1.0", "benchmarks": [benchmark]}))
    return path


def test_a_file_of_pyperf_becomes_a_run_once_and_stays_where_it_is(store: str, tmp_path: Path) -> None:
    path = pyperf_file(tmp_path / "bench.json", 0.1, 0.3)
    done = take(store, path)
    assert done.exit_code == 0
    assert "1 records of pyperf imported as run 20260314-092653-" in done.output
    with open_store(store) as opened:
        loaded = opened.load(opened.find_run("20260314-092653"))
    assert loaded.run.status == "finished"
    assert loaded.records[0].measurements[0].samples == [0.1, 0.3]
    assert loaded.all_ok
    again = take(store, path).exception
    assert isinstance(again, InputError) and again.code == "imported-already"
    assert path.exists()


def test_a_file_of_pyperf_with_a_wrong_value_is_refused_and_nothing_is_stored(store: str, tmp_path: Path) -> None:
    refused = take(store, pyperf_file(tmp_path / "bench.json", 0.1, -1)).exception
    assert isinstance(refused, InputError) and refused.code == "not-a-pyperf-file"
    with open_store(store) as opened:
        assert [row.id for row in opened.runs(limit=None)] == ["run-1"]
