"""A server of language models that knows exactly what it sent: tokens, chunks, usage, what its cache held.

A token is a word. Its cache remembers the words of every prompt in blocks, as servers with a cache of prefixes do. It
speaks OpenAI's chat, completions, responses and embeddings, Anthropic's messages, and the usual interface of rerankers.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from paceline.load.request import LANGUAGE_PATHS, Endpoint, Wire


@dataclass(frozen=True)
class Manner:
    """How it answers."""

    tokens_per_chunk: int = 1
    usage: bool = True
    closes: bool = False  # every connection after its answer, without announcing it
    length: int | None = None  # of every answer, whatever was asked for
    block: int = 1  # words that its cache holds together
    answer: bytes | None = None  # instead of one
    status: int = 200  # of that
    cut: bool = False  # streams end without a finish_reason and the mark of the end
    empty: bool = False  # answers without text
    numbered: bool = False  # the words of each answer say which request it is for, in the order in which they came
    text: str = ""  # every answer, as one word
    vectors: int | None = None  # in an answer with embeddings or scores, whatever was asked for
    endless: bool = False  # the last event of a stream is never sent, and the connection stays open


@dataclass
class Served:
    """What it has seen and sent."""

    address: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)  # in the order in which they came
    times: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)  # when the stream for each ended, in the same order; 0 if not
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    gone: int = 0  # clients that left before they had their answer
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    chunks: int = 0
    connections: int = 0
    known: set[int] = field(default_factory=set)  # prefixes, each by a hash
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def endpoint(self) -> Endpoint:
        return self.endpoint_of("openai-chat")

    def endpoint_of(self, wire: Wire) -> Endpoint:
        return Endpoint(wire, "127.0.0.1", int(self.address.rpartition(":")[2]), LANGUAGE_PATHS[wire], "m")

    def prompts(self) -> list[str]:
        """The text of every request."""
        return [words_of(body) for body in self.bodies]

    def asked(self, body: dict[str, Any], block: int) -> tuple[int, int, int]:
        """The number of a request, the tokens of its prompt, and those of them that were known."""
        words = words_of(body).split()
        prefixes, prefix = [], 0
        for end in range(block, len(words) + 1, block):
            prefix = hash((prefix, *words[end - block : end]))
            prefixes.append(prefix)
        with self.lock:
            self.bodies.append(body)
            self.times.append(time.monotonic())
            self.ends.append(0.0)
            number = len(self.bodies) - 1
            cached = 0
            for one in prefixes:
                if one not in self.known:
                    break
                cached += block
            self.known.update(prefixes)
            self.prompt_tokens += len(words)
            self.cached_tokens += cached
        return number, len(words), cached


def words_of(body: dict[str, Any]) -> str:
    """All that a request says to the model."""
    if "prompt" in body:
        return str(body["prompt"])
    if "documents" in body:
        return " ".join([body["query"], *body["documents"]])
    said = body["messages"] if "messages" in body else body["input"]
    said = [said] if isinstance(said, str) else said
    texts = [one["content"] if isinstance(one, dict) else one for one in said]
    parts = [part for text in texts for part in (text if isinstance(text, list) else [{"text": text}])]
    return " ".join([body.get("system", ""), *(str(part["text"]) for part in parts if "text" in part)]).strip()


@dataclass(frozen=True)
class Form:
    """The events of a stream."""

    before: list[dict[str, Any]]
    piece: Callable[[str], dict[str, Any]]
    after: list[dict[str, Any] | bytes]


@contextmanager
def serving(manner: Manner | None = None) -> Iterator[Served]:
    """The server, until the end of the block; its address ends with /v1."""
    how, served = manner or Manner(), Served()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def setup(self) -> None:
            super().setup()
            with served.lock:
                served.connections += 1

        def do_GET(self) -> None:
            self._whole(b'{"object": "list", "data": [{"id": "m"}]}')

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            number, prompt, cached = served.asked(body, how.block)
            with served.lock:
                served.paths.append(self.path)
                served.headers.append(dict(self.headers))
            try:
                self.number = number
                self._answer(body, number, prompt, cached)
            except OSError:
                with served.lock:
                    served.gone += 1
                self.close_connection = True
            self.close_connection |= how.closes

        def _answer(self, body: dict[str, Any], number: int, prompt: int, cached: int) -> None:
            if how.answer is not None:
                self._whole(how.answer)
                return
            if self.path.endswith(("/embeddings", "/rerank")):
                self._vectors(body, prompt)
                return
            count = how.length or int(body.get("max_tokens") or body["max_output_tokens"])
            words = [f"a{number}" if how.numbered else how.text or "word"] * (1 if how.text else count)
            if body["stream"]:
                self._stream(self._form(body, prompt, cached, count), words)
                return
            with served.lock:
                served.output_tokens += count
            self._whole(
                json.dumps(self._whole_form("" if how.empty else " ".join(words), prompt, cached, count)).encode()
            )

        def _vectors(self, body: dict[str, Any], prompt: int) -> None:
            if self.path.endswith("/rerank"):
                count = how.vectors if how.vectors is not None else len(body["documents"])
                rows = [{"index": index, "relevance_score": 0.5} for index in range(count)]
                self._whole(json.dumps({"results": rows, "usage": {"total_tokens": prompt}}).encode())
                return
            count = (
                how.vectors if how.vectors is not None else 1 if isinstance(body["input"], str) else len(body["input"])
            )
            data = [{"object": "embedding", "index": index, "embedding": [0.5, 1.5]} for index in range(count)]
            usage = {"prompt_tokens": prompt, "total_tokens": prompt}
            self._whole(json.dumps({"object": "list", "data": data, "usage": usage}).encode())

        def _usage(self, prompt: int, cached: int, count: int) -> dict[str, Any]:
            if self.path.endswith("/messages"):
                return {"input_tokens": prompt - cached, "cache_read_input_tokens": cached, "output_tokens": count}
            details = {"cached_tokens": cached}
            if self.path.endswith("/responses"):
                return {"input_tokens": prompt, "input_tokens_details": details, "output_tokens": count}
            return {"prompt_tokens": prompt, "completion_tokens": count, "prompt_tokens_details": details}

        def _whole_form(self, text: str, prompt: int, cached: int, count: int) -> dict[str, Any]:
            usage = {"usage": self._usage(prompt, cached, count)} if how.usage else {}
            if self.path.endswith("/messages"):
                content = [{"type": "text", "text": text}]
                return {"type": "message", "content": content, "stop_reason": "max_tokens"} | usage
            if self.path.endswith("/responses"):
                said = {"type": "message", "content": [{"type": "output_text", "text": text}]}
                return {"object": "response", "status": "completed", "output": [said]} | usage
            return {"choices": [{"message": {"content": text}, "finish_reason": "length"}]} | usage

        def _form(self, body: dict[str, Any], prompt: int, cached: int, count: int) -> Form:
            """The events of a stream before, with and after text, as each interface has them."""
            usage = self._usage(prompt, cached, count)
            if self.path.endswith("/messages"):
                read = usage | {"output_tokens": 1}
                return Form(
                    [
                        {"type": "message_start", "message": {"type": "message", "content": [], "usage": read}},
                        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
                        {"type": "ping"},
                    ],
                    lambda text: {"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}},
                    [
                        {"type": "content_block_stop", "index": 0},
                        {
                            "type": "message_delta",
                            "delta": {"stop_reason": "max_tokens"},
                            "usage": {"output_tokens": count},
                        },
                        {"type": "message_stop"},
                    ],
                )
            if self.path.endswith("/responses"):
                last = {"type": "response.completed", "response": {"status": "completed", "usage": usage}}
                return Form(
                    [{"type": "response.created", "response": {"status": "in_progress", "usage": None}}],
                    lambda text: {"type": "response.output_text.delta", "delta": text},
                    [{"type": "response.output_text.done", "text": "all of it"}, last],
                )
            wants_usage = how.usage and body.get("stream_options", {}).get("include_usage")
            return Form(
                [{"choices": [{"delta": {"role": "assistant", "content": ""}}]}],
                lambda text: {"choices": [{"delta": {"content": text}}]},
                [
                    {"choices": [{"delta": {}, "finish_reason": "length"}]},
                    *([{"choices": [], "usage": usage}] if wants_usage else []),
                    b"[DONE]",
                ],
            )

        def _whole(self, body: bytes) -> None:
            self.send_response(200 if how.answer is None else how.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _stream(self, form: Form, words: list[str]) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for event in form.before:
                self._event(event)
            for begin in range(0, len(words), how.tokens_per_chunk):
                some = words[begin : begin + how.tokens_per_chunk]
                self._event(form.piece("" if how.empty else "".join(f"{word} " for word in some)))
                with served.lock:
                    served.chunks += 1
                    served.output_tokens += len(some)
            if how.endless and not self.rfile.read(1):  # until the client has gone
                raise ConnectionError
            if not how.cut:
                for last in form.after:
                    self._event(last)
            served.ends[self.number] = time.monotonic()  # before the client can know it
            self.wfile.write(b"0\r\n\r\n")

        def _event(self, document: dict[str, Any] | bytes) -> None:
            if isinstance(document, dict) and "type" in document:
                self._send(b"event: " + document["type"].encode() + b"\n")
            self._send(
                b"data: " + (json.dumps(document).encode() if isinstance(document, dict) else document) + b"\n\n"
            )

        def _send(self, data: bytes) -> None:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

        def log_message(self, *_arguments: object) -> None:
            """Nothing to say."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        served.address = f"http://127.0.0.1:{server.server_port}"
        try:
            yield served
        finally:
            server.shutdown()
            thread.join()
