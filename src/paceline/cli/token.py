"""Make, list and revoke the tokens that a leader lets people in with."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from paceline.core.errors import InputError

if TYPE_CHECKING:
    from paceline.service.api.tokens import Standing
    from paceline.store import Store
    from paceline.store.queue import AuditRow, TokenRow

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
    click.echo(
        f"It holds {_until(row)}, with the scope {scope}, and is not shown again: keep it in a file that only", err=True
    )
    click.echo("its owner can read (--token-file), or in $PACELINE_TOKEN.", err=True)


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@_STORE
def list_tokens(as_json: bool, store: str | None) -> None:
    """List tokens, without themselves: which are valid, have expired or were revoked."""
    from paceline.service.api import tokens

    with _opened(store) as opened:
        rows = opened.queue.tokens()
        standings = tokens.standings(rows, opened.queue.audited(tokens.AUDITED), datetime.now(UTC))
    if as_json:
        click.echo(json.dumps([_document(standing) for standing in standings], indent=2))
        return
    for standing in standings:
        scopes = ", ".join(standing.row.scopes) if standing.row else "-"
        click.echo(f"{standing.name:<24} {scopes:<8} {_how_it_stands(standing)}")
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


def _until(row: TokenRow) -> str:
    return f"until {_minute(row.expires_at)}" if row.expires_at else "for ever"


def _minute(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"


def _how_it_stands(standing: Standing) -> str:
    if standing.row is not None and standing.state == "valid":
        return f"valid {_until(standing.row)}"
    return f"{standing.state} since {_minute(standing.since)}" if standing.since else standing.state


def _document(standing: Standing) -> dict[str, Any]:
    row = standing.row
    return {
        "name": standing.name,
        "scopes": list(row.scopes) if row else [],
        "created_at": row.created_at.isoformat() if row else None,
        "expires_at": row.expires_at.isoformat() if row and row.expires_at else None,
        "state": standing.state,
        "since": standing.since.isoformat() if standing.since else None,
    }


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
