"""Language models in a sentence and in cards: tokens in total and for each user, first token, time between tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paceline.analysis.summary import CaseRow, headline_of
from paceline.analysis.token_loads import (
    BETWEEN,
    FIRST,
    JOULES,
    PER_USER,
    TOTAL,
    USD,
    TokenCurve,
    TokenLoad,
    best_load,
    load_of,
    makes_tokens,
    tail_of,
    token_curves,
)
from paceline.core.record import Measurement, Record
from paceline.report.document import Card
from paceline.report.numbers import bare_interval, show_figure, show_usd, show_value
from paceline.report.text import one_line

SHORT = {FIRST: "TTFT", BETWEEN: "ITL"}


def figures_of(row: CaseRow) -> Iterator[tuple[str, Measurement]]:
    """What a load of a language model is known by, each with its name."""
    for name, words in ((TOTAL, "in total"), (PER_USER, "per user")):
        if (figure := row.figure(name)) is not None:
            yield words, figure
    for kind, words in SHORT.items():
        for percentile in dict.fromkeys(("p50", tail_of([row], kind))):
            if (figure := row.figure(f"{kind}_{percentile}")) is not None:
                yield f"{words} {percentile}", figure


def sentence(record: Record) -> str:
    """A load in one line; empty for what makes no tokens."""
    row = CaseRow(record, "", headline_of(record))
    if not row.ok or not makes_tokens(row):
        return ""
    load, at = load_of(row), ""
    if record.load is not None and record.load.sweep:
        at = f" at {record.facts.get('headline_at', '')}"
    elif load is not None:
        at = f" at {load.name}"
    parts = [
        f"{show_figure(figure)}{at}" if name == "in total" else _named(name, figure) for name, figure in figures_of(row)
    ]
    return one_line(", ".join(parts))


def _named(name: str, figure: Measurement) -> str:
    return show_figure(figure) if name == "per user" else f"{name} {show_figure(figure)}"


def lead(rows: Sequence[CaseRow]) -> str:
    """The sentence of several loads: the most in total, the most for each user, and at which loads."""
    curves = token_curves(rows)
    loads = [load for curve in curves for load in curve.loads]
    if len(loads) < 2 or len({load.row.record.subject.model for load in loads}) > 1:
        return ""
    every = TokenCurve(tuple(loads))
    best = [found for name in (TOTAL, PER_USER) if (found := best_load(every, name)) is not None]
    texts = [f"{show_figure(figure)} at {load.name}" for load, figure in best]
    model = loads[0].row.record.subject.model
    return one_line(f"{model}: up to {' and '.join(texts)}") if texts else ""


def cards(rows: Sequence[CaseRow]) -> Iterator[Card]:
    """What a run of one language model is about; nothing for others."""
    curves = token_curves(rows)
    loads = [load for curve in curves for load in curve.loads]
    if not loads or len({load.row.record.subject.model for load in loads}) > 1:
        return
    every = TokenCurve(tuple(loads))
    total, per_user = best_load(every, TOTAL), best_load(every, PER_USER)
    several = len(loads) > 1
    if total is not None:
        yield _card("tokens in total", total[0], total[1], "most, " * several)
    if per_user is not None:
        yield _card("tokens per user", per_user[0], per_user[1], "most, " * several)
    lowest = loads[0] if several else None
    for kind, words in ((FIRST, "time to first token"), (BETWEEN, "time between tokens")):
        tail = tail_of(every.rows, kind)
        shown = [load for load in (lowest, total[0] if total else None) if load and load.row.figure(f"{kind}_{tail}")]
        if shown and (figure := shown[-1].row.figure(f"{kind}_{tail}")) is not None:
            yield _card(f"{words} {tail}", shown[-1], figure)
    for name, words, best in ((JOULES, "energy per token", min), (USD, "cost of a million tokens", min)):
        known = [(load, figure) for load in loads if (figure := load.row.figure(name)) is not None]
        if known:
            yield _card(words, *best(known, key=lambda pair: pair[1].value), "least, " * several)


def _card(label: str, load: TokenLoad, figure: Measurement, which: str = "") -> Card:
    shown = f"{show_usd(figure.value)} USD" if figure.unit == "USD" else show_value(figure.value, figure.unit)
    number, _, unit = shown.partition(" ")
    return Card(number, unit, bare_interval(figure), f"{which}at {load.name}", label, bool(load.row.warnings))
