"""What an answer of a language model holds, read after the run: its text, its tokens, and whether it is an answer."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.core.text import clean
from paceline.load.trace import FAILED, OK, WRONG

DONE = b"[DONE]"
UNKNOWN = -1  # tokens that nobody has counted
SHOWN = 4096  # characters of an answer that is not good, in which secrets are still to be hidden
_TEXTS = ("content", "reasoning_content", "reasoning", "text")
_SAID = ("content", "text")  # without what the model thought
# Events of OpenAI's responses and of Anthropic's messages: pieces of an answer, and its end.
_PIECES = {
    "response.output_text.delta": True,  # whether it is said, or only thought or meant for a tool
    "response.reasoning_text.delta": False,
    "response.reasoning_summary_text.delta": False,
    "response.function_call_arguments.delta": False,
    "text_delta": True,
    "thinking_delta": False,
    "input_json_delta": False,
}
_ENDS = ("response.completed", "response.incomplete", "message_stop")
_COUNTS = {  # names of the same figure in different interfaces
    "prompt_tokens": ("prompt_tokens", "input_tokens"),
    "output_tokens": ("completion_tokens", "output_tokens"),
}


@dataclass
class LanguageAnswer:
    """One answer, whole or as a stream."""

    status: int = OK
    problem: str = ""  # why it is not an answer, if it is not
    chunks: list[int] = field(default_factory=list)  # when each piece of its text came (ns)
    text: str = ""
    said: str = ""  # the same without what the model thought
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
        if isinstance(document.get("type"), str):
            carries = self._take_typed(document, document["type"])
            self.has_text |= carries
            return carries
        self._count(document)
        if isinstance(document.get("output"), list):  # a whole response of OpenAI's, without a type
            return self._take_whole(document["output"], bool(document.get("status") in ("completed", "incomplete")))
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
            self.said += "".join(parts[name] for name in _SAID if isinstance(parts.get(name), str))
            carries |= any(texts) or bool(parts.get("tool_calls"))
        self.has_text |= carries
        return carries

    def _take_typed(self, document: dict[str, Any], kind: str) -> bool:
        """An event of OpenAI's responses or Anthropic's messages, or a whole message of the latter."""
        inner: dict[str, Any] = next(
            (document[name] for name in ("response", "message") if isinstance(document.get(name), dict)), {}
        )
        if kind == "response.failed" or (kind == "error" and not self.problem):
            message = error_of(inner) or shown(str(document.get("message") or document).encode())
            self.fail(FAILED, f"the server reports an error: {message}")
        for one in (inner, document):
            self._count(one)
        self.has_finished |= kind in _ENDS
        if kind == "message" and isinstance(document.get("content"), list):
            return self._take_whole(document["content"], bool(document.get("stop_reason")))
        delta = document.get("delta")
        if kind == "content_block_delta" and isinstance(delta, dict):
            kind = str(delta.get("type"))
            delta = next((delta[name] for name in ("text", "thinking", "partial_json") if delta.get(name)), "")
        if kind not in _PIECES or not isinstance(delta, str) or not delta:
            return False
        self.text += delta
        self.said += delta if _PIECES[kind] else ""
        return True

    def _take_whole(self, blocks: list[Any], has_finished: bool) -> bool:
        """The parts of a whole answer; those of a message of OpenAI's are within it."""
        self.has_finished |= has_finished
        for block in blocks:
            if not isinstance(block, dict):
                continue
            if isinstance(block.get("content"), list):
                self._take_whole(block["content"], has_finished)
                continue
            text = block.get("text") or block.get("thinking")
            self.has_text |= bool(text) or block.get("type") in ("tool_use", "function_call")
            self.text += str(text or "")
            self.said += "" if block.get("type") == "reasoning_text" else str(block.get("text") or "")
        return self.has_text

    def _count(self, document: dict[str, Any]) -> None:
        usage, timings = document.get("usage"), document.get("timings")
        if isinstance(usage, dict):
            for column, names in _COUNTS.items():
                for name in names:
                    setattr(self, column, _whole(usage.get(name), getattr(self, column)))
            if self.prompt_tokens == UNKNOWN and "completion_tokens" not in usage:  # as some rerankers count
                self.prompt_tokens = _whole(usage.get("total_tokens"), UNKNOWN)
            details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
            if isinstance(details, dict):
                self.cached_tokens = _whole(details.get("cached_tokens"), self.cached_tokens)
            if (read := _whole(usage.get("cache_read_input_tokens"), UNKNOWN)) != UNKNOWN and "input_tokens" in usage:
                self.cached_tokens = read  # Anthropic counts what it has read or written apart from the rest
                self.prompt_tokens += read + _whole(usage.get("cache_creation_input_tokens"), 0)
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
    if message := error_in(other):
        answer.fail(FAILED, f"the server reports an error: {message}")
    if not events:
        answer.fail(WRONG, f"not a stream of events: {shown(other)}")
    if not answer.has_finished:
        answer.fail(WRONG, "the stream ended without a finish_reason or [DONE], or the event that ends it")
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


def read_vectors(body: bytes, wire: str, count: int) -> LanguageAnswer:
    """Embeddings, or scores of documents: one for each text that was sent."""
    answer, document = LanguageAnswer(), _read(body)
    if not isinstance(document, dict):
        answer.fail(WRONG, f"not a JSON object: {shown(body)}")
        return answer
    if message := error_of(document):
        answer.fail(FAILED, f"the server reports an error: {message}")
    answer._count(document)
    rows = document.get("results" if wire == "rerank" else "data")
    good = [one for one in rows if isinstance(one, dict) and _has_vector(one)] if isinstance(rows, list) else []
    if len(good) != count:
        answer.fail(WRONG, f"{len(good)} {'scores' if wire == 'rerank' else 'vectors'} for {count} texts")
    return answer


def _has_vector(row: dict[str, Any]) -> bool:
    score = row.get("relevance_score", row.get("score"))
    return bool(row.get("embedding")) or (isinstance(score, int | float) and math.isfinite(score))


def json_problem(text: str, keys: Sequence[str]) -> str:
    """Why a text is not a JSON object with these keys; empty for one that is."""
    document = _read(text.encode())
    if not isinstance(document, dict):
        return f"the answer is not a JSON object: {shown(text.encode())}"
    missing = [key for key in keys if key not in document]
    return f"the answer has no key {', '.join(missing)}: {shown(text.encode())}" if missing else ""


def error_in(body: bytes) -> str:
    """What an answer says went wrong; empty for one that reports no error."""
    document = _read(body) if body else None
    return error_of(document) if isinstance(document, dict) else ""


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
    return text[:SHOWN] or "an empty body"


def _whole(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else otherwise


def _read(text: bytes) -> object:
    """JSON; None for what is not."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
