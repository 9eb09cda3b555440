"""Language models in a sentence and in cards: tokens in total and for each user, first token, time between tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paceline.analysis import serving
from paceline.analysis.serving import BETWEEN, FIRST, JOULES, PER_USER, TOTAL, USD, TokenLoad, best_load, tail_of
from paceline.analysis.summary import CaseRow, headline_of
from paceline.core.record import Measurement, Record
from paceline.report.document import Card
from paceline.report.text import bare_interval, one_line, show_figure, show_usd, show_value


def sentence(record: Record) -> str:
    """A load in one line; empty for what makes no tokens."""
    row = CaseRow(record, "", headline_of(record))
    total = row.figure(TOTAL)
    if not row.ok or total is None or record.load is None:
        return ""
    load = serving.load_of(row)
    at = record.load.headline_at if record.load.sweep else load.name if load is not None else ""
    parts = [f"{show_figure(total)}{f' at {at}' if at else ''}"]
    parts += [show_figure(figure)] if (figure := row.figure(PER_USER)) is not None else []
    for kind, words in ((FIRST, "TTFT"), (BETWEEN, "ITL")):
        for percentile in dict.fromkeys(("p50", tail_of([row], kind))):
            if (figure := row.figure(f"{kind}_{percentile}")) is not None:
                parts.append(f"{words} {percentile} {show_figure(figure)}")
    return one_line(", ".join(parts))


def lead(rows: Sequence[CaseRow]) -> str:
    """The sentence of several loads: the most in total, the most for each user, and at which loads."""
    loads = _of_one_model(rows)
    best = [found for name in (TOTAL, PER_USER) if (found := best_load(loads, name)) is not None]
    if len(loads) < 2 or not best:
        return ""
    texts = [f"{show_figure(figure)} at {load.name}" for load, figure in best]
    return one_line(f"{loads[0].row.record.subject.model}: up to {' and '.join(texts)}")


def cards(rows: Sequence[CaseRow]) -> Iterator[Card]:
    """What a run of one language model is about; nothing for others."""
    loads = _of_one_model(rows)
    several, total = len(loads) > 1, best_load(loads, TOTAL)
    for name, words in ((TOTAL, "tokens in total"), (PER_USER, "tokens per user")):
        if (best := best_load(loads, name)) is not None:
            yield _card(words, *best, "most, " * several)
    for kind, words in ((FIRST, "time to first token"), (BETWEEN, "time between tokens")):
        tail = tail_of([load.row for load in loads], kind)
        if total is not None and (figure := total[0].row.figure(f"{kind}_{tail}")) is not None:
            yield _card(f"{words} {tail}", total[0], figure)
    for name, words in ((JOULES, "energy per token"), (USD, "cost of a million tokens")):
        if (best := best_load(loads, name)) is not None:
            yield _card(words, *best, "least, " * several)


def _of_one_model(rows: Sequence[CaseRow]) -> list[TokenLoad]:
    """All loads, where they are of one model; figures of others are no contest."""
    loads = [load for curve in serving.token_curves(rows) for load in curve]
    return loads if len({load.row.record.subject.model for load in loads}) == 1 else []


def _card(label: str, load: TokenLoad, figure: Measurement, which: str = "") -> Card:
    shown = f"{show_usd(figure.value)} USD" if figure.unit == "USD" else show_value(figure.value, figure.unit)
    number, _, unit = shown.partition(" ")
    return Card(number, unit, bare_interval(figure), f"{which}at {load.name}", label, bool(load.row.warnings))
