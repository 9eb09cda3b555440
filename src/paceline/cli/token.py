"""Make, list and revoke the tokens that a leader lets people in with."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from paceline.core.errors import InputError

if TYPE_CHECKING:
    from paceline.store import Store
    from paceline.store.queue import AuditRow

_STORE = click.option("--store", metavar="PATH|URL", help="The leader's store; by default this user's own.")


@click.group(name="token")
def command() -> None:
    """Make, list and revoke tokens, on the machine of the leader's store; a leader that runs takes note at once."""


@command.command()
@click.argument("name")
@click.option(
    "--scope",
    type=click.Choice(("read", "submit", "admin")),
    default="submit",
    show_default=True,
    help="What it may do; each includes those before it.",
)
@click.option(
    "--expires", metavar="TIME", default="90d", show_default=True, help="How long it holds, like 12h; or never."
)
@_STORE
def create(name: str, scope: str, expires: str, store: str | None) -> None:
    """Make a token for NAME, in place of an earlier one, and show it this once."""
    from paceline.service.api import tokens

    token, row = tokens.make(name, tokens.Scope.of(scope), _lasts(expires))
    with _opened(store) as opened, opened.queue.writing(f"keep token '{name}'") as writing:
        writing.put_token(row)
        writing.note(_audit("create", name))
    click.echo(token)
    until = f"until {row.expires_at:%Y-%m-%d %H:%M} UTC" if row.expires_at else "for ever"
    click.echo(
        f"It holds {until}, with the scope {scope}, and is not shown again: keep it in a file that only", err=True
    )
    click.echo("its owner can read (--token-file), or in $PACELINE_TOKEN.", err=True)


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@_STORE
def list_tokens(as_json: bool, store: str | None) -> None:
    """List tokens, without themselves."""
    with _opened(store) as opened:
        rows = opened.queue.tokens()
    if as_json:
        known = [
            {
                "name": row.name,
                "scopes": list(row.scopes),
                "created_at": row.created_at.isoformat(),
                "expires_at": row.expires_at.isoformat() if row.expires_at else None,
            }
            for row in rows
        ]
        click.echo(json.dumps(known, indent=2))
        return
    for row in rows:
        until = f"until {row.expires_at:%Y-%m-%d %H:%M} UTC" if row.expires_at else "for ever"
        click.echo(f"{row.name:<24} {', '.join(row.scopes):<8} {until}")
    if not rows:
        click.echo("There are no tokens: a leader answers its own machine alone.")


@command.command()
@click.argument("name")
@_STORE
def revoke(name: str, store: str | None) -> None:
    """Revoke the token of NAME, from now on."""
    with _opened(store) as opened, opened.queue.writing(f"revoke token '{name}'") as writing:
        found = writing.revoke_token(name)
        if found:
            writing.note(_audit("revoke", name))
    if not found:
        raise InputError(f"there is no token '{name}': `paceline token list` names them")
    click.echo(f"The token '{name}' no longer holds")


def _opened(store: str | None) -> Store:
    from paceline.store import open_store

    return open_store(store)


def _audit(what: str, name: str) -> AuditRow:
    from paceline.store.queue import AuditRow

    return AuditRow(datetime.now(UTC), "command line", f"token {what}", name, "ok")


def _lasts(text: str) -> timedelta | None:
    from paceline.core.quantity import parse_duration

    if text == "never":
        return None
    try:
        days = text.removesuffix("d")
        seconds = 86_400 * float(days) if days != text else parse_duration(text)
        lasts = timedelta(seconds=seconds)
    except (ValueError, OverflowError):
        raise InputError(f"--expires {text}: write it like 12h, 90d or never") from None
    if not timedelta(0) < lasts <= timedelta(days=36_500):
        raise InputError(f"--expires {text}: more than no time, and at most a hundred years; or never")
    return lasts
