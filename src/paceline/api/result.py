"""What a run came to, for programs, notebooks and people at a prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.analysis.summary import headline_of
from paceline.api.progress import SYMBOLS, label, sentence
from paceline.core.errors import InputError, nearest
from paceline.core.quantity import show, show_interval, with_interval
from paceline.core.record import Measurement, Outcome, Record, RecordWarning
from paceline.core.run import RunRecords
from paceline.core.stats import Interval
from paceline.report.text import clean, show_at

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Figure:
    """One metric of a case: a number with what one needs to believe it."""

    measurement: Measurement
    warnings: tuple[RecordWarning, ...]  # about the case that it is of

    @property
    def name(self) -> str:
        return self.measurement.name

    @property
    def value(self) -> float:
        return self.measurement.value

    @property
    def unit(self) -> str:
        return self.measurement.unit

    @property
    def interval(self) -> Interval | None:
        """Low, high and confidence; None for what was observed once."""
        return self.measurement.interval

    @property
    def samples(self) -> list[float]:
        """The raw observations, in order; empty for what is computed from those of another metric."""
        return self.measurement.samples

    def __float__(self) -> float:
        return self.value

    def __repr__(self) -> str:
        interval = show_interval(self.value, self.interval, lambda value: show(value, self.unit))
        kinds = ", ".join(dict.fromkeys(one.kind for one in self.warnings))
        shown = with_interval(show(self.value, self.unit), interval)
        return clean(f"{self.name}: {shown}" + (f"  ({kinds})" if kinds else ""))


class CaseResult(Mapping[str, Figure]):
    """What one case came to: its metrics by name, and `NAME at POINT` for those of a sweep."""

    def __init__(self, record: Record) -> None:
        self.record = record

    @property
    def title(self) -> str:
        return label(self.record.case)

    @property
    def benchmark(self) -> str:
        return self.record.case.benchmark

    @property
    def parameters(self) -> dict[str, Any]:
        return self.record.case.parameters

    @property
    def facts(self) -> dict[str, Any]:
        """What the record says besides: how it was timed, the class of the model, its parameter count, its loss."""
        return self.record.facts

    @property
    def warnings(self) -> tuple[RecordWarning, ...]:
        """Reasons to trust the figures less, each with a remedy."""
        return tuple(self.record.warnings)

    @property
    def ok(self) -> bool:
        return self.record.outcome is Outcome.OK

    @property
    def error(self) -> str:
        """Why it did not succeed; empty if it did."""
        return "" if self.ok else sentence(self.record)

    @property
    def headline(self) -> Figure | None:
        """The figure that stands for the case."""
        lead = headline_of(self.record)
        return Figure(lead, self.warnings) if lead is not None else None

    @cached_property
    def _figures(self) -> dict[str, Figure]:
        whole = [one for one in self.record.measurements if not one.scope]  # and not of one rank
        return {one.name + (f" at {show_at(one.at)}" if one.at else ""): Figure(one, self.warnings) for one in whole}

    def __getitem__(self, name: str) -> Figure:
        if name in self._figures:
            return self._figures[name]
        if not self.ok and not self._figures:
            raise KeyError(f"{self.title} has no figures: {self.error}")
        guess = nearest(name, self._figures)
        hint = f"did you mean '{guess}'?" if guess else f"there are {', '.join(self._figures)}"
        raise KeyError(f"{self.title} has no metric '{name}': {hint}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._figures)

    def __len__(self) -> int:
        return len(self._figures)

    def __bool__(self) -> bool:
        return self.ok

    def __repr__(self) -> str:
        return clean(f"{SYMBOLS.get(self.record.outcome, '✗')} {self.title}: {sentence(self.record)}")


class Result(Mapping[str, Figure]):
    """What a run came to: the metrics of its case by name; of several cases, each has its own, in `cases`."""

    def __init__(self, records: RunRecords, store: str | None = None) -> None:
        self.records = records
        self.store = store
        self.cases = tuple(CaseResult(record) for record in records.records)

    @property
    def run_id(self) -> str:
        return self.records.run.id

    @property
    def name(self) -> str:
        return self.records.run.name

    @property
    def tags(self) -> tuple[str, ...]:
        return tuple(self.records.run.tags)

    @property
    def ok(self) -> bool:
        """Whether every case was measured, or was not possible here; false if nothing was."""
        return self.records.all_ok

    @property
    def case(self) -> CaseResult:
        """The only case."""
        if len(self.cases) != 1:
            message = f"run {self.run_id} has {len(self.cases)} cases: take one of result.cases"
            raise KeyError(message)
        return self.cases[0]

    def __getitem__(self, name: str) -> Figure:
        return self.case[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.cases[0] if len(self.cases) == 1 else ())

    def __len__(self) -> int:
        return len(self.cases[0]) if len(self.cases) == 1 else 0

    def __bool__(self) -> bool:
        return self.ok

    def to_dataframe(self) -> pandas.DataFrame:
        """Every measurement as a row, as in `paceline report --csv`; each parameter has a column of its own."""
        from paceline.report.export.csv import COLUMNS, measurement_rows

        parameters = {case.record.case.index: case.parameters for case in self.cases}
        rows = [
            {name: row.get(name) for name in COLUMNS if name != "parameters"}
            | {name: value for name, value in parameters[row["case"]].items() if name not in COLUMNS}
            for row in measurement_rows(self.records)
        ]
        return dataframe(rows)

    def report(self, path: str | Path) -> Path:
        """Write the report: a page, Markdown or a picture, by the ending of the file's name (.html, .md, .png)."""
        from paceline.api.sources import known_ceilings
        from paceline.report.run.document import to_html, to_markdown, to_png

        makers: dict[str, Any] = {".html": to_html, ".htm": to_html, ".md": to_markdown, ".png": to_png}
        return write_by_suffix(path, makers, self.records, ceilings=known_ceilings(self.records))

    def chart(self) -> Picture:
        """Every case's headline with its interval, as bars."""
        from paceline.analysis.summary import summarize_run
        from paceline.report.charts import draw_svg
        from paceline.report.run.lead import overview

        chart = overview(summarize_run(self.records).measured)
        if chart is None:
            message = f"run {self.run_id} has no result to draw"
            raise InputError("nothing-to-draw", message, value=self.run_id)
        drawn = draw_svg(replace(chart, narrow=""), "paceline-chart")
        # So that a file is one, and fits into the column of a notebook.
        root = '<svg xmlns="http://www.w3.org/2000/svg" style="max-width:100%;height:auto" '
        return Picture(drawn.replace("<svg ", root, 1))

    def __repr__(self) -> str:
        tags = f" ({', '.join(self.tags)})" if self.tags else ""
        lines = [clean(f"{self.name}, run {self.run_id}{tags}"), *(f"  {case!r}" for case in self.cases)]
        if missing := len(self.records.missing):
            lines.append(f"  {missing} of {len(self.records.run.cases)} cases were not measured")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from paceline.api.sources import known_ceilings
        from paceline.report.document import Medium
        from paceline.report.render.html import fragment
        from paceline.report.run.document import document

        return fragment(document(self.records, Medium.TERMINAL, ceilings=known_ceilings(self.records)))


