"""Show what followers reported and the leader could not store; store or drop it."""

from __future__ import annotations

import json

import click

from paceline.api.client import Client
from paceline.cli._client import leader_options
from paceline.report.text import one_line


@click.command()
@click.argument("item", type=click.IntRange(min=1), required=False)
@click.option("--retry", is_flag=True, help="Store ITEM, now that the reason may be gone.")
@click.option("--drop", is_flag=True, help="Delete ITEM.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@leader_options
def command(item: int | None, retry: bool, drop: bool, as_json: bool, client: Client) -> None:
    """List what could not be stored, or show ITEM of it as its follower reported it."""
    if retry and drop:
        raise click.UsageError("--retry and --drop exclude each other; choose one")
    if (retry or drop) and item is None:
        raise click.UsageError("name the ITEM: `paceline quarantine` lists them")
    if retry or drop:
        answer = client.post(f"/quarantine/{item}/{'retry' if retry else 'drop'}")
        done = f"Item {item} of job {answer['job_id']} is {'stored' if retry else 'dropped'}"
        click.echo(json.dumps(answer) if as_json else done)
    elif item is not None:
        click.echo(json.dumps(client.get(f"/quarantine/{item}"), indent=2))
    else:
        _list(client.get("/quarantine", limit=500)["entries"], as_json=as_json)


def _list(entries: list[dict[str, object]], *, as_json: bool) -> None:

    if as_json:
        click.echo(json.dumps(entries, indent=2))
        return
    for entry in entries:
        where = f"job {entry['job_id']}, attempt {entry['attempt']}, from {entry['follower']}"
        click.echo(one_line(f"{entry['id']}: {entry['kind']} of {where}: {entry['reason']}"))
    remedy = "look at one with `paceline quarantine ITEM`, store it with --retry, delete it with --drop"
    click.echo(remedy.capitalize() if entries else "Nothing is in quarantine.")
