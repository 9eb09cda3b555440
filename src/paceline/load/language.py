"""What an answer of a language model holds, read after the run: its text, its tokens, and whether it is an answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.core.text import clean
from paceline.load.trace import FAILED, OK, WRONG

DONE = b"[DONE]"
UNKNOWN = -1  # tokens that nobody has counted
SHOWN = 120  # characters of an answer that is not good
_TEXTS = ("content", "reasoning_content", "reasoning", "text")


@dataclass
class LanguageAnswer:
    """One answer, whole or as a stream."""

    status: int = OK
    problem: str = ""  # why it is not an answer, if it is not
    chunks: list[int] = field(default_factory=list)  # when each piece of its text came (ns)
    text: str = ""
    has_text: bool = False  # a call of a tool counts as well
    has_finished: bool = False
    prompt_tokens: int = UNKNOWN
    output_tokens: int = UNKNOWN
    cached_tokens: int = UNKNOWN  # of the prompt, which the server had computed before

    def fail(self, status: int, problem: str) -> None:
        """Keep the first reason."""
        if not self.problem:
            self.status, self.problem = status, problem

    def take(self, document: dict[str, Any]) -> bool:
        """Read an event or a whole answer; whether it carries text."""
        if message := error_of(document):
            self.fail(FAILED, f"the server reports an error: {message}")
        self._count(document)
        # What has neither choices nor an error is taken for text: some servers stream nothing else.
        carries = not message and "choices" not in document and "usage" not in document
        choices = document.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, dict):
                continue
            self.has_finished |= bool(choice.get("finish_reason"))
            parts = next((choice[name] for name in ("delta", "message") if isinstance(choice.get(name), dict)), choice)
            texts = [parts[name] for name in _TEXTS if isinstance(parts.get(name), str)]
            self.text += "".join(texts)
            carries |= any(texts) or bool(parts.get("tool_calls"))
        self.has_text |= carries
        return carries

    def _count(self, document: dict[str, Any]) -> None:
        usage, timings = document.get("usage"), document.get("timings")
        if isinstance(usage, dict):
            self.prompt_tokens = _whole(usage.get("prompt_tokens"), self.prompt_tokens)
            self.output_tokens = _whole(usage.get("completion_tokens"), self.output_tokens)
            details = usage.get("prompt_tokens_details")
            if isinstance(details, dict):
                self.cached_tokens = _whole(details.get("cached_tokens"), self.cached_tokens)
        if isinstance(timings, dict) and self.cached_tokens == UNKNOWN:  # llama.cpp's own counts
            self.cached_tokens = _whole(timings.get("cache_n"), UNKNOWN)


def read_stream(events: Sequence[tuple[int, bytes]], other: bytes = b"") -> LanguageAnswer:
    """A stream of events and the times at which they came; `other` is what was not an event."""
    answer = LanguageAnswer()
    for time, event in events:
        if not event or event == DONE:
            answer.has_finished |= event == DONE
            continue
        document = _read(event)
        if answer.take(document) if isinstance(document, dict) else True:
            answer.chunks.append(time)
            answer.has_text = True
    document = _read(other) if other else None
    if isinstance(document, dict) and (message := error_of(document)):
        answer.fail(FAILED, f"the server reports an error: {message}")
    if not events:
        answer.fail(WRONG, f"not a stream of events: {shown(other)}")
    if not answer.has_finished:
        answer.fail(WRONG, "the stream ended without a finish_reason or [DONE]")
    if not answer.has_text:
        answer.fail(WRONG, "the answer has no text")
    return answer


def read_whole(body: bytes) -> LanguageAnswer:
    """An answer that came as a whole."""
    answer, document = LanguageAnswer(), _read(body)
    if not isinstance(document, dict):
        answer.fail(WRONG, f"not a JSON object: {shown(body)}")
        return answer
    answer.take(document)
    if not answer.has_text:
        answer.fail(WRONG, "the answer has no text")
    return answer


def error_of(document: dict[str, Any]) -> str:
    """What a document says went wrong; empty for one that reports no error."""
    error = document.get("error")
    if not error and document.get("object") != "error":
        return ""
    message = error.get("message") if isinstance(error, dict) else error or document.get("message")
    return shown(str(message or document).encode())


def shown(body: bytes) -> str:
    """The beginning of an answer on one line."""
    text = " ".join(clean(body[: 4 * SHOWN].decode("utf-8", "replace")).split())
    return (text[:SHOWN] + "..." if len(text) > SHOWN else text) or "an empty body"


def _whole(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else otherwise


def _read(text: bytes) -> object:
    """JSON; None for what is not."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
