"""Whatever is asked at once, by clients that stay or leave: each gets the answer to its own request."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.load.kserve import JSON_LENGTH, decode_response, encode_request
from support.embedded import PATH, Doubling, Running, running
from support.kserve_requests import with_fields


@settings(max_examples=8)
@given(st.integers(1, 8), st.integers(1, 3), st.sampled_from([0.0, 0.001, 0.005]), st.integers(0, 2**32))
def test_answers_are_those_of_single_requests(max_batch: int, instances: int, delay: float, seed: int) -> None:
    choose = random.Random(seed)
    engine = Doubling(wait=lambda: time.sleep(choose.choice([0, 0.001, 0.003])))
    with running(engine, max_batch=max_batch, max_delay=delay, instances=instances, max_queue=10_000) as server:
        answered = asyncio.run(crowd(server, choose, max_batch))
        counted = server.service.describe()
        assert counted["requests"]["ok"] >= answered
        assert counted["requests"]["failed"] == counted["requests"]["refused"] == 0
        assert all(int(size) <= max_batch for size in counted["batches"])


async def crowd(server: Running, choose: random.Random, max_batch: int) -> int:
    kept = await asyncio.gather(*[client(server, random.Random(choose.random()), max_batch) for _ in range(12)])
    return sum(kept)


async def client(server: Running, choose: random.Random, max_batch: int) -> int:
    """Several requests on one connection, checked; or one, and gone before it is answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    answered = 0
    try:
        for _ in range(choose.randint(1, 6)):
            x = np.array([[choose.random()] * 3 for _ in range(choose.randint(1, max_batch))], np.float32)
            message = with_fields(encode_request({"x": x}, binary=choose.random() < 0.7), id=str(choose.random()))
            extra = "" if message.json_length is None else f"{JSON_LENGTH}: {message.json_length}\r\n"
            head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(message.body)}\r\n{extra}\r\n"
            writer.write(head.encode() + message.body)
            if choose.random() < 0.15:
                await asyncio.sleep(choose.random() * 0.005)
                break
            first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
            assert first == "HTTP/1.1 200 OK"
            headers = dict(line.split(": ") for line in lines)
            body = await reader.readexactly(int(headers["Content-Length"]))
            length = headers.get(JSON_LENGTH)
            found = decode_response(body, int(length) if length else None)
            assert np.array_equal(found["y"], x * 2)
            answered += 1
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    return answered
