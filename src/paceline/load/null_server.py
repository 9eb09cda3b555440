"""A server that does nothing and answers at once: what the load generator is measured against.

python -m paceline.load.null_server OPTIONS, which are JSON, prints its port and serves until its input ends. It can
also misbehave on purpose, now and then or at a given time, to see whether the load generator reports that correctly.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, cast

from paceline.load.grpc_client import INFER
from paceline.load.http11 import END_OF_HEAD, parse_request
from paceline.load.request import Endpoint, Wire
from paceline.load.worker import call_after, new_event_loop

PATH = "/v2/models/null/infer"
BODY = b'{"model_name":"null","outputs":[{"name":"y","datatype":"FP32","shape":[1,1],"data":[0.0]}]}'
CHAT = (
    b'{"id":"null","object":"chat.completion","created":0,"model":"null","choices":[{"index":0,"finish_reason":"stop",'
    b'"message":{"role":"assistant","content":"word"}}],'
    b'"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}'
)
MOST_HEAD = 8 * 1024  # bytes
TIMING = b"x-paceline: d=1000,q=2000,b=3000,i=4000,p=5000,n=2\r\n"


@dataclass(frozen=True)
class Behaviour:
    """What it does in addition to answering; times in seconds, those that say when count from the first request."""

    delay: float = 0.0  # before every answer
    stall_at: float = 0.0  # when it stops doing anything
    stall_for: float = 0.0  # and for how long
    die_at: float = 0.0  # when it kills itself
    shed_every: int = 0  # every n-th request is answered with 503
    cut_every: int = 0  # every n-th answer ends in its middle, with the connection
    garbage_every: int = 0  # every n-th answer is not HTTP
    close_every: int = 0  # every n-th answer closes the connection, without announcing it
    pieces: int = 0  # answer with a stream of so many events, `delay` apart
    reports_stages: bool = False  # as Paceline's own server does
    chats: bool = False  # whether it answers as a language model does
    grpc: bool = False  # whether it takes calls of gRPC, and then does none of the above


@lru_cache(maxsize=512)
def _body_length(head: bytes) -> int:
    return parse_request(head).number("content-length") or 0


class NullProtocol(asyncio.BufferedProtocol):
    """One connection; of requests only the length is read, and their bodies are not kept."""

    requests = 0  # of all connections
    room = memoryview(bytearray(1024 * 1024))  # of all connections: what was received is read before the next is

    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self._begun = b""  # a head of which the end has not come yet
        self._missing = 0  # bytes of a body
        timing = TIMING if behaviour.reports_stages else b""
        self._head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n" + timing
        body = CHAT if behaviour.chats else BODY
        self._answer = self._head + b"content-length: %d\r\n\r\n" % len(body) + body

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not subclasses of it

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.room

    def buffer_updated(self, nbytes: int) -> None:
        data = self.room[:nbytes]
        while data:
            if not self._missing:
                begin = self._begun + bytes(data[:MOST_HEAD])
                end = begin.find(END_OF_HEAD)
                if end == -1:
                    self._begun = begin
                    break
                data = data[end + 4 - len(self._begun) :]
                self._begun = b""
                self._missing = _body_length(begin[:end])
            here = min(self._missing, len(data))
            self._missing -= here
            data = data[here:]
            if not self._missing:
                self._answer_request()

    def _answer_request(self) -> None:
        NullProtocol.requests += 1
        behaviour, loop = self._behaviour, asyncio.get_running_loop()
        if NullProtocol.requests == 1:
            if behaviour.stall_for:
                loop.call_later(behaviour.stall_at, time.sleep, behaviour.stall_for)
            if behaviour.die_at:
                loop.call_later(behaviour.die_at, os.kill, os.getpid(), signal.SIGKILL)
        if behaviour.pieces:
            self._stream(0)
        elif behaviour.delay:
            call_after(behaviour.delay, self._reply, NullProtocol.requests)
        else:
            self._reply(NullProtocol.requests)

    def _reply(self, number: int) -> None:
        behaviour, write = self._behaviour, self._transport.write

        def is_turn(every: int) -> bool:
            return every > 0 and number % every == 0

        if is_turn(behaviour.shed_every):
            write(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n")
        elif is_turn(behaviour.cut_every):
            write(self._answer[:-20])
            self._transport.close()
        elif is_turn(behaviour.garbage_every):
            write(b"\x00\x01\x02 this is not the protocol you are looking for\r\n\r\n")
        else:
            write(self._answer)
            if is_turn(behaviour.close_every):
                self._transport.close()

    def _stream(self, piece: int) -> None:
        if self._transport.is_closing():
            return
        if piece == 0:
            self._transport.write(self._head + b"transfer-encoding: chunked\r\n\r\n")
        is_last = piece == self._behaviour.pieces
        event = b"data: [DONE]\n\n" if is_last else b'data: {"choices":[{"delta":{"content":"word"}}]}\n\n'
        self._transport.write(b"%x\r\n%s\r\n" % (len(event), event))
        if is_last:
            self._transport.write(b"0\r\n\r\n")
        else:
            call_after(self._behaviour.delay, self._stream, piece + 1)


@contextmanager
def running(behaviour: Behaviour | None = None, cpu: int | None = None, host: str = "127.0.0.1") -> Iterator[Endpoint]:
    """A null server for this machine or at an address of it, on a core if one is named; it ends with this process."""
    with started(behaviour, cpu, host) as (endpoint, _):
        yield endpoint


@contextmanager
def started(
    behaviour: Behaviour | None = None, cpu: int | None = None, host: str = "127.0.0.1"
) -> Iterator[tuple[Endpoint, int]]:
    """The same, with the id of its process."""
    behaviour = behaviour or Behaviour()
    options = json.dumps({"host": host, "cpu": cpu, "behaviour": asdict(behaviour)})
    command = [sys.executable, "-P", "-m", "paceline.load.null_server", options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = process.stdout.readline().strip()
            if not port.isdecimal():
                raise OSError(f"the null server did not start (exit code {process.wait()})")
            wire: Wire = "kserve-grpc" if behaviour.grpc else "kserve-json"
            yield Endpoint(wire, host, int(port), INFER if behaviour.grpc else PATH, "null"), process.pid
        finally:
            process.kill()


async def _serve(behaviour: Behaviour, host: str) -> None:
    loop = asyncio.get_running_loop()
    server: Any  # a reference is needed, or it would end
    if behaviour.grpc:
        grpc, aio = (importlib.import_module(name) for name in ("grpc", "grpc.aio"))

        async def answer(_message: bytes, _context: object) -> bytes:
            return b""  # which is a valid message

        server = aio.server(options=(("grpc.max_receive_message_length", -1),))
        service, _, method = INFER.strip("/").partition("/")
        handlers = {method: grpc.unary_unary_rpc_method_handler(answer)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        port = int(server.add_insecure_port(f"[{host}]:0" if ":" in host else f"{host}:0"))
        await server.start()
    else:
        server = await loop.create_server(lambda: NullProtocol(behaviour), host, 0, backlog=4096)
        port = server.sockets[0].getsockname()[1]
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    ended = loop.create_future()
    loop.add_reader(sys.stdin.fileno(), ended.cancel)
    with suppress(asyncio.CancelledError):
        await ended


def main() -> None:
    """Serve as the argument says."""
    options = json.loads(sys.argv[1])
    if options["cpu"] is not None:
        os.sched_setaffinity(0, {options["cpu"]})
    with suppress(KeyboardInterrupt):
        new_event_loop().run_until_complete(_serve(Behaviour(**options["behaviour"]), options["host"]))


if __name__ == "__main__":
    main()
