"""Where a user's files belong, and files that are written whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.core.files import data_directory, write_atomic


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
