"""A comparison as a page: the answer, the chart of ratios, the table, the warning, and what it rests on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from paceline.analysis.compare.matching import Side
from paceline.analysis.compare.significance import FALSE_ALARMS
from paceline.analysis.compare.verdicts import Comparison, ComparisonRow, ComparisonVerdict, Pairing
from paceline.report.charts import ACCENT, CONFIG, GRID, INK, MUTED, WARNING, Chart, Spec, names_axis, words_beside
from paceline.report.compare.words import (
    about,
    answer,
    change_words,
    gain_words,
    metric_words,
    ordered,
    verdict_words,
)
from paceline.report.document import Block, Column, Document, Lines, Section, Table, Tone
from paceline.report.numbers import SI_UNITS, between, ratio, show_value
from paceline.report.text import heading, one_line, when

MOST_DRAWN = 40
_COLOURS = {ComparisonVerdict.BETTER: ACCENT, ComparisonVerdict.WORSE: WARNING}


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
    notes = []
    if len(drawable) > len(rows):
        notes.append(f"The {len(rows)} of {len(drawable)} ratios that changed the most are drawn.")
    verdicts = [
        f"{value['case']}: {verdict_words(row)}, {ratio(value['gain'])}"
        for value, row in zip(values, rows, strict=True)
    ]
    return Chart(
        spec={
            "data": {"values": values},
            "width": 430,
            "height": {"step": 26},
            "layer": _layers(scale, is_wide=is_wide),
            "config": CONFIG,
        },
        title=f"How {one_line(pairing.new.name)} stands to {one_line(pairing.reference.name)}, with intervals",
        description="; ".join(verdicts),
        notes=tuple(notes),
    )


def _value(row: ComparisonRow, alone: bool) -> Spec:
    gain = row.gain or 1.0
    interval = row.ratio.interval
    ends = (interval.low, interval.high) if interval else (row.ratio.value or 1.0,) * 2
    is_turned = row.ratio.value is not None and gain != row.ratio.value
    low, high = (1 / ends[1], 1 / ends[0]) if is_turned else ends
    return {
        "case": one_line(row.label if alone else f"{row.label}, {metric_words(row)}"),
        "gain": gain,
        "low": low,
        "high": high,
        "text": change_words(row) if row.is_change else verdict_words(row),
        "colour": _COLOURS.get(row.verdict, MUTED),
        "interval": between(interval),
    }


def _layers(scale: Spec, *, is_wide: bool) -> Sequence[Spec]:
    axis = {
        "title": "times as good as the reference; right of the line is better",
        "format": ".3~g" if is_wide else ".3~f",
        "tickCount": 6,
    }
    y = names_axis(domain=False, labelLimit=250, minExtent=190)
    x: Spec = {"type": "quantitative", "scale": scale}
    colours = [ACCENT, WARNING, MUTED]
    colour = {"field": "colour", "type": "nominal", "scale": {"domain": colours, "range": colours}, "legend": None}
    return [
        {
            "data": {"values": [{"one": 1.0}]},
            "mark": {"type": "rule", "color": MUTED, "strokeDash": [4, 3]},
            "encoding": {"x": {"field": "one", "axis": {**axis, "gridColor": GRID}, **x}},
        },
        {
            "mark": {"type": "rule", "color": INK, "size": 1.5},
            "encoding": {"y": y, "x": {"field": "low", **x}, "x2": {"field": "high"}},
        },
        {
            "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
            "encoding": {"y": y, "x": {"field": "gain", **x}, "color": colour},
        },
        words_beside(y, {"value": 430}, dx=10),
    ]


NAMED = 8  # cases that a sentence can hold
MOST_ROWS = {False: 50, True: 2000}  # of a table on a terminal, and of one on a page


def document(comparison: Comparison, *, full: bool = False, charts: bool = True, every: bool = False) -> Document:
    """The page; `full` is for files, which have room for the environments of both sides, `every` row for who asks."""
    most = None if every else MOST_ROWS[full]
    blocks = [_block(pairing, comparison, most, full=full, charts=charts) for pairing in comparison.pairings]
    sides = [comparison.pairings[0].reference, *(pairing.new for pairing in comparison.pairings)]
    return Document(title=" and ".join(one_line(side.name) for side in sides), blocks=tuple(blocks))


def _block(pairing: Pairing, comparison: Comparison, most: int | None, *, full: bool, charts: bool) -> Block:
    chart = forest(pairing) if charts else None
    broken = tuple(
        one_line(f"{one.label}: not in {one.side}, where it ended as {one.reason}") for one in pairing.broken
    )
    sections = [
        Section(items=(chart,) if chart else ()),
        _table(pairing, comparison, most),
        _means(pairing),
        Section("Succeeded on one side only", (Lines(broken),), Tone.WARNING),
        Section("Warnings", (Lines(tuple(_warnings(pairing, comparison))),), Tone.WARNING),
        Section("Not compared", (Lines(tuple(_left_out(pairing))),)),
        Section("How this was told", (Lines(tuple(_basis(pairing, comparison))),), Tone.BASIS),
    ]
    if full:
        sections.append(_environments([pairing.reference, pairing.new]))
    return Block(answer(pairing, is_paired=comparison.is_paired), about(pairing, comparison), tuple(sections))


def _table(pairing: Pairing, comparison: Comparison, most: int | None) -> Section:
    rows = ordered(pairing.rows)[:most]
    if not rows:
        return Section()
    names = ("A", "B") if comparison.is_paired else ("Reference", "New")
    columns = [
        Column.of("Case", tuple(one_line(row.label) for row in rows), numeric=False),
        Column.of("Verdict", tuple(verdict_words(row) for row in rows), numeric=False),
    ]
    title, unit = "Cases", ""
    if len({metric_words(row) for row in rows}) > 1:
        columns.append(Column.of("Metric", tuple(metric_words(row) for row in rows), numeric=False))
    else:
        unit = _common_unit(rows)
        title = f"{heading(metric_words(rows[0]))} of each case" + (f", in {unit}" if unit else "")
    values = [[_bare((row.ratio.reference, row.ratio.new)[side], row, unit) for row in rows] for side in (0, 1)]
    columns += [
        *(Column.of(name, tuple(cells)) for name, cells in zip(names, values, strict=True)),
        Column.of("Ratio", tuple(ratio(row.ratio.value) for row in rows), leads=True),
    ]
    if any(row.ratio.interval for row in rows):
        columns.append(Column.of("95 % interval", tuple(between(row.ratio.interval) for row in rows)))
    if any(row.parts != (1, 1) for row in rows):
        columns.append(Column.of("Parts", tuple(f"{row.parts[0]}/{row.parts[1]}" for row in rows), widest=True))
    columns.append(Column.of("Samples", tuple(f"{row.samples[0]}/{row.samples[1]}" for row in rows), widest=True))
    if any(kinds for row in rows for kinds in row.warnings):
        marks = comparison.warnings
        columns.append(Column.of("?", tuple(_marks(row, marks) for row in rows)))
    return Section(title, (Table(tuple(columns)), Lines(tuple(_more(pairing.rows, rows)))))


def _more(every: Sequence[ComparisonRow], shown: Sequence[ComparisonRow]) -> Iterator[str]:
    more = len(every) - len(shown)
    changed = sum(row.is_change for row in every) - sum(row.is_change for row in shown)
    if more:
        which = f"{changed:,} of them changed, but by less" if changed else "all that changed are here"
        yield f"{more:,} more rows, {which}: `--all` shows them, `--csv` and `--json` have them."


def _common_unit(rows: Sequence[ComparisonRow]) -> str:
    """The unit that all values have as they are; one that scales with them stays beside each."""
    units = {row.metric.unit for row in rows}
    unit = units.pop() if len(units) == 1 else ""
    return unit if unit and unit not in (*SI_UNITS, "s", "B", "%") else ""


def _bare(value: float, row: ComparisonRow, unit: str) -> str:
    shown = show_value(value, row.metric.unit)
    return shown.removesuffix(f" {unit}") if unit else shown


def _marks(row: ComparisonRow, marks: Mapping[str, str]) -> str:
    """The letters of both sides' warnings: `D/-` is one of the reference alone."""
    sides = ["".join(marks[kind] for kind in kinds) or "-" for kinds in row.warnings]
    return "" if sides == ["-", "-"] else "/".join(sides)


