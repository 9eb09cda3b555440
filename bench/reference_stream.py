"""An independent client: sends bodies from standard input at their times, and prints what came back of each, and when.

It shares no code with Paceline, so that what both see of one server can be compared. Connections are kept, but not
for as long as servers keep them: aiohttp fails where one is closed that is about to be used again.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import aiohttp

KEPT = 2.0  # seconds


async def main(url: str, times: list[float], bodies: list[str]) -> None:
    """A task for each request; all answers are printed together, as JSON, when the last one has come."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEPT)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def request(due: float, body: str) -> dict[str, Any]:
            chunks: list[float] = []
            usage: dict[str, Any] = {}
            headers = {"Content-Type": "application/json"}
            async with session.post(url, data=body.encode(), headers=headers) as response:
                async for line in response.content:
                    now = time.monotonic()
                    if line.startswith(b"data: {"):
                        event = json.loads(line[6:])
                        usage = event.get("usage") or usage
                        choices = event.get("choices") or [{}]
                        if (choices[0].get("delta") or {}).get("content") or choices[0].get("text"):
                            chunks.append(now - due)
            return {"due": due, "status": response.status, "chunks": chunks, "usage": usage}

        tasks, begin = [], time.monotonic() + 0.1
        for after, body in zip(times, bodies, strict=True):
            await asyncio.sleep(max(0.0, begin + after - time.monotonic()))
            tasks.append(asyncio.create_task(request(begin + after, body)))
        answers = await asyncio.gather(*tasks)
    sys.stdout.write(json.dumps(answers))


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    asyncio.run(main(asked["url"], asked["times"], asked["bodies"]))
