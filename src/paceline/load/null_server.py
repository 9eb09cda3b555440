"""A server that does nothing and answers at once: what the load generator is measured against.

python -m paceline.load.null_server OPTIONS, which are JSON, prints its port and serves until its input ends.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from paceline.load.http11 import END_OF_HEAD, parse_request
from paceline.load.kserve_grpc import METHOD, SERVICE
from paceline.load.request import Endpoint, Wire
from paceline.load.worker import allow_connections, new_event_loop
from paceline.measure import native

PATH = "/v2/models/null/infer"
BODY = b'{"model_name":"null","outputs":[{"name":"y","datatype":"FP32","shape":[1,1],"data":[0.0]}]}'
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
SOURCE = Path(__file__).with_name("null_server.c")
MOST_HEAD = 8 * 1024  # bytes


class NullProtocol(asyncio.BufferedProtocol):
    """One connection; of requests only the length is read, and their bodies are not kept."""

    room = memoryview(bytearray(1024 * 1024))  # of all connections: what was received is read before the next is

    def __init__(self, body: bytes = BODY) -> None:
        self._begun = b""  # a head of which the end has not come yet
        self._missing = 0  # bytes of a body
        self._answer = answer_of(body)

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
                self._missing = parse_request(begin[:end]).length
            here = min(self._missing, len(data))
            self._missing -= here
            data = data[here:]
            if not self._missing:
                self.reply()

    def reply(self) -> None:
        """A request has come."""
        self._transport.write(self._answer)


def answer_of(body: bytes) -> bytes:
    """The bytes of the only answer."""
    return HEAD + b"content-length: %d\r\n\r\n%b" % (len(body), body)


@contextmanager
def started(
    cpu: int | None = None, host: str = "127.0.0.1", *, grpc: bool = False, body: bytes = BODY, in_c: bool = False
) -> Iterator[tuple[Endpoint, int]]:
    """A null server at an address of this machine, on a core if one is named, and the id of its process.

    It ends with this process. Over gRPC it answers with an empty message, otherwise with the body; by C code, which
    needs a compiler, it answers faster than any client asks.
    """
    options = json.dumps({"cpu": cpu, "host": host, "grpc": grpc, "body": body.decode(), "in_c": in_c})
    command = [sys.executable, "-P", "-m", "paceline.load.null_server", options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = process.stdout.readline().strip()
            if not port.isdecimal():
                raise OSError(f"the null server did not start (exit code {process.wait()})")
            wire: Wire = "kserve-grpc" if grpc else "kserve-json"
            yield Endpoint(wire, host, int(port), METHOD if grpc else PATH, "null"), process.pid
        finally:
            process.kill()


async def serve(connect: Callable[[], NullProtocol] | None, host: str) -> None:
    """Print a port and serve there until the input ends: HTTP by these protocols, or gRPC where there is none."""
    loop = asyncio.get_running_loop()
    server: Any  # a reference is needed, or it would end
    if connect is None:
        grpc, aio = (importlib.import_module(name) for name in ("grpc", "grpc.aio"))

        async def answer(_message: bytes, _context: object) -> bytes:
            return b""  # which is a valid message

        server = aio.server(options=(("grpc.max_receive_message_length", -1),))
        handlers = {METHOD.rpartition("/")[2]: grpc.unary_unary_rpc_method_handler(answer)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        port = int(server.add_insecure_port(f"[{host}]:0" if ":" in host else f"{host}:0"))
        await server.start()
    else:
        server = await loop.create_server(connect, host, 0, backlog=4096)
        port = server.sockets[0].getsockname()[1]
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    ended = loop.create_future()
    loop.add_reader(sys.stdin.fileno(), ended.cancel)
    with suppress(asyncio.CancelledError):
        await ended


def serve_in_c(host: str, body: bytes) -> None:
    """Print a port and serve HTTP there until the input ends."""
    with socket.create_server(
        (host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=4096
    ) as listener:
        listener.setblocking(False)
        library, answer = native.load(SOURCE), answer_of(body)
        sys.stdout.write(f"{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        library.serve(listener.fileno(), sys.stdin.fileno(), answer, ctypes.c_int64(len(answer)))


def main() -> None:
    """Serve as the argument says."""
    options = json.loads(sys.argv[1])
    allow_connections()
    if options["cpu"] is not None:
        os.sched_setaffinity(0, {options["cpu"]})
    if options.get("in_c"):
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # the C code would not let Python see it
        serve_in_c(options["host"], options["body"].encode())
        return
    connect = None if options["grpc"] else lambda: NullProtocol(options["body"].encode())
    with suppress(KeyboardInterrupt):
        new_event_loop().run_until_complete(serve(connect, options["host"]))


if __name__ == "__main__":
    main()
