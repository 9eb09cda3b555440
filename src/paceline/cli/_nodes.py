"""The nodes behind the words that were typed, as one table: runs, tags, files of ours and of SuperBench."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.cli._sources import read_sources

if TYPE_CHECKING:
    from paceline.analysis.diagnose.table import NodeResults, Table
    from paceline.core.run import RunRecords


def read_table(texts: Sequence[str], store: str | None, *, superbench: bool = False) -> tuple[Table, bool]:
    """The table, and whether its metrics have SuperBench's names, as rules or a baseline may ask for."""
    from paceline.analysis.diagnose.superbench import read_nodes
    from paceline.analysis.diagnose.table import assemble, results_of, run_names
    from paceline.core.errors import InputError

    theirs = [text for text in texts if _is_theirs(text)]
    ours = [text for text in texts if text not in theirs]
    parts: list[NodeResults] = [part for text in theirs for part in read_nodes(Path(text))]
    if ours:
        runs = [run for source in read_sources(ours, store) for run in source.runs]
        if parts or superbench:
            names = run_names(runs)
            parts += [_under_their_names(run, name) for run, name in zip(runs, names, strict=True)]
        else:
            parts += results_of(runs)
    if not parts:
        message = f"there are no results in {', '.join(texts)}; name a run, a tag, or a file of results"
        raise InputError("no-results", message, value=", ".join(texts))
    return assemble(parts), bool(theirs) or superbench


def _is_theirs(text: str) -> bool:
    """Whether it is a file or folder of SuperBench's results; what is ours says so in its first line."""
    from paceline.report.export import jsonl

    path = Path(text)
    if not ("/" in text or text.endswith((".json", ".jsonl"))):
        return False  # the name of a run or a tag, even where a folder has the same
    if not path.is_file():
        return path.is_dir()
    with path.open(encoding="utf-8", errors="replace") as lines:
        return not jsonl.is_ours(lines.readline())


def _under_their_names(run: RunRecords, name: str) -> NodeResults:
    """A run of ours as SuperBench would have written it."""
    from paceline.analysis.diagnose.superbench import nodes_results
    from paceline.report.export.superbench import results

    found = nodes_results(run.run.environment.host_name, results(run.records))
    found.run = name
    found.environment = run.run.environment
    return found
