"""A store with flipped bits: what can be read is read, and everything else is one clear message."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from paceline.core.errors import PacelineError, StoreError
from paceline.core.run import RunRecords
from paceline.store import codec, open_reader, open_store
from paceline.store.reader import Reader
from support.store_samples import a_failed_record, a_record, a_run

DAMAGE = {
    "a document that is not JSON": "UPDATE records SET facts = '{\"a\": ' WHERE case_index = 0",
    "a document of another shape": "UPDATE records SET warnings = '[{\"kinD\": 1}]' WHERE case_index = 0",
    "a summary that is read late": "UPDATE measurements SET summary = '{\"count\": 5,,'",
    "text that is not UTF-8": "UPDATE records SET \"case\" = CAST(x'7bff7d' AS TEXT) WHERE case_index = 0",
    "a time that is none": "UPDATE records SET started_at = '2024-02-29 23:59:5\x19' WHERE case_index = 0",
    "an outcome that is none": "UPDATE records SET outcome = 'oj' WHERE case_index = 0",
    "samples that are cut off": "UPDATE measurements SET samples = x'00112233'",
    "a status that is none": "UPDATE runs SET status = 'runnilg'",
    "an environment that is none": "UPDATE runs SET environment = '[1]'",
}


def use(records: RunRecords) -> None:
    """Read also what is read late."""
    for record in records.records:
        for measurement in record.measurements:
            assert measurement.summary.count >= 0
            assert measurement.samples is not None


def a_file(path: Path) -> Path:
    with open_store(path) as store:
        store.begin(a_run())
        store.add(a_record())
        store.add(a_failed_record(index=1))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


@pytest.fixture(params=[open_reader, open_store], ids=["reader", "store"])
def opening(request: pytest.FixtureRequest) -> Callable[[Path], Reader]:
    opener: Callable[[Path], Reader] = request.param
    return opener


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damage_is_one_clear_message(tmp_path: Path, opening: Callable[[Path], Reader], damage: str) -> None:
    path = a_file(tmp_path / "store.db")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(damage)
    with opening(path) as store, pytest.raises(StoreError, match=r"restore a backup, or save what is left"):
        use(store.load("run-1"))


def read_flipped(whole: bytes, path: Path, opening: Callable[[Path], Reader], rng: random.Random) -> None:
    """Read a store with one to three flipped bits in every way that there is."""
    data = bytearray(whole)
    for _ in range(rng.choice((1, 1, 3))):
        bit = rng.randrange(len(data) * 8)
        data[bit // 8] ^= 1 << bit % 8
    for beside in path.parent.glob("flipped.db*"):
        beside.unlink()
    path.write_bytes(data)
    codec.metric.cache_clear()
    codec.case.cache_clear()
    reads: list[Callable[[Reader], object]] = [
        lambda store: use(store.load("run-1")),
        lambda store: store.runs(),
        lambda store: [use(records) for records in store.history("step_time")],
        lambda store: store.find_runs("last"),
    ]
    for read in reads:
        try:
            with opening(path) as store:
                read(store)
        except PacelineError as error:
            assert len(str(error)) < 2000
            assert "\n" not in str(error)


def test_flipped_bits_are_never_a_raw_exception(tmp_path: Path, opening: Callable[[Path], Reader]) -> None:
    whole, rng = a_file(tmp_path / "store.db").read_bytes(), random.Random(21)
    for _ in range(60):
        read_flipped(whole, tmp_path / "flipped.db", opening, rng)


@pytest.mark.long
def test_many_flipped_bits_are_never_a_raw_exception(tmp_path: Path, opening: Callable[[Path], Reader]) -> None:
    whole, rng = a_file(tmp_path / "store.db").read_bytes(), random.Random(2121)
    for _ in range(1000):
        read_flipped(whole, tmp_path / "flipped.db", opening, rng)
