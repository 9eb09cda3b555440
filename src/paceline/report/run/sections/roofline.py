"""Rooflines: every case under its device's ceilings, what bounds it in words, and what to do about that."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from paceline.analysis.roofline import MEASURE, NEAR, Bound, Placed, Roof, Roofline, Rooflines, advice, rooflines
from paceline.analysis.summary import CaseRow, RunSummary, shortened
from paceline.core.grouping import group_by
from paceline.core.quantity import show_count
from paceline.report.charts import (
    ACCENT,
    INK,
    LINES,
    MUTED,
    TEXT,
    WIDTH,
    Chart,
    Spec,
    coloured,
    decades_within,
    framed,
    layer,
    quantity,
)
from paceline.report.document import Section, Table
from paceline.report.run.sections import MOST_LINES, ReportSection, SectionAnswer, section_of, with_note
from paceline.report.text import listed, one_line, share, show_value, told_apart

HEIGHT = 330
MARGIN = 2.2  # factor by which an axis reaches beyond what it shows
_BESIDE = ((0, -13), (14, 0), (-14, 0), (0, 14), (13, -11), (-13, -11), (13, 12), (-13, 12))  # a point, in pixels


class Plane:
    """What the axes span, and where things lie on it in pixels."""

    def __init__(self, roofline: Roofline, drawn: Sequence[Placed]) -> None:
        self.bandwidth, self.top = roofline.memory.value, roofline.compute[0].value
        at = [one.work.intensity for one in drawn] + [roof.value / self.bandwidth for roof in roofline.compute]
        rates = [one.work.rate for one in drawn] + [roof.value for roof in roofline.compute]
        self.x = (min(at) / MARGIN, max(at) * MARGIN)
        self.y = (min(rates) / MARGIN, max(rates) * MARGIN)
        self._make_room(min(6 * len(named_roof(roofline.memory)) + 16, WIDTH / 2))
        self.flat = [self.down(roof.value) for roof in roofline.compute]
        self.points = [(self.across(one.work.intensity), self.down(one.work.rate)) for one in drawn]

    def across(self, intensity: float) -> float:
        """How far from the left an intensity is."""
        return WIDTH * math.log(intensity / self.x[0]) / math.log(self.x[1] / self.x[0])

    def down(self, rate: float) -> float:
        """How far from the top a rate is."""
        return HEIGHT * math.log(self.y[1] / rate) / math.log(self.y[1] / self.y[0])

    def _make_room(self, width: float) -> None:
        """Reach further down where the slope would be shorter than its name, which would cover the axis."""
        while self.slope[2] < width:
            if self.x[0] >= self.y[0] / self.bandwidth:
                self.x = (self.x[0] / 1.1, self.x[1])
            else:
                self.y = (self.y[0] / 1.1, self.y[1])

    @property
    def slope(self) -> tuple[float, float, float]:
        """Where the slope of the memory begins and ends, and its length in pixels."""
        first, last = max(self.x[0], self.y[0] / self.bandwidth), self.top / self.bandwidth
        return first, last, math.hypot(*self._steps) * math.log(last / first)

    @property
    def _steps(self) -> tuple[float, float]:
        """How many pixels up and to the right a factor of e lies."""
        return HEIGHT / math.log(self.y[1] / self.y[0]), WIDTH / math.log(self.x[1] / self.x[0])

    def on_the_slope(self, width: float) -> tuple[float, float]:
        """Where on the slope a name of this width is furthest from the points, and how it is turned."""
        first, last, length = self.slope
        edge = min(0.5, (width / 2 + 8) / length)
        tries = [first * (last / first) ** (edge + (1 - 2 * edge) * step / 12) for step in range(13)]

        def clearance(at: float) -> float:
            place = (self.across(at), self.down(self.bandwidth * at))
            return min((math.dist(place, point) for point in self.points), default=0.0)

        return max(tries, key=clearance), -math.degrees(math.atan2(*self._steps))

    def numbers(self, drawn: Sequence[Placed]) -> list[Spec]:
        """The number of each case beside its point, where no other number or point is in the way."""
        taken: list[tuple[float, float]] = []
        labels: list[Spec] = []
        for number, (point, one) in enumerate(zip(self.points, drawn, strict=False), start=1):
            tries = [(point[0] + dx, point[1] + dy) for dx, dy in _BESIDE]
            free = [place for place in tries if self._is_free(place, taken)]
            off_the_lines = [place for place in free if all(abs(place[1] - line) > 8 for line in self.flat)]
            for place in [*off_the_lines, *free][:1]:
                taken.append(place)
                labels.append({"intensity": one.work.intensity, "rate": one.work.rate, "text": str(number),
                              "dx": place[0] - point[0], "dy": place[1] - point[1]})  # fmt: skip
        return labels

    def _is_free(self, place: tuple[float, float], taken: Sequence[tuple[float, float]]) -> bool:
        return all(math.dist(place, other) > 15 for other in taken) and all(
            math.dist(place, other) > 11 for other in self.points
        )


def named_roof(roof: Roof) -> str:
    """A ceiling with its height, and whether that is only the datasheet's."""
    return f"{roof.name} {show_value(roof.value, roof.unit)}" + (" (datasheet)" if roof.source == "datasheet" else "")


