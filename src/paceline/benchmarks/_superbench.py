"""Fills the names that SuperBench gives to what we measure too, in its units.

Times are means, as there; so are rates except where a benchmark says so. What SuperBench measures on a GPU alone
carries a note when it was measured on a CPU, so that it never passes for the other.
"""

from __future__ import annotations

from paceline.core.record import Measurement, Outcome, Record
from paceline.core.subject import SUPERBENCH, Alias, At, key_word

MS, US, NS = 1e-3, 1e-6, 1e-9
TERA, GIGA, MEGA = 1e12, 1e9, 1e6
GIBI = 2.0**30

Values = dict[str, float]


def alias(
    record: Record, group: str, values: Values, *, part: str = "", note: str = "", gpu: bool = False
) -> dict[str, Alias]:
    """The alias of a record; one that did not succeed has no figures, but still belongs somewhere.

    `gpu` is for what is measured there on a GPU alone.
    """
    if gpu and record.case.target == "cpu":
        note = "target=cpu"
    figures = values if record.outcome is Outcome.OK else {}
    return {SUPERBENCH: Alias(group=group, part=part, note=note, values=figures)}


def means(record: Record, keys: dict[str, tuple[str, float]], at: At | None = None) -> Values:
    """Means of metrics of the whole case, or of one point, each in its unit."""
    measured = {key: (record.measurement(metric, at=at), unit) for key, (metric, unit) in keys.items()}
    return {key: one.summary.mean / unit for key, (one, unit) in measured.items() if one}


def means_at(record: Record, keys: dict[str, tuple[str, float]], *axes: str) -> Values:
    """The same at every point of these axes, whose places in a key are in braces."""
    return {
        key.format(**point.at): point.summary.mean / unit
        for key, (metric, unit) in keys.items()
        for point in points(record, metric, axes)
    }


def points(record: Record, metric: str, axes: tuple[str, ...]) -> list[Measurement]:
    """What was measured of a metric at points of these axes."""
    return [m for m in record.measurements if m.metric.name == metric and tuple(m.at) == axes and not m.scope]


def joined(operation: str) -> str:
    """all-reduce as SuperBench writes it."""
    return key_word(operation).replace("-", "")
