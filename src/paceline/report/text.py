"""Names and sentences as every report writes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache, partial

from paceline.core.quantity import SCALED, show, show_count, show_interval, show_size, with_interval
from paceline.core.quantity import half_width as half_width
from paceline.core.record import At, Measurement
from paceline.core.stats import Interval

_WORDS = {
    word.lower(): word for word in ("CPU", "CUDA", "ECC", "FLOPS", "GPU", "GPUs", "MFU", "MHz", "MIG", "NUMA", "SM")
}
_PLAIN = str.maketrans({"±": "+-", "µ": "u", "–": "-", "—": "-", "…": "...", "·": ";", "×": "x"})


@lru_cache(maxsize=4096)  # a page says the same few names for every case
def humanize(name: str) -> str:
    """A metric's or fact's name as words; a name in capitals is an environment variable's and stays."""
    if name != name.lower():
        return name
    return " ".join(_WORDS.get(word, word) for word in name.split("_"))


def heading(text: str) -> str:
    """Words with a capital to start with, and no other letter changed."""
    return text[:1].upper() + text[1:]


def when(moment: datetime) -> str:
    """A moment that reads the same everywhere."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return aware.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def clean(text: str) -> str:
    """Text without control characters, which could drive a terminal; line ends and tabs stay."""
    if text.isprintable():
        return text
    return "".join(
        char if char in "\n\t" or (char.isprintable() or char == "\u00a0") else char.encode("unicode_escape").decode()
        for char in text
    )


def one_line(text: str) -> str:
    """Clean text on a single line."""
    return " ".join(clean(text).split())


def split_code(text: str) -> list[str]:
    """The parts of a line between its backticks, every second one a command; a single backtick is only a character."""
    parts = one_line(text).split("`")
    return parts if len(parts) % 2 else [one_line(text)]


def plain(text: str) -> str:
    """Our own signs in ASCII, for pipes and old terminals."""
    return text.translate(_PLAIN)


def told_apart(labels: Sequence[str]) -> tuple[str, list[str]]:
    """The words that all labels share, and what tells each from the others."""
    if len(labels) == 1:
        return labels[0], list(labels)
    split = [label.split() for label in labels]
    shared = [word for word in dict.fromkeys(split[0]) if all(word in words for words in split)]
    rest = [" ".join(word for word in words if word not in shared) for words in split]
    if not all(rest) or len(set(rest)) < len(rest):
        return "", list(labels)
    return " ".join(shared), rest


def listed(names: Sequence[str]) -> str:
    """Names in a sentence."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else "nothing"


SI_UNITS = frozenset({*SCALED, "FLOP", "J", "W", "Hz"})
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"))
_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_SIZES = ((1024.0**3, "GiB"), (1024.0**2, "MiB"), (1024.0, "KiB"), (1.0, "B"))
MS = 1e-3  # seconds in a millisecond
WIDE = 0.1  # a part of the value, from which both ends of an interval are shown unless they are alike
SKEWED = 1.25  # times the other half
_LEAST = 0.001  # percent that are shown as a number


def percent(part: float, *, signed: bool = False, digits: int = 3) -> str:
    """A part of one as a percentage by the rule above: `3.1 %`, `142 %`, `0.02 %`, signed `+3.1 %`."""
    size = 100 * abs(part)
    sign = ("-" if part < 0 else "+" if signed else "") if size else ""
    if not size:
        text = "0"
    elif size < _LEAST:
        text, sign = f"<{_LEAST:g}", ""
    elif size < 0.095:
        text = f"{size:.1g}"
    elif size < 10 ** (digits - 1) - 0.05:
        text = f"{size:.1f}"
    else:
        text = f"{size:,.0f}" if size < 1e15 else show_count(size)
    return f"{sign}{text} %"


def share(part: float) -> str:
    """A part of a whole in a sentence: `54 %`, `3.1 %`."""
    return percent(part, digits=2)


