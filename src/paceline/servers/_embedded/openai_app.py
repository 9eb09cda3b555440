"""OpenAI's completions and chat completions over a language service, with its metrics in Prometheus' text.

Text is made-up words, one for each token and a blank after it. A prompt's words are tokens likewise, known or not, so
that as many tokens are computed as there are words. There is no chat template: messages are put one after the other.
"""

from __future__ import annotations

import json
import time
import zlib
from dataclasses import dataclass, field
from typing import Any

from paceline.load.http11 import RequestHead
from paceline.load.kserve import Buffer, ProtocolError
from paceline.load.request import LANGUAGE_PATHS
from paceline.servers._embedded.continuous_batching import FinishReason, TokenSequence
from paceline.servers._embedded.http import Connection
from paceline.servers._embedded.language_service import LanguageService
from paceline.servers._embedded.service import Overloaded
from paceline.servers._language_model import SPECIAL, made_up_words

COMPLETION_TOKENS = 16  # of an answer at most, unless the request says; of a chat, what the context leaves
_CHAT, _COMPLETIONS = LANGUAGE_PATHS["openai-chat"], LANGUAGE_PATHS["openai-completions"]
_END = SPECIAL.index("</s>")
_NOT_DONE = ("stop", "logprobs", "top_logprobs", "tools", "response_format", "logit_bias", "suffix", "echo", "best_of")
_EVENTS = b"Content-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
_PLAIN = b"Content-Type: text/plain; version=0.0.4\r\n"


class WordTokenizer:
    """One token for each word: that of a word of the vocabulary, or one that goes with the letters of any other."""

    def __init__(self, vocabulary: int) -> None:
        self.words = made_up_words(vocabulary)
        self._numbers = {word: number for number, word in enumerate(self.words)}

    def read(self, text: str) -> list[int]:
        """The tokens of a text."""
        others = len(self.words) - len(SPECIAL)
        return [self._numbers.get(word) or len(SPECIAL) + zlib.crc32(word.encode()) % others for word in text.split()]


@dataclass(eq=False)
class Answer:
    """One answer on its way to a client, as a stream or as a whole."""

    connection: Connection
    sequence: TokenSequence
    number: int
    model: str
    words: list[str]
    is_chat: bool
    is_streamed: bool
    with_usage: bool
    created: int = field(default_factory=lambda: int(time.time()))
    texts: list[str] = field(default_factory=list)
    has_begun: bool = False

    def __post_init__(self) -> None:
        # Most events differ by their word alone, which needs no escapes.
        event = self._event({"choices": [self._choice("delta", "\0", None)]})
        self._before, self._after = event.split(b"\\u0000")

    def token(self, token: int, reason: FinishReason | None) -> None:
        """One more token; with a reason it is the last."""
        text = "" if reason == "stop" else f"{self.words[token]} "
        if not self.is_streamed:
            self.texts.append(text)
            if reason is not None:
                self._finish_whole(reason)
            return
        if not self.has_begun:
            self.has_begun = True
            self.connection.begin_stream(_EVENTS)
        if reason is None:
            self.connection.stream(self._before + text.encode() + self._after)
            return
        self.connection.stream(self._event({"choices": [self._choice("delta", text, reason)]}))
        usage = self._event({"choices": [], "usage": self._usage()}) if self.with_usage else b""
        self.connection.stream(usage + b"data: [DONE]\n\n")
        self.connection.end_stream()

    def error(self, error: Exception) -> None:
        """The engine failed; a stream that has begun ends with the reason."""
        message = f"the engine failed: {type(error).__name__}: {error}"[:2000]
        if not self.has_begun:
            answer_error(self.connection, 500, message)
            return
        self.connection.stream(b"data: %b\n\n" % json.dumps(error_body(500, message)).encode())
        self.connection.end_stream(close=True)

    def _finish_whole(self, reason: FinishReason) -> None:
        choice = self._choice("message", "".join(self.texts), reason)
        self.connection.answer_json(self._head("") | {"choices": [choice], "usage": self._usage()})

    def _event(self, content: dict[str, Any]) -> bytes:
        return b"data: %b\n\n" % json.dumps(self._head(".chunk") | content).encode()

    def _head(self, suffix: str) -> dict[str, Any]:
        kind = f"chat.completion{suffix}" if self.is_chat else "text_completion"
        return {"id": f"cmpl-{self.number}", "object": kind, "created": self.created, "model": self.model}

    def _choice(self, kind: str, text: str, reason: FinishReason | None) -> dict[str, Any]:
        content = {kind: {"role": "assistant", "content": text}} if self.is_chat else {"text": text}
        return {"index": 0, **content, "logprobs": None, "finish_reason": reason}

    def _usage(self) -> dict[str, Any]:
        prompt, made = self.sequence.prompt_length, self.sequence.made
        usage = {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made}
        return usage | {"prompt_tokens_details": {"cached_tokens": self.sequence.cached}}


