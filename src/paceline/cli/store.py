"""Back up, restore and check the store of results."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from paceline.core.quantity import show_size
from paceline.report.text import one_line

_STORE = click.option("--store", metavar="PATH|URL", help="Where results are stored: a SQLite file or postgresql://...")
_FILE = click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
SHOWN = 50  # losses on a terminal


@click.group("store")
def command() -> None:
    """Back up, restore and check the store, also while others use it."""


@command.command()
@_FILE
@click.option("--replace", is_flag=True, help="Write over an earlier backup.")
@_STORE
def backup(file: Path, replace: bool, store: str | None) -> None:
    """Write all that is in the store to FILE, a SQLite store itself.

    It has what was there at one moment; others may write meanwhile.
    """
    from paceline.store import open_existing
    from paceline.store.backup import back_up

    with open_existing(store) as opened:
        back_up(opened, file, replace=replace)
        shown = opened.location.shown
    click.echo(f"{shown} is backed up in {file}, {show_size(file.stat().st_size)}.")


@command.command()
@_FILE
@click.option("--replace", is_flag=True, help="Replace what is there; a file is moved aside, not deleted.")
@_STORE
def restore(file: Path, replace: bool, store: str | None) -> None:
    """Make a store from the backup FILE, where there is none or an empty one."""
    from paceline.store import backup as backups
    from paceline.store import default_url, locate

    location = locate(store or default_url())
    moved = backups.restore(file, location, replace=replace)
    click.echo(f"{location.shown} is restored from {file}.")
    if moved is not None:
        click.echo(f"What was there before is in {moved}.")


@command.command()
@click.option("--save", type=click.Path(path_type=Path, dir_okay=False), help="Copy what can be read to this new file.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@_STORE
def check(save: Path | None, as_json: bool, store: str | None) -> None:
    """Say what is damaged, and which runs and cases are lost.

    Everything is read; what can be read of a damaged store is saved on request. Exits with 1 if anything is damaged.
    """
    from paceline.store import check as checking
    from paceline.store import default_url, locate

    location = locate(store or default_url())
    found = checking.check(location, save)
    if as_json:
        click.echo(json.dumps(asdict(found), indent=2))
    else:
        for line in found.damage:
            click.echo(f"damaged: {one_line(line)}")
        for line in found.lost[:SHOWN]:
            click.echo(f"lost: {one_line(line)}")
        if len(found.lost) > SHOWN:
            click.echo(f"lost: {len(found.lost) - SHOWN} more; --json lists all")
        state = "is whole" if found.is_whole else "is damaged"
        click.echo(f"{location.shown} {state}: {found.runs} runs with {found.records} records can be read.")
        if save is not None:
            click.echo(f"They are saved in {save}.")
        elif not found.is_whole:
            click.echo("Restore a backup, or save them with `paceline store check --save FILE`.")
    if not found.is_whole:
        raise click.exceptions.Exit(1)
