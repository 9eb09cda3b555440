"""Where a user's files belong, and files that are written whole."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from paceline.core.files import data_directory, read_text, write_atomic


@pytest.mark.parametrize(
    ("data_home", "expected"),
    [("/data", Path("/data/paceline")), ("relative", Path("/home/somebody/.local/share/paceline"))],
)
def test_the_data_directory_follows_the_specification(
    data_home: str, expected: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", data_home)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert data_directory() == expected


def test_a_failed_write_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_atomic(tmp_path / "profile.json", "old")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_one_and_what_it_names_is_written(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    link = tmp_path / "latest.html"
    link.symlink_to("kept/report.html")
    for content in ("first", "second"):  # a link to nothing yet, then one to a file
        assert write_atomic(link, content) == link
        assert link.is_symlink()
        assert (tmp_path / "kept" / "report.html").read_text() == content


def test_what_is_no_file_is_written_to_and_never_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_atomic(pipe, "through")
    reader.join()
    assert (read, pipe.is_fifo()) == (["through"], True)


@pytest.mark.parametrize("folder", [".", "..", ""])
def test_a_folder_is_refused_as_the_system_refuses_it(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(IsADirectoryError):
        write_atomic(folder, "text")


def test_a_mark_of_the_byte_order_is_no_part_of_a_text(tmp_path: Path) -> None:
    path = tmp_path / "written-on-windows.json"
    path.write_text("{}", encoding="utf-8-sig")
    assert read_text(path) == "{}"
