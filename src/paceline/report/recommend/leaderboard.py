"""Leaderboards as a page, and their rows for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from paceline.analysis.leaderboard import Board, Entry
from paceline.analysis.summary import Reading
from paceline.core.metric import Better
from paceline.core.quantity import show_count
from paceline.core.uncertainty import SEPARATE
from paceline.report.bars import Bar, bars
from paceline.report.charts import ACCENT, WARNING
from paceline.report.document import Block, Column, Document, Lines, Section, Table, Tone
from paceline.report.export.csv import csv_text
from paceline.report.recommend.words import with_warning
from paceline.report.text import SI_UNITS, heading, humanize, listed, one_line, percent, show_usd, show_value

MOST_BOARDS = 12  # of a page for people
MOST_BARS = 20
MOST_RUNS = 5
MANY = 2.0  # parts ahead, from which times are said


def document(boards: Sequence[Board], top: int) -> Document:
    """The boards with the most entries, the first `top` rows of each."""
    shown = boards[:MOST_BOARDS]
    left = len(boards) - len(shown)
    answer = ""
    if len(boards) > 1:
        entries = [entry for board in boards for entry in board.entries]
        runs = len({run for entry in entries for run in entry.runs})
        more = f"; the {len(shown)} with the most entries are shown, and --case narrows it down" if left else ""
        answer = f"{len(boards)} boards with {len(entries)} entries from {runs} {'run' if runs == 1 else 'runs'}{more}."
    return Document(title="Leaderboard", blocks=tuple(_block(board, top) for board in shown), answer=answer)


def headline(board: Board) -> str:
    """Who leads, and whether that is beyond the noise."""
    leaders = board.leaders
    first = leaders[0]
    leader = f"{name(first, board)}: {show(first.reading, board)}"
    if len(leaders) > 1:
        others = listed([name(entry, board) for entry in leaders[1:]])
        if all(len(entry.runs) == 1 for entry in leaders):
            repeat = f"repeat with at least {SEPARATE} runs of each"
            return f"{leader}; that it is ahead of {others} cannot be decided from one run each: {repeat}."
        return f"{leader}; {others} cannot be distinguished from it."
    second = next((entry for entry in board.entries if entry.place > 1), None)
    if second is None:
        return f"{leader}; nothing else did the same work."
    mine, theirs = first.reading.value, second.reading.value
    is_more = board.metric.better is Better.HIGHER
    ahead = mine / theirs - 1 if is_more else 1 - mine / theirs
    lead = f"{percent(ahead)} {'ahead of' if is_more else 'below'}"
    if ahead > MANY:
        lead = f"{show_count(mine / theirs)} times as much as"
    return f"{leader}, {lead} {name(second, board)}."


def name(entry: Entry, board: Board) -> str:
    """What tells an entry from the others of its board."""
    machine, label = (getattr(entry, field) if _differ(board, field) else "" for field in ("machine", "label"))
    parts = (machine, _software(entry, board.entries), label)
    return one_line(", ".join(part for part in parts if part)) or entry.machine


def show(reading: Reading, board: Board) -> str:
    """A value in the board's unit, with its interval."""
    return with_warning(reading, lambda value: show_value(value, board.metric.unit))


def to_json(boards: Sequence[Board], top: int) -> str:
    """Each board as an object."""
    objects = [
        _about(board) | {"answer": headline(board), "entries": [_row(entry) for entry in board.entries[:top]]}
        for board in boards
    ]
    return json.dumps(objects, indent=2, allow_nan=False) + "\n"


def to_csv(boards: Sequence[Board]) -> str:
    """Every entry as a row."""
    rows = []
    for board in boards:
        for entry in board.entries:
            row = _about(board) | _row(entry)
            row |= {name: ";".join(row[name]) for name in ("warnings", "runs")}
            rows.append(row | {name: json.dumps(row[name], sort_keys=True) for name in ("software", "choices")})
    return csv_text(list(rows[0]), rows)


def _about(board: Board) -> dict[str, Any]:
    metric = board.metric
    return {"work": board.work, "metric": metric.name, "unit": metric.unit, "better": metric.better.value}


