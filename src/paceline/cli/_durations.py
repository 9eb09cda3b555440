"""Reads durations that a user gives to an option."""

from __future__ import annotations

from datetime import timedelta

from paceline.core.errors import InputError
from paceline.core.quantity import parse_duration


def duration_of(flag: str, text: str) -> timedelta:
    """The duration behind a flag; a refusal names both."""
    try:
        return timedelta(seconds=parse_duration(text))
    except (ValueError, OverflowError) as error:
        raise InputError("not-a-duration", str(error), where=f"{flag} {text}", key=flag, value=text) from None