class OpenAIApp:
    """Routes requests; until it has a service, and once it has to end, it is alive but not ready."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_ending = False
        self._service: LanguageService | None = None
        self._tokenizer: WordTokenizer
        self._answers = 0

    @property
    def service(self) -> LanguageService | None:
        """What computes, once it is ready."""
        return self._service

    @service.setter
    def service(self, service: LanguageService) -> None:
        self._tokenizer = WordTokenizer(service.model.vocabulary)
        self._service = service

    def handle(self, connection: Connection, head: RequestHead, body: Buffer) -> None:
        """Leads to exactly one answer, now or later, unless the client is `gone`."""
        service = self._service
        is_ready = service is not None and not self.is_ending
        if head.path == "/v2/health/ready":
            connection.answer_json({"ready": is_ready}, 200 if is_ready else 503)
        elif service is None or (self.is_ending and head.method == "POST"):
            answer_error(
                connection, 503, f"the model '{self.name}' is {'shutting down' if service else 'being loaded'}"
            )
        elif head.path in (_CHAT, _COMPLETIONS) and head.method == "POST":
            self._complete(connection, service, bytes(body), is_chat=head.path == _CHAT)
        elif head.method != "GET":
            answer_error(connection, 405, f"{head.path[:200]} takes GET, not {head.method}", close=True)
        elif head.path == "/v1/models":
            model = {"id": self.name, "object": "model", "created": 0, "owned_by": "paceline"}
            connection.answer_json({"object": "list", "data": [model | {"max_model_len": service.model.max_length}]})
        elif head.path == "/metrics":
            connection.answer(200, (metrics_text(service).encode(),), _PLAIN)
        elif head.path == f"/v2/models/{self.name}/stats":
            connection.answer_json(service.describe())
        else:
            answer_error(connection, 404, f"no {head.path[:200]} here")

    def gone(self, connection: Connection) -> None:
        """The client left before it had its whole answer."""
        if self._service is not None and isinstance(connection.ticket, TokenSequence):
            self._service.cancel(connection.ticket)

    def _complete(self, connection: Connection, service: LanguageService, body: bytes, *, is_chat: bool) -> None:
        try:
            request = json.loads(body)
            if not isinstance(request, dict):
                raise ProtocolError("the body must be a JSON object")
            answer = self._answer(connection, request, service.model.max_length, is_chat=is_chat)
            service.submit(answer.sequence)
        except (ProtocolError, ValueError, RecursionError) as error:
            service.statistics.requests["refused"] += 1
            is_known = isinstance(error, ProtocolError)
            answer_error(connection, 400, str(error) if is_known else f"the body is not JSON: {error}")
        except Overloaded as error:
            answer_error(connection, 503, str(error))
        else:
            connection.ticket = answer.sequence

    def _answer(self, connection: Connection, request: dict[str, Any], longest: int, *, is_chat: bool) -> Answer:
        for name in _NOT_DONE:
            if request.get(name):
                raise ProtocolError(f"{name}: this server does not have it; leave it out")
        if request.get("n", 1) != 1:
            raise ProtocolError("n: this server gives one answer to a request; leave it out")
        prompt = self._tokens(request, is_chat=is_chat)
        asked = _number(request, "max_completion_tokens", 1) or _number(request, "max_tokens", 1)
        most = asked or (longest - len(prompt) if is_chat else COMPLETION_TOKENS)
        if not prompt or len(prompt) + most > longest or most < 1:
            raise ProtocolError(
                f"a prompt of {len(prompt)} tokens with max_tokens = {most}: it takes at least one token, and at most "
                f"{longest} together (max_length)"
            )
        options = request.get("stream_options")
        sequence = TokenSequence(
            prompt,
            most,
            on_token=lambda token, reason: answer.token(token, reason),
            on_error=lambda error: answer.error(error),
            min_tokens=_number(request, "min_tokens", 0) or 0,
            end=None if request.get("ignore_eos") is True else _END,
            temperature=_temperature(request),
        )
        self._answers += 1
        answer = Answer(
            connection,
            sequence,
            self._answers,
            self.name,
            self._tokenizer.words,
            is_chat,
            is_streamed=request.get("stream") is True,
            with_usage=isinstance(options, dict) and options.get("include_usage") is True,
        )
        return answer

    def _tokens(self, request: dict[str, Any], *, is_chat: bool) -> list[int]:
        prompt = request.get("messages" if is_chat else "prompt")
        if is_chat and isinstance(prompt, list) and all(isinstance(one, dict) for one in prompt):
            return self._tokenizer.read(" ".join(_content(one.get("content")) for one in prompt))
        if not is_chat and isinstance(prompt, str):
            return self._tokenizer.read(prompt)
        size = len(self._tokenizer.words)
        if not is_chat and isinstance(prompt, list) and all(type(one) is int and 0 <= one < size for one in prompt):
            return list(prompt)
        what = "messages: a list of messages" if is_chat else f"prompt: a text or a list of tokens below {size}"
        raise ProtocolError(f"{what} is needed")


def _content(content: object) -> str:
    """The text of a message."""
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise ProtocolError("content: text is needed; this server takes nothing else")
    return " ".join(map(str, texts))


def _number(request: dict[str, Any], name: str, least: int) -> int | None:
    value = request.get(name)
    if value is not None and (type(value) is not int or value < least):
        raise ProtocolError(f"{name}: {value!r:.40} is not a whole number from {least}")
    return value


def _temperature(request: dict[str, Any]) -> float:
    value = request.get("temperature", 1.0)
    if value is None or isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 100:
        raise ProtocolError(f"temperature: {value!r:.40} is not a number from 0")
    return float(value)


def error_body(status: int, message: str) -> dict[str, Any]:
    """A failure as OpenAI's clients read it."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "code": status}}


