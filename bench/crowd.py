"""A crowd at the front of a leader: half-open connections, slow readers, and pages that poll; a process of its own.

`python -m bench.crowd PORT` reads the tokens of those who poll, one a line, until an empty line, and goes on until its
input ends. What came of it is a line of JSON. People have loopback addresses of their own, so that none is one crowd
with those who attack.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import sys
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

HALF_OPEN, SLOW, POLLING = 2_000, 50, 200
ATTACKERS = tuple(f"127.0.1.{last}" for last in range(1, 9))
PAGES = ("/?part=live", "/?part=live", "/machines?part=live", "/api/v1/jobs?limit=20")
LARGE_PAGE = "/api/v1/jobs?limit=500"
POLL_SECONDS, LONGEST_POLL = 2.0, 60.0  # as the script of the pages
REOPENED_AFTER = 5.0  # seconds on average, by who was sent away
GATHERED_WITHIN = 2.0  # seconds
SLOW_BYTES, SLOW_SECONDS = 16, 1.0
OPEN_SECONDS = 30.0


@dataclass
class Crowd:
    """What a crowd does, and what it meets."""

    port: int
    half_open_now: int = 0
    half_open_most: int = 0
    slow_now: int = 0
    slow_most: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    polls: list[float] = field(default_factory=list)  # seconds

    async def gather(self, tokens: Sequence[str], half_open: int, slow: int, polling: int) -> None:
        """Everybody at once, until cancelled."""
        everybody: list[Coroutine[Any, Any, None]] = []
        everybody += [self._hold(ATTACKERS[number % len(ATTACKERS)]) for number in range(half_open)]
        everybody += [self._read_slowly(tokens[number % len(tokens)], _person(number)) for number in range(slow)]
        everybody += [self._poll(number, tokens[number % len(tokens)], _person(number)) for number in range(polling)]
        await asyncio.gather(*everybody)

    async def _hold(self, address: str) -> None:
        """Send the beginning of a request and wait; sent away, come again."""
        await asyncio.sleep(random.uniform(0.0, GATHERED_WITHIN))
        while True:
            try:
                reader, writer = await self._open(address)
            except (OSError, TimeoutError) as error:
                self.counts[f"half-open: {type(error).__name__}"] += 1
            else:
                self.counts["half-open: opened"] += 1
                self.half_open_now += 1
                self.half_open_most = max(self.half_open_most, self.half_open_now)
                with suppress(OSError):
                    writer.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-")
                    await reader.read()
                self.half_open_now -= 1
                self.counts["half-open: shed"] += 1
                await _close(writer)
            await asyncio.sleep(random.uniform(0.0, 2.0 * REOPENED_AFTER))

    async def _read_slowly(self, token: str, address: str) -> None:
        await asyncio.sleep(random.uniform(0.0, GATHERED_WITHIN))
        while True:
            with suppress(OSError, TimeoutError):
                reader, writer = await self._open(address, buffer=4096)
                self.counts["slow: opened"] += 1
                self.slow_now += 1
                self.slow_most = max(self.slow_most, self.slow_now)
                with suppress(OSError):
                    writer.write(_request(LARGE_PAGE, token))
                    while await reader.read(SLOW_BYTES):
                        await asyncio.sleep(SLOW_SECONDS)
                self.slow_now -= 1
                self.counts["slow: closed"] += 1
                await _close(writer)
            await asyncio.sleep(REOPENED_AFTER)

    async def _poll(self, number: int, token: str, address: str) -> None:
        """A page that is open in a browser: it asks again two seconds after each answer, later if there is none."""
        page, pause = PAGES[number % len(PAGES)], POLL_SECONDS
        opened = None
        await asyncio.sleep(POLL_SECONDS * number / POLLING)
        while True:
            begun = time.monotonic()
            is_used = opened is not None
            try:
                opened = opened or await self._open(address)
                status = await _answer(*opened, _request(page, token))
            except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
                if opened is not None:
                    await _close(opened[1])
                opened = None
                if is_used:  # closed while it was silent: a browser opens another by itself
                    self.counts["poll: again on a new connection"] += 1
                    continue
                status = type(error).__name__
            self.counts[f"poll: {status}"] += 1
            self.polls.append(time.monotonic() - begun)
            pause = POLL_SECONDS if status == "200" else min(LONGEST_POLL, 2 * pause)
            await asyncio.sleep(pause)

    async def _open(self, address: str, buffer: int = 0) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        made = socket.socket()
        try:
            made.setblocking(False)
            made.setsockopt(socket.IPPROTO_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT: a port when it connects
            if buffer:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
            made.bind((address, 0))
            async with asyncio.timeout(OPEN_SECONDS):
                await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", self.port))
            return await asyncio.open_connection(sock=made, limit=buffer or 1 << 16)
        except BaseException:
            made.close()
            raise


def _person(number: int) -> str:
    return f"127.0.2.{1 + number % 20}"


def _request(path: str, token: str) -> bytes:
    lines = [f"GET {path} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {token}", "Accept: text/html", "", ""]
    return "\r\n".join(lines).encode()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> str:
    """The status, once all of the answer is here."""
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = next(line for line in head.splitlines() if line.startswith("content-length:"))
    await reader.readexactly(int(length.partition(":")[2]))
    return head.split()[1]


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


async def _until_input_ends(crowd: Crowd, tokens: Sequence[str], numbers: Sequence[int]) -> None:
    gathered = asyncio.create_task(crowd.gather(tokens, *numbers))
    ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    await asyncio.wait([gathered, ended], return_when=asyncio.FIRST_COMPLETED)
    if gathered.done():
        gathered.result()
    crowd.counts["half-open: at the end"] = crowd.half_open_now
    gathered.cancel()


def main() -> None:
    """Crowd a port, with as many of each kind as are given after it."""
    crowd = Crowd(int(sys.argv[1]))
    tokens = list(iter(sys.stdin.readline, "\n"))
    numbers = [int(text) for text in sys.argv[2:]] or [HALF_OPEN, SLOW, POLLING]
    asyncio.run(_until_input_ends(crowd, [token.strip() for token in tokens], numbers))
    sys.stdout.write(json.dumps(vars(crowd)))


if __name__ == "__main__":
    main()
