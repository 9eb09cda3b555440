"""Compiled templates are kept for the next page, and a page never fails for want of a place for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.report.render import html


@pytest.fixture(autouse=True)
def _fresh_templates() -> None:
    html.page_templates.cache_clear()


def test_compiled_templates_are_kept_for_this_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    html.page_templates().get_template("report.css")
    folder = tmp_path / "paceline/templates"
    assert folder.stat().st_mode & 0o077 == 0
    assert list(folder.iterdir())


def test_a_page_needs_no_place_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert html.page_templates().get_template("report.css").render()


def test_a_place_that_went_away_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    templates = html.page_templates()
    (tmp_path / "paceline/templates").rmdir()
    assert templates.get_template("report.css").render()


def test_damaged_files_are_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before = html.page_templates().get_template("report.css").render()
    for path in (tmp_path / "paceline/templates").iterdir():
        path.write_bytes(path.read_bytes()[:-20])
    html.page_templates.cache_clear()
    assert html.page_templates().get_template("report.css").render() == before
