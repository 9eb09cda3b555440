"""What counts as a good answer of a server that speaks plain HTTP, and why an answer is not one.

Workers import it: nothing but the standard library, and as little work as possible for answers that repeat.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from paceline.core.text import clean

SHOWN = 200  # characters of an answer that is not good
HIDDEN = "***"  # instead of a secret that the server repeats
_READ = 2**20  # bytes of an answer in which text is looked for
_TO_HIDE_IN = 4096  # characters of an answer that are looked at for what is shown
_REMEMBERED = 256  # different answers, each judged once
_LARGEST_REMEMBERED = 2**14  # bytes
_STATUS = re.compile(r"([1-5]\d\d)(?:-([1-5]\d\d))?")
_STEP = re.compile(r"([^.\[\]=]+)|\[(\d+)\]")
_MISSING = object()


@dataclass(frozen=True)
class Expected:
    """Statuses, parts of a JSON document and a pattern; an answer has to meet all of them."""

    status: tuple[str, ...] = ("200-299",)  # 200, or 200-299
    json: tuple[str, ...] = ()  # a path that must exist (label, scores[0].name), or PATH=VALUE
    text: str = ""  # a regular expression that must match somewhere
    hidden: tuple[str, ...] = field(default=(), repr=False)  # secrets of the request, which a server may repeat

    def __str__(self) -> str:
        parts = [f"status {', '.join(self.status)}", *(f"JSON with {one}" for one in self.json)]
        return "; ".join([*parts, *([f"text that matches {self.text!r}"] if self.text else [])])

    @property
    def needs_body(self) -> bool:
        """Whether the status alone does not tell."""
        return bool(self.json or self.text)

    def problem(self, status: int, body: bytes) -> str:
        """What was expected and what came instead; empty for a good answer."""
        key = (status, body)
        verdict = self._verdicts.get(key)
        if verdict is None:
            verdict = self._judge(status, body)
            if len(self._verdicts) < _REMEMBERED and len(body) <= _LARGEST_REMEMBERED:
                self._verdicts[key] = verdict
        return verdict

    def has_status(self, status: int) -> bool:
        """Whether this status is among the good ones."""
        return any(low <= status <= high for low, high in self._ranges)

    def _judge(self, status: int, body: bytes) -> str:
        missed = self._missed(status, body)
        return f"expected {missed}, got {status}: {self.shown(body)}" if missed else ""

    def _missed(self, status: int, body: bytes) -> str:
        if not self.has_status(status):
            return f"status {', '.join(self.status)}"
        if self._conditions:
            try:
                document = json.loads(body)
            except (ValueError, RecursionError):
                return "JSON"
            for written, path, value in self._conditions:
                found = _look_up(document, path)
                if found is _MISSING or not (value is _MISSING or _equal(found, value)):
                    return f"JSON with {written}"
        if self._pattern is not None and self._pattern.search(body[:_READ].decode("utf-8", "replace")) is None:
            return f"text that matches {self.text!r}"
        return ""

    def shown(self, body: bytes) -> str:
        """The beginning of an answer on one line, without control characters and without secrets."""
        text = body[: 4 * _TO_HIDE_IN].decode("utf-8", "replace")[:_TO_HIDE_IN]
        for secret in self.hidden:
            text = text.replace(secret, HIDDEN)
        text = " ".join(clean(text).split())
        return (text[:SHOWN] + "..." if len(text) > SHOWN else text) or "an empty body"

    @cached_property
    def _verdicts(self) -> dict[tuple[int, bytes], str]:
        return {}

    @cached_property
    def _ranges(self) -> list[tuple[int, int]]:
        return [read_status(one) for one in self.status]

    @cached_property
    def _conditions(self) -> list[tuple[str, list[str | int], Any]]:
        return [(one, *read_condition(one)) for one in self.json]

    @cached_property
    def _pattern(self) -> re.Pattern[str] | None:
        return re.compile(self.text) if self.text else None


def read_status(text: str) -> tuple[int, int]:
    """The lowest and the highest status that a text names; ValueError if it names none."""
    matched = _STATUS.fullmatch(text.strip())
    if matched is None or (matched[2] is not None and matched[2] < matched[1]):
        raise ValueError(f"'{text}' is not a status; write 200, or 200-299")
    return int(matched[1]), int(matched[2] or matched[1])


def read_condition(text: str) -> tuple[list[str | int], Any]:
    """The steps of PATH or PATH=VALUE, and the value, which is JSON or else a text; ValueError if it is neither."""
    path, equals, written = text.partition("=")
    path = path.strip().removeprefix("$").removeprefix(".")
    steps: list[str | int] = []
    at = 0
    while at < len(path):
        matched = _STEP.match(path, at)
        if matched is None:
            break
        steps.append(matched[1].strip() if matched[1] is not None else int(matched[2]))
        at = matched.end()
        if path[at : at + 1] == "." and at + 1 < len(path):
            at += 1
    if at < len(path) or not (steps or text.strip() == "$"):
        raise ValueError(f"'{text}' is not a JSON path; write it as label, scores[0].name or label=cat")
    if not equals:
        return steps, _MISSING
    try:
        return steps, json.loads(written)
    except ValueError:
        return steps, written.strip()


def _equal(found: Any, value: Any) -> bool:
    """As JSON has it, where true is not 1."""
    return isinstance(found, bool) == isinstance(value, bool) and bool(found == value)


def _look_up(document: Any, steps: Sequence[str | int]) -> Any:
    for step in steps:
        if isinstance(document, dict) and isinstance(step, str) and step in document:
            document = document[step]
        elif isinstance(document, list) and str(step).isdecimal() and int(step) < len(document):
            document = document[int(step)]
        else:
            return _MISSING
    return document
