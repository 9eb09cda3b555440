"""A section of a run's report from outside: one file, and it is on the terminal, in Markdown and on the page."""

from __future__ import annotations

import html
import io
from pathlib import Path

import pytest
from rich.console import Console

from paceline.core import registry
from paceline.report.run.document import show, to_html, to_markdown
from paceline.report.run.sections import REPORT_SECTIONS
from support.records import literal_run, sample_run

PLUGIN = """
from paceline.report.document import Lines, Section, Table
from paceline.report.run.sections import ReportSection


def build(summary):
    table = Table.of_lines(("Case", "Seconds"), [(row.label, f"{row.record.seconds:g}") for row in summary.rows], 1)
    return Section("How long each took", (Lines((f"{len(summary.rows)} cases <b>",)), table), key="took")


TOOK = ReportSection("took", 15, build)
NOTHING = ReportSection("nothing", 16, lambda summary: None)
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "took_plugin.py").write_text(PLUGIN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "providers", lambda: (registry.BUILTIN, "took_plugin"))


@pytest.mark.usefixtures("plugin")
def test_a_section_of_a_third_party_is_in_every_form_of_the_report() -> None:
    file = io.StringIO()
    show(literal_run(), Console(file=file, width=100, highlight=False))
    assert "How long each took\n  2 cases <b>\nCase " in file.getvalue()
    text = to_markdown(literal_run())
    assert "## How long each took\n\n- 2 cases &lt;b&gt;\n\n| Case | Seconds |\n|---|---:|\n" in text
    page = to_html(literal_run())
    assert page.count('<h2 id="took">How long each took</h2>') == 1
    assert "<li>2 cases &lt;b&gt;</li>" in page


def test_our_own_sections_use_the_same_hook() -> None:
    found = REPORT_SECTIONS.registry()
    assert not found.broken
    ordered = sorted(found.entries.values(), key=lambda one: one.order)
    assert [one.name for one in ordered] == [
        "roofline",
        "traces",
        "budgets",
        "scaling",
        "heatmaps",
        "energy",
        "published",
    ]


BROKEN = """
from paceline.report.run.sections import ReportSection


def build(summary):
    raise ValueError("no <figures>")


BROKEN = ReportSection("broken-plugin", 15, build)
"""


def test_a_section_that_fails_is_one_line_of_an_otherwise_whole_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_plugin.py").write_text(BROKEN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "providers", lambda: (registry.BUILTIN, "broken_plugin"))
    message = "The report section 'broken-plugin' could not be built: ValueError: no <figures>"
    file = io.StringIO()
    show(sample_run(), Console(file=file, width=100, highlight=False))
    assert message in file.getvalue().splitlines()
    assert "Did not succeed" in file.getvalue()
    assert f"\n\n- {html.escape(message, quote=False)}\n\n## Scaling" in to_markdown(sample_run())
    page = to_html(sample_run())
    assert page.index("The report section") < page.index('id="scaling"')
    assert "ValueError: no &lt;figures&gt;" in page
