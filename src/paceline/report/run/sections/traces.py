"""Where the time of traced steps went: a sentence and a bar for each case, and its top kernels."""

from __future__ import annotations

import re
from collections.abc import Sequence

from paceline.analysis.explain import TracedRow, trace_advice, traced
from paceline.core.quantity import show_count, show_size
from paceline.core.subject import StepTrace
from paceline.core.trace_events import IDLE, ORDER, TOP, TimeSpent
from paceline.report.charts import ACCENT, LINES, MUTED, Chart, Spec, coloured, framed, plane_beside, stacked_bars
from paceline.report.document import Table
from paceline.report.run.sections import ReportSection, SectionAnswer, section_of
from paceline.report.text import one_line, percent, show_value, told_apart
from paceline.report.text import share as share_of

NAMES = 90  # characters of a kernel's name
FEW = 6  # kernels of each case where there are several cases
NAMED = 0.1  # share from which on a second group is named, too
LEAST = 0.005  # smaller shares are not shown
HOW_TO_OPEN = (
    "Open a trace in ui.perfetto.dev, which reads it in the browser and sends it nowhere, or in chrome://tracing"
)
COUNTED = "Every moment of a step counts once, and communication only where nothing hides it."

_KINDS = (*ORDER, IDLE)
_COLOURS = dict(zip(_KINDS, (ACCENT, LINES[5], LINES[1], LINES[7], MUTED), strict=True))


def trace_parts(cases: Sequence[TracedRow]) -> list[SectionAnswer]:
    """One part for each traced case; before several of them, one that shows them side by side."""
    spents = [one.trace.spent for one in cases]
    idle = {index: spent.shares.get(IDLE, 0.0) for index, spent in enumerate(spents) if spent is not None}
    chart = _chart([cases[index] for index in idle])
    if len(idle) < 2:
        return [_part(one, chart, most=TOP, notes=(f"{HOW_TO_OPEN}. {COUNTED}",)) for one in cases]
    most = max(idle, key=idle.__getitem__)
    label = one_line(cases[most].row.label)
    sentence = f"Of {len(idle)} traced cases, {label} idles most: {share_of(idle[most])} of its step."
    together = SectionAnswer(sentence=sentence, chart=chart, notes=(f"{COUNTED} {HOW_TO_OPEN}.",))
    return [together, *(_part(one, None, most=FEW) for one in cases)]


def _part(one: TracedRow, chart: Chart | None, *, most: int, notes: tuple[str, ...] = ()) -> SectionAnswer:
    label, trace, spent = one_line(one.row.label), one.trace, one.trace.spent
    if spent is None:
        return SectionAnswer(
            sentence=f"{label} was to be traced, but was not: {one_line(trace.missing or 'nothing was kept of it')}.",
            notes=(f"{_where(trace)}.",) if trace.file else (),
            lines=("The measurement stands.", one_line(trace.file)) if trace.file else (),
        )
    what = "Kernel" if spent.on_device else "Operator"
    headers = (what, "Does", "Bound by", "Calls a step", "Time a step", "Share")
    lines = []
    for kernel in spent.kernels[:most]:
        per_step = (show_count(kernel.calls), show_value(kernel.seconds, "s"), percent(kernel.share))
        lines.append((short_name(kernel.name, NAMES), kernel.group, kernel.kind, *per_step))
    top = [
        f"{short_name(kernel.name.removeprefix('aten::'), 36)} {share_of(kernel.share)}" for kernel in spent.kernels[:2]
    ]
    return SectionAnswer(
        sentence=f"{label}: {sentence(spent)}",
        chart=chart,
        table=Table.of_lines(headers, lines, 3),
        todo=trace_advice(trace),
        notes=(*_notes(one, spent), *notes),
        # A path alone fits into a line.
        lines=(f"{what}s: {', '.join(top)}", one_line(trace.file) or _where(trace)),
    )


