"""Finds the runs that a person means by a word."""

from __future__ import annotations

from paceline.core.errors import InputError, unknown
from paceline.store import codec
from paceline.store.loading import Ask
from paceline.store.location import Location

LAST = "last"
SHOWN_CANDIDATES = 10
_NEWEST_FIRST = "ORDER BY started_at DESC, id DESC"


def find_run(ask: Ask, text: str, location: Location) -> str:
    """The id of the run that is meant by `last`, an id, or the unambiguous beginning of one."""
    if text == LAST:
        newest = ask(f"SELECT id FROM runs {_NEWEST_FIRST} LIMIT 1", {}).fetchone()
        if newest is None:
            message = f"no last run: the store {location.shown} is empty; `paceline run` fills it"
            raise InputError("empty-store", message, value=location.shown)
        return str(newest[0])
    # Not LIKE, which in SQLite takes a for A and in both takes _ for anything.
    begins = f"SELECT id FROM runs WHERE substr(id, 1, :length) = :text {_NEWEST_FIRST}"
    found = [run_id for (run_id,) in ask(begins, {"length": len(text), "text": text}).fetchall()] if text else []
    if text in found or len(found) == 1:
        return text if text in found else str(found[0])
    if not found:
        raise unknown("run", text, all_ids(ask))
    shown = ", ".join(found[:SHOWN_CANDIDATES])
    more = f" and {len(found) - SHOWN_CANDIDATES} more" if len(found) > SHOWN_CANDIDATES else ""
    message = f"'{text}' is the beginning of {len(found)} runs: {shown}{more}; type more of yours"
    raise InputError("ambiguous-run", message, value=text)


def find_tagged(ask: Ask, tag: str) -> list[str]:
    """The ids of the runs that carry this tag, the oldest first."""
    tagged = ask("SELECT id, CAST(tags AS TEXT) FROM runs ORDER BY started_at, id", {}).fetchall()
    return [run_id for run_id, tags in tagged if tag in codec.loads(tags)]


def all_ids(ask: Ask) -> list[str]:
    """Every run, the newest first."""
    return [run_id for (run_id,) in ask(f"SELECT id FROM runs {_NEWEST_FIRST}", {}).fetchall()]
