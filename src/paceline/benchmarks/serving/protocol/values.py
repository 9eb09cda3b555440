"""Values of a JSON body, each with a word on where it stands if it is not what it must be."""

from __future__ import annotations

from typing import Any

from paceline.core.errors import PacelineError


class ProtocolError(PacelineError):
    """Bytes that are not in the protocol; the message says what is wrong and where."""


def a_list(value: Any, where: str) -> list[Any]:
    """A list."""
    if not isinstance(value, list):
        raise ProtocolError(f"{where} is {missing_or(value)}; it must be a list")
    return value


def an_object(value: Any, where: str) -> dict[str, Any]:
    """An object; an empty one where there is none."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ProtocolError(f"{where} is {missing_or(value)}; it must be an object")
    return value


def a_text(value: Any, where: str) -> str:
    """A text."""
    if not isinstance(value, str):
        raise ProtocolError(f"{where} is {missing_or(value)}; it must be a text")
    return value


def a_flag(value: Any, where: str, *, otherwise: bool) -> bool:
    """True or false, or something else where there is none."""
    if value is None:
        return otherwise
    if not isinstance(value, bool):
        raise ProtocolError(f"{where} is {missing_or(value)}; it must be true or false")
    return value


def missing_or(value: Any) -> str:
    """What is there instead."""
    return "missing" if value is None else f"a JSON {word_for(value)}"


def word_for(value: Any) -> str:
    """What JSON calls it."""
    words = {dict: "object", list: "list", str: "text", bool: "boolean", int: "number", float: "number"}
    return words.get(type(value), "null")
