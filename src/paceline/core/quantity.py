"""Durations, sizes, rates and fractions, read as people write them (`30s`, `64MiB`, `2k/s`, `1%`)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated

from pydantic import BeforeValidator, ValidationInfo

if TYPE_CHECKING:
    from paceline.core.stats import Interval

_AMOUNT = r"^\s*([+-]?(?:\d+(?:_\d+)*(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?)\s*"
_NUMBER = re.compile(_AMOUNT + r"([^\d\s]*)\s*$")

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_ENDINGS = {"iB": 1024, "B": 1000, "": 1000}
_PREFIXED = {
    f"{letter}{end}": base ** (1 + "KMGT".index(letter)) for letter in "KMGT" for end, base in _ENDINGS.items()
}
_BYTES = {"": 1, "B": 1} | _PREFIXED | {"kB": 1000, "k": 1000}
LONGEST_DURATION = 100 * 365 * 86400.0  # seconds; clocks and timeouts overflow beyond a few times of it
LARGEST_SIZE = 1024**6  # bytes; arrays beyond it overflow what counts them
SCALED = ("FLOP/s", "OP/s", "B/s")  # units that are shown with a prefix
_WATTS = {"": 1.0, "W": 1.0, "kW": 1e3, "mW": 1e-3}
_MEGAHERTZ = {"": 1.0, "MHz": 1.0, "GHz": 1e3}
_COUNTS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}


def _read(text: object, units: dict[str, float], what: str, example: str) -> float:
    if isinstance(text, bool) or not isinstance(text, int | float | str):
        raise ValueError(f"{text!r} is not a {what}; write it like {example}")
    if isinstance(text, int | float):
        unit = ""
        try:
            value = float(text)
        except OverflowError:  # an integer can be longer than any float
            value = math.inf
    else:
        match = _NUMBER.match(text)
        if not match:
            raise ValueError(f"'{text}' is not a {what}; write it like {example}")
        value, unit = float(match.group(1)), match.group(2)
    if unit not in units:
        valid = ", ".join(name for name in units if name)
        raise ValueError(f"'{text}' has the unknown unit '{unit}'; a {what} takes {valid}")
    value *= units[unit]
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"'{text}' must be finite and not negative")
    return value


def parse_duration(text: object) -> float:
    """Seconds; a bare number is seconds already."""
    seconds = _read(text, {"": 1.0} | _SECONDS, "duration", "30s, 500ms or 2min")
    if seconds > LONGEST_DURATION:
        raise ValueError(f"'{text}' is longer than anyone would wait; a duration is at most 100 years")
    return seconds


def parse_latency(text: object) -> float:
    """Seconds; a bare number is refused, because as many people mean milliseconds by it."""
    if isinstance(text, int | float) or (isinstance(text, str) and (match := _NUMBER.match(text)) and not match[2]):
        raise ValueError(f"'{text}' has no unit; write {text}ms or {text}s")
    return _read(text, _SECONDS, "latency", "100ms or 2s")


def read_latency(value: object, info: ValidationInfo) -> float:
    """Seconds; a person has to say the unit, a record has seconds."""
    return parse_latency(value) if (info.context or {}).get(TYPED) else parse_duration(value)


def parse_size(text: object) -> int:
    """Bytes; MiB is 1024*1024, MB is 1000*1000."""
    size = round(_read(text, {k: float(v) for k, v in _BYTES.items()}, "size", "64MiB or 2GB"))
    if size > LARGEST_SIZE:
        raise ValueError(f"'{text}' is more than any machine has; a size is at most {LARGEST_SIZE // 1024**4} TiB")
    return size


def parse_rate(text: object) -> float:
    """Events per second; `2k/s`, `90/min` or a bare number."""
    if isinstance(text, str) and "/" in text:
        count, _, per = text.partition("/")
        per = per.strip()
        if per not in _SECONDS:
            raise ValueError(f"'{text}' is not a rate; write it like 200/s or 2k/s")
        return _read(count, _COUNTS, "rate", "200/s or 2k/s") / _SECONDS[per]
    return _read(text, _COUNTS, "rate", "200/s or 2k/s")


def parse_fraction(text: object) -> float:
    """A part of one: `1%` or 0.01."""
    if isinstance(text, str) and text.strip().endswith("%"):
        return _read(text.strip()[:-1], {"": 0.01}, "fraction", "1% or 0.01")
    return _read(text, {"": 1.0}, "fraction", "1% or 0.01")


def parse_power(text: object) -> float:
    """Watts; a bare number is watts already."""
    return _read(text, _WATTS, "power", "400W or 0.4kW")


def parse_frequency(text: object) -> float:
    """Megahertz; a bare number is megahertz already."""
    return _read(text, _MEGAHERTZ, "clock", "1400MHz or 1.4GHz")


def _pattern(units: Iterable[str], ending: str = "") -> str:
    """A number with one of these units, as a regular expression that every tool reads alike."""
    return f"{_AMOUNT}({'|'.join(units)})\\s*{ending}$"


# How each of them is written as text, by what reads it.
PATTERNS: dict[Callable[..., object], str] = {
    parse_duration: _pattern(["", *_SECONDS]),
    read_latency: _pattern(_SECONDS),
    parse_size: _pattern(_BYTES),
    parse_rate: _pattern(_COUNTS, f"(/\\s*({'|'.join(_SECONDS)})\\s*)?"),
    parse_fraction: _pattern(["", "%"]),
    parse_power: _pattern(_WATTS),
    parse_frequency: _pattern(_MEGAHERTZ),
}
TYPED = "typed"  # in the context of a validation: a person wrote the values
Duration = Annotated[float, BeforeValidator(parse_duration)]
Latency = Annotated[float, BeforeValidator(read_latency)]
Size = Annotated[int, BeforeValidator(parse_size)]
Rate = Annotated[float, BeforeValidator(parse_rate)]
Fraction = Annotated[float, BeforeValidator(parse_fraction)]
Power = Annotated[float, BeforeValidator(parse_power)]
Frequency = Annotated[float, BeforeValidator(parse_frequency)]


def show_duration(seconds: float) -> str:
    """`seconds` in the unit a person would choose, with three significant digits."""
    for unit, scale in (("ns", 1e-9), ("µs", 1e-6), ("ms", 1e-3)):
        if abs(seconds) < 1000 * scale * 0.9995 and seconds:
            return f"{seconds / scale:.3g} {unit}"
    if abs(seconds) < 120:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


def show_size(count: float) -> str:
    """Bytes in binary units."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1023.5:
            whole = unit == "B" or abs(count) >= 999.5
            return f"{count:.0f} {unit}" if whole else f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"


