"""Turns a database's error into one that says what failed, where, why, and what to do."""

from __future__ import annotations

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError, StatementError

from paceline.core.errors import InputError, StoreError
from paceline.store.location import Location

_REMEDIES = {
    "full": "free some space on that disk, then try again",
    "no space": "free some space on that disk, then try again",
    "disk i/o error": "check that disk's free space and health, then try again",
    "locked": "another process keeps it locked; wait for it or end it, then try again",
    "readonly": "open it where you may write, or copy it there",
    "unable to open": "check that the directory exists and that you may write there",
    "not a database": "give the path of a Paceline store, or of a file that does not exist yet",
    "malformed": "restore it from a copy, or save what is left with `sqlite3 FILE .recover`",
}


def reason(error: Exception) -> str:
    """The database's own message in one line, without statements or parameters."""
    message = str(error.orig) if isinstance(error, StatementError) and error.orig else str(error)
    return " ".join(message.split()) or type(error).__name__


def remedy(error: Exception, location: Location) -> str:
    """What to do about it."""
    if isinstance(error, IntegrityError):
        return "this contradicts what the store holds already; use another run id, or cases that the run planned"
    is_refusal = isinstance(error, SQLAlchemyError) and not isinstance(error, DBAPIError)
    if is_refusal or isinstance(error, DataError):
        return "change the value that it refuses"
    message = reason(error).lower()
    default = "check that the file is intact" if location.path else "check that the server runs and lets you in"
    return next((advice for sign, advice in _REMEDIES.items() if sign in message), default)


def opening_error(location: Location, error: Exception) -> StoreError | InputError:
    """The error to raise when the store could not be opened: a file of another kind was not meant to be one."""
    failed = store_error("open the database", location, error)
    if location.path and "not a database" in reason(error).lower():
        return InputError("not-a-database", str(failed), key="--store", value=location.shown)
    return failed


def store_error(doing: str, location: Location, error: Exception) -> StoreError:
    """The error to raise when the store at this location could not do something."""
    return StoreError(f"could not {doing} in the store {location.shown}: {reason(error)}; {remedy(error, location)}")
