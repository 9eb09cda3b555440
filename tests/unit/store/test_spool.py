"""The file of records that the database could not take, byte by byte."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from paceline.core.errors import StoreError
from paceline.core.record import Record
from paceline.store import open_store, spool
from paceline.store.codec import to_line
from paceline.store.store import Store
from support.store_samples import a_record, a_run

LINE = to_line(a_record()).encode() + b"\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"", LINE),
        (LINE, LINE + LINE),
        (b"x", b"x\n" + LINE),  # half a line of a process that died
        (b"\n", b"\n" + LINE),
        (LINE[:-1], LINE + LINE),
    ],
)
def test_a_record_is_appended_as_a_line(tmp_path: Path, before: bytes, after: bytes) -> None:
    path = tmp_path / "some.jsonl"
    path.write_bytes(before)
    assert spool.keep(a_record(), [path]) == path
    assert path.read_bytes() == after


def test_a_spool_is_made_where_there_is_no_folder_yet_and_for_its_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "some.jsonl"
    spool.keep(a_record(), [path])
    assert path.read_bytes() == LINE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_record_that_is_written_in_pieces_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pwrite

    def piece(descriptor: int, data: bytes, offset: int) -> int:
        return whole(descriptor, data[:100], offset)

    monkeypatch.setattr("os.pwrite", piece)
    for _ in range(2):
        spool.keep(a_record(), [tmp_path / "some.jsonl"])
    assert (tmp_path / "some.jsonl").read_bytes() == LINE + LINE


def test_a_line_that_is_no_record_is_refused_by_its_first_fault(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    path.write_bytes(b'\n{"run_id": "run-1"}\n\n')
    taken, refusals = spool.import_records(path, lambda _: None)
    assert taken == 0
    assert refusals == [f"{path}, line 1: it is not a spooled record: 'case': Field required"]


def test_a_spool_of_which_nothing_was_taken_stays_the_same_file(tmp_path: Path) -> None:
    def refuse(_: Record) -> None:
        raise StoreError("not now")

    path = tmp_path / "some.jsonl"
    path.write_bytes(LINE + LINE)
    before = path.stat().st_ino
    assert spool.import_records(path, refuse) == (0, [f"{path}, line {number}: not now" for number in (1, 2)])
    assert (path.stat().st_ino, path.read_bytes()) == (before, LINE + LINE)


def test_what_was_taken_is_gone_and_the_rest_stays(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    path.write_bytes(LINE + b"{}\n" + LINE)
    taken: list[Record] = []
    assert spool.import_records(path, taken.append)[0] == len(taken) == 2
    assert path.read_bytes() == b"{}\n"
    path.write_bytes(LINE)
    assert spool.import_records(path, taken.append) == (1, [])
    assert not path.exists()


def test_only_a_plain_file_of_this_user_is_trusted(tmp_path: Path) -> None:
    path, link = tmp_path / "some.jsonl", tmp_path / "link.jsonl"
    assert not spool.is_ours(path)
    path.touch()
    link.symlink_to(path)
    assert [spool.is_ours(one) for one in (path, link, tmp_path)] == [True, False, False]


def test_a_record_of_an_earlier_version_is_described_when_it_is_imported(tmp_path: Path) -> None:
    with open_store(tmp_path / "paceline.db") as store:
        store.begin(a_run())
        path = spool.keep(a_record(primary=""), [tmp_path / "some.jsonl"])
        assert store.import_spool(path) == (1, [])
        assert loaded_primary(store) == "compute_rate"


def loaded_primary(store: Store) -> str:
    (record,) = store.load("run-1").records
    return record.primary
