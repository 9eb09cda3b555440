"""List past runs, show the history of a metric over them, delete, pin, tag or rename some."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from paceline.cli._options import Answer, age_of, format_options
from paceline.core.errors import InputError, nearest, unknown
from paceline.core.files import data_directory
from paceline.core.quantity import show_duration, show_size
from paceline.core.run import RunStatus
from paceline.report.text import one_line, when

if TYPE_CHECKING:
    from rich.console import Console

    from paceline.analysis.trend.series import History
    from paceline.core.run import RunRecords, RunRow
    from paceline.report.run_list import ListedRun
    from paceline.store.store import Store


MOST_RUNS = 1000
LISTED = 20
MOST_REASONS = 3  # why lines of a spool were not imported: the first ones are enough
STATUSES = get_args(RunStatus)


@click.group("results", invoke_without_command=True)
@click.option("--store", metavar="URL", help="Where results are stored.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    help=f"How many runs at most, the newest: {LISTED} in a list, {MOST_RUNS} in a history.",
)
@click.option(
    "--import",
    "spool",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="First import records that could not be stored when they were measured, or results of pyperf.",
)
@click.option("--trend", metavar="METRIC", help="The history of this metric over runs, and where it changed.")
@click.option("--benchmark", default="", metavar="NAME", help="Of a history: only this benchmark.")
@click.option("--case", default="", metavar="TEXT", help="Of a history: only cases whose name has this in it.")
@click.option("--tag", default="", metavar="TAG", help="Only runs that carry this tag.")
@click.option("--machine", default="", metavar="TEXT", help="Of a list: only runs on machines with this in their name.")
@click.option("--status", type=click.Choice(STATUSES), help="Of a list: only runs in this state.")
@click.option(
    "--search",
    default="",
    metavar="WORDS",
    help="Of a list: only runs with all of these in their suite, tags, note, machine, warnings or cases.",
)
@click.option(
    "--fail-on-regression", is_flag=True, help="Of a history: exit with 1 if a last level is worse than the best one."
)
@format_options()
@click.pass_context
def command(
    context: click.Context,
    store: str | None,
    limit: int | None,
    spool: Path | None,
    trend: str | None,
    benchmark: str,
    case: str,
    tag: str,
    machine: str,
    status: str | None,
    search: str,
    fail_on_regression: bool,
    answer: Answer,
) -> None:
    """List past runs, or with --trend the history of a metric over them; or change what is stored."""
    if context.invoked_subcommand is not None:
        return
    from paceline.report.run_list import RunGlances, listed
    from paceline.store import open_existing, open_store

    if trend is None:
        of_history = {
            "benchmark": benchmark,
            "case": case,
            "fail-on-regression": fail_on_regression,
            str(answer.kind): answer.kind not in (None, "json"),
            "output": answer.output,
        }
        if misplaced := [name for name, is_given in of_history.items() if is_given]:
            raise click.UsageError(f"--{misplaced[0]} belongs to a history: name its metric with --trend METRIC")
    elif misplaced := [name for name, text in {"machine": machine, "status": status, "search": search}.items() if text]:
        raise click.UsageError(f"--{misplaced[0]} belongs to a list of runs: leave out --trend")
    runs: list[RunRecords] = []
    rows: list[ListedRun] = []
    left = 0
    with (open_existing if spool is None else open_store)(store) as opened:
        if spool is not None:
            left = _import(opened, spool)
        if trend is None:
            glances = RunGlances(opened)
            rows = listed(glances, limit or LISTED, tag=tag, machine=machine, status=status or "", search=search)
            if tag and not rows and answer.kind != "json":
                _require_likely(opened, "--tag", [tag])
        else:
            runs = opened.history(trend, tag=tag, limit=limit or MOST_RUNS)
    if trend is not None:
        if not runs:
            message = f"no run with the tag '{tag}' measured '{trend}'; `paceline results` lists runs"
            raise InputError("no-runs", message, key="--tag", value=tag)
        history = _history(runs, trend, benchmark, case)
        _show_history(history, answer)
        if fail_on_regression and history.worse:
            raise click.exceptions.Exit(1)
    elif answer.kind == "json":
        click.echo(json.dumps([row.document() for row in rows], indent=2, default=datetime.isoformat))
    elif rows:
        show_runs(rows)
    elif tag or machine or status or search:
        click.echo("No run is like that; 'paceline results' lists the latest of all.")
    else:
        click.echo("There are no runs yet; start one with 'paceline run'.")
    if left:
        raise click.exceptions.Exit(1)


def _require_likely(opened: Store, flag: str, tags: Sequence[str]) -> None:
    """Refuse a tag that no run has but that is like one that some have."""
    known = {tag for row in opened.runs(limit=None) for tag in row.tags}
    for tag in tags:
        if tag not in known and nearest(tag, known):
            raise unknown("tag", tag, known, key=flag)


def _import(opened: Store, path: Path) -> int:
    """Take over a spool, or a file of pyperf; how many lines of a spool stay in it."""
    from paceline.report.export import pyperf

    if pyperf.is_theirs(path):
        loaded = pyperf.read(path)
        opened.import_run(loaded)
        click.echo(f"{len(loaded.records)} records of pyperf imported as run {loaded.run.id}", err=True)
        return 0
    imported, reasons = opened.import_spool(path)
    left = len(reasons)
    shown = reasons[:MOST_REASONS] + ([f"{left - MOST_REASONS} more lines"] if left > MOST_REASONS else [])
    if reasons and not imported:
        message = f"no record could be imported: {'; '.join(shown)}"
        raise InputError("nothing-imported", message, value=str(path))
    click.echo(f"{imported} records imported from {path}", err=True)
    for reason in shown:
        click.echo(f"paceline: not imported: {reason}", err=True)
    return left


def _history(runs: list[RunRecords], metric: str, benchmark: str, text: str) -> History:
    """The series of a benchmark and of the cases with a text in their name; InputError says what would give some."""
    from paceline.analysis.trend.series import history

    benchmarks = {record.case.benchmark for records in runs for record in records.records}
    if benchmark and benchmark not in benchmarks:
        raise unknown(f"benchmark in runs with '{metric}'", benchmark, benchmarks, key="--benchmark")
    titles = {f"{record.case.benchmark} {record.case.title}" for records in runs for record in records.records}
    if text and not any(text.casefold() in title.casefold() for title in titles):
        raise unknown(f"case in runs with '{metric}'", text, titles, key="--case")
    chosen = []
    for records in runs:
        matches = [
            record
            for record in records.records
            if benchmark in ("", record.case.benchmark)
            and text.casefold() in f"{record.case.benchmark} {record.case.title}".casefold()
        ]
        chosen.append(records.model_copy(update={"records": matches}))
    series = history(chosen, metric)
    if not series.series:
        message = (
            f"no case was measured for '{metric}' in two runs on the same machine; a history needs some, "
            f"{'with --benchmark and --case less narrow, or ' if benchmark or text else ''}"
            "by the same command at another time"
        )
        raise InputError("no-history", message, value=metric)
    return series


def _show_history(history: History, answer: Answer) -> None:
    from paceline.report import charts, trend
    from paceline.report.render.terminal import open_console

    console = open_console()
    ascii_only = not console.is_terminal or console.options.ascii_only
    page = trend.document(history) if answer.kind == "html" else trend.text_document(history, ascii_only=ascii_only)
    data: dict[str, Callable[[], str | bytes]] = {
        "json": lambda: trend.to_json(history),
        "csv": lambda: trend.to_csv(history),
        "png": lambda: charts.draw_png(trend.picture(history)),
    }
    answer.give(page, f"paceline-trend-{history.metric}", data)


_BETWEEN = 2  # characters between two columns
_NUMERIC = ("Took", "Ok", "Not ok")
_DETAILS = ("Figure", "Machine", "Tags", "Warnings", "Note")  # below the others where there is little room
_BELOW = {"Tags": "tagged ", "Warnings": "warnings: ", "Note": "note: "}


def show_runs(runs: Sequence[ListedRun]) -> None:
    """Print them, a line each; where a terminal is too narrow, what was measured goes below. Nothing is ever cut."""
    from rich.cells import cell_len

    from paceline.report.render.terminal import open_console

    console = open_console()
    lines = [_cells(run) for run in runs]
    names = [name for name in lines[0] if any(line[name] for line in lines)]
    widths = {name: max(cell_len(name), *(cell_len(line[name]) for line in lines)) for name in names}
    needed = sum(widths.values()) + _BETWEEN * (len(names) - 1)
    if not console.is_terminal:
        console.width = needed  # a pipe has no width of its own
    below = [name for name in names if name in _DETAILS] if needed > console.width else []
    _table(console, {name: width for name, width in widths.items() if name not in below}, lines, below)


def _cells(run: ListedRun) -> dict[str, str]:
    """Its texts by column."""
    row = run.row
    texts = {
        "Run": row.id,
        "Suite": row.name,
        "Started, UTC": when(row.started_at).removesuffix(" UTC"),
        "Took": show_duration((row.ended_at - row.started_at).total_seconds()) if row.ended_at else "",
        "Ok": f"{row.ok} of {row.cases}",
        "Not ok": str(row.not_ok or ""),
        "Status": row.status,
        "Figure": run.figure,
        "Machine": run.machine,
        "Tags": ", ".join(row.tags),
        "Warnings": ", ".join(f"{kind} {count}" for kind, count in run.warnings.items()),
        "Note": ": ".join(filter(None, ("pinned" if row.pinned else "", row.note))),
    }
    return {name: one_line(text) for name, text in texts.items()}


def _table(console: Console, widths: dict[str, int], lines: Sequence[dict[str, str]], below: Sequence[str]) -> None:
    from rich.cells import set_cell_size
    from rich.padding import Padding
    from rich.text import Text

    def row(texts: dict[str, str]) -> Iterator[Text]:
        for place, (name, width) in enumerate(widths.items()):
            text = texts[name].rjust(width) if name in _NUMERIC else set_cell_size(texts[name], width)
            yield Text(" " * _BETWEEN * bool(place) + text, _style(name, texts))

    console.print(Text.assemble(*row({name: name for name in widths})), style="bold", overflow="fold")
    for line in lines:
        console.print(Text.assemble(*row(line)), overflow="fold")
        if details := " · ".join(_BELOW.get(name, "") + line[name] for name in below if line[name]):
            console.print(Padding(Text(details, "dim"), (0, 0, 0, 2)))


def _style(name: str, texts: dict[str, str]) -> str:
    if name == "Status":
        return "" if texts[name] in ("finished", name) else "yellow"
    return {"Run": "bold", "Not ok": "red"}.get(name, "")


# What changes what is stored

_STORE = click.option("--store", metavar="URL", help="Where results are stored.")
_DRY = click.option("--dry-run", is_flag=True, help="Say what would go, and delete nothing.")
_RUN = click.argument("run", metavar="RUN")


def _open(store: str | None) -> Store:
    """The store that is named here, or before the name of the command."""
    from paceline.store import open_existing

    above = click.get_current_context().parent
    return open_existing(store or (above.params.get("store") if above else None))


@command.command()
@click.option("--older", required=True, metavar="TIME", help="Runs that ended longer ago than this, like 90d.")
@click.option("--keep-tags", default="", metavar="TAG,...", help="But not those that carry one of these tags.")
@_DRY
@_STORE
def prune(older: str, keep_tags: str, dry_run: bool, store: str | None) -> None:
    """Delete old runs, but none that is pinned, is being measured, or has a tag to keep."""
    from paceline.store.retention import divide

    before = datetime.now(UTC) - age_of("--older", older)
    tags = [tag.strip() for tag in keep_tags.split(",") if tag.strip()]
    with _open(store) as opened:
        _require_likely(opened, "--keep-tags", tags)
        going, spared = divide(opened.runs(limit=None), before=before, tags=tags, in_use=_of_unfinished_jobs(opened))
        for one in spared:
            click.echo(f"{one.run.id} stays: {one.reason}")
        _delete(opened, going, dry_run=dry_run)


@command.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@_DRY
@_STORE
def delete(runs: tuple[str, ...], dry_run: bool, store: str | None) -> None:
    """Delete runs with all that was measured in them."""
    from paceline.store.retention import why_it_stays

    with _open(store) as opened:
        rows = {row.id: row for row in opened.runs(limit=None)}
        going = [rows[run_id] for run_id in dict.fromkeys(opened.find_run(run) for run in runs)]
        in_use = _of_unfinished_jobs(opened)
        for row in going:
            if reason := why_it_stays(row, in_use):
                remedy = (
                    f"`paceline results pin {row.id} --remove` first" if row.pinned else "wait for it, or cancel it"
                )
                message = f"run '{row.id}' is {reason}, and nothing was deleted: {remedy}"
                raise InputError("run-in-use", message, value=row.id)
        _delete(opened, going, dry_run=dry_run)


@command.command()
@_RUN
@click.option("--remove", is_flag=True, help="Let it be deleted again.")
@_STORE
def pin(run: str, remove: bool, store: str | None) -> None:
    """Let nothing delete a run."""
    _change(store, run, "not pinned any more" if remove else "pinned", pinned=not remove)


@command.command()
@_RUN
@click.argument("text")
@_STORE
def note(run: str, text: str, store: str | None) -> None:
    """Write a note to a run, in place of an earlier one; an empty text removes it."""
    from paceline.store.retention import readable

    _change(store, run, "noted" if text else "no note any more", note=readable("note", text) if text else "")


@command.command()
@_RUN
@click.argument("tags", nargs=-1, required=True, metavar="TAG...")
@click.option("--remove", is_flag=True, help="Remove these tags.")
@_STORE
def tag(run: str, tags: tuple[str, ...], remove: bool, store: str | None) -> None:
    """Add tags to a run, or remove some."""
    from paceline.store.retention import change_tags, readable

    words = [readable("tag", one) for one in tags]
    with _open(store) as opened:
        run_id = opened.find_run(run)
        left = change_tags(opened, run_id, **{"remove" if remove else "add": words})
    click.echo(f"{run_id}: {', '.join(left) or 'no tags'}")


@command.command()
@_RUN
@click.argument("name")
@_STORE
def rename(run: str, name: str, store: str | None) -> None:
    """Give a run another name than that of its suite; its id stays."""
    from paceline.store.retention import readable

    _change(store, run, name, name=readable("name", name))


def _change(store: str | None, run: str, outcome: str, **values: Any) -> None:
    """Change what people say of a run, and say what came of it."""
    from paceline.store.retention import change_run

    with _open(store) as opened:
        run_id = opened.find_run(run)
        change_run(opened, run_id, **values)
    click.echo(f"{run_id}: {outcome}")


def _of_unfinished_jobs(store: Store) -> set[str]:
    """The runs that a leader on this store still measures, or will go on with."""
    from paceline.service.job_store import UNFINISHED, list_jobs

    return {run_id for job in list_jobs(store, UNFINISHED) for run_id in job.run_ids}


def _delete(store: Store, rows: Sequence[RunRow], *, dry_run: bool) -> None:
    from paceline.store.retention import delete_runs, shrink

    for row in rows:
        cases = f"{row.cases} case{'s' if row.cases != 1 else ''}"
        words = [row.id, when(row.started_at), cases, one_line(row.name), *map(one_line, row.tags)]
        click.echo(f"{'would delete' if dry_run else 'deletes'} {'  '.join(words)}")
    count = f"{len(rows)} run{'s' if len(rows) != 1 else ''}"
    if dry_run or not rows:
        click.echo(f"{count} would go; nothing was deleted." if dry_run else "There is nothing to delete.")
        return
    path = store.location.path
    before = path.stat().st_size if path else 0
    gone = delete_runs(store, [row.id for row in rows])
    for run_id in gone:
        _delete_files(run_id)
    shrink(store)
    after = path.stat().st_size if path else 0
    room = f"; the store has {show_size(after)}, and had {show_size(before)}" if path else ""
    click.echo(f"{len(gone)} of {count} deleted{room}.")


def _delete_files(run_id: str) -> None:
    """What `paceline run` writes of a run beside the store, where nobody named another place for it."""
    with suppress(OSError):
        (data_directory() / "reports" / f"{run_id}.html").unlink(missing_ok=True)
    shutil.rmtree(data_directory() / "traces" / run_id, ignore_errors=True)