MOST_POINTS = 300  # drawn
MOST_NUMBERED = 30
KINDS: Mapping[Bound, tuple[str, str, str]] = {  # words, colour and shape
    Bound.COMPUTE: ("compute", ACCENT, "circle"),
    Bound.MEMORY: ("memory", LINES[1], "square"),
    Bound.HOST: ("the host", LINES[3], "triangle-down"),
    Bound.NEITHER: ("neither", LINES[4], "triangle-up"),
}


def roofline_parts(answer: Rooflines) -> list[SectionAnswer]:
    """A part for each device, and what is to be done where there is no roof."""
    parts = [_part(roofline) for roofline in answer.rooflines]
    if answer.unknown:
        devices = ", ".join(_device(device) for device in answer.unknown)
        parts.append(
            SectionAnswer(f"Not known: nothing tells what {devices} can do at most; '{MEASURE}' measures that once.")
        )
    if parts and answer.uncounted:
        count = len(answer.uncounted)
        what = "1 case is" if count == 1 else f"{count} cases are"
        note = f"{what} left out, as the record does not say how much it moves: {_labels(answer.uncounted)}."
        parts = with_note(parts, note)
    return parts


def verdict(placed: Placed) -> str:
    """What bounds a case, in a few words: `bound by memory at 78 % of 3.9 TB/s`."""
    part = f"{share(placed.share)} of {named_ceiling(placed.nearest)}"
    if placed.is_beyond:
        return f"beyond its ceiling: {part}"
    if placed.bound in (Bound.HOST, Bound.NEITHER):
        return f"bound by {KINDS[placed.bound][0]}, at {part}"
    if placed.share >= NEAR:
        return f"bound by {placed.bound.value} at {part}"
    return f"nearest to {placed.bound.value}, at {part}"


def bound_words(placed: Placed) -> str:
    """What bounds a case, in a word or two."""
    return KINDS[placed.bound][0] + (" or memory" if placed.is_open and placed.bound is Bound.COMPUTE else "")


def _part(roofline: Roofline) -> SectionAnswer:
    placed = roofline.placed
    shown = placed[:MOST_LINES]
    more = [f"The first {MOST_LINES} of {len(placed):,} cases are listed."] if len(shown) < len(placed) else []
    todo = [
        text if len(cases) == len(placed) else f"{_labels([one.row for one in cases])}: {text}"
        for text, cases in group_by(placed, advice).items()
    ]
    # Where the ceilings are from, with their warnings.
    sources: dict[str, list[str]] = {}
    for roof in (roofline.memory, *roofline.compute):
        warnings = f" (warnings: {', '.join(roof.warnings)})" if roof.warnings else ""
        sources.setdefault(roof.source, []).append(f"{roof.name} {show_value(roof.value, roof.unit)}{warnings}")
    ceilings = "; ".join(f"{', '.join(names)}: {source}" for source, names in sources.items())
    return SectionAnswer(
        sentence=_sentence(roofline),
        chart=_chart(roofline),
        table=_table(shown),
        todo=tuple(todo),
        notes=(*more, *_notes(roofline)),
        lines=tuple(f"{name}: {verdict(one)}" for name, one in zip(_told_apart(shown)[1], shown, strict=True)),
        source=f"Ceilings: {ceilings}.",
    )


