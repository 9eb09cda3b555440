"""Scaling over ranks: which part of its speed each rank keeps, next to the ideal, and what the lost time went to."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.analysis.configuration import layout_of
from paceline.analysis.scaling import BUBBLE, COMMUNICATION, REDUCTION, REST, SLOWER, Scaled, ScalingSeries, scaling
from paceline.core.quantity import show_count
from paceline.report.charts import ACCENT, INK, LINES, MUTED, TEXT, Chart, Spec, coloured, framed, layer, quantity
from paceline.report.document import Table
from paceline.report.run.sections import ReportSection, SectionAnswer, section_of, with_note
from paceline.report.text import axis_scale, heading, humanize, one_line, share, show_value, told_apart

WIDTH, HEIGHT = 560, 240
BARS = 300
MOST_SERIES = 8
_COLOURS = {COMMUNICATION: LINES[1], BUBBLE: LINES[3], SLOWER: LINES[4], REDUCTION: LINES[5], REST: MUTED}
_TODO = {
    COMMUNICATION: "hide more of the communication: larger batches for each rank, fewer and larger messages, a layout "
    "whose tensor-parallel ranks share the fastest links",
    BUBBLE: "fill the pipeline: more micro-batches in a step, or a schedule with a smaller bubble",
    SLOWER: "find the slow rank in the case's figures by rank, and what holds it up (paceline doctor on its host)",
    REDUCTION: "the gradients travel too slowly to be hidden: larger batches for each rank; 'paceline run collective' "
    "shows what the links carry",
    REST: "run the cases with --phases, or --profile, to see what the rest is",
}


def scaling_parts(all_series: Sequence[ScalingSeries]) -> list[SectionAnswer]:
    """A part for each series, the first few of them."""
    parts = [_part(series) for series in all_series[:MOST_SERIES]]
    more = len(all_series) - MOST_SERIES
    return with_note(parts, f"{more} more series of this kind are left out.") if more > 0 else parts


def _part(series: ScalingSeries) -> SectionAnswer:
    name, seconds = max(series.largest.losses.items(), key=lambda loss: loss[1], default=("", 0.0))
    # Why the parts may be wrong: more than the ideal, for one, is a base that was held up.
    kinds = dict.fromkeys(one_line(warning.kind) for one in series.points for warning in one.row.warnings)
    return SectionAnswer(
        sentence=_sentence(series),
        chart=_chart(series),
        table=_table(series),
        todo=(_TODO[name],) if _is_much(series.largest, seconds) else (),
        notes=tuple(_notes(series)),
        lines=tuple(f"{_named(one)}: {_kept(one)}{_went(one)}" for one in series.points[1:]),
        source=f"The cases have warnings: {', '.join(kinds)}." if kinds else "",
    )


def _is_much(one: Scaled, seconds: float) -> bool:
    return one.seconds is not None and seconds > 0.03 * one.seconds


def _sentence(series: ScalingSeries) -> str:
    base, last = series.base, series.largest
    if series.rule == "bandwidth":
        return f"From {base.ranks} to {last.ranks} ranks {_label(series)} keeps {_kept(last)} of its bus bandwidth."
    speed = f"{_kept(last)} of its speed{'' if series.shares_cores else ' per rank'}"
    mesh = f" as {last.mesh}" if last.mesh else ""
    batch = f"a batch of {show_count(series.batch or 0.0)} for"
    rule = (
        f"weak scaling: {batch} each rank" if series.rule == "weak" else f"strong scaling: {batch} all ranks together"
    )
    return f"From {_counted(base)} to {last.ranks}{mesh}, {_label(series)} keeps {speed} ({rule}){_went(last)}."


def _went(one: Scaled) -> str:
    """What the time was lost to, each as a part of the step."""
    if not one.losses or not one.seconds or not _is_much(one, one.lost):
        return ""
    parts = [f"{share(lost / one.seconds)} {name}" for name, lost in one.losses.items() if _is_much(one, lost)]
    return f"; lost of its step: {', '.join(parts)}" if parts else ""


def _label(series: ScalingSeries) -> str:
    layout = layout_of(series.base.row.record)
    if layout is not None:
        word = f"{layout.model}/nl{layout.layers}_{layout.precision}"
        return one_line(f"{series.base.row.case.benchmark} {word}{' with checkpointing' * layout.checkpointing}")
    labels = [one_line(one.row.label) for one in series.points]
    shared, _ = told_apart(labels)
    return shared or labels[0]


def _counted(one: Scaled) -> str:
    return "1 rank" if one.ranks == 1 else f"{one.ranks} ranks"


def _named(one: Scaled) -> str:
    return _counted(one) + (f", {one.mesh}" if one.mesh else "")


def _kept(one: Scaled) -> str:
    spread = max(one.high - one.efficiency, one.efficiency - one.low)
    return f"{share(one.efficiency)}" + (f" ± {100 * spread:.1f}" if spread >= 0.0005 else "")


def _notes(series: ScalingSeries) -> list[str]:
    notes = []
    if series.shares_cores:
        cores = show_count(series.base.devices)
        notes.append(f"All ranks share the same {cores} cores, so that the ideal is the speed of one rank alone.")
    elif series.rule != "bandwidth":
        notes.append(
            f"Efficiency is the speed per {'core' if series.base.row.case.target == 'cpu' else 'rank'} as a part of "
            f"that with {_counted(series.base)}; its interval holds the uncertainty of both."
        )
    names = {name for one in series.points for name in one.losses}
    if {COMMUNICATION, SLOWER} & names:
        notes.append(
            "Exposed communication is the time in which data travels and nothing is computed, of the rank that waits "
            "least; what others wait beyond it is for slower ranks."
        )
    return notes


def _table(series: ScalingSeries) -> Table:
    first = series.base.row.headline
    unit = first.unit if first else ""
    has_mesh = any(one.mesh for one in series.points)
    names = list(dict.fromkeys(name for one in series.points for name in one.losses))
    value = heading(humanize(first.name)) if first else "Value"
    step = ["Step"] if series.base.seconds else []
    mesh = ["Mesh"] if has_mesh else []
    headers = ("Ranks", *mesh, value, "Efficiency", *step, *(heading(name) for name in names))
    lines = []
    for one in series.points:
        times = [one.seconds or None] if series.base.seconds else []
        texts = [show_value(time, "s") if time is not None else "–" for time in [*times, *map(one.losses.get, names)]]
        meshes = [one.mesh] if has_mesh else []
        lines.append((str(one.ranks), *meshes, show_value(one.value, unit), _kept(one), *texts))
    return Table.of_lines(headers, lines, 2 if has_mesh else 1)


def _chart(series: ScalingSeries) -> Chart:
    panels = [_efficiency(series)]
    if any(one.losses for one in series.points):
        panels.append(_losses(series))
    title = "Bus bandwidth kept over ranks" if series.rule == "bandwidth" else "Speed kept over ranks"
    apart = {"legend": {"color": "independent"}}
    return Chart(
        spec=framed(title, _label(series), hconcat=panels, spacing=46, resolve=apart),
        title=f"{title}: {_label(series)}",
        description="; ".join(f"{_named(one)}: {_kept(one)}{_went(one)}" for one in series.points),
    )


def _efficiency(series: ScalingSeries) -> Spec:
    best = {(one.ranks, one.mesh) for one in series.best}
    values: list[Spec] = [
        {
            "ranks": one.ranks,
            "kept": 100 * one.efficiency,
            "low": 100 * one.low,
            "high": 100 * one.high,
            "text": share(one.efficiency),
            "best": (one.ranks, one.mesh) in best,
        }
        for one in series.points
    ]
    ranks = sorted({one.ranks for one in series.points})
    top = max(105.0, *(1.04 * value["high"] for value in values))
    scale: Spec = {"type": "log", "base": 2, "domain": [ranks[0] / 1.15, ranks[-1] * 1.15], "nice": False}
    x = quantity("ranks", "ranks", scale, values=ranks, grid=False, format="d")
    y = quantity("kept", "efficiency, %", {"domain": [0, top], "nice": False}, tickCount=5)
    place: Spec = {"x": x, "y": y}
    ideal: list[Spec] = [{"kept": 100}]
    word: Spec = {"y": y, "x": {"value": 0}, "text": {"value": "ideal"}}
    interval = {"x": x, "y": y | {"field": "low"}, "y2": {"field": "high"}}
    layers = [
        layer("rule", {"y": y}, ideal, color=MUTED, strokeDash=[5, 4]),
        layer("text", word, ideal, color=MUTED, fontSize=12, align="left", baseline="bottom", dx=4, dy=-3),
        layer("line", place, where="datum.best", strokeWidth=2, color=ACCENT),
        layer("rule", interval, color=ACCENT, strokeWidth=2),
        layer("point", place, filled=True, size=60, opacity=1, color=ACCENT),
        layer("text", place | {"text": TEXT}, where="datum.best", color=INK, fontSize=12, baseline="top", dy=11),
    ]
    return {"width": WIDTH, "height": HEIGHT, "data": {"values": values}, "layer": layers}


def _losses(series: ScalingSeries) -> Spec:
    """Where a step's lost time went, beside the time that an ideal step takes."""
    timed = [one for one in series.best if one.seconds]
    scale, unit = axis_scale("s", max(one.lost for one in timed))
    names = [name for name in _COLOURS if any(name in one.losses for one in timed)]
    values: list[Spec] = [
        {"ranks": str(one.ranks), "name": name, "place": names.index(name), "value": seconds / scale}
        for one in timed
        for name, seconds in one.losses.items()
    ]
    colour = coloured(names, [_COLOURS[name] for name in names], field="name")
    if colour["legend"]:
        colour["legend"]["columns"] = 1
    order = [str(one.ranks) for one in timed]
    alone = f", {names[0]}" if len(names) == 1 else ""
    axis = {"title": "ranks", "labelAngle": 0, "ticks": False, "labelPadding": 6}
    encoding = {
        "x": {"field": "ranks", "type": "ordinal", "scale": {"domain": order}, "axis": axis},
        "y": quantity("value", f"lost of a step{alone}, {unit}", tickCount=5) | {"stack": "zero"},
        "order": {"field": "place"},
        "color": colour,
    }
    return {"width": BARS, "height": HEIGHT} | layer("bar", encoding, values, width={"band": 0.6})


SECTION = ReportSection(
    "scaling", 30, lambda summary: section_of("scaling", "Scaling over ranks", scaling_parts(scaling(summary.measured)))
)