def _row(entry: Entry) -> dict[str, Any]:
    return {
        "place": entry.place,
        "machine": entry.machine,
        "configuration": entry.label,
        "value": entry.reading.value,
        "low": entry.reading.low,
        "high": entry.reading.high,
        "measurements": entry.count,
        "per_joule": entry.per_joule.value if entry.per_joule else None,
        "per_usd": entry.per_usd.value if entry.per_usd else None,
        "usd_per_hour": entry.price.usd if entry.price else None,
        "price_basis": entry.price.basis if entry.price else None,
        "energy_basis": "; ".join(entry.energy_basis) or None,
        "warnings": list(entry.warnings),
        "software": dict(entry.software),
        "runs": list(entry.runs),
        "choices": dict(entry.configuration.choices),
    }


def _block(board: Board, top: int) -> Block:
    shown = board.entries[:top]
    title, better = heading(humanize(board.metric.name)), f"{board.metric.better.value} is better"
    sections = []
    if len(shown) > 1:
        drawn = []
        for entry in shown[:MOST_BARS]:
            text = show(entry.reading, board) + (", with warnings" if entry.warnings else "")
            drawn.append(Bar(name(entry, board), entry.reading, text, WARNING if entry.warnings else ACCENT))
        sections.append(Section(items=(bars(title, better, drawn),)))
    sections.append(Section(items=(Table(_columns(board, shown, title)),)))
    runs = list(dict.fromkeys(entry.runs[-1] for entry in shown if entry.warnings))
    if runs:
        hints = [f"`paceline report {run}` lists the warnings and what to do." for run in runs[:MOST_RUNS]]
        sections.append(Section("Warnings", (Lines(tuple(hints)),), Tone.WARNING))

    basis = [
        "Entries share a place unless their runs, or sessions, show that they differ; one run of each does not. "
        "Several measurements are one entry, with the interval that comes from how they differ."
    ]
    software = shown[0].software if shown else {}
    same = [name for name in software if len({entry.software.get(name) for entry in shown}) == 1]
    if same:
        basis.append(f"All with {', '.join(f'{name} {software[name]}' for name in same)}.")
    prices = dict.fromkeys((entry.machine, entry.price) for entry in shown if entry.price and entry.per_usd)
    basis += [f"{machine}: {show_usd(price.usd)} USD/h, {price.basis}." for machine, price in prices if price]
    energies = dict.fromkeys("; ".join(entry.energy_basis) for entry in shown if entry.per_joule)
    basis += [f"Energy: {energy}." for energy in energies]
    sections.append(Section("What this rests on", (Lines(tuple(basis)),), Tone.BASIS))
    where = "" if _differ(board, "machine") else f" on {board.entries[0].machine}"
    about = f"{board.work}{where}: {humanize(board.metric.name)}, {better}"
    return Block(answer=headline(board), about=about, sections=tuple(sections))


def _columns(board: Board, shown: Sequence[Entry], title: str) -> tuple[Column, ...]:
    work = board.work_unit
    columns = [
        Column.of("#", [str(entry.place) for entry in shown]),
        Column.of("Machine", [entry.machine for entry in shown], numeric=False),
        Column.of("Software", [_software(entry, shown) for entry in shown], numeric=False),
        Column.of("Configuration", [entry.label for entry in shown], numeric=False),
        Column.of(title, [show(entry.reading, board) for entry in shown], leads=True),
        Column.of("Runs", [str(len(entry.runs)) for entry in shown], widest=True),
        Column.of(f"{heading(work)}/s per W", [_bare(entry.per_joule, work) for entry in shown]),
        Column.of(f"{heading(work)} per USD", [_bare(entry.per_usd, work) for entry in shown]),
        Column.of("Warnings", [", ".join(entry.warnings) for entry in shown], numeric=False),
    ]
    same = {"Machine": "machine", "Configuration": "label"}
    alone = {header for header, field in same.items() if len(board.entries) > 1 and not _differ(board, field)}
    return tuple(column for column in columns if any(cell.text for cell in column.cells) and column.header not in alone)


def _differ(board: Board, field: str) -> bool:
    return len({getattr(entry, field) for entry in board.entries}) > 1


def _software(entry: Entry, among: Sequence[Entry]) -> str:
    """The versions that are not the same everywhere."""
    names = dict.fromkeys(name for one in among for name in one.software)
    differing = [name for name in names if len({one.software.get(name) for one in among}) > 1]
    return ", ".join(f"{name} {entry.software[name]}" for name in differing if name in entry.software)


def _bare(reading: Reading | None, unit: str) -> str:
    """A value under a header that says the unit, unless its scale is its own."""
    if reading is None:
        return ""
    return show_value(reading.value, unit) if unit in SI_UNITS else show_count(reading.value)
