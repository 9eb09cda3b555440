"""A server of language models that knows exactly what it sent: tokens, chunks, usage, what its cache held.

A token is a word. Its cache remembers the words of every prompt in blocks, as servers with a cache of prefixes do.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from paceline.load.request import Endpoint


@dataclass(frozen=True)
class Manner:
    """How it answers."""

    tokens_per_chunk: int = 1
    usage: bool = True
    closes: bool = False  # every connection after its answer, without announcing it
    length: int | None = None  # of every answer, whatever was asked for
    block: int = 1  # words that its cache holds together
    answer: bytes | None = None  # instead of one, with status 200
    cut: bool = False  # streams end without a finish_reason and the mark of the end
    empty: bool = False  # answers without text


@dataclass
class Served:
    """What it has seen and sent."""

    address: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)  # in the order in which they came
    times: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    chunks: int = 0
    connections: int = 0
    known: set[tuple[str, ...]] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint("openai-chat", "127.0.0.1", int(self.address.rpartition(":")[2]), "/v1/chat/completions", "m")

    def prompts(self) -> list[str]:
        """The text of every request."""
        return [words_of(body) for body in self.bodies]

    def asked(self, body: dict[str, Any], block: int) -> tuple[int, int]:
        """The tokens of a prompt, and those of them that were known."""
        words = words_of(body).split()
        blocks = [tuple(words[:end]) for end in range(block, len(words) + 1, block)]
        with self.lock:
            self.bodies.append(body)
            self.times.append(time.monotonic())
            cached = 0
            for one in blocks:
                if one not in self.known:
                    break
                cached = len(one)
            self.known.update(blocks)
            self.prompt_tokens += len(words)
            self.cached_tokens += cached
        return len(words), cached


def words_of(body: dict[str, Any]) -> str:
    """All that a request says to the model."""
    return str(body["prompt"]) if "prompt" in body else " ".join(str(one["content"]) for one in body["messages"])


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
            prompt, cached = served.asked(body, how.block)
            count = how.length or int(body["max_tokens"])
            details = {"cached_tokens": cached}
            usage = {"prompt_tokens": prompt, "completion_tokens": count, "prompt_tokens_details": details}
            if how.answer is not None:
                self._whole(how.answer)
            elif body["stream"]:
                wants_usage = how.usage and body.get("stream_options", {}).get("include_usage")
                self._stream(count, usage if wants_usage else None)
            else:
                text = "" if how.empty else " ".join(["word"] * count)
                choice = {"message": {"content": text}, "finish_reason": "length"}
                self._whole(json.dumps({"choices": [choice]} | ({"usage": usage} if how.usage else {})).encode())
                with served.lock:
                    served.output_tokens += count
            self.close_connection |= how.closes

        def _whole(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _stream(self, count: int, usage: dict[str, Any] | None) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self._event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
            for begin in range(0, count, how.tokens_per_chunk):
                size = min(how.tokens_per_chunk, count - begin)
                text = "" if how.empty else "word " * size
                self._event({"choices": [{"delta": {"content": text}}]})
                with served.lock:
                    served.chunks += 1
                    served.output_tokens += size
            if not how.cut:
                self._event({"choices": [{"delta": {}, "finish_reason": "length"}]})
                if usage is not None:
                    self._event({"choices": [], "usage": usage})
                self._send(b"data: [DONE]\n\n")
            self.wfile.write(b"0\r\n\r\n")

        def _event(self, document: dict[str, Any]) -> None:
            self._send(b"data: " + json.dumps(document).encode() + b"\n\n")

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
