"""A load as many write it first: URL RATE COUNT TOKENS; prints when each request went and when each chunk came."""

from __future__ import annotations

import asyncio
import json
import sys
import time

import aiohttp


async def main(url: str, rate: float, count: int, tokens: int) -> None:
    """A task for each request, at its time."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def request(number: int) -> list[float]:
            message = {"role": "user", "content": f"say {tokens} words about {number}"}
            body = {"model": "truth", "messages": [message], "max_tokens": tokens, "stream": True}
            sent = time.monotonic()
            async with session.post(f"{url}/v1/chat/completions", json=body) as response:
                if response.status != 200:
                    return []
                chunks = [time.monotonic() async for line in response.content if b'"content"' in line]
            return [sent, *chunks]

        tasks, begin = [], time.monotonic()
        for number in range(count):
            await asyncio.sleep(max(0.0, begin + number / rate - time.monotonic()))
            tasks.append(asyncio.create_task(request(number)))
        requests = await asyncio.gather(*tasks)
    sys.stdout.write(json.dumps(requests))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
