"""Make, list and revoke the tokens that a leader lets people in with."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from paceline.core.errors import InputError

if TYPE_CHECKING:
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
    "--expires", metavar="TIME", default="90d", show_default=True, help="How long it is valid, like 12h; or never."
)
@_STORE
def create(name: str, scope: str, expires: str, store: str | None) -> None:
    """Make a token for NAME, in place of an earlier one, and show it this once."""
    from paceline.service.api import tokens
    from paceline.store import open_store

    token, row = tokens.make(name, tokens.Scope.of(scope), _lasts(expires))
    with open_store(store) as opened, opened.queue.writing(f"keep token '{name}'") as writing:
        writing.put_token(row)
        writing.note(_audit("create", name))
    click.echo(token)
    click.echo(
        f"It is valid {_until(row)}, with the scope {scope}, and is not shown again: store it in a file that only\n"
        "its owner can read (--token-file), or in $PACELINE_TOKEN.",
        err=True,
    )


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@_STORE
def list_tokens(as_json: bool, store: str | None) -> None:
    """List tokens, without themselves: which are valid, have expired or were revoked."""
    from paceline.service.api import tokens
    from paceline.store import open_store

    with open_store(store) as opened:
        rows = opened.queue.tokens()
        statuses = tokens.token_statuses(rows, opened.queue.audited(tokens.AUDITED), datetime.now(UTC))
    if as_json:
        documents = [
            {
                "name": status.name,
                "scopes": status.row.scopes if status.row else [],
                "created_at": status.row.created_at if status.row else None,
                "expires_at": status.row.expires_at if status.row else None,
                "state": status.state,
                "since": status.since,
            }
            for status in statuses
        ]
        click.echo(json.dumps(documents, indent=2, default=datetime.isoformat))
        return
    for status in statuses:
        scopes = ", ".join(status.row.scopes) if status.row else "-"
        state = f"{status.state} since {_minute(status.since)}" if status.since else status.state
        if status.row is not None and status.state == "valid":
            state = f"valid {_until(status.row)}"
        click.echo(f"{status.name:<24} {scopes:<8} {state}")
    if not rows:
        click.echo("There are no tokens: a leader answers its own machine alone.")


@command.command()
@click.argument("name")
@_STORE
def revoke(name: str, store: str | None) -> None:
    """Revoke the token of NAME, from now on."""
    from paceline.store import open_store

    with open_store(store) as opened, opened.queue.writing(f"revoke token '{name}'") as writing:
        is_revoked = writing.revoke_token(name)
        if is_revoked:
            writing.note(_audit("revoke", name))
    if not is_revoked:
        raise InputError("unknown-token", f"there is no token '{name}': `paceline token list` names them", value=name)
    click.echo(f"The token '{name}' is no longer valid")


def _until(row: TokenRow) -> str:
    return f"until {_minute(row.expires_at)}" if row.expires_at else "for ever"


def _minute(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"


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
        message = f"--expires {text}: write it like 12h, 90d or never"
        raise InputError("not-a-duration", message, key="--expires", value=text) from None
    if not timedelta(0) < lasts <= timedelta(days=36_500):
        message = f"--expires {text}: it must be more than 0 and at most a hundred years; or write never"
        raise InputError("out-of-range", message, key="--expires", value=text)
    return lasts
