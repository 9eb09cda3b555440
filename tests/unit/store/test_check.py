"""Damage is named, with the runs and cases that it has cost, and the rest is saved."""

from __future__ import annotations

import random
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from paceline.core.errors import StoreError
from paceline.store import open_store
from paceline.store.backup import back_up
from paceline.store.check import Findings, check
from paceline.store.location import locate
from paceline.store.store import Store
from support.postgres import PostgresServer
from support.refused import refused
from support.store_samples import a_record, a_run

RUNS, CASES = 4, 6
PAGE = 4096


def fill(store: Store) -> None:
    for number in range(RUNS):
        store.begin(a_run(f"run-{number}", cases=CASES))
        for index in range(CASES):
            store.add(a_record(f"run-{number}", index, count=300))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "paceline.db"
    with open_store(path) as store:
        fill(store)
        back_up(store, path.with_name("one-file.db"))
    return path.with_name("one-file.db")


def saved_records(path: Path) -> dict[tuple[str, int], bool]:
    """The records of a store, and whether each is as it was written."""
    with open_store(path) as store:
        loaded = [store.load(row.id) for row in store.runs(limit=None)]
    return {
        (record.run_id, record.case.index): record == a_record(record.run_id, record.case.index, count=300)
        for one in loaded
        for record in one.records
    }


def test_a_whole_store_is_whole_and_can_be_saved(store: Store, tmp_path: Path) -> None:
    fill(store)
    found = check(locate(store.location.url or str(store.location.path)), tmp_path / "saved.db")
    assert found == Findings(runs=RUNS, records=RUNS * CASES)
    assert all(saved_records(tmp_path / "saved.db").values())


def checked(path: Path) -> tuple[Findings, dict[tuple[str, int], bool]]:
    """What a damaged file is found to have, and what was saved of it."""
    saved = path.with_suffix(".saved")
    found = check(locate(path), saved)
    return found, saved_records(saved)


def assert_named(found: Findings, left: dict[tuple[str, int], bool]) -> None:
    """Whatever is not saved as it was is named."""
    everything = {(f"run-{number}", index) for number in range(RUNS) for index in range(CASES)}
    for run_id, index in everything - {key for key, is_same in left.items() if is_same}:
        named = [
            rf"run '{run_id}'(:|$)",
            rf"run '{run_id}', case {index}\b",
            r"(up to \d+|all) rows of",
            "of a lost record",
        ]
        assert any(re.search(words, line) for words in named for line in found.lost), (run_id, index, found)


def zero(path: Path, page: int) -> None:
    with path.open("r+b") as file:
        file.seek(page * PAGE)
        file.write(bytes(PAGE))


def assert_rest_is_saved(whole: Path, folder: Path, step: int) -> None:
    """Without every so-many-th page in turn; but not without the first, which says what the file is."""
    pages = range(1, whole.stat().st_size // PAGE, step)
    saved = 0
    for page in pages:
        path = folder / f"{page}.db"
        shutil.copy(whole, path)
        zero(path, page)
        found, left = checked(path)
        assert_named(found, left)
        saved += sum(left.values())
    print(f"{len(pages)} pages zeroed in turn: {saved / len(pages):.1f} of {RUNS * CASES} records saved on average")
    assert saved > 0.6 * RUNS * CASES * len(pages)


def test_a_page_that_is_gone_costs_what_was_on_it_and_that_is_named(whole: Path, tmp_path: Path) -> None:
    assert_rest_is_saved(whole, tmp_path, step=16)


@pytest.mark.long
def test_any_page_that_is_gone_costs_what_was_on_it_and_that_is_named(whole: Path, tmp_path: Path) -> None:
    assert_rest_is_saved(whole, tmp_path, step=1)


@pytest.mark.long
def test_flipped_bits_anywhere_are_survived(whole: Path, tmp_path: Path) -> None:
    chance = random.Random(5)
    for number in range(300):
        path = tmp_path / f"{number}.db"
        data = bytearray(whole.read_bytes())
        for _ in range(chance.choice((1, 4, 40))):
            data[chance.randrange(100, len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        found, left = checked(path)
        assert_named(found, dict.fromkeys(left, True))  # there are no checksums: a changed value may go unnoticed
        path.unlink()


def test_a_record_under_the_number_of_another_case_is_found(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "renumbered.db"
    shutil.copy(whole, path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE records SET case_index = 77 WHERE run_id = 'run-1' AND case_index = 0")
    connection.close()
    found, _ = checked(path)
    assert [line.partition(": ")[0] for line in found.lost] == [
        "run 'run-1', case 0, attempt 1",
        "run 'run-1', case 77, attempt 1",
    ]


def test_documents_and_samples_that_are_not_what_was_written_are_found(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "flipped.db"
    shutil.copy(whole, path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE runs SET environment = '{\"cpu\": ' WHERE id = 'run-1'")
        connection.execute("UPDATE records SET facts = substr(facts, 3) WHERE run_id = 'run-2' AND case_index = 3")
        record = "(SELECT id FROM records WHERE run_id = 'run-3' AND case_index = 4)"
        flipped = "UPDATE measurements SET samples = zeroblob(length(samples)) WHERE position = 0 AND record_id = "
        connection.execute(flipped + record)
    connection.close()
    found, left = checked(path)
    assert found.damage == []
    assert [line.partition(": ")[0] for line in found.lost] == [
        "run 'run-1'",
        "run 'run-2', case 3, attempt 1",
        "run 'run-3', case 4, attempt 1",
    ]
    assert "the samples of step_time do not give its summary" in found.lost[2]
    assert (found.runs, found.records) == (RUNS - 1, (RUNS - 1) * CASES - 2)
    assert len(left) == found.records
    assert all(left.values())


def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    with refused("missing-store"):
        check(locate(tmp_path / "typo.db"))
    (tmp_path / "text.db").write_text("text " * 1000)
    found = check(locate(tmp_path / "text.db"))
    assert found.damage[0] == "file is not a database"
    assert (found.runs, found.records) == (0, 0)


def test_a_store_that_somebody_has_locked_is_not_called_damaged(whole: Path, tmp_path: Path) -> None:
    path = shutil.copy(whole, tmp_path / "locked.db")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreError, match=r"could not check in the store .*locked; another process keeps it locked"):
            check(locate(path))
    assert check(locate(path)).is_whole


def test_a_damaged_block_of_a_server_costs_its_rows(postgres: PostgresServer, tmp_path: Path) -> None:
    import psycopg

    url = postgres.new_database()
    with open_store(url) as store:
        fill(store)
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT current_setting('data_directory'), pg_relation_filepath('records')").fetchone()
        connection.execute("CHECKPOINT")
    assert row is not None
    postgres.stop()
    with (Path(row[0]) / row[1]).open("r+b") as file:
        file.write(b"\xff" * 64)
    postgres.start()
    found = check(locate(url), tmp_path / "saved.db")
    assert "records" in found.damage[0]
    assert any("rows of records" in line for line in found.lost)
    left = saved_records(tmp_path / "saved.db")
    assert all(left.values())
    assert len(left) == found.records < RUNS * CASES
    assert found.runs == RUNS
