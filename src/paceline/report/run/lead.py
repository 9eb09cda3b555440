"""What a report leads with: one sentence, cards of what the run was about, and the ceilings of its machine."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from paceline.analysis import serving
from paceline.analysis.roofline import NEAR, Bound, Placed, Roof, Rooflines, ceilings_of, rooflines
from paceline.analysis.serving import BETWEEN, FIRST, JOULES, PER_USER, TOTAL, USD, TokenLoad, best_load, tail_of
from paceline.analysis.summary import CaseRow, Group, Reading, RunSummary, headline_of, plain_label
from paceline.core.case import Category, is_of_model
from paceline.core.grouping import group_by
from paceline.core.metric import Better
from paceline.core.quantity import show_count
from paceline.core.record import Measurement, Record
from paceline.core.subject import DEVICE_MEMORY, MAIN_MEMORY
from paceline.report.bars import Bar, Panel, panels
from paceline.report.charts import ACCENT, WARNING, Chart
from paceline.report.document import Card
from paceline.report.run.columns import placed_models, short_labels
from paceline.report.run.sections.roofline import KINDS, bound_words, named_ceiling
from paceline.report.text import (
    SI_UNITS,
    axis_scale,
    bare_interval,
    heading,
    humanize,
    one_line,
    share,
    show_figure,
    show_usd,
    show_value,
    told_apart,
)


def token_sentence(record: Record) -> str:
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


def _token_lead(rows: Sequence[CaseRow]) -> str:
    """The token_sentence of several loads: the most in total, the most for each user, and at which loads."""
    loads = _of_one_model(rows)
    best = [found for name in (TOTAL, PER_USER) if (found := best_load(loads, name)) is not None]
    if len(loads) < 2 or not best:
        return ""
    texts = [f"{show_figure(figure)} at {load.name}" for load, figure in best]
    return one_line(f"{loads[0].row.record.subject.model}: up to {' and '.join(texts)}")


def _token_cards(rows: Sequence[CaseRow]) -> Iterator[Card]:
    """What a run of one language model is about; nothing for others."""
    loads = _of_one_model(rows)
    several, total = len(loads) > 1, best_load(loads, TOTAL)
    for name, words in ((TOTAL, "tokens in total"), (PER_USER, "tokens per user")):
        if (best := best_load(loads, name)) is not None:
            yield _token_card(words, *best, "most, " * several)
    for kind, words in ((FIRST, "time to first token"), (BETWEEN, "time between tokens")):
        tail = tail_of([load.row for load in loads], kind)
        if total is not None and (figure := total[0].row.figure(f"{kind}_{tail}")) is not None:
            yield _token_card(f"{words} {tail}", total[0], figure)
    for name, words in ((JOULES, "energy per token"), (USD, "cost of a million tokens")):
        if (best := best_load(loads, name)) is not None:
            yield _token_card(words, *best, "least, " * several)


def _of_one_model(rows: Sequence[CaseRow]) -> list[TokenLoad]:
    """All loads, where they are of one model; figures of others are no contest."""
    loads = [load for curve in serving.token_curves(rows) for load in curve]
    return loads if len({load.row.record.subject.model for load in loads}) == 1 else []


def _token_card(label: str, load: TokenLoad, figure: Measurement, which: str = "") -> Card:
    shown = f"{show_usd(figure.value)} USD" if figure.unit == "USD" else show_value(figure.value, figure.unit)
    number, _, unit = shown.partition(" ")
    return Card(number, unit, bare_interval(figure), f"{which}at {load.name}", label, bool(load.row.warnings))


CARDS = 4
HIGHLIGHTS = 3  # that one sentence can hold
MOST_CEILINGS = 6
MOST_BARS = 40


def _rooflines(summary: RunSummary) -> Rooflines:
    return rooflines(summary.source, summary.rows, summary.ceilings)


def superlative(group: Group) -> str:
    """What the leader of a group is."""
    if group.best.case.category == Category.SERVING:  # where a rate and a time may both lead
        return f"{'lowest' if group.metric.better is Better.LOWER else 'highest'} {humanize(group.metric.name)}"
    return "fastest" if group.metric.unit == "s" or group.metric.unit.endswith("/s") else "best"


def answer(summary: RunSummary) -> str:
    """The one sentence that a report leads with."""
    if not summary.total:
        return "This run has no cases."
    good = len(summary.measured)
    noun = "case" if summary.total == 1 else "cases"
    parts = [
        f"All {good} cases measured" if good == summary.total > 1 else f"{good} of {summary.total} {noun} measured"
    ]
    if leader := _token_lead(summary.measured) or _leader(summary):
        parts.append(leader)
    # How many of the chosen loads met their SLO; a search ends at one that does.
    loads = [row for row in summary.measured if not row.figure("capacity")]
    judged = [row for row in loads if serving.slo_met(row) is not None]
    undecided = [text for row in loads if (text := serving.slo_undecided(row))]
    met = sum(serving.slo_met(row) is True for row in judged)
    if len(judged) + len(undecided) == summary.total == 1:
        parts.append(f"SLO {undecided[0] if undecided else 'met' if met else 'missed'}")
    elif len(judged) + len(undecided) > 1:
        rest = f", {len(undecided)} not decidable yet" if undecided else ""
        parts.append(f"{met} of {len(judged) + len(undecided)} loads met their SLO{rest}")
    counted = {
        "with warnings": summary.with_warnings,
        "did not succeed": summary.failed,
        "not possible here": summary.impossible,
        "not run": summary.not_run,
    }
    parts += [f"{len(cases)} {text}" for text, cases in counted.items() if cases]
    return one_line("; ".join(parts) + ".")


def _leader(summary: RunSummary) -> str:
    if summary.is_micro and not summary.is_of_models and len(summary.groups) > 1:
        # The highest rate of each category: what a machine can do, in one breath.
        texts = [
            f"{highlight.category} {show_value(row.headline.value, row.headline.unit)} with {one_line(row.label)}"
            f"{_peak_share(row)}"
            for highlight in summary.highlights[:HIGHLIGHTS]
            if (row := highlight.row).headline
        ]
        return "at most: " * any(highlight.of > 1 for highlight in summary.highlights) + ", ".join(texts)
    # Several comparisons have several winners: the table and the cards name them.
    models = [group for group in summary.groups if is_of_model(group.best.case.category)]
    groups = models if models else list(summary.groups)
    compared = [group for group in groups if group.cases > 1]
    if len(compared) != 1 and len(groups) != 1:
        return _bounds(list(placed_models(summary).values()))
    group = compared[0] if compared else groups[0]
    figure = group.best.headline
    if figure is None:
        return ""
    label = one_line(group.best.label)
    if words := token_sentence(group.best.record):
        return f"{label}: {words}"
    if len(group.rows) == 1:
        # Which percentile a latency is, its unit does not say.
        name = f"{humanize(group.metric.name)} " if group.best.case.category == Category.SERVING else ""
        return f"{label}: {name}{show_figure(figure)}{_peak_share(group.best)}"
    if group.cases == 1:  # repetitions are no contest
        ends = sorted(row.headline.value for row in group.rows if row.headline)
        shown = " to ".join(show_value(one, group.metric.unit) for one in (ends[0], ends[-1]))
        return f"{one_line(plain_label(group.best.case))}, measured {len(group.rows)} times: {shown}"
    if group.best.case.category == Category.SERVING:
        _, names = told_apart([one_line(row.label) for row in group.rows])
        return f"{superlative(group)}: {names[0]}, {show_figure(figure)}"
    unit = group.metric.unit
    if not unit.endswith("/s") or unit in SI_UNITS:
        return f"{superlative(group)}: {label}, {show_figure(figure)}{_peak_share(group.best)}"
    name = f"{superlative(group)} {group.benchmark} in {unit}"
    return f"{name}: {label.removeprefix(group.benchmark).strip()}, {show_figure(figure, show_count)}"


def _bounds(placed: Sequence[Placed]) -> str:
    """How many models each ceiling bounds or is near: `9 model cases: 6 bound by compute, 3 nearest to memory`."""
    texts = [f"{len(ones)} {words}" for words, ones in _by_bound(placed)]
    return f"{len(placed)} model cases: {', '.join(texts)}" if texts else ""


def _by_bound(placed: Sequence[Placed]) -> list[tuple[str, list[Placed]]]:
    """Those of each ceiling, apart by whether they are bound by it or only nearest to it."""
    groups = group_by(placed, lambda one: (list(KINDS).index(one.bound), _bound_as(one, KINDS[one.bound][0])))
    return [(words, ones) for (_, words), ones in sorted(groups.items(), key=lambda item: item[0])]


def _bound_as(placed: Placed, words: str) -> str:
    """As the section about bounds has it: what is not near its ceiling is not bound by it."""
    if placed.bound is Bound.NEITHER:
        return "far below both ceilings"
    is_near = placed.bound is Bound.HOST or placed.share >= NEAR
    return f"bound by {words}" if is_near else f"nearest to {words}"


def _peak_share(row: CaseRow) -> str:
    figure = row.figure("peak_share")
    return f" ({share(figure.value / 100)} of peak)" if figure and math.isfinite(figure.value) else ""


def cards(summary: RunSummary) -> Iterator[Card]:
    """What the run was about: its models, or the most of each kind of single operation; one result in full."""
    results = [row for row in summary.measured if row.headline]
    if tokens := list(_token_cards(results)):
        yield from tokens
    elif len(results) == 1:
        row = results[0]
        figures = [figure for figure in row.figures if not figure.scope]
        if row.case.category == Category.SERVING:
            order = {"latency_p99": 0, "latency_p50": 1, "goodput": 2, "throughput": 3}  # after the headline
            figures.sort(key=lambda figure: (figure is not row.headline, order.get(figure.name, len(order))))
        yield from (_card(figure, one_line(row.label), humanize(figure.name), row) for figure in figures[:CARDS])
    elif summary.is_micro and not summary.is_of_models and len(summary.groups) > 1:
        for highlight in summary.highlights[:CARDS]:
            row, peak_share = highlight.row, highlight.row.figure("peak_share")
            what = one_line(row.label) + (f", highest of {highlight.of}" if highlight.of > 1 else "")
            if peak_share is not None:
                what += f" · {show_value(peak_share.value, peak_share.unit)} of peak"
            if row.headline is not None:
                yield _card(row.headline, what, heading(highlight.category), row)
    else:
        yield from _group_cards(summary)


def _group_cards(summary: RunSummary) -> Iterator[Card]:
    """The leader of each group: of models those that compute most come first, each model before any comes twice."""
    bounds = placed_models(summary)
    _, names = short_labels(summary.rows)
    labels = {row.case.index: name for row, name in zip(summary.rows, names, strict=True)}
    groups = [group for group in summary.groups if not summary.is_of_models or is_of_model(group.best.case.category)]
    is_served = Category.SERVING in summary.categories
    if is_served:
        groups.sort(key=lambda group: group.best.figure("capacity") is None)  # what it bears before what it was given
    elif summary.is_of_models:
        groups.sort(key=lambda group: -(work.flops if (work := group.best.record.work) else 0.0))
        models = [group.best.record.subject.model for group in groups]
        groups = [group for _, group in sorted(enumerate(groups), key=lambda one: models[one[0]] in models[: one[0]])]
    for group in groups[:CARDS]:
        row, cases, count = group.best, group.cases, len(group.rows)
        if row.headline is None:
            continue
        label, model = labels[row.case.index], row.record.subject.model
        title, rest = label, humanize(row.headline.name) if count == 1 else ""
        if model and model in label:  # its name alone is short
            title = model.partition(":")[0]
            rest = " ".join(one_line((label if is_served else row.label).replace(model, "", 1)).split())
        best = f"{superlative(group)} of {cases}" if cases > 1 else ""
        middle = f"middle of {count} repetitions" if count > cases == 1 else ""
        what = ", ".join(text for text in (rest, best or middle) if text)
        card = _card(row.headline, what, title, row)
        placed = bounds.get(row.case.index)
        yield replace(card, detail=_reached(placed), part=min(1.0, placed.share)) if placed else card


def _reached(placed: Placed) -> str:
    bound = "far below both" if placed.bound is Bound.NEITHER else _bound_as(placed, bound_words(placed))
    return f"{bound}: {share(placed.share)} of {named_ceiling(placed.nearest)}"


def _card(figure: Measurement, what: str, label: str, row: CaseRow) -> Card:
    number, _, unit = show_value(figure.value, figure.unit).partition(" ")
    return Card(number, unit, bare_interval(figure), what, one_line(label), bool(row.warnings))


def ceiling_cards(summary: RunSummary) -> Iterator[Card]:
    """What the machine does at most, next to the models: as the run measured it, or as it is known otherwise."""
    if not placed_models(summary):
        return
    shown: dict[tuple[str, str], tuple[float, str, str]] = {}
    for roofline in _rooflines(summary).rooflines:  # those that the models are judged by
        for kind, roofs in (("compute", roofline.compute), ("memory", (roofline.memory,))):
            shown |= {(kind, roof.name): (roof.value, roof.unit, _source(roof)) for roof in roofs}
    for one in ceilings_of(summary.source)[0]:
        if one.kind in ("compute", "link", "storage") or one.name in (MAIN_MEMORY, DEVICE_MEMORY):
            shown.setdefault((one.kind, one.name), (one.value, one.unit, ""))
    order = ("compute", "memory", "link", "storage")
    for (kind, name), (value, unit, source) in sorted(
        shown.items(), key=lambda one: (order.index(one[0][0]), -one[1][0])
    )[:MOST_CEILINGS]:
        number, _, label = show_value(value, unit).partition(" ")
        what = f"{name} {kind}" if kind == "compute" else name
        yield Card(number, label, "", source, one_line(what))


def _source(roof: Roof) -> str:
    """Only of what nobody measured: where a measured one is from, the section of rooflines says."""
    return roof.source if roof.source == "datasheet" else ""


def reached_chart(rows: Sequence[CaseRow], bounds: Mapping[int, Placed]) -> Chart | None:
    """How near each model comes to what bounds it: the one scale on which models of any unit may stand together."""
    placed = [bounds[row.case.index] for row in rows if row.case.index in bounds]
    if len(placed) < 2:
        return None
    most = max(100.0, *(100 * one.share for one in placed[:MOST_BARS]))
    made = [
        Panel(
            heading(words),
            "% of the nearest ceiling, and what that comes to",
            [_reached_bar(one) for one in sorted(ones, key=lambda one: -one.share)],
            most,
        )
        for words, ones in _by_bound(placed[:MOST_BARS])
    ]
    notes = [f"The first {MOST_BARS} of {len(placed):,} cases are drawn."] if len(placed) > MOST_BARS else []
    return panels("How near each model comes to its ceiling", made, notes)


def _reached_bar(one: Placed) -> Bar:
    figure = one.row.headline
    text = f"{share(one.share)} of {named_ceiling(one.nearest)}" + (
        f" · {show_value(figure.value, figure.unit)}" if figure else ""
    )
    return Bar(one_line(one.row.label), Reading(100 * one.share), text, KINDS[one.bound][1])


BARS = 60  # of one metric at most; nobody reads more


def overview(cases: Sequence[CaseRow]) -> Chart | None:
    """Every headline with its interval; one panel for each metric and unit, since others cannot be compared."""
    known = [(row, row.headline) for row in cases if row.headline and math.isfinite(row.headline.value)]
    groups = group_by(known, lambda pair: (pair[1].name, pair[1].unit, pair[1].metric.better))
    if not groups:
        return None
    notes = []
    names = [name for name, _, _ in groups]
    for (name, unit, better), rows in groups.items():
        if len(rows) > BARS:
            metric_name = humanize(name) + (f" in {unit}" if unit and names.count(name) > 1 else "")
            notes.append(f"The {BARS} best of {len(rows):,} cases by {metric_name} are drawn.")
            rows.sort(key=lambda pair: pair[1].value, reverse=better is not Better.LOWER)
            del rows[BARS:]
    return panels("Result of each case with its interval", [_panel(*key, rows) for key, rows in groups.items()], notes)


def _panel(name: str, unit: str, better: Better, rows: Sequence[tuple[CaseRow, Measurement]]) -> Panel:
    scale, label = axis_scale(unit, max(abs(figure.value) for _, figure in rows))
    title = heading(humanize(name)) + (f", {label}" if label else "")
    about = [f"{better.value} is better"] if better is not Better.NEITHER else []
    about += ["orange: with warnings"] if any(row.warnings for row, _ in rows) else []
    return Panel(title, "; ".join(about), [_bar(row, figure, scale) for row, figure in rows])


def _bar(row: CaseRow, figure: Measurement, scale: float) -> Bar:
    kinds = ", ".join(dict.fromkeys(one_line(warning.kind) for warning in row.warnings))
    parts = [show_figure(figure, lambda value: show_count(value / scale)), f"· {kinds}" if kinds else ""]
    interval = figure.interval
    reading = Reading(
        figure.value / scale, interval.low / scale if interval else None, interval.high / scale if interval else None
    )
    text = " ".join(part for part in parts if part)
    return Bar(one_line(row.label), reading, text, WARNING if row.warnings else ACCENT)
