"""Figures that others published, and tables that put a run beside them."""

from __future__ import annotations

from paceline.analysis.published.flashlight import flashlight_table
from paceline.analysis.published.table import PublishedTable
from paceline.core.run import RunRecords

__all__ = ["PublishedTable", "published_tables"]

_OF_SUITE = {"flashlight": flashlight_table}


def published_tables(records: RunRecords) -> tuple[PublishedTable, ...]:
    """The tables that belong to the suite that was run; a run that measured nothing has none."""
    make = _OF_SUITE.get(records.run.name)
    table = make(records) if make else None
    return (table,) if table else ()
