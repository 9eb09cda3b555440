"""Report a past run: as a table, a page, pictures, data, or in the formats of other tools."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from paceline.core.run import RunRecords

FORMATS = {
    "html": "a self-contained page",
    "md": "Markdown",
    "csv": "one row per measurement",
    "jsonl": "one JSON object per record, with every sample",
    "png": "the overview as a picture",
    "parquet": "one row per measurement, with every sample, typed",
    "openmetrics": "OpenMetrics text, for Prometheus",
    "pytest-benchmark": "the JSON of pytest-benchmark",
    "mlperf": "in the style of MLPerf: LoadGen's summary of serving, MLLOG lines of training",
    "superbench": "SuperBench's results-summary.jsonl",
}
_SUFFIXES = {
    ".html": "html",
    ".htm": "html",
    ".md": "md",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".png": "png",
    ".parquet": "parquet",
    ".prom": "openmetrics",
}


def _format_options(function: Any) -> Any:
    for name, what in reversed(FORMATS.items()):
        function = click.option(f"--{name}", is_flag=True, help=f"{what[0].upper()}{what[1:]}.")(function)
    return function


@click.command("report")
@click.argument("run", default="last")
@_format_options
@click.option("--all", "every", is_flag=True, help="Every case on the terminal, however many there are.")
@click.option("--charts", metavar="DIR", help="Every chart as a picture, and its data as CSV, into this folder.")
@click.option("-o", "--output", metavar="PATH", help="Where to write; '-' is standard output.")
@click.option("--store", metavar="URL", help="Where results are kept.")
def command(run: str, every: bool, charts: str | None, output: str | None, store: str | None, **chosen: bool) -> None:
    """Show RUN: an id, the beginning of one, or 'last'. Without a format, a table on the terminal."""
    flags = [name for name in FORMATS if chosen[name.replace("-", "_")]]
    if charts is not None and (flags or output):
        raise click.UsageError("--charts goes alone: it writes several files into its own folder")
    kind = _kind(flags, output)
    on_terminal = kind is None and charts is None
    records = _load(run, store, samples=not on_terminal)
    if charts is not None:
        _write_charts(records, charts)
        return
    if kind is None:
        from paceline.cli._ceilings import known_ceilings
        from paceline.core.garbage import no_garbage
        from paceline.report import console

        with no_garbage():
            console.render(records, primary=primary_metrics(), ceilings=known_ceilings(records), every=every)
        return
    content = _render(records, kind)
    target = output or _default_target(records, kind)
    if target == "-":
        click.echo(content, nl=False)
        return
    from paceline.core.errors import InputError
    from paceline.core.files import write_atomic

    try:
        click.echo(str(write_atomic(target, content)))
    except OSError as error:
        raise InputError(f"cannot write '{target}': {error.strerror}; choose another place with -o") from None


def _write_charts(records: RunRecords, folder: str) -> None:
    from paceline.cli._ceilings import known_ceilings
    from paceline.core.errors import InputError
    from paceline.report import chart_files

    try:
        written = chart_files.write(records, folder, primary=primary_metrics(), ceilings=known_ceilings(records))
    except OSError as error:
        raise InputError(f"cannot write into '{folder}': {error.strerror}; choose another folder") from None
    for path in written:
        click.echo(str(path))


def _kind(chosen: list[str], output: str | None) -> str | None:
    if len(chosen) > 1:
        raise click.UsageError(f"--{' and --'.join(chosen)} exclude each other; choose one")
    if chosen or output is None:
        return chosen[0] if chosen else None
    kind = _SUFFIXES.get(Path(output).suffix.lower())
    if kind is None:
        raise click.UsageError(f"'{output}' does not tell the format; add one of --{', --'.join(FORMATS)}")
    return kind


def _load(run: str, store: str | None, *, samples: bool) -> RunRecords:
    from paceline.store import open_reader

    with open_reader(store) as opened:
        records: RunRecords = opened.load(opened.find_run(run), samples=samples)
    return records


def primary_metrics() -> Mapping[str, str]:
    """Which metric leads each benchmark's row."""
    from paceline.benchmarks import PrimaryMetrics

    return PrimaryMetrics()


def _render(records: RunRecords, kind: str) -> bytes:
    from paceline.cli._ceilings import known_ceilings
    from paceline.report import csv, html, jsonl, markdown, png, superbench

    if kind == "png":
        return png.render(records, primary=primary_metrics(), ceilings=known_ceilings(records))
    if kind == "html":
        return html.render(records, primary=primary_metrics(), ceilings=known_ceilings(records)).encode()
    if kind == "md":
        return markdown.render(records, primary=primary_metrics(), ceilings=known_ceilings(records)).encode()
    plain = {"csv": csv.render, "jsonl": jsonl.render, "superbench": superbench.render}
    return plain[kind](records).encode() if kind in plain else _export(records, kind)


def _export(records: RunRecords, kind: str) -> bytes:
    """In the format of another tool."""
    from paceline.report import mlperf, openmetrics, parquet, pytest_benchmark

    if kind == "parquet":
        return parquet.render(records)
    texts = {"mlperf": mlperf.render, "openmetrics": openmetrics.render, "pytest-benchmark": pytest_benchmark.render}
    return texts[kind](records).encode()


def _default_target(records: RunRecords, kind: str) -> str:
    from paceline.report.superbench import FILE_NAME

    if kind == "superbench":
        return FILE_NAME
    return f"paceline-report-{records.run.id}.{kind}" if kind in ("html", "png", "parquet") else "-"
