"""The same closed loop with aiohttp, for comparison: URL USERS SECONDS CORE, the body on standard input."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
import time

import aiohttp


async def main(url: str, users: int, seconds: float, body: bytes) -> None:
    """Ask for so long with so many users and print requests per second of CPU time."""
    answered = 0
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def user(end: float) -> None:
            nonlocal answered
            while time.monotonic() < end:
                async with session.post(url, data=body) as response:
                    await response.read()
                    answered += response.status == 200

        used = time.process_time()
        end = time.monotonic() + seconds
        await asyncio.gather(*(user(end) for _ in range(users)))
        used = time.process_time() - used
    sys.stdout.write(json.dumps({"answered": answered, "per_cpu_second": answered / used}))


if __name__ == "__main__":
    os.sched_setaffinity(0, {int(sys.argv[4])})
    try:
        loop = importlib.import_module("uvloop").new_event_loop()
    except ImportError:
        loop = asyncio.new_event_loop()
    loop.run_until_complete(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.stdin.buffer.read()))