def _means(pairing: Pairing) -> Section:
    """The means of several kinds of cases; the one of all is in the answer."""
    means = pairing.means
    if len(means) < 2:
        return Section()
    verdicts = []
    for mean in means:
        changed = gain_words(mean.value, "better", "worse") if mean.is_change else "no significant change"
        verdicts.append("no interval" if mean.interval is None else changed)
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


def _left_out(pairing: Pairing) -> Iterator[str]:
    matched = pairing.matched
    for side, labels in ((pairing.reference, matched.only_reference), (pairing.new, matched.only_new)):
        if labels:
            yield f"Only in {one_line(side.name)}: {_some(labels)}"
    yield from (one_line(line) for line in pairing.uncompared[:NAMED])
    if len(pairing.uncompared) > NAMED:
        yield f"and {len(pairing.uncompared) - NAMED} more"


def _basis(pairing: Pairing, comparison: Comparison) -> Iterator[str]:
    yield _matching(pairing, comparison)
    if not any(row.ratio.interval for row in pairing.rows):
        yield "A side with one value and no samples has no interval, and no change of it is ever called significant."
        return
    if comparison.is_paired:
        yield (
            "A ratio is the geometric mean of B / A over the rounds, in each of which one was measured right after "
            "the other, and its interval comes from how the rounds differ."
        )
    elif pairing.is_single:
        yield (
            "A ratio is new / reference. Its interval is about the samples of these two runs: how runs differ among "
            "themselves is not in it. Measure with `--repeat 5`, or in turns with `--ab`, to have that, too."
        )
    else:
        yield "A ratio is new / reference, and how repetitions and runs differ among themselves is in its interval."
    count = sum(row.ratio.chance is not None for row in comparison.rows)
    if count > 1:
        yield (
            f"{count:,} comparisons are judged together, so that at most {FALSE_ALARMS:.0%} of the called changes are "
            "none (Benjamini and Hochberg): among so many, an interval that leaves out 1 may be chance."
        ).replace("%", " %")


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
        return one_line(f"{count} {cases} measured in turns; the sides differ in {', '.join(settings)}.")
    others = f"{exact} of them alike in everything, the others by" if exact else "by"
    nevertheless = f"; they differ in {', '.join(settings)}" if settings else ""
    return one_line(f"{count} {cases} matched, {others} the parameters that both sides know{nevertheless}.")


def _environments(sides: Sequence[Side]) -> Section:
    described = [_described(side) for side in sides]
    names = list(dict.fromkeys(name for one in described for name in one))
    columns = [Column.of("", names, numeric=False)]
    for header, one in zip(("Reference", "New"), described, strict=True):
        columns.append(Column.of(header, [one.get(name, "") for name in names], numeric=False))
    return Section("Environments", (Table(tuple(columns)),))


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
    return {name: one_line(_some(tuple(dict.fromkeys(words)))) for name, words in facts.items() if any(words)}


def _words(*values: str | float | None) -> str:
    """What is known; a number is one of cores."""
    return ", ".join(f"{value:g} cores" if isinstance(value, float) else str(value) for value in values if value)


def _some(labels: Sequence[str]) -> str:
    more = f" and {len(labels) - NAMED:,} more" if len(labels) > NAMED else ""
    return one_line(", ".join(labels[:NAMED])) + more
