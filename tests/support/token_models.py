"""Language models inside a test: a decoder of the zoo with what it says one by one, and one that only counts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from paceline.servers._embedded.app import EmbeddedSettings
from paceline.servers._embedded.continuous_batching import Chunk
from paceline.servers._embedded.http import listen
from paceline.servers._embedded.language_service import LanguageService
from paceline.servers._embedded.openai_app import OpenAIApp

SEED = 7


class Counting:
    """Each token is one more than the last; `gate` holds up every step until it is released."""

    blocks = 64
    max_length = 512
    vocabulary = 100

    def __init__(self) -> None:
        self.gate: threading.Semaphore | None = None
        self.fails = False
        self.sizes: list[int] = []

    def prefill(self, chunks: Sequence[Chunk]) -> list[int]:
        return self._next(chunks)

    def decode(self, chunks: Sequence[Chunk]) -> list[int]:
        self.sizes.append(len(chunks))
        return self._next(chunks)

    def _next(self, chunks: Sequence[Chunk]) -> list[int]:
        if self.gate is not None:
            assert self.gate.acquire(timeout=60)
        if self.fails:
            raise ArithmeticError("out of numbers")
        return [(chunk.sequence.tokens[-1] + 1) % self.vocabulary for chunk in chunks]


@lru_cache
def _tiny(model: str) -> Any:
    from paceline.models.base import seed_everything
    from paceline.models.sources import find_model

    seed_everything(SEED)
    return find_model(model, allow_import=False).build("tiny").module.eval()


def greedy(model: str, prompt: Sequence[int], count: int) -> list[int]:
    """What a tiny model of the zoo says alone and without a cache."""
    import torch

    module = _tiny(model)
    tokens = list(prompt)
    with torch.inference_mode():
        for _ in range(count):
            tokens.append(int(module(torch.tensor([tokens]))[0, -1].argmax()))
    return tokens[len(prompt) :]


@contextmanager
def serving(model: Any, **settings: Any) -> Iterator[tuple[int, LanguageService]]:
    """The port of a server with this model, until the block ends."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> tuple[asyncio.Server, LanguageService]:
        app = OpenAIApp("m")
        server, _ = await listen(app, "127.0.0.1", 0)
        service = LanguageService(EmbeddedSettings(**settings), lambda: model)
        await service.start()
        app.service = service
        return server, service

    async def stop(server: asyncio.Server, service: LanguageService) -> None:
        server.close()
        service.close()

    try:
        server, service = asyncio.run_coroutine_threadsafe(start(), loop).result(60)
        yield server.sockets[0].getsockname()[1], service
        asyncio.run_coroutine_threadsafe(stop(server, service), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
