"""A null server that misbehaves, now and then or at a given time: does the load generator report that correctly?

Run as a file, with options that are JSON, it prints its port and serves until its input ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from paceline.load.null_server import BODY, HEAD, PATH, NullProtocol, serve, started
from paceline.load.request import Endpoint
from paceline.load.worker import call_after, new_event_loop

CHAT = (
    b'{"id":"null","object":"chat.completion","created":0,"model":"null","choices":[{"index":0,"finish_reason":"stop",'
    b'"message":{"role":"assistant","content":"word"}}],'
    b'"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}'
)
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


class MisbehavingProtocol(NullProtocol):
    """One connection."""

    requests = 0  # of all connections

    def __init__(self, behaviour: Behaviour) -> None:
        super().__init__(CHAT if behaviour.chats else BODY)
        self._behaviour = behaviour
        self._head = HEAD + (TIMING if behaviour.reports_stages else b"")
        self._answer = self._head + self._answer.removeprefix(HEAD)

    def reply(self) -> None:
        MisbehavingProtocol.requests += 1
        behaviour, loop = self._behaviour, asyncio.get_running_loop()
        if MisbehavingProtocol.requests == 1:
            if behaviour.stall_for:
                loop.call_later(behaviour.stall_at, time.sleep, behaviour.stall_for)
            if behaviour.die_at:
                loop.call_later(behaviour.die_at, os.kill, os.getpid(), signal.SIGKILL)
        if behaviour.pieces:
            self._stream(0)
        elif behaviour.delay:
            call_after(behaviour.delay, self._reply, MisbehavingProtocol.requests)
        else:
            self._reply(MisbehavingProtocol.requests)

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
    if behaviour is None:
        with started(cpu, host) as (endpoint, _):
            yield endpoint
        return
    command = [sys.executable, "-P", __file__, json.dumps(asdict(behaviour))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Endpoint("kserve-json", "127.0.0.1", int(process.stdout.readline()), PATH, "null")
        finally:
            process.kill()


if __name__ == "__main__":
    asked_for = Behaviour(**json.loads(sys.argv[1]))
    new_event_loop().run_until_complete(serve(lambda: MisbehavingProtocol(asked_for), "127.0.0.1"))
