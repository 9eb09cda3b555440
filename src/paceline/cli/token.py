"""Make, limit, list and revoke the tokens that a leader lets people in with."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any

import click
from pydantic import ValidationError

from paceline.core.errors import InputError
from paceline.core.parameters import in_words
from paceline.core.quantity import parse_duration

if TYPE_CHECKING:
    from paceline.service.admission import Quotas
    from paceline.store.queue import AuditRow, TokenRow

_QUOTAS = (
    click.option("--max-queued", type=click.IntRange(min=0), metavar="N", help="Of its jobs, waiting, at most."),
    click.option(
        "--max-running", type=click.IntRange(min=0), metavar="N", help="Of its jobs, running at once, at most."
    ),
    click.option("--max-priority", type=click.IntRange(-100, 100), metavar="N", help="Of its jobs, at most."),
    click.option(
        "--machine-hours", type=click.FloatRange(min=0), metavar="HOURS", help="Of machines within 30 days, at most."
    ),
)
_STORE = click.option("--store", metavar="PATH|URL", help="The leader's store; by default this user's own.")


def _quota_options(command: Callable[..., None]) -> Callable[..., None]:
    """What its jobs may use; the command gets them as `quotas`."""

    @wraps(command)
    def decorated(**options: Any) -> None:
        from paceline.service.admission import Quotas

        given = {name: options.pop(name) for name in Quotas.model_fields}
        try:
            quotas = Quotas(**given)
        except ValidationError as error:
            (wrong, *_) = error.errors()
            flag = f"--{wrong['loc'][0]}".replace("_", "-")
            message = f"{flag} {wrong['input']}: {in_words(wrong)}"
            raise InputError("invalid-value", message, key=flag, value=wrong["input"]) from error
        command(quotas=quotas, **options)

    for option in reversed(_QUOTAS):
        decorated = option(decorated)
    return decorated


@click.group(name="token")
def command() -> None:
    """Make, limit, list and revoke tokens, on the machine of the leader's store; a running leader notes it at once."""


@command.command()
@click.argument("name")
@click.option(
    "--scope",
    type=click.Choice(("follower", "read", "submit", "admin")),
    default="submit",
    show_default=True,
    help="What it may do; each includes those before it. A follower's only proves that it is the machine NAME.",
)
@click.option(
    "--expires", metavar="TIME", help="How long it is valid, like 12h; or never.  [default: 90d; a follower's never]"
)
@_quota_options
@_STORE
def create(name: str, scope: str, expires: str | None, quotas: Quotas, store: str | None) -> None:
    """Make a token for NAME, in place of an earlier one, and show it this once."""
    from paceline.service.api import tokens
    from paceline.service.credentials import FOLLOWER, is_followers
    from paceline.store import open_store

    if scope in ("follower", "admin") and quotas != type(quotas)():
        message = f"a token with the scope {scope} has no quotas: leave them out, or give it another --scope"
        raise InputError(f"quota-of-{scope}", message, key="--scope", value=scope)
    expires = expires or ("never" if scope == FOLLOWER else "90d")
    token, row = tokens.make(name, tokens.Scope.of(scope), _lasts(expires), quotas=quotas)
    with open_store(store) as opened:
        earlier = opened.queue.tokens()
        tokens.check_kind(row, earlier)
        with opened.queue.writing(f"keep token '{name}'") as writing:
            writing.put_token(row)
            writing.note(_audit("create", name))
    click.echo(token)
    use = "its owner can read (--token-file), or in $PACELINE_TOKEN."
    if scope == FOLLOWER:
        use = f"its owner can read on the machine '{name}', for `paceline follower --own-token-file FILE`."
        if not any(map(is_followers, earlier)):
            use += "\nFrom now on every follower needs a token: those without one are given nothing more."
    valid = f"It is valid {_until(row)}, with the scope {scope}, and is not shown again: store it in a file that only"
    click.echo(f"{valid}\n{use}", err=True)


@command.command()
@click.argument("name")
@_quota_options
@_STORE
def limit(name: str, quotas: Quotas, store: str | None) -> None:
    """Set what the jobs of NAME's token may use; what is not given has no limit."""
    from paceline.store import open_store

    with open_store(store) as opened, opened.queue.writing(f"limit token '{name}'") as writing:
        is_limited = writing.limit_token(name, quotas.model_dump(exclude_none=True))
        if is_limited:
            writing.note(_audit("limit", name))
    if not is_limited:
        raise _unknown(name)
    click.echo(f"The token '{name}' has {_limits(quotas.model_dump(exclude_none=True)) or 'no quotas'}")


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@_STORE
def list_tokens(as_json: bool, store: str | None) -> None:
    """List tokens, without themselves: which are valid, have expired or were revoked."""
    from paceline.service.credentials import is_followers, state_of
    from paceline.store import open_store

    with open_store(store) as opened:
        rows = opened.queue.tokens()
    now = datetime.now(UTC)
    if as_json:
        documents = [
            {
                "name": row.name,
                "scopes": row.scopes,
                "created_at": row.created_at,
                "expires_at": row.expires_at,
                "quotas": row.quotas,
                "state": state_of(row, now),
                "since": _ended(row, now),
            }
            for row in rows
        ]
        click.echo(json.dumps(documents, indent=2, default=datetime.isoformat))
        return
    for row in rows:
        since = _ended(row, now)
        state = f"{state_of(row, now)} since {_minute(since)}" if since else f"valid {_until(row)}"
        words = ", ".join(filter(None, (state, _limits(row.quotas) if since is None else "")))
        click.echo(f"{row.name:<24} {', '.join(row.scopes) or '-':<8} {words}")
    of_people = [row for row in rows if not is_followers(row)]
    if not of_people:
        what = "no tokens of people" if rows else "no tokens"
        click.echo(f"There are {what}: a leader answers its own machine alone.")
    elif all(_ended(row, now) for row in of_people):
        click.echo("No token is valid: a leader lets nobody in until `paceline token create` makes one.")


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
        raise _unknown(name)
    click.echo(f"The token '{name}' is no longer valid")


def _unknown(name: str) -> InputError:
    return InputError("unknown-token", f"there is no token '{name}': `paceline token list` names them", value=name)


def _ended(row: TokenRow, now: datetime) -> datetime | None:
    """Since when it is not valid."""
    return row.revoked_at or (row.expires_at if row.expires_at is not None and row.expires_at <= now else None)


def _limits(quotas: Mapping[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in quotas.items())


def _until(row: TokenRow) -> str:
    return f"until {_minute(row.expires_at)}" if row.expires_at else "for ever"


def _minute(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"


def _audit(what: str, name: str) -> AuditRow:
    from paceline.store.queue import AuditRow

    return AuditRow(datetime.now(UTC), "command line", f"token {what}", name, "ok")


def _lasts(text: str) -> timedelta | None:
    if text == "never":
        return None
    try:
        if text[-1:].isdigit():  # as many people mean days by it as seconds
            raise ValueError
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
