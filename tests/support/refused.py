"""Expects a refusal by its code and fields, so that few tests depend on its prose."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from paceline.core.errors import InputError


@contextmanager
def refused(code: str, *, says: str | None = None, **fields: object) -> Iterator[None]:
    """What is done in here must be refused with this code, and with these fields of the error.

    `says` is a regular expression, for the few tests of the message itself: hints, units, arithmetic.
    """
    with pytest.raises(InputError, match=says) as caught:
        yield
    error = caught.value
    actual = {name: getattr(error, name) for name in ("code", *fields)}
    assert actual == {"code": code, **fields}, str(error)
