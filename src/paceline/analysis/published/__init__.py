"""Figures that others published, and tables that put a run next to them."""

from __future__ import annotations

from paceline.analysis.published.flashlight import flashlight_tables
from paceline.analysis.published.inferbench import inferbench_tables
from paceline.analysis.published.libai import libai_tables
from paceline.analysis.published.table import PublishedTable
from paceline.core.run import RunRecords

__all__ = ["PublishedTable", "published_tables"]

_OF_SUITE = {"flashlight": flashlight_tables, "libai": libai_tables, "serving-batches": inferbench_tables}


def published_tables(records: RunRecords) -> tuple[PublishedTable, ...]:
    """The tables that belong to the suite that was run; a run that measured nothing has none."""
    make = _OF_SUITE.get(records.run.name)
    return make(records) if make else ()