def show_count(value: float) -> str:
    """A plain number with four significant digits and thousands marked, unless it is too long to be read."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if 1000 <= abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def show(value: float, unit: str) -> str:
    """A value in its unit, scaled for reading."""
    if unit == "s":
        return show_duration(value)
    if unit == "B":
        return show_size(value)
    if unit == "%":
        return f"{value:.3g} %" if abs(value) < 999.5 else f"{value:,.0f} %"
    if unit in SCALED:
        return show_scaled(value, unit)
    return f"{show_count(value)} {unit}".strip()


def half_width(relative: float | None) -> str:
    """A relative half-width: `± 0.4 %`."""
    if relative is None or not math.isfinite(relative):
        return ""
    size = 100 * relative
    return f"± {'<0.1' if size < 0.05 else f'{size:.1f}' if size < 9.95 else f'{size:,.0f}'} %"


def show_interval(value: float, interval: Interval | None, show_end: Callable[[float], str]) -> str:
    """The interval of a value: `± 0.4 %`, or from where to where it reaches if it is skewed: `390 to 520 images/s`."""
    if interval is None or not math.isfinite(interval.high - interval.low):
        return ""
    if not interval.is_skewed(value):
        return half_width(interval.relative(value))
    low, high = show_end(interval.low), show_end(interval.high)
    unit = high.partition(" ")[2]
    return f"{low.removesuffix(f' {unit}') if unit else low} to {high}"


def with_interval(shown: str, interval: str) -> str:
    """A value and its interval in a sentence: `412 images/s ± 0.4 %`, `412 images/s (390 to 520 images/s)`."""
    return f"{shown} {interval}".rstrip() if not interval or interval.startswith("±") else f"{shown} ({interval})"


def show_scaled(value: float, unit: str) -> str:
    """A rate with a decimal prefix, as the field writes them: 789 TFLOP/s, 4.31 TB/s."""
    for prefix, scale in (("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12)):
        if abs(value) < 999.5 * scale:
            return f"{value / scale:.3g} {prefix}{unit}"
    return f"{value / 1e15:.4g} P{unit}"