def change(relative: float | None) -> str:
    """A relative change with its sign; from zero it has no percentage."""
    if relative is None or math.isnan(relative):
        return ""
    return "from zero" if math.isinf(relative) else percent(relative, signed=True)


def ratio(value: float | None) -> str:
    """A ratio, three digits after the point or three in all."""
    if value is None:
        return "none"
    return f"{value:.3f}" if 0.1 <= value < 10 else f"{value:.3g}"


def between(interval: Interval | None) -> str:
    """From where to where a ratio lies, which need not be the same distance on both sides."""
    return f"{ratio(interval.low)} to {ratio(interval.high)}" if interval else ""


def show_value(value: float, unit: str) -> str:
    """A value in its unit, scaled for reading; what is not a number says so."""
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else f"{'-' if value < 0 else ''}infinite"
    if unit in SI_UNITS and value:
        scale, label = axis_scale(unit, value)
        return f"{value / scale:.4g} {label}"
    if unit == "%":
        return percent(value / 100)
    return one_line(show(value, unit))


def figure_interval(figure: Measurement, show_end: Callable[[float], str] | None = None) -> str:
    """The interval of a figure, its ends in the figure's unit unless they are shown in another way."""
    return show_interval(figure.value, figure.interval, show_end or partial(show_value, unit=figure.unit))


def show_figure(figure: Measurement, show_end: Callable[[float], str] | None = None) -> str:
    """A value with its interval: `412 images/s ± 0.4 %`."""
    shown = show_end(figure.value) if show_end else show_value(figure.value, figure.unit)
    return with_interval(shown, figure_interval(figure, show_end))


def axis_scale(unit: str, typical: float) -> tuple[float, str]:
    """What to divide by so that values of this size read well, and the unit they then have."""
    steps: tuple[tuple[float, str], ...] = ((1.0, unit),)
    if unit == "s":
        steps = _TIMES
    elif unit == "B":
        steps = _SIZES
    elif unit in SI_UNITS:
        steps = tuple((scale, prefix + unit) for scale, prefix in _PREFIXES)
    return next((step for step in steps if abs(typical) >= step[0]), steps[-1])


def show_usd(value: float) -> str:
    """Dollars with three digits that count, never as a power of ten."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 1e-4 else f"{value:.{2 - math.floor(math.log10(abs(value)))}f}"


def show_at(at: At) -> str:
    """A point of a sweep, as people say it: `256 MiB`, `0 to 1`, `streams 4`."""
    if set(at) == {"from", "to"}:
        return one_line(f"{at['from']} to {at['to']}")
    # A name or a size alone tells what it is; a bare number does not.
    clear = len(at) == 1 and ("size" in at or isinstance(next(iter(at.values())), str))
    shown = {axis: show_coordinate(axis, value) for axis, value in at.items()}
    return one_line(", ".join(text if clear else f"{humanize(axis)} {text}" for axis, text in shown.items()))


def show_coordinate(axis: str, value: float | str) -> str:
    """One coordinate of a point, next to the name of its axis."""
    if isinstance(value, str):
        return value
    return show_size(value) if axis == "size" else show_count(value)


def bare_interval(figure: Measurement) -> str:
    """The interval next to its figure, which has the unit, where both ends are in that."""
    text = figure_interval(figure)
    if " " in text.partition(" to ")[0]:
        return text
    return text.removesuffix(" " + show_value(figure.value, figure.unit).partition(" ")[2])


def interval_ends(figure: Measurement) -> str:
    """The interval of a figure in full, for a note."""
    interval, unit = figure.interval, figure.unit
    if interval is None:
        return ""
    low, high = show_value(interval.low, unit), show_value(interval.high, unit)
    return f"{low} to {high}, {interval.confidence:.0%} confidence"


def sortable(value: float) -> float | None:
    """What a table sorts by; nothing for what is not a number."""
    return value if math.isfinite(value) else None