def sentence(spent: TimeSpent) -> str:
    """What the step is made of, the most first; and what it waits for."""
    groups = [(name, share) for name, share in spent.groups.items() if name != "communication"]
    named = [f"{share_of(share)} {name}" for name, share in groups[1:2] if share >= NAMED]
    exposed = spent.shares.get("communication", 0.0)
    parts = []
    if groups:
        name, share = groups[0]
        parts.append(", ".join([f"{share_of(share)} of the step is {name}", *named]))
    if exposed + spent.hidden_communication >= LEAST:
        hidden = f", and {share_of(spent.hidden_communication)} is hidden behind work"
        parts.append(
            f"{share_of(exposed)} waits for communication" + (hidden if spent.hidden_communication >= LEAST else "")
        )
    idle = spent.shares.get(IDLE, 0.0)
    if idle < LEAST:
        waits = "the device never waits" if spent.on_device else "operators run all the time"
    else:
        waits = f"{'the device idles' if spent.on_device else 'no operator runs for'} {share_of(idle)}"
    parts.insert(0 if groups and idle > groups[0][1] else len(parts), waits)
    return "; ".join(parts) + "."


def _where(trace: StepTrace) -> str:
    if not trace.file:
        return f"No trace is kept: {one_line(trace.no_file) or 'there is no file'}"
    size = f" ({show_size(trace.bytes)})" if trace.bytes is not None else ""
    return f"Trace: {one_line(trace.file)}{size}"


def _notes(one: TracedRow, spent: TimeSpent) -> list[str]:
    what, within = ("kernels", "") if spent.on_device else ("operators", ", each without those within it")
    steps = "1 step" if spent.steps == 1 else f"{spent.steps} steps"
    notes = [
        f"{_where(one.trace)}. Based on {spent.kernel_names} {what}{within}, in {steps} of "
        f"{show_value(spent.step_seconds, 's')} after the measured ones.",
    ]
    if one.is_slowed:
        notes.append(
            f"Traced steps took {one.trace.slowdown:.1f} times as long as the measured ones, by tracing or by other "
            f"load: short {what} and the time between them may be shown too large."
        )
    return notes


def short_name(name: str, limit: int) -> str:
    """A kernel's name without what templates add to it, as far as that is needed."""
    short = re.sub(r"^## Call CompiledFxGraph (\w{6})\w* ##$", r"compiled graph \1", one_line(name)).removeprefix(
        "void "
    )
    while len(short) > limit and (without := re.sub(r"<[^<>]*>|\([^()]*\)", "", short)) != short:
        short = without
    return short if len(short) <= limit else short[: limit - 1] + "…"


def _chart(traces: Sequence[TracedRow]) -> Chart | None:
    spents = [one.trace.spent for one in traces if one.trace.spent is not None]
    if not spents:
        return None
    shared, names = told_apart([one_line(one.row.label) for one in traces])
    kinds = [kind for kind in _KINDS if any(spent.shares.get(kind, 0.0) >= LEAST for spent in spents)]
    values: list[Spec] = [
        {"case": name, "kind": kind, "place": place, "value": 100 * spent.shares.get(kind, 0.0)}
        for name, spent in zip(names, spents, strict=True)
        for place, kind in enumerate(kinds)
    ]
    texts = [
        ", ".join(f"{kind} {share_of(spent.shares[kind])}" for kind in _KINDS if spent.shares.get(kind, 0.0) >= LEAST)
        for spent in spents
    ]
    ends = [{"case": name, "end": 100.0, "text": text} for name, text in zip(names, texts, strict=True)]
    colour = coloured(kinds, [_COLOURS[kind] for kind in kinds], field="kind")
    scale = {"scale": {"domain": [0, 100], "nice": False}}
    layers = stacked_bars(values, ends, scale, colour, is_named=len(traces) > 1)
    title = "Where the time of a step goes"
    width = plane_beside(names if len(traces) > 1 else (), texts)
    return Chart(
        spec=framed(
            title,
            shared,
            "% of the step",
            width=width,
            height={"step": 28},
            layer=layers,
        ),
        title=f"{title}: {shared or names[0]}",
        description="; ".join(f"{name}: {text}" for name, text in zip(names, texts, strict=True)),
    )


SECTION = ReportSection(
    "traces", 20, lambda summary: section_of("time", "Where the time went", trace_parts(traced(summary.rows)))
)
