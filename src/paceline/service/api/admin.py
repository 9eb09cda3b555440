"""Routes of those who look after the leader: its health, its tokens, who did what."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request

from paceline.service.api import documents as d
from paceline.service.api import tokens
from paceline.service.api.errors import declared, not_found, unavailable
from paceline.service.api.served import Served, note_subject
from paceline.store.queue import TokenRow

Name = Annotated[str, Path(pattern=d.TOKEN_NAME)]


def router(served: Served) -> APIRouter:
    """The routes."""
    made = APIRouter(tags=["administration"])
    queue = served.store.queue

    @made.get("/health")
    def health() -> d.Health:
        """Whether the leader takes jobs; anybody may ask."""
        if served.leader.trouble:
            raise unavailable("the leader takes no jobs just now")  # not why: anybody may ask
        return d.Health(status="ok")

    @made.get("/tokens")
    def list_tokens() -> d.TokensPage:
        """Whose tokens there are."""
        return d.TokensPage(tokens=[_view(row) for row in queue.tokens()])

    @made.post("/tokens", status_code=201)
    def create_token(sent: d.TokenSent, request: Request) -> d.TokenMade:
        """Make a token, in place of an earlier one of this name; it is shown this once."""
        note_subject(request, sent.name)
        lasts = timedelta(days=sent.days) if sent.days is not None else None
        token, row = tokens.make(sent.name, tokens.Scope.of(sent.scope), lasts)
        with queue.writing(f"make token '{sent.name}'") as writing:
            writing.put_token(row)
        served.tokens.forget()
        return d.TokenMade(**_view(row).model_dump(), token=token)

    @made.delete("/tokens/{name}", status_code=204, responses=declared(404))
    def revoke_token(name: Name, request: Request) -> None:
        """Revoke a token, from this moment on."""
        note_subject(request, name)
        with queue.writing(f"revoke token '{name}'") as writing:
            found = writing.revoke_token(name)
        served.tokens.forget()
        if not found:
            raise not_found("token", name)

    @made.get("/audit")
    def audit(limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> d.AuditPage:
        """Who did what, the newest first."""
        entries = [
            d.AuditEntry(at=row.at, who=row.who, what=row.what, subject=row.subject, outcome=row.outcome)
            for row in queue.audited(limit)
        ]
        return d.AuditPage(entries=entries)

    return made


def _view(row: TokenRow) -> d.TokenView:
    return d.TokenView(
        name=row.name,
        scopes=row.scopes,
        created_at=row.created_at,
        expires_at=row.expires_at,
        state="expired" if tokens.has_expired(row, datetime.now(UTC)) else "valid",
    )
