"""A language model as a service: a thread that computes step after step, and counters of what it has done."""

from __future__ import annotations

import asyncio
import contextlib
import os
import traceback
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any

from paceline.servers._embedded.continuous_batching import Scheduler, SequenceToken, TokenSequence
from paceline.servers._embedded.kv_blocks import BlockPool
from paceline.servers._embedded.service import Overloaded, Statistics, now

if TYPE_CHECKING:
    from paceline.servers._embedded.app import EmbeddedSettings
    from paceline.servers._embedded.paged_decoder import PagedDecoder


class LanguageService:
    """One model and its sequences. All methods belong to the event loop's thread, except those of the engine."""

    def __init__(
        self,
        settings: EmbeddedSettings,
        load: Callable[[], PagedDecoder],
        placement: tuple[tuple[int, ...] | None, int] = (None, 1),  # CPUs and threads
    ) -> None:
        self.statistics = Statistics(busy=[0])
        self.prompt_tokens = self.cached_tokens = self.generated_tokens = 0
        self.model: PagedDecoder
        self.scheduler: Scheduler
        self._settings, self._load, self._placement = settings, load, placement
        self._loop = asyncio.get_running_loop()
        self._arriving: SimpleQueue[TokenSequence | None] = SimpleQueue()
        self._open: set[TokenSequence] = set()  # neither answered nor cancelled

    async def start(self) -> None:
        """Load the model; it is ready when this returns."""
        loaded: asyncio.Future[None] = self._loop.create_future()
        # A daemon: a step that never returns must not keep the process from ending.
        Thread(target=self._run, args=(loaded,), name="engine", daemon=True).start()
        await loaded
        self.statistics.since = now()

    async def drain(self) -> None:
        """Wait until everything that was accepted is answered."""
        while self._open:
            await asyncio.sleep(0.005)

    def close(self) -> None:
        self._arriving.put(None)

    @property
    def running(self) -> int:
        """Sequences that have their place in the cache."""
        return len(self.scheduler.running)

    def submit(self, sequence: TokenSequence) -> None:
        """Queue a sequence; Overloaded if too many wait."""
        waiting = len(self._open) - self.running
        if waiting >= self._settings.max_queue:
            self.statistics.requests["shed"] += 1
            raise Overloaded(f"{waiting} requests are waiting already; try again later")
        self._open.add(sequence)
        self._arriving.put(sequence)

    def cancel(self, sequence: TokenSequence) -> None:
        """The client has left."""
        sequence.is_cancelled = True
        self._open.discard(sequence)
        self.statistics.requests["cancelled"] += 1

    def describe(self) -> dict[str, Any]:
        """Counters as JSON."""
        pool = self.scheduler.pool
        return {
            **self.statistics.describe(),
            "queue": max(0, len(self._open) - self.running),
            "running": self.running,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "generated_tokens": self.generated_tokens,
            "preemptions": self.scheduler.preemptions,
            "kv_blocks": pool.count,
            "kv_blocks_used": pool.count - pool.free,
        }

    # the engine's thread

    def _run(self, loaded: asyncio.Future[None]) -> None:
        cpus, threads = self._placement
        try:
            if cpus:
                os.sched_setaffinity(0, cpus)
            with contextlib.suppress(ImportError):
                import torch

                torch.set_num_threads(threads)
            self.model = self._load()
            settings = self._settings
            pool = BlockPool(self.model.blocks, prefix_caching=settings.prefix_caching)
            self.scheduler = Scheduler(pool, settings.max_sequences, settings.prefill_tokens)
        except Exception as error:
            self._call_in_loop(loaded.set_exception, error)
            return
        self._call_in_loop(loaded.set_result, None)
        while self._take_arrived():
            begun = now()
            try:
                decoded, made = self._step()
            except Exception as error:
                traceback.print_exception(error)
                self._call_in_loop(self._fail, self.scheduler.clear(), error)
            else:
                self._call_in_loop(self._deliver, made, decoded, now() - begun)

    def _take_arrived(self) -> bool:
        """Put what has come in the queue; wait where there is nothing else to do. False at the end."""
        scheduler = self.scheduler
        while True:
            is_idle = not scheduler.waiting and not scheduler.running
            try:
                sequence = self._arriving.get(block=is_idle)
            except Empty:
                return True
            if sequence is None:
                return False
            scheduler.waiting.append(sequence)

    def _step(self) -> tuple[int, list[SequenceToken]]:
        """How many sequences were decoded together, and all tokens that were made."""
        scheduler, made = self.scheduler, list[SequenceToken]()
        decodes = scheduler.decodes()
        if decodes:
            made += scheduler.advance(decodes, self.model.decode(decodes))
        prefills = scheduler.prefills()
        if prefills:
            made += scheduler.advance(prefills, self.model.prefill(prefills))
        return len(decodes), made

    def _call_in_loop(self, call: Callable[..., object], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended: so does the process
            self._loop.call_soon_threadsafe(call, *arguments)

    # back in the loop

    def _deliver(self, made: list[SequenceToken], decoded: int, took: int) -> None:
        counted = self.statistics
        counted.busy[0] += took
        counted.batches[decoded] += bool(decoded)
        for one in made:
            sequence = one.sequence
            self.generated_tokens += 1
            if one.is_first:
                self.prompt_tokens += sequence.prompt_length
                self.cached_tokens += sequence.cached
            if sequence.is_cancelled:
                continue
            if one.reason is not None:
                self._open.discard(sequence)
                counted.requests["ok"] += 1
            sequence.on_token(one.token, one.reason)

    def _fail(self, sequences: list[TokenSequence], error: Exception) -> None:
        for sequence in sequences:
            if not sequence.is_cancelled:
                self._open.discard(sequence)
                self.statistics.requests["failed"] += 1
                sequence.on_error(error)
