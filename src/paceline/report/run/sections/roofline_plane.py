"""Where the cases, the ceilings and their names lie on a roofline's plane of logarithms."""

from __future__ import annotations

import math
from collections.abc import Sequence

from paceline.analysis.roofline import Placed, Roof, Roofline
from paceline.report.charts import WIDTH, Spec
from paceline.report.numbers import show_value

HEIGHT = 330
MARGIN = 2.2  # factor by which an axis reaches beyond what it shows
_BESIDE = ((0, -13), (14, 0), (-14, 0), (0, 14), (13, -11), (-13, -11), (13, 12), (-13, 12))  # a point, in pixels


class Plane:
    """What the axes span, and where things lie on it in pixels."""

    def __init__(self, roofline: Roofline, drawn: Sequence[Placed]) -> None:
        bandwidth = roofline.memory.value
        at = [one.work.intensity for one in drawn] + [roof.value / bandwidth for roof in roofline.compute]
        rates = [one.work.rate for one in drawn] + [roof.value for roof in roofline.compute]
        self.x = (min(at) / MARGIN, max(at) * MARGIN)
        self.y = (min(rates) / MARGIN, max(rates) * MARGIN)
        self._make_room(bandwidth, roofline.compute[0].value, min(6 * len(named_roof(roofline.memory)) + 16, WIDTH / 2))
        self.flat = [self.down(roof.value) for roof in roofline.compute]
        self.points = [(self.across(one.work.intensity), self.down(one.work.rate)) for one in drawn]

    def across(self, intensity: float) -> float:
        """How far from the left an intensity is."""
        return WIDTH * math.log(intensity / self.x[0]) / math.log(self.x[1] / self.x[0])

    def down(self, rate: float) -> float:
        """How far from the top a rate is."""
        return HEIGHT * math.log(self.y[1] / rate) / math.log(self.y[1] / self.y[0])

    def _make_room(self, bandwidth: float, top: float, width: float) -> None:
        """Reach further down where the slope would be shorter than its name, which would cover the axis."""
        while self._slope(bandwidth, top)[2] < width:
            if self.x[0] >= self.y[0] / bandwidth:
                self.x = (self.x[0] / 1.1, self.x[1])
            else:
                self.y = (self.y[0] / 1.1, self.y[1])

    def _slope(self, bandwidth: float, top: float) -> tuple[float, float, float]:
        """Where the slope begins and ends, and its length in pixels."""
        first, last = max(self.x[0], self.y[0] / bandwidth), top / bandwidth
        return first, last, math.hypot(*self._steps) * math.log(last / first)

    @property
    def _steps(self) -> tuple[float, float]:
        """How many pixels up and to the right a factor of e lies."""
        return HEIGHT / math.log(self.y[1] / self.y[0]), WIDTH / math.log(self.x[1] / self.x[0])

    def on_the_slope(self, bandwidth: float, top: float, width: float) -> tuple[float, float]:
        """Where on the slope a name of this width is furthest from the points, and how it is turned."""
        first, last, length = self._slope(bandwidth, top)
        edge = min(0.5, (width / 2 + 8) / length)
        tries = [first * (last / first) ** (edge + (1 - 2 * edge) * step / 12) for step in range(13)]

        def clearance(at: float) -> float:
            place = (self.across(at), self.down(bandwidth * at))
            return min((math.dist(place, point) for point in self.points), default=0.0)

        return max(tries, key=clearance), -math.degrees(math.atan2(*self._steps))

    def numbers(self, drawn: Sequence[Placed]) -> list[Spec]:
        """The number of each case beside its point, where no other number or point is in the way."""
        taken: list[tuple[float, float]] = []
        found: list[Spec] = []
        for number, (point, one) in enumerate(zip(self.points, drawn, strict=False), start=1):
            tries = [(point[0] + dx, point[1] + dy) for dx, dy in _BESIDE]
            free = [place for place in tries if self._is_free(place, taken)]
            off_the_lines = [place for place in free if all(abs(place[1] - line) > 8 for line in self.flat)]
            for place in [*off_the_lines, *free][:1]:
                taken.append(place)
                found.append({"intensity": one.work.intensity, "rate": one.work.rate, "text": str(number),
                              "dx": place[0] - point[0], "dy": place[1] - point[1]})  # fmt: skip
        return found

    def _is_free(self, place: tuple[float, float], taken: Sequence[tuple[float, float]]) -> bool:
        return all(math.dist(place, other) > 15 for other in taken) and all(
            math.dist(place, other) > 11 for other in self.points
        )


def named_roof(roof: Roof) -> str:
    """A ceiling with its height, and whether that is only promised."""
    return f"{roof.name} {show_value(roof.value, roof.unit)}" + (" (datasheet)" if roof.source == "datasheet" else "")