@dataclass(frozen=True)
class Picture:
    """A chart that a notebook shows."""

    svg: str

    def _repr_svg_(self) -> str:
        return self.svg

    _repr_html_ = _repr_svg_  # preferred by notebooks, which cut off a wide picture but not a wide part of their page

    def save(self, path: str | Path) -> Path:
        """Write it as an SVG file."""
        from paceline.core.files import write_atomic

        return write_atomic(path, self.svg)


def write_by_suffix(
    path: str | Path, makers: Mapping[str, Callable[..., str | bytes]], *arguments: Any, **options: Any
) -> Path:
    """Write what the maker for the ending of the file's name makes of the arguments."""
    from paceline.core.files import write_atomic

    make = makers.get(Path(path).suffix.lower())
    if make is None:
        message = f"the format is not clear from '{path}': let it end in one of {', '.join(makers)}"
        raise InputError("unknown-format", message, key="path", value=str(path))
    content = make(*arguments, **options)
    try:
        return write_atomic(path, content)
    except OSError as error:
        message = f"cannot write '{path}': {error.strerror}; choose another file"
        raise InputError("cannot-write", message, key="path", value=str(path)) from None


def load(run: str = "last", *, store: str | Path | None = None) -> Result:
    """A run of the store: `last`, an id, the beginning of one, or a tag that no other run has."""
    from paceline.store import open_reader

    given = None if store is None else str(store)
    with open_reader(given) as opened:
        return Result(opened.load(opened.find_run(run)), given)


def dataframe(rows: list[dict[str, Any]]) -> pandas.DataFrame:
    """Rows as a table of pandas, which is not required for anything else."""
    try:
        import pandas
    except ImportError:
        message = "a data frame needs pandas, which is not installed: pip install pandas"
        raise InputError("missing-dependency", message, key="pandas") from None
    return pandas.DataFrame(rows)
