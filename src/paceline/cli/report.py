"""Report a past run: as a table, a page, pictures, data, or in the formats of other tools."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline.cli._options import Answer, complete_runs, format_options, write
from paceline.core.errors import InputError
from paceline.core.files import data_directory, private_directory
from paceline.core.gc_pause import no_garbage
from paceline.report import export

if TYPE_CHECKING:
    from paceline.core.run import RunRecords

PAGES = {"html": "A self-contained page.", "md": "Markdown.", "png": "The overview as a picture."}

EXPORTS = dict(sorted(export.EXPORTS.registry().entries.items(), key=lambda item: (item[1].order, item[0])))
FORMATS = PAGES | {name: f"{one.summary[0].upper()}{one.summary[1:]}." for name, one in EXPORTS.items()}
TRACKERS = export.TRACKERS.registry().entries
SUFFIXES = {".html": "html", ".htm": "html", ".md": "md", ".png": "png"}
SUFFIXES |= {suffix: name for name, one in EXPORTS.items() for suffix in one.suffixes}


def tracker_options(command: Callable[..., None]) -> Callable[..., None]:
    """A flag for each tracker; the command gets the one that was used, and the place, as its `tracker`."""

    @wraps(command)
    def decorated(*arguments: Any, **options: Any) -> None:
        places = {name: options.pop(f"to_{name}") for name in TRACKERS}
        chosen = [(TRACKERS[name], place) for name, place in places.items() if place is not None]
        if len(chosen) > 1:
            raise click.UsageError(f"--{' and --'.join(one.name for one, _ in chosen)} exclude each other; choose one")
        command(*arguments, tracker=chosen[0] if chosen else None, **options)

    for name, one in sorted(TRACKERS.items(), reverse=True):
        optional: dict[str, Any] = {"is_flag": False, "flag_value": ""} if one.place.startswith("[") else {}
        summary = f"{one.summary[0].upper()}{one.summary[1:]}."
        decorated = click.option(f"--{name}", f"to_{name}", metavar=one.place, help=summary, **optional)(decorated)
    return decorated


@click.command("report")
@click.argument("run", default="last", shell_complete=complete_runs)
@format_options(FORMATS, SUFFIXES)
@tracker_options
@click.option("--all", "every", is_flag=True, help="Every case on the terminal, however many there are.")
@click.option("--charts", metavar="DIR", help="Every chart as a picture, and its data as CSV, into this folder.")
@click.option("--open", "is_opened", is_flag=True, help="Open the page in a browser.")
@click.option("--store", metavar="URL", help="Where results are stored.")
def command(
    run: str,
    every: bool,
    charts: str | None,
    is_opened: bool,
    answer: Answer,
    tracker: tuple[export.Tracker, str] | None,
    store: str | None,
) -> None:
    """Show RUN: an id, the beginning of one, its tag, or 'last'. Without a format, a table on the terminal."""
    from paceline.api.sources import known_ceilings
    from paceline.report import vega
    from paceline.store import open_reader

    kind = answer.kind
    if is_opened and (charts is not None or kind not in (None, "html") or answer.output == "-"):
        raise click.UsageError("--open shows the HTML page: leave out other formats, --charts and '-o -'")
    kind = "html" if is_opened else kind
    if charts is not None and (answer.output or kind):
        raise click.UsageError("--charts goes alone: it writes several files into its own folder")
    if tracker is not None and (answer.output or kind or charts is not None):
        raise click.UsageError(f"--{tracker[0].name} goes alone: it writes no file here")
    on_terminal = kind is None and charts is None and tracker is None
    if charts is not None or kind == "png":
        vega.warm_up()  # while the run is read
    with open_reader(store) as opened:
        records: RunRecords = opened.load(opened.find_run(run), samples=not on_terminal)
    if charts is not None:
        from paceline.report.run.document import write_charts

        try:
            written = write_charts(records, charts, ceilings=known_ceilings(records))
        except OSError as error:
            message = f"cannot write into '{charts}': {error.strerror}; choose another folder"
            raise InputError("cannot-write", message, value=charts) from None
        for path in written:
            click.echo(str(path))
        return
    if tracker is not None:
        click.echo(_send(records, *tracker))
        return
    if kind is None:
        from paceline.report.run.document import show

        with no_garbage():
            show(records, ceilings=known_ceilings(records), every=every)
        return
    if kind in PAGES:
        from paceline.report.run.document import to_html, to_markdown, to_png

        pages: dict[str, Callable[..., str | bytes]] = {"html": to_html, "md": to_markdown, "png": to_png}
        target = "-" if kind == "md" else f"paceline-report-{records.run.id}.{kind}"
        content = pages[kind](records, ceilings=known_ceilings(records))
    else:
        content, target = EXPORTS[kind].render(records), EXPORTS[kind].file.format(run=records.run.id)
    if is_opened:
        target = str(private_directory(data_directory() / "reports") / f"{records.run.id}.html")
    write(content.encode() if isinstance(content, str) else content, answer.output or target)
    if is_opened:
        _open(Path(answer.output or target))


def _send(records: RunRecords, tracker: export.Tracker, place: str) -> str:
    from paceline.api.sources import known_ceilings
    from paceline.report.export import jsonl
    from paceline.report.run.document import to_html

    page = to_html(records, ceilings=known_ceilings(records))
    return tracker.send(records, place, {"report.html": page, "records.jsonl": jsonl.render(records)})


def _open(page: Path) -> None:
    import webbrowser

    if not webbrowser.open(page.absolute().as_uri()):
        click.echo("paceline: there is no browser here; open the page in one of another machine", err=True)
