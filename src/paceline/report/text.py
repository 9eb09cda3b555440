"""Numbers, names and sentences as every report writes them."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache

from paceline.analysis import serving
from paceline.analysis.figures import Figure
from paceline.analysis.summary import SERVING, Group, Row, RunSummary
from paceline.core.metric import Better
from paceline.core.quantity import SCALED, show, show_count, show_size
from paceline.core.record import At

SI_UNITS = frozenset({*SCALED, "FLOP", "J", "W", "Hz"})
HIGHLIGHTS = 3  # that one sentence can hold
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"))
_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_SIZES = ((1024.0**3, "GiB"), (1024.0**2, "MiB"), (1024.0, "KiB"), (1.0, "B"))
_WORDS = {
    word.lower(): word for word in ("CPU", "CUDA", "ECC", "FLOPS", "GPU", "GPUs", "MFU", "MHz", "MIG", "NUMA", "SM")
}
_SPECIAL = re.compile(r"([\\`*_{}\[\]|~#])")  # in Markdown
_PLAIN = str.maketrans({"±": "+-", "µ": "u", "–": "-", "—": "-", "…": "...", "·": ";", "×": "x"})


def show_value(value: float, unit: str) -> str:
    """A value in its unit, scaled for reading; what is no number says so."""
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else f"{'-' if value < 0 else ''}infinite"
    if unit in SI_UNITS and value:
        scale, label = axis_scale(unit, value)
        return f"{value / scale:.4g} {label}"
    if unit == "%" and abs(value) >= 0.05:
        return f"{value:.1f} %"
    return one_line(show(value, unit))


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


def show_relative(relative: float | None) -> str:
    """A relative half-width: `± 0.4 %`."""
    if relative is None:
        return ""
    if relative < 0.0005:
        return "± <0.1 %"
    return f"± {100 * relative:.1f} %" if relative < 0.0995 else f"± {100 * relative:.0f} %"


@lru_cache(maxsize=4096)  # a page says the same few names for every case
def humanize(name: str) -> str:
    """A metric's or fact's name as words; a name in capitals is an environment variable's and stays."""
    if name != name.lower():
        return name
    return " ".join(_WORDS.get(word, word) for word in name.split("_"))


def heading(text: str) -> str:
    """Words with a capital to start with, and no other letter changed."""
    return text[:1].upper() + text[1:]


def show_at(at: At) -> str:
    """A point of a sweep, as people say it: `256 MiB`, `0 to 1`, `streams 4`."""
    if set(at) == {"from", "to"}:
        return one_line(f"{at['from']} to {at['to']}")
    # A name or a size alone tells what it is; a bare number does not.
    clear = len(at) == 1 and ("size" in at or isinstance(next(iter(at.values())), str))
    shown = {axis: show_coordinate(axis, value) for axis, value in at.items()}
    return one_line(", ".join(text if clear else f"{humanize(axis)} {text}" for axis, text in shown.items()))


def show_coordinate(axis: str, value: float | str) -> str:
    """One coordinate of a point, beside or below the name of its axis."""
    if isinstance(value, str):
        return value
    return show_size(value) if axis == "size" else show_count(value)


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


def plain(text: str) -> str:
    """Our own signs in ASCII, for pipes and old terminals."""
    return text.translate(_PLAIN)


def told_apart(labels: Sequence[str]) -> tuple[str, list[str]]:
    """The words that all labels share, and what tells each from the others."""
    if len(labels) == 1:
        return labels[0], list(labels)
    split = [label.split() for label in labels]
    shared = [word for word in dict.fromkeys(split[0]) if all(word in words for words in split)]
    own = [" ".join(word for word in words if word not in shared) for words in split]
    if not all(own) or len(set(own)) < len(own):
        return "", list(labels)
    return " ".join(shared), own


def short_labels(rows: Sequence[Row]) -> tuple[str, list[str]]:
    """Names of cases for a table or a chart: those of served ones, which are long, without the words they share."""
    labels = [one_line(row.label) for row in rows]
    is_served = len(rows) > 1 and all(row.case.category == SERVING for row in rows)
    return told_apart(labels) if is_served else ("", labels)


