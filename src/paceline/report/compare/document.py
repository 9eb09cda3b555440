"""A comparison as a page and for programs: the answer, the chart of ratios, the table, and the basis.

Of an A/B comparison also what its rounds have decided, in one sentence for each case."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from pydantic_core import to_json

from paceline.analysis.compare.sides import Decision, critical, rounds_to_decide
from paceline.analysis.compare.significance import FALSE_ALARMS
from paceline.analysis.compare.verdicts import (
    RESOLVED,
    Comparison,
    ComparisonRow,
    ComparisonVerdict,
    Pairing,
    Side,
    Undecided,
    Violation,
)
from paceline.analysis.summary import shortened
from paceline.core.quantity import show_duration
from paceline.core.stats import CONFIDENCE
from paceline.core.uncertainty import Level
from paceline.report.charts import (
    ACCENT,
    CONFIG,
    GRID,
    INK,
    LABEL_LIMIT,
    MUTED,
    WARNING,
    Chart,
    Spec,
    layer,
    names_axis,
    plane_beside,
    quantity,
    text_width,
    words_beside,
)
from paceline.report.compare.words import (
    MOST_TIMES,
    answer,
    change_words,
    gain_words,
    gains,
    mean_words,
    metric_words,
    ordered,
    undecided_words,
    verdict_words,
    violation_words,
)
from paceline.report.document import Block, Column, Document, Lines, Section, Table, Tone
from paceline.report.export import csv
from paceline.report.text import SI_UNITS, between, heading, one_line, percent, ratio, show_value, when

NAMED = 8  # cases that a sentence can hold
MOST_ROWS = {False: 50, True: 2000}  # of a table on a terminal, and of one on a page
MOST_DRAWN = 40  # ratios in the chart
_COLOURS = {ComparisonVerdict.BETTER: ACCENT, ComparisonVerdict.WORSE: WARNING}
COLUMNS = (
    *("reference", "new", "case", "category", "metric", "scope", "at", "unit", "better"),
    *("reference_value", "new_value", "ratio", "low", "high", "confidence", "chance", "verdict"),
    *("sentence", "level", "units_needed"),
    *(f"{side}_{name}" for name in ("runs", "parts", "samples", "warnings") for side in ("reference", "new")),
)


def forest(pairing: Pairing) -> Chart | None:
    """Gains of the cases, those that changed first: right of the line is better."""
    drawable = [row for row in ordered(pairing.rows) if row.gain is not None]
    rows = drawable[:MOST_DRAWN]
    if not rows:
        return None
    alone = len({row.label for row in rows}) == len(rows)
    values = [_value(row, alone) for row in rows]
    edges = [value[key] for value in values for key in ("low", "high")]
    low, high = min(*edges, 1.0), max(*edges, 1.0)
    pad = (high / low) ** 0.06
    is_wide = high / low > 3
    scale: Spec = {"type": "log" if is_wide else "linear", "domain": [low / pad, high * pad], "nice": False}
    names = [value["case"] for value in values]
    plane = plane_beside(names, [value["text"] for value in values])
    y = names_axis(domain=False, minExtent=10 + min(LABEL_LIMIT, max(map(text_width, names))))
    size: Spec = {"width": plane, "height": {"step": 26}}
    note = f"The {len(rows)} of {len(drawable)} ratios that changed the most are drawn."
    return Chart(
        spec={"data": {"values": values}, "layer": _layers(y, scale, plane, is_wide=is_wide), "config": CONFIG, **size},
        title=f"How {one_line(pairing.new.name)} stands to {one_line(pairing.reference.name)}, with intervals",
        description="; ".join(
            f"{value['case']}: {verdict_words(row)}, {ratio(value['gain'])}"
            for value, row in zip(values, rows, strict=True)
        ),
        notes=(note,) if len(drawable) > len(rows) else (),
    )


def _value(row: ComparisonRow, alone: bool) -> Spec:
    gain, interval = row.gain or 1.0, row.ratio.interval
    low, high = gains(row)
    low, high = max(low, min(gain, 1 / MOST_TIMES)), min(high, max(gain, MOST_TIMES))  # or the others are dots
    return {
        "case": one_line(row.label if alone else f"{row.label}, {metric_words(row)}"),
        "gain": gain,
        "low": low,
        "high": high,
        "text": verdict_words(row),
        "colour": _COLOURS.get(row.verdict, MUTED),
        "interval": between(interval),
    }


def _layers(y: Spec, scale: Spec, plane: float, *, is_wide: bool) -> Sequence[Spec]:
    style = {"format": ".3~g" if is_wide else ".3~f", "tickCount": 6, "gridColor": GRID}
    axis = quantity("one", "times as good as the reference; right of the line is better", scale, **style)
    colours = [ACCENT, WARNING, MUTED]
    colour = {"field": "colour", "type": "nominal", "scale": {"domain": colours, "range": colours}, "legend": None}
    interval = {"y": y, "x": quantity("low", scale=scale), "x2": {"field": "high"}}
    point = {"y": y, "x": quantity("gain", scale=scale), "color": colour}
    return [
        layer("rule", {"x": axis}, [{"one": 1.0}], color=MUTED, strokeDash=[4, 3]),
        layer("rule", interval, color=INK, size=1.5),
        layer("point", point, filled=True, size=70, opacity=1),
        words_beside(y, {"value": plane}, dx=10),
    ]


def document(comparison: Comparison, *, full: bool = False, every: bool = False) -> Document:
    """The page; `full` is for files, which have room for the environments of both sides, `every` row for who asks."""
    most = None if every else MOST_ROWS[full]
    blocks = [_block(pairing, comparison, most, full=full) for pairing in comparison.pairings]
    sides = [comparison.pairings[0].reference, *(pairing.new for pairing in comparison.pairings)]
    return Document(title=" and ".join(one_line(side.name) for side in sides), blocks=tuple(blocks))


def _block(pairing: Pairing, comparison: Comparison, most: int | None, *, full: bool) -> Block:
    chart = forest(pairing)
    broken = [one_line(f"{one.label}: not in {one.side}, where it ended as {one.reason}") for one in pairing.broken]
    only = ((pairing.reference, pairing.matched.only_reference), (pairing.new, pairing.matched.only_new))
    left_out = [one_line(f"Only in {side.name}: {shortened(labels, NAMED)}") for side, labels in only if labels]
    left_out += [one_line(line) for line in pairing.uncompared[:NAMED]]
    if len(pairing.uncompared) > NAMED:
        left_out.append(f"and {len(pairing.uncompared) - NAMED} more")
    sections = [
        Section(items=(chart,) if chart else ()),
        _table(pairing, comparison, most),
        _means(pairing),
        Section("Succeeded on one side only", (Lines(tuple(broken)),), Tone.WARNING),
        Section("Warnings", (Lines(tuple(_warnings(pairing, comparison))),), Tone.WARNING),
        Section("Not compared", (Lines(tuple(left_out)),)),
        Section("How this was decided", (Lines(tuple(_basis(pairing, comparison))),), Tone.BASIS),
    ]
    if full:
        described = [_described(pairing.reference), _described(pairing.new)]
        names = list(dict.fromkeys(name for facts in described for name in facts))
        columns = [Column.of("", names, numeric=False)]
        for header, facts in zip(("Reference", "New"), described, strict=True):
            columns.append(Column.of(header, [facts.get(name, "") for name in names], numeric=False))
        sections.append(Section("Environments", (Table(tuple(columns)),)))
    reference, new = (
        side.name + (f" ({len(side.runs)} runs)" if len(side.runs) > 1 else "")
        for side in (pairing.reference, pairing.new)
    )
    within = f", interleaved within run {pairing.new.runs[0].run.id}" if comparison.is_paired else ""
    return Block(answer(pairing, is_paired=comparison.is_paired), f"{new} against {reference}{within}", tuple(sections))


def _table(pairing: Pairing, comparison: Comparison, most: int | None) -> Section:
    rows = ordered(pairing.rows)[:most]
    if not rows:
        return Section()
    names = ("A", "B") if comparison.is_paired else ("Reference", "New")
    columns = [
        Column.of("Case", [one_line(row.label) for row in rows], numeric=False),
        Column.of("Verdict", tuple(verdict_words(row) for row in rows), numeric=False),
    ]
    title, unit = "Cases", ""
    if len({metric_words(row) for row in rows}) > 1:
        columns.append(Column.of("Metric", tuple(metric_words(row) for row in rows), numeric=False))
    else:
        # A unit that all values have as they are is in the title; one that scales with them stays next to each.
        units = {row.metric.unit for row in rows}
        unit = units.pop() if len(units) == 1 and units.isdisjoint({*SI_UNITS, "s", "B", "%"}) else ""
        title = f"{heading(metric_words(rows[0]))} of each case" + (f", in {unit}" if unit else "")
    for side, name in zip(("reference", "new"), names, strict=True):
        values = (show_value(getattr(row.ratio, side), row.metric.unit) for row in rows)
        columns.append(Column.of(name, [value.removesuffix(f" {unit}") if unit else value for value in values]))
    columns.append(Column.of("Ratio", tuple(ratio(row.ratio.value) for row in rows), leads=True))
    if any(row.ratio.interval for row in rows):
        columns.append(Column.of("95 % interval", tuple(between(row.ratio.interval) for row in rows)))
    if any(row.ratio.runs != (1, 1) for row in rows):
        columns.append(
            Column.of("Runs", tuple(f"{row.ratio.runs[0]}/{row.ratio.runs[1]}" for row in rows), widest=True)
        )
    if any(row.parts != row.ratio.runs for row in rows):
        columns.append(Column.of("Repeats", tuple(f"{row.parts[0]}/{row.parts[1]}" for row in rows), widest=True))
    columns.append(Column.of("Samples", tuple(f"{row.samples[0]}/{row.samples[1]}" for row in rows), widest=True))
    if any(kinds for row in rows for kinds in row.warnings):
        # The letters of both sides' warnings: `D/-` is one of the reference alone.
        letters = comparison.warnings
        marks = ("/".join("".join(letters[kind] for kind in kinds) or "-" for kinds in row.warnings) for row in rows)
        columns.append(Column.of("?", ["" if mark == "-/-" else mark for mark in marks]))
    more = len(pairing.rows) - len(rows)
    changed = sum(row.is_change for row in pairing.rows) - sum(row.is_change for row in rows)
    which = f"{changed:,} of them changed, but by less" if changed else "all that changed are here"
    note = f"{more:,} more rows, {which}: `--all` shows them, `--csv` and `--json` have them."
    return Section(title, (Table(tuple(columns)), Lines((note,) if more else ())))


def _means(pairing: Pairing) -> Section:
    """The means of several kinds of cases; the one of all is in the answer."""
    means = pairing.means
    if len(means) < 2:
        return Section()
    verdicts = [mean_words(mean) if mean.interval else "no interval" for mean in means]
    columns = (
        Column.of("Kind", [one_line(mean.category or "all") for mean in means], numeric=False),
        Column.of("Cases", [str(mean.count) for mean in means]),
        Column.of("Gain", [ratio(mean.value) for mean in means], leads=True),
        Column.of("95 % interval", [between(mean.interval) for mean in means]),
        Column.of("Verdict", verdicts, numeric=False),
    )
    return Section("Geometric mean", (Table(columns),))


def _warnings(pairing: Pairing, comparison: Comparison) -> Iterator[str]:
    for difference in pairing.environment:
        yield one_line(
            f"{difference.name} differs: {difference.reference} in the reference, {difference.new} in the new"
        )
    for kind, mark in comparison.warnings.items():
        counts = [sum(kind in row.warnings[place] for row in pairing.rows) for place in (0, 1)]
        if any(counts):
            yield one_line(f"{mark}: {kind} in {counts[0]} of the reference's and {counts[1]} of the new figures")


def _basis(pairing: Pairing, comparison: Comparison) -> Iterator[str]:
    yield _matching(pairing, comparison)
    rows = pairing.rows
    if comparison.is_paired and not any(row.ratio.interval for row in rows):
        yield "A ratio is the geometric mean of B / A over the rounds, which are too few for an interval."
    elif comparison.is_paired:
        yield (
            "A ratio is the geometric mean of B / A over the rounds, in each of which one was measured right after "
            "the other. Its interval comes from how the rounds differ, and holds although one looked after every round."
        )
    else:
        yield from _levels(pairing)
    history = sum(row.ratio.history > 0 for row in rows)
    if history:
        yield f"In {history} of {len(rows)} ratios, earlier runs of the case on this machine show how far runs scatter."
    if any(row.ratio.interval for row in rows):
        yield (
            f"What leaves room for a difference of more than {100 * RESOLVED:.0f} % is not decided. Four times as many "
            "runs halve an interval."
        )
    count = sum(row.ratio.chance is not None for row in comparison.rows)
    if count > 1:
        yield (
            f"{count:,} comparisons are judged together, so that at most {FALSE_ALARMS:.0%} of the called changes are "
            "none (Benjamini and Hochberg): among so many, an interval that leaves out 1 may be chance."
        ).replace("%", " %")


def _levels(pairing: Pairing) -> Iterator[str]:
    """What the intervals come from: how runs differ among themselves, or sessions."""
    decided = {row.ratio.level for row in pairing.rows if row.ratio.interval}
    if Level.RUN in decided:
        yield (
            "A ratio is new / reference, of runs in sessions that both sides share, and its interval comes from how "
            "runs differ among themselves."
        )
    if Level.SESSION in decided:
        yield (
            "A ratio is new / reference. The sides were measured in different sessions, so that its interval comes "
            "from how sessions differ."
        )
    if any(row.ratio.interval is None and row.ratio.value is not None for row in pairing.rows):
        yield (
            "Samples of one run do not show how runs differ, nor runs of one session how sessions differ. Where no "
            "earlier runs of the case on this machine show it either, a ratio has no interval."
        )
        if pairing.means and pairing.means[0].interval is None:
            together = mean_words(pairing.means[0])
            yield f"That all cases together are {together} may be a shift of the session as well as a change."


def _matching(pairing: Pairing, comparison: Comparison) -> str:
    matched = pairing.matched
    count = len(matched.matches)
    differing = matched.differences
    exact = sum(match.is_alike for match in matched.matches)
    cases = "case" if count == 1 else "cases"
    if exact == count:
        return f"{count} {cases} matched: the same benchmark, parameters and target."
    settings = [
        f"{one.name} ({one.reference}, {one.new})" + (f" in {times}" if times < count - exact else "")
        for one, times in list(differing.items())[:NAMED]
    ]
    if comparison.is_paired:
        differing_in = f"; the sides differ in {', '.join(settings)}" if settings else ""
        return one_line(f"{count} {cases} measured interleaved{differing_in}.")
    others = f"{exact} of them alike in everything, the others by" if exact else "by"
    nevertheless = f"; they differ in {', '.join(settings)}" if settings else ""
    return one_line(f"{count} {cases} matched, {others} the parameters that both sides know{nevertheless}.")


def _described(side: Side) -> dict[str, str]:
    """What there is to know of a side at a glance, of all its runs."""
    facts: dict[str, list[str]] = {}
    for run in (one.run for one in side.runs):
        environment = run.environment
        words = {
            "run": run.id,
            "suite": run.name,
            "when": when(run.started_at),
            "host": environment.host_name if environment.is_known else "",
            "CPU": _words(environment.cpu.model, environment.cpu.usable),
            "GPUs": ", ".join(str(gpu.name) for gpu in environment.gpus),
            "driver": _words(environment.driver.version if environment.driver else None),
            "torch": _words(environment.software.packages.get("torch")),
            "git commit": _words(environment.git.commit if environment.git else None),
            "Paceline": run.version,
        }
        for name, word in words.items():
            facts.setdefault(name, []).append(word)
    return {name: one_line(shortened(list(dict.fromkeys(words)), NAMED)) for name, words in facts.items() if any(words)}


def _words(*values: str | float | None) -> str:
    """What was recorded; a number is one of cores."""
    return ", ".join(f"{value:g} cores" if isinstance(value, float) else str(value) for value in values if value)


def csv_text(comparison: Comparison) -> str:
    """One line per ratio."""
    return csv.csv_text(COLUMNS, rows_of(comparison))


def rows_of(comparison: Comparison) -> list[dict[str, Any]]:
    """One row per ratio, of cells that a table can hold."""
    return [
        _figures(row)
        | {"reference": pairing.reference.name, "new": pairing.new.name, "at": csv.joined(row.at)}
        | {"reference_warnings": ";".join(row.warnings[0]), "new_warnings": ";".join(row.warnings[1])}
        for pairing in comparison.pairings
        for row in pairing.rows
    ]


def json_text(comparison: Comparison, violations: Sequence[Violation] = (), undecided: Sequence[Undecided] = ()) -> str:
    """Everything, as one object."""
    return json.dumps(_document(comparison, violations, undecided), indent=2, allow_nan=False) + "\n"


def json_line(comparison: Comparison) -> str:
    """The same as an event on one line."""
    return json.dumps({"event": "comparison"} | _document(comparison), allow_nan=False)


def _document(
    comparison: Comparison, violations: Sequence[Violation] = (), undecided: Sequence[Undecided] = ()
) -> dict[str, Any]:
    document = {
        "paired": comparison.is_paired,
        "comparisons": [_pairing(pairing, comparison) for pairing in comparison.pairings],
        "violations": [
            {"limit": str(one.limit), "case": one.label, "new": one.pairing.new.name, "message": violation_words(one)}
            for one in violations
        ],
        "undecided": [
            {
                "limit": str(one.limit),
                "case": one.row.label,
                "new": one.pairing.new.name,
                "message": undecided_words(one),
            }
            for one in undecided
        ],
    }
    finite: dict[str, Any] = json.loads(to_json(document, inf_nan_mode="null"))  # JSON has neither NaN nor infinity
    return finite


def _pairing(pairing: Pairing, comparison: Comparison) -> dict[str, Any]:
    return {
        "reference": {"name": pairing.reference.name, "runs": [one.run.id for one in pairing.reference.runs]},
        "new": {"name": pairing.new.name, "runs": [one.run.id for one in pairing.new.runs]},
        "answer": answer(pairing, is_paired=comparison.is_paired),
        "rows": [_figures(row) for row in pairing.rows],
        "geometric_means": [
            {
                "category": mean.category,
                "cases": mean.count,
                "gain": mean.value,
                "low": mean.interval.low if mean.interval else None,
                "high": mean.interval.high if mean.interval else None,
                "is_change": mean.is_change,
            }
            for mean in pairing.means
        ],
        "environment_differences": [vars(difference) for difference in pairing.environment],
        "parameter_differences": [
            vars(difference) | {"cases": count} for difference, count in pairing.matched.differences.items()
        ],
        "one_side_only": [{"case": one.label, "missing_in": one.side, "reason": one.reason} for one in pairing.broken],
        "only_reference": list(pairing.matched.only_reference),
        "only_new": list(pairing.matched.only_new),
        "not_compared": list(pairing.uncompared),
    }


def _figures(row: ComparisonRow) -> dict[str, Any]:
    ratio = row.ratio
    return {
        "case": row.label,
        "category": row.category,
        "metric": row.metric.name,
        "scope": row.scope,
        "at": row.at,
        "unit": row.metric.unit,
        "better": row.metric.better.value,
        "reference_value": ratio.reference,
        "new_value": ratio.new,
        "ratio": ratio.value,
        **csv.interval_columns(ratio.interval),
        "chance": ratio.chance,
        "verdict": row.verdict.value,
        "sentence": verdict_words(row),
        "level": row.ratio.level.value,
        "reference_runs": row.ratio.runs[0],
        "new_runs": row.ratio.runs[1],
        "units_needed": row.units_needed,
        "reference_parts": row.parts[0],
        "new_parts": row.parts[1],
        "reference_samples": row.samples[0],
        "new_samples": row.samples[1],
        "reference_warnings": list(row.warnings[0]),
        "new_warnings": list(row.warnings[1]),
    }


Decided = Sequence[tuple[ComparisonRow, Decision]]


def decided_document(comparison: Comparison, decided: Decided, within: float, round_seconds: float) -> Document:
    """The page of the comparison, led by what was decided."""
    page = document(comparison)
    (block,) = page.blocks
    sentences = [sentence(row, one, within, round_seconds) for row, one in decided]
    if len(sentences) == 1:
        return replace(page, blocks=(replace(block, answer=sentences[0]),))
    sections = (Section("Decided", (Lines(tuple(sentences)),)), *block.sections)
    return replace(page, blocks=(replace(block, sections=sections),))


def sentence(row: ComparisonRow, decided: Decision, within: float, round_seconds: float) -> str:
    """What was decided of one case, and how sure that is; if nothing was, what would decide it."""
    rounds = row.parts[0]
    head = f"{row.label}: "
    after = f"after {counted(rounds)}"
    if decided is Decision.OPEN:
        return one_line(f"{head}cannot be decided {after}{_left_open(row, within, round_seconds)}.")
    if decided is Decision.EQUAL:
        return one_line(
            f"{head}any difference larger than {percent(within)} in {metric_words(row)} is ruled out: B / A is "
            f"{between(row.ratio.interval)}, {after}."
        )
    return one_line(f"{head}B is {_range(row)} in {metric_words(row)}, {after}.")


def counted(rounds: int) -> str:
    """`1 round`, `7 rounds`."""
    return f"{rounds} {'round' if rounds == 1 else 'rounds'}"


def _range(row: ComparisonRow) -> str:
    """By how much, from the end of the interval that is nearer to no change to the other: `slower by 2 % to 4 %`."""
    interval, value = row.ratio.interval, row.ratio.value
    assert interval is not None
    assert value is not None
    word = change_words(row).split(",")[0].split()[-1]
    gains = [interval.low, interval.high]
    if row.gain is not None and word in ("faster", "slower") and row.gain != value:
        gains = [1.0 / interval.high, 1.0 / interval.low]
    gains.sort(key=lambda gain: abs(gain - 1.0))
    amounts = [gain_words(gain, "", "").strip() for gain in gains]
    if any(amount.endswith("x") for amount in amounts):
        return f"{amounts[0]} to {amounts[1]} {word}"
    return f"{word} by {amounts[0]} to {amounts[1]}"


def _left_open(row: ComparisonRow, within: float, round_seconds: float) -> str:
    if row.ratio.interval is None:
        least = next(count for count in range(2, 100) if critical(count, 1.0 - CONFIDENCE) < math.inf)
        return f": it takes at least {least} rounds"
    needed = rounds_to_decide(row.ratio, row.parts[0], within)
    would = "no number of rounds that anyone would wait for is enough with this noise: make it quieter"
    if needed is not None:
        time = "" if math.isnan(round_seconds) else f" ({show_duration(needed * round_seconds)})"
        would = f"about {needed} rounds{time} in all would decide if it stays so"
    return f": B / A is {between(row.ratio.interval)} in {metric_words(row)}; {would}"


def progress(row: ComparisonRow, decided: Decision) -> str:
    """Where a case stands, in a few words."""
    sure = f" ({between(row.ratio.interval)})" if row.ratio.interval else ""
    return f"B / A {ratio(row.ratio.value)}{sure}" + (f", {decided}" if decided is not Decision.OPEN else "")


def decided_data(decided: Decided, within: float) -> Iterator[dict[str, Any]]:
    """The same for programs."""
    for row, one in decided:
        interval = row.ratio.interval
        yield {
            "case": row.label,
            "metric": row.metric.name,
            "decision": one.value,
            "rounds": row.parts[0],
            "ratio": row.ratio.value,
            "low": interval.low if interval else None,
            "high": interval.high if interval else None,
            "within": within,
            "chance": row.ratio.chance,
        }
