"""The report as Markdown, for issues, pull requests and notes."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from paceline.analysis.roofline import KnownCeilings
from paceline.analysis.summary import CaseRow, RunSummary, summarize_run
from paceline.core.run import RunRecords
from paceline.report.render.markdown import escape, section_parts
from paceline.report.run.columns import Section, sections
from paceline.report.run.section import report_sections
from paceline.report.run.sweeps import SweepTable, cold_start_table, stage_table, sweep_tables
from paceline.report.run.words import answer
from paceline.report.text import clean, when


def render(records: RunRecords, *, ceilings: KnownCeilings | None = None) -> str:
    """The whole text; `ceilings` are what is known of the machine beside the run."""
    summary = summarize_run(records, ceilings)
    run = records.run
    parts = [f"# {escape(run.name)}", f"**{escape(answer(summary))}**"]
    for section in sections(summary):
        parts += [f"## {escape(section.title)}"] if section.title else []
        parts += [escape(section.shared)] if section.shared else []
        parts.append(_cases(section))
        parts += [part for row in section.rows for part in _sweeps(row)]
        parts += [part for table in (stage_table(section.rows), cold_start_table(section.rows)) if table
                  for part in (f"**{escape(table.title)}**", _points(table))]  # fmt: skip
    parts += [part for section in report_sections(summary) for part in section_parts(section)]
    if summary.warnings:
        lines = [
            f"- **{kind.mark}** {escape(kind.kind)}, of {escape(', '.join(kind.labels))}: "
            + escape("; or ".join(kind.remedies))
            for kind in summary.warnings
        ]
        parts += ["## Warnings, and what to do", "\n".join(lines)]
    if summary.failed or summary.not_run:
        parts += ["## Did not succeed", "\n".join(_failures(summary))]
    if summary.impossible:
        parts += ["## Not possible here", "\n".join(_cause(row) for row in summary.impossible)]
    where = f"on {escape(run.environment.host_name)}, {when(run.started_at)}, Paceline {escape(run.version)}"
    made = f"Run `{_code(run.id)}` {where}"
    parts.append(made + (f": `{_code(shlex.join(run.command))}`" if run.command else ""))
    return "\n\n".join(parts) + "\n"


def _code(text: str) -> str:
    return clean(text).replace("`", "'").replace("\n", " ")


def _cases(section: Section) -> str:
    columns = section.columns
    lines = [[column.cells[index].text for column in columns] for index in range(len(section.rows))]
    return _table([column.header for column in columns], [column.numeric for column in columns], lines)


def _sweeps(row: CaseRow) -> list[str]:
    parts = []
    for table in sweep_tables(row):
        parts += [f"**{escape(row.label)}**, {escape(table.title[:1].lower() + table.title[1:])}"]
        parts.append(_points(table))
    return parts


def _points(table: SweepTable) -> str:
    return _table(table.headers, [place >= table.named for place in range(len(table.headers))], table.lines)


def _table(headers: Sequence[str], numeric: Sequence[bool], lines: Sequence[Sequence[str]]) -> str:
    ruler = "|" + "|".join("---:" if is_number else "---" for is_number in numeric) + "|"
    return "\n".join([_line(headers), ruler, *(_line(line) for line in lines)])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(escape(cell) for cell in cells) + " |"


def _failures(summary: RunSummary) -> list[str]:
    lines = [_cause(row) for row in summary.failed]
    return lines + [f"- **{escape(case.title or case.benchmark)}**: not run." for case in summary.not_run]


def _cause(row: CaseRow) -> str:
    cause = row.cause.message if row.cause else "no cause was recorded"
    todo = f" To do: {escape(row.remedy)}." if row.remedy else ""
    ended = f" {row.outcome.value}." if row.failed else ""
    return f"- **{escape(row.label)}**:{ended} {escape(cause)}.{todo}"