def _sentence(roofline: Roofline) -> str:
    placed = roofline.placed
    if len(placed) == 1:
        (one,) = placed
        most, doubt = one.work.most_traffic, ""
        if one.is_open and most is None:
            doubt = "; its activations are not counted, so that memory may bound it as well"
        elif one.is_open and most is not None:
            at_most = f"{show_value(most, 'B/s')}, {share(most / one.memory.value)} of what memory carries"
            doubt = (
                f"; with activations that no cache holds it would move {at_most}, so that memory may bound it as well"
            )
        return f"{one_line(one.row.label)} is {verdict(one)}{doubt}."
    words = {Bound.HOST: "held up by the host", Bound.NEITHER: "far below both ceilings"}
    parts = []
    for bound in KINDS:
        if count := sum(one.bound is bound for one in placed):
            word = words.get(bound, f"nearest to the {bound.value} ceiling")
            parts.append(f"{count} {'is' if count == 1 else 'are'} {word}")
    last = min(placed, key=lambda one: one.share)
    shared, names = _told_apart(placed)
    where = f"{f' of {shared}' if shared else ''} on {_device(roofline.device)}"
    name = names[placed.index(last)]
    return f"Of {len(placed)} cases{where}, {listed(parts)}; furthest below: {name}, {verdict(last)}."


def _told_apart(placed: Sequence[Placed]) -> tuple[str, list[str]]:
    """Words that the cases of one benchmark share, and what tells each from the others."""
    labels = [one_line(one.row.label) for one in placed]
    alike = 1 < len(placed) <= MOST_LINES and len({one.row.case.benchmark for one in placed}) == 1
    return told_apart(labels) if alike else ("", labels)


def _labels(rows: Sequence[CaseRow]) -> str:
    return shortened([one_line(row.label) for row in rows])


def _table(placed: Sequence[Placed]) -> Table:
    headers = ("", "Case", "Bound by", "FLOP/byte", "Reached", "Ceiling", "Of it", "Traffic")
    lines = []
    for number, one in enumerate(placed, start=1):
        work = one.work
        # Both are exact, from the least to the most that they can be, or a bound.
        intensity, traffic = _number(work.intensity), show_value(work.traffic, "B/s")
        if work.left_out:
            least, most = work.least_intensity, work.most_traffic
            intensity = f"≤ {intensity}" if least is None else f"{_number(least)} to {intensity}"
            traffic = f"≥ {traffic}" if most is None else f"{traffic} to {show_value(most, 'B/s')}"
        reached = (show_value(work.rate, work.unit), named_ceiling(one.nearest), share(one.share))
        lines.append((str(number), one_line(one.row.label), bound_words(one), intensity, *reached, traffic))
    return Table.of_lines(headers, lines, 3)


def _notes(roofline: Roofline) -> Iterator[str]:
    """How bytes were counted, and what that leaves open."""
    exact = dict.fromkeys(one.work.formula for one in roofline.placed if not one.work.is_modelled)
    models = dict.fromkeys(one.work.formula for one in roofline.placed if one.work.is_modelled)
    if exact:
        yield f"Bytes of single operations: {'; or '.join(exact)}."
    if models:
        least = "; or ".join(models)
        yield f"Bytes of models are a model and not a measurement; the least that must move: {least}."
    if any(one.work.most_traffic is None for one in roofline.placed):
        yield (
            "Where activations are not counted, because no record has their bytes, more is moved and the intensity is "
            "lower than shown."
        )
    if any(one.work.passed for one in roofline.placed):
        yield (
            "Of two figures, one holds where a cache keeps all activations of inference, the other where it keeps none."
        )
    if any(one.is_cached for one in roofline.placed):
        yield "Traffic above the memory's ceiling is that of data which stay in a cache."


