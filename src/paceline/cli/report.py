"""Report a past run: as a table, a page, pictures, data, or in the formats of other tools."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline.cli._answers import write

if TYPE_CHECKING:
    from paceline.core.run import RunRecords
    from paceline.report.export import Export

PAGES = {"html": "a self-contained page", "md": "Markdown", "png": "the overview as a picture"}
_SUFFIXES = {".html": "html", ".htm": "html", ".md": "md", ".png": "png"}


def _exports() -> dict[str, Export]:
    from paceline.report.export import EXPORTS

    return dict(sorted(EXPORTS.registry().entries.items(), key=lambda item: (item[1].order, item[0])))


def _format_options(function: Any) -> Any:
    formats = PAGES | {name: one.summary for name, one in _exports().items()}
    for name, what in reversed(formats.items()):
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
    flags = [name.replace("_", "-") for name, is_chosen in chosen.items() if is_chosen]
    if charts is not None and (flags or output):
        raise click.UsageError("--charts goes alone: it writes several files into its own folder")
    kind = _kind(flags, output)
    on_terminal = kind is None and charts is None
    records = _load(run, store, samples=not on_terminal)
    if charts is not None:
        _write_charts(records, charts)
        return
    if kind is None:
        from paceline.cli._sources import known_ceilings
        from paceline.core.gc_pause import no_garbage
        from paceline.report.run.document import show

        with no_garbage():
            show(records, ceilings=known_ceilings(records), every=every)
        return
    write(_render(records, kind), output or _default_target(records, kind))


def _write_charts(records: RunRecords, folder: str) -> None:
    from paceline.cli._sources import known_ceilings
    from paceline.core.errors import InputError
    from paceline.report.run import chart_files

    try:
        written = chart_files.write(records, folder, ceilings=known_ceilings(records))
    except OSError as error:
        message = f"cannot write into '{folder}': {error.strerror}; choose another folder"
        raise InputError("cannot-write", message, value=folder) from None
    for path in written:
        click.echo(str(path))


def _kind(chosen: list[str], output: str | None) -> str | None:
    if len(chosen) > 1:
        raise click.UsageError(f"--{' and --'.join(chosen)} exclude each other; choose one")
    if chosen or output is None:
        return chosen[0] if chosen else None
    known = _SUFFIXES | {suffix: name for name, one in _exports().items() for suffix in one.suffixes}
    kind = known.get(Path(output).suffix.lower())
    if kind is None:
        formats = (*PAGES, *_exports())
        raise click.UsageError(f"'{output}' does not tell the format; add one of --{', --'.join(formats)}")
    return kind


def _load(run: str, store: str | None, *, samples: bool) -> RunRecords:
    from paceline.store import open_reader

    with open_reader(store) as opened:
        records: RunRecords = opened.load(opened.find_run(run), samples=samples)
    return records


def _render(records: RunRecords, kind: str) -> bytes:
    if kind not in PAGES:
        made = _exports()[kind].render(records)
        return made.encode() if isinstance(made, str) else made
    from paceline.cli._sources import known_ceilings
    from paceline.report.run.document import to_html, to_markdown, to_png

    ceilings = known_ceilings(records)
    if kind == "png":
        return to_png(records, ceilings=ceilings)
    return (to_html if kind == "html" else to_markdown)(records, ceilings=ceilings).encode()


def _default_target(records: RunRecords, kind: str) -> str:
    if kind in PAGES:
        return "-" if kind == "md" else f"paceline-report-{records.run.id}.{kind}"
    return _exports()[kind].file.format(run=records.run.id)
