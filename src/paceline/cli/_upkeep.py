"""The commands below `paceline results` that change what is stored of past runs."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from paceline.cli._flags import duration_of
from paceline.core.errors import InputError
from paceline.core.files import data_directory

if TYPE_CHECKING:
    from paceline.core.run import RunRow
    from paceline.store.store import Store

_STORE = click.option("--store", metavar="URL", help="Where results are stored.")
_DRY = click.option("--dry-run", is_flag=True, help="Say what would go, and delete nothing.")
_RUN = click.argument("run", metavar="RUN")


def _open(store: str | None) -> Store:
    """The store that is named here, or before the name of the command."""
    from paceline.store import open_existing

    above = click.get_current_context().parent
    return open_existing(store or (above.params.get("store") if above else None))


@click.command()
@click.option("--older", required=True, metavar="TIME", help="Runs that ended longer ago than this, like 90d.")
@click.option("--keep-tags", default="", metavar="TAG,...", help="But not those that carry one of these tags.")
@_DRY
@_STORE
def prune(older: str, keep_tags: str, dry_run: bool, store: str | None) -> None:
    """Delete old runs, but none that is pinned, is being measured, or has a tag to keep."""
    from paceline.store.retention import divide

    before = datetime.now(UTC) - duration_of("--older", older)
    tags = [tag.strip() for tag in keep_tags.split(",") if tag.strip()]
    with _open(store) as opened:
        going, spared = divide(opened.runs(limit=None), before=before, tags=tags, in_use=_of_unfinished_jobs(opened))
        for one in spared:
            click.echo(f"{one.run.id} stays: {one.reason}")
        _delete(opened, going, dry_run=dry_run)


@click.command()
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


@click.command()
@_RUN
@click.option("--remove", is_flag=True, help="Let it be deleted again.")
@_STORE
def pin(run: str, remove: bool, store: str | None) -> None:
    """Let nothing delete a run."""
    _change(store, run, "not pinned any more" if remove else "pinned", pinned=not remove)


@click.command()
@_RUN
@click.argument("text")
@_STORE
def note(run: str, text: str, store: str | None) -> None:
    """Write a note to a run, in place of an earlier one; an empty text removes it."""
    from paceline.store.retention import readable

    _change(store, run, "noted" if text else "no note any more", note=readable("note", text) if text else "")


@click.command()
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


@click.command()
@_RUN
@click.argument("name")
@_STORE
def rename(run: str, name: str, store: str | None) -> None:
    """Give a run another name than that of its suite; its id stays."""
    from paceline.store.retention import readable

    _change(store, run, name, name=readable("name", name))


COMMANDS = (prune, delete, pin, note, tag, rename)


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
    from paceline.core.quantity import show_size
    from paceline.report.text import one_line, when
    from paceline.store.retention import delete_runs, shrink

    for row in rows:
        words = [row.id, when(row.started_at), f"{row.cases} cases", one_line(row.name), *map(one_line, row.tags)]
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
