"""Small charts that are drawn with the page: lines without a library."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel


class SmallChart(BaseModel):
    """Lines in a box, as paths of SVG; y grows downwards."""

    width: int
    height: int
    paths: list[str]
    last: tuple[float, float] | None = None  # where the first line ends
    low: float = 0.0
    high: float = 0.0


def small_chart(
    lines: Sequence[Sequence[float | None]],
    *,
    width: int = 150,
    height: int = 30,
    floor: float | None = None,
    least: float = 0.0,
) -> SmallChart:
    """Lines over the same places, from left to right; what is None interrupts one.

    The height spans what there is, down to the `floor` if there is one, and never less than `least`.
    """
    pad, known = 3.0, [value for line in lines for value in line if value is not None]
    if not known:
        return SmallChart(width=width, height=height, paths=[])
    low = min(known) if floor is None else min(floor, *known)
    high = max(known)
    if high - low < least:
        low, high = (low + high - least) / 2, (low + high + least) / 2
    span = high - low or abs(high) or 1.0
    longest = max(len(line) for line in lines)
    step = (width - 2 * pad) / max(1, longest - 1)

    def place(at: int, value: float) -> tuple[float, float]:
        across = pad + at * step if longest > 1 else width / 2
        return round(across, 1), round(height - pad - (value - low) / span * (height - 2 * pad), 1)

    paths, ends = [], []
    for line in lines:
        parts, is_pen_up = [], True
        for at, value in enumerate(line):
            if value is not None:
                x, y = place(at, value)
                parts.append(f"{'M' if is_pen_up else 'L'}{x:g} {y:g}")
                if line is lines[0]:
                    ends.append((x, y))
            is_pen_up = value is None
        paths.append("".join(parts))
    return SmallChart(width=width, height=height, paths=paths, last=ends[-1] if ends else None, low=low, high=high)
