"""The report as Markdown, for issues, pull requests and notes."""

from __future__ import annotations

import html
import re
import shlex
from collections.abc import Mapping

from paceline.analysis.summary import RunSummary, summarize_run
from paceline.core.run import RunRecords
from paceline.report.columns import columns
from paceline.report.text import answer, clean, host_name, one_line, when

_SPECIAL = re.compile(r"([\\`*_{}\[\]|~#])")


def render(records: RunRecords, *, primary: Mapping[str, str] | None = None) -> str:
    """The whole text."""
    summary = summarize_run(records, primary)
    run = records.run
    parts = [f"# {escape(run.name)}", f"**{escape(answer(summary))}**"]
    if summary.measured:
        parts.append(_table(summary))
    if summary.doubts:
        lines = [
            f"- **{kind.mark}** {escape(kind.kind)}, of {escape(', '.join(kind.labels))}: "
            + escape("; or ".join(kind.remedies))
            for kind in summary.doubts
        ]
        parts += ["## Doubts, and what to do", "\n".join(lines)]
    if summary.failed or summary.not_run:
        parts += ["## Did not succeed", "\n".join(_failures(summary))]
    where = f"on {escape(host_name(run.environment))}, {when(run.started_at)}, Paceline {escape(run.version)}"
    made = f"Run `{_code(run.id)}` {where}"
    parts.append(made + (f": `{_code(shlex.join(run.command))}`" if run.command else ""))
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    """Text that Markdown shows as it is."""
    return _SPECIAL.sub(r"\\\1", html.escape(one_line(text), quote=False))


def _code(text: str) -> str:
    return clean(text).replace("`", "'").replace("\n", " ")


def _table(summary: RunSummary) -> str:
    shown = columns(summary)
    lines = [
        "| " + " | ".join(escape(column.header) for column in shown) + " |",
        "|" + "|".join("---:" if column.numeric else "---" for column in shown) + "|",
    ]
    lines += [
        "| " + " | ".join(escape(column.cells[index].text) for column in shown) + " |"
        for index in range(len(summary.measured))
    ]
    return "\n".join(lines)


def _failures(summary: RunSummary) -> list[str]:
    lines = []
    for row in summary.failed:
        cause = row.cause.message if row.cause else "no cause was recorded"
        todo = f" To do: {escape(row.remedy)}." if row.remedy else ""
        lines.append(f"- **{escape(row.label)}**: {row.outcome.value}. {escape(cause)}.{todo}")
    return lines + [f"- **{escape(case.title or case.benchmark)}**: not run." for case in summary.not_run]
