"""A server of a language model whose times, tokens and failures are known exactly: it writes down all that it does.

python -m bench.truth_server LOG EVERY prints its port and serves until its input ends; then LOG has a line for each
request. Every so many requests one fails, if EVERY is not 0, and from time to time everything stands still.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

TOKENS_PER_CHUNK = 4
FIRST, FIRST_SPREAD = 0.060, 0.3  # seconds until the first chunk: median, and deviation of the logarithm
EACH, EACH_SPREAD = 0.008, 0.1  # seconds for each token, drawn for each answer
STALL_EVERY, STALL = 7.0, 0.5  # seconds
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_MODELS = b'{"object": "list", "data": [{"id": "truth", "object": "model"}]}'


class TruthServer:
    """All connections, and what was sent on them."""

    def __init__(self, every: int) -> None:
        self.random = random.Random(7)
        self.every = every
        self.lines: list[dict[str, Any]] = []

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, which is kept."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                fields = dict(line.split(b":", 1) for line in head.lower().split(b"\r\n")[1:] if line)
                body = await reader.readexactly(int(fields.get(b"content-length", 0)))
                arrived = time.monotonic()
                if head.startswith(b"POST"):
                    await self.answer(json.loads(body), arrived, writer)
                else:
                    _whole(writer, b"200 OK", _MODELS)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def answer(self, body: dict[str, Any], arrived: float, writer: asyncio.StreamWriter) -> None:
        """What was asked for, at times that are drawn."""
        tokens = int(body.get("max_completion_tokens") or body.get("max_tokens") or 16)
        line: dict[str, Any] = {"arrived": arrived, "status": 200, "tokens": tokens, "chunks": []}
        self.lines.append(line)
        fails = self.every and len(self.lines) % self.every == 0
        await _until(arrived + FIRST * self.random.lognormvariate(0.0, FIRST_SPREAD))
        if fails:
            line["status"] = 500
            _whole(
                writer, b"500 Internal Server Error", b'{"error": {"message": "as planned", "type": "server_error"}}'
            )
            return
        each = EACH * self.random.lognormvariate(0.0, EACH_SPREAD)
        writer.write(_HEAD)
        due = time.monotonic()
        for begin in range(0, tokens, TOKENS_PER_CHUNK):
            size = min(TOKENS_PER_CHUNK, tokens - begin)
            if begin:
                due += size * each
                await _until(due)
            line["chunks"].append((time.monotonic(), size))
            _event(writer, {"choices": [{"index": 0, "delta": {"content": "word " * size}, "finish_reason": None}]})
        _event(writer, {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
        if (body.get("stream_options") or {}).get("include_usage"):
            prompt = len(str(body.get("messages") or body.get("prompt")).split())
            usage = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
            _event(writer, {"choices": [], "usage": usage})
        _chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")


async def _until(moment: float) -> None:
    """A moment, or the end of the stall if it is within."""
    into = moment % STALL_EVERY
    await asyncio.sleep(max(0.0, moment + max(0.0, STALL - into) - time.monotonic()))


def _event(writer: asyncio.StreamWriter, content: dict[str, Any]) -> None:
    whole = {"id": "truth", "object": "chat.completion.chunk", "created": 0, "model": "truth"} | content
    _chunk(writer, b"data: " + json.dumps(whole).encode() + b"\n\n")


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))


def _whole(writer: asyncio.StreamWriter, status: bytes, body: bytes) -> None:
    head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    writer.write(head % (status, len(body)) + body)


async def _serve(log: str, every: int) -> None:
    truth = TruthServer(every)
    server = await asyncio.start_server(truth.connected, "127.0.0.1", 0, limit=2**22)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    Path(log).write_text("".join(json.dumps(line) + "\n" for line in truth.lines))
    os._exit(0)  # whatever connections are open


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2])))