def answer_error(connection: Connection, status: int, message: str, *, close: bool = False) -> None:
    """Answer the request in work with a failure."""
    headers = b"Content-Type: application/json\r\n" + (b"Retry-After: 1\r\n" if status == 503 else b"")
    connection.answer(status, (json.dumps(error_body(status, message)).encode(),), headers, close=close)


def metrics_text(service: LanguageService) -> str:
    """Gauges and counters of the service."""
    now = service.describe()
    lines = []
    for name, kind, value in (
        ("requests_running", "gauge", now["running"]),
        ("requests_waiting", "gauge", now["queue"]),
        ("kv_cache_usage_ratio", "gauge", now["kv_blocks_used"] / now["kv_blocks"]),
        ("prompt_tokens_total", "counter", now["prompt_tokens"]),
        ("cached_prompt_tokens_total", "counter", now["cached_tokens"]),
        ("generated_tokens_total", "counter", now["generated_tokens"]),
        ("preemptions_total", "counter", now["preemptions"]),
    ):
        lines += [f"# TYPE paceline_{name} {kind}", f"paceline_{name} {value}"]
    lines.append("# TYPE paceline_requests_total counter")
    lines += [f'paceline_requests_total{{outcome="{key}"}} {count}' for key, count in now["requests"].items()]
    return "\n".join(lines) + "\n"