def superlative(group: Group) -> str:
    """What the leader of a group is."""
    if group.best.case.category == SERVING:  # where a rate and a time may both lead
        return f"{'lowest' if group.metric.better is Better.LOWER else 'highest'} {humanize(group.metric.name)}"
    return "fastest" if group.metric.unit == "s" or group.metric.unit.endswith("/s") else "best"


def show_figure(figure: Figure) -> str:
    """A value with its doubt: `412 images/s ± 0.4 %`."""
    return f"{show_value(figure.value, figure.unit)} {show_relative(figure.relative)}".rstrip()


def answer(summary: RunSummary) -> str:
    """The one sentence that a report leads with."""
    if not summary.total:
        return "This run has no cases."
    good = len(summary.measured)
    cases = "case" if summary.total == 1 else "cases"
    counted = (
        f"All {good} cases measured" if good == summary.total > 1 else f"{good} of {summary.total} {cases} measured"
    )
    parts = [counted, *_leader(summary), *_promises(summary)]
    if summary.doubtful:
        parts.append(f"{len(summary.doubtful)} with doubts")
    if summary.failed:
        parts.append(f"{len(summary.failed)} did not succeed")
    if summary.impossible:
        parts.append(f"{len(summary.impossible)} not possible here")
    if summary.not_run:
        parts.append(f"{len(summary.not_run)} not run")
    return one_line("; ".join(parts) + ".")


def _leader(summary: RunSummary) -> list[str]:
    if summary.is_micro and len(summary.groups) > 1:
        return _highlights(summary)
    # Several comparisons have several winners: the table and the cards name them.
    compared = [group for group in summary.groups if len(group.rows) > 1]
    if len(compared) != 1 and len(summary.groups) != 1:
        return []
    group = compared[0] if compared else summary.groups[0]
    figure = group.best.headline
    if figure is None:
        return []
    label = one_line(group.best.label)
    if len(group.rows) == 1:
        return [f"{label}: {_named(group)}{show_figure(figure)}{_share(group.best)}"]
    if group.best.case.category == SERVING:
        _, own = told_apart([one_line(row.label) for row in group.rows])
        return [f"{superlative(group)}: {own[0]}, {show_figure(figure)}"]
    unit = group.metric.unit
    if not unit.endswith("/s") or unit in SI_UNITS:
        return [f"{superlative(group)}: {label}, {show_figure(figure)}{_share(group.best)}"]
    name = f"{superlative(group)} {group.benchmark} in {unit}"
    shown = f"{show_count(figure.value)} {show_relative(figure.relative)}".rstrip()
    return [f"{name}: {label.removeprefix(group.benchmark).strip()}, {shown}"]


def _named(group: Group) -> str:
    """The name of a latency before its value: which percentile it is, the unit does not say."""
    return f"{humanize(group.metric.name)} " if group.best.case.category == SERVING else ""


def _promises(summary: RunSummary) -> list[str]:
    """How many of the chosen loads kept what was promised; a search ends at one that does."""
    promised = [row for row in summary.measured if serving.kept(row) is not None and not row.figure("capacity")]
    good = sum(serving.kept(row) is True for row in promised)
    if len(promised) == summary.total == 1:
        return [f"SLO {'kept' if good else 'missed'}"]
    return [f"{good} of {len(promised)} loads kept their SLO"] if len(promised) > 1 else []


def _highlights(summary: RunSummary) -> list[str]:
    """The highest rate of each category: what a machine can do, in one breath."""
    leaders = [found.row for found in summary.highlights[:HIGHLIGHTS]]
    told = [
        f"{one_line(row.label)} {show_value(row.headline.value, row.headline.unit)}{_share(row)}"
        for row in leaders
        if row.headline
    ]
    lead = "fastest: " if any(found.of > 1 for found in summary.highlights) else ""
    return [lead + ", ".join(told)] if told else []


def _share(row: Row) -> str:
    share = row.figure("peak_share")
    return f" ({share.value:.0f} % of peak)" if share and math.isfinite(share.value) else ""


def host_name(environment: Mapping[str, object]) -> str:
    """The name of the machine that measured."""
    return str(environment.get("host") or "unknown")


def escape(text: str) -> str:
    """Text that Markdown shows as it is."""
    return _SPECIAL.sub(r"\\\1", html.escape(one_line(text), quote=False))