def _chart(roofline: Roofline) -> Chart:
    drawn = roofline.placed[:MOST_POINTS]
    plane = Plane(roofline, drawn)
    kinds = [bound for bound in KINDS if any(one.bound is bound for one in drawn)]
    names = [KINDS[bound][0] for bound in kinds]
    values: list[Spec] = [
        {"intensity": one.work.intensity, "rate": one.work.rate, "bound": KINDS[one.bound][0]} for one in drawn
    ]
    title = "arithmetic intensity, FLOP/byte"
    width: Spec = {"type": "log", "domain": list(plane.x), "nice": False}
    x = quantity("intensity", title, width, grid=False, values=decades_within(*plane.x), format=",~g")
    height: Spec = {"type": "log", "domain": list(plane.y), "nice": False}
    y = quantity("rate", "reached, FLOP/s", height, values=decades_within(*plane.y), format="~s")
    colour = coloured(names, [KINDS[bound][1] for bound in kinds], field="bound")
    shape = colour | {"scale": {"domain": names, "range": [KINDS[bound][2] for bound in kinds]}}
    if colour["legend"]:
        del colour["legend"]["symbolType"]  # of both: each has its own
    title = "Under the roofline"
    place: Spec = {"x": x, "y": y}
    layers = [
        *_roofs(roofline, plane, place),
        layer("point", place | {"color": colour, "shape": shape}, values, filled=True, size=85, opacity=0.9),
    ]
    about = [_device(roofline.device)]
    if len(drawn) > 1:
        layers += [
            layer("text", place | {"text": TEXT}, [number], fontSize=11, color=INK, dx=number["dx"], dy=number["dy"])
            for number in plane.numbers(drawn[:MOST_NUMBERED])
        ]
        about += ["shape and colour: what bounds it", "numbers: cases in their order"]
    notes = [f"{MOST_POINTS} of {len(roofline.placed):,} cases are drawn."] if len(drawn) < len(roofline.placed) else []
    return Chart(
        spec=framed(title, *about, width=WIDTH, height=HEIGHT, layer=layers),
        title=f"{title} of {_device(roofline.device)}",
        description="; ".join(
            f"{one_line(one.row.label)}: {_number(one.work.intensity)} FLOP/byte, "
            f"{show_value(one.work.rate, one.work.unit)}, {verdict(one)}"
            for one in drawn[:MOST_NUMBERED]
        ),
        notes=tuple(notes),
    )


def _roofs(roofline: Roofline, plane: Plane, place: Spec) -> list[Spec]:
    """The slope of the memory and the flat ceilings of the precisions, each with its name."""
    bandwidth = plane.bandwidth
    lines: list[Spec] = [{"intensity": at, "rate": bandwidth * at, "roof": "memory"} for at in plane.slope[:2]]
    for roof in roofline.compute:
        ridge = max(plane.x[0], roof.value / bandwidth)
        lines += [{"intensity": at, "rate": roof.value, "roof": roof.name} for at in (ridge, plane.x[1])]
    line = place | {"detail": {"field": "roof"}, "order": {"field": "intensity"}}
    text = place | {"text": TEXT}
    style: Spec = {"fontSize": 12, "color": MUTED, "baseline": "bottom"}
    flat = [
        {"intensity": plane.x[1], "rate": rate, "text": name} for rate, name in _flat_names(roofline.compute, plane)
    ]
    name = named_roof(roofline.memory)
    at, angle = plane.on_the_slope(7 * len(name))
    sloped = [{"intensity": at, "rate": bandwidth * at, "text": name}]
    return [
        layer("line", line, lines, strokeWidth=1.5, color=MUTED, clip=True),
        layer("text", text, flat, align="right", dy=-5, **style),
        layer("text", text, sloped, align="center", dy=-6, angle=angle, **style),
    ]


def _flat_names(roofs: Sequence[Roof], plane: Plane) -> list[tuple[float, str]]:
    """The names of the flat ceilings; those that lie close share a place above the highest of them."""
    names: list[tuple[float, str]] = []
    for roof in roofs:
        if names and plane.down(roof.value) - plane.down(names[-1][0]) < 18:
            names[-1] = (names[-1][0], f"{names[-1][1]}, {named_roof(roof)}")
        else:
            names.append((roof.value, named_roof(roof)))
    return names


def named_ceiling(roof: Roof) -> str:
    """A ceiling by its height, and what else tells it from others."""
    details = [roof.name] if roof.unit != "B/s" else []
    details += ["datasheet"] if roof.source == "datasheet" else []
    return show_value(roof.value, roof.unit) + (f" ({', '.join(details)})" if details else "")


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else show_count(value)


def _device(device: str) -> str:
    return "the CPU" if device == "cpu" else one_line(device)


def _build(summary: RunSummary) -> Section | None:
    answer = rooflines(summary.source, summary.rows, summary.ceilings)
    return section_of("roofline", "What bounds each case", roofline_parts(answer))


SECTION = ReportSection("roofline", 10, _build)
