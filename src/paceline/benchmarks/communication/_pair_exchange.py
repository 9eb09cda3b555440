"""How ranks exchange data, both ways at once: by the library of collectives, by TCP, or by RDMA through perftest."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

from paceline.benchmarks._micro.tools import find_tool, run_tool
from paceline.benchmarks.communication import rdma, tcp
from paceline.benchmarks.ranks import Ranks
from paceline.core.errors import SilentCorruption
from paceline.core.network import free_port, shown_address
from paceline.devices import Device
from paceline.devices.timeline import monotonic

CONNECT_SECONDS = 10.0
MESSAGE = 1024**2  # of RDMA
FEWEST_MESSAGES = 5  # that perftest sends


class Exchange(ABC):
    """What carries the data between this rank and others."""

    checked: str  # what of the data is compared
    size: int  # bytes that each end sends to the other

    @abstractmethod
    def time(self, others: Sequence[int], exchanges: int) -> dict[int, list[float]]:
        """Seconds of each exchange with each of these ranks, all of them at the same time.

        An end that does not time, as the other one does, has none.
        """


class CollectiveExchange(Exchange):
    """Sends and receives of torch's process group, with one other rank at a time."""

    checked = "every element of the first exchange of each pair"

    def __init__(self, ranks: Ranks, device: Device, size: int) -> None:
        import torch

        self._ranks, self._device = ranks, device
        self.size = max(1, size // 4) * 4
        self._sent = self._numbers(ranks.rank)
        self._received = torch.empty_like(self._sent)

    def _numbers(self, rank: int) -> Any:
        import torch

        numbers = np.random.default_rng([7, rank]).integers(0, 1 << 30, 4099, dtype=np.int32)
        return torch.from_numpy(np.resize(numbers, self.size // 4)).to(self._device.torch())

    def time(self, others: Sequence[int], exchanges: int) -> dict[int, list[float]]:
        import torch

        (other,) = others
        self._received.zero_()
        self._exchange(other)
        if not torch.equal(self._received, self._numbers(other)):
            raise SilentCorruption(f"rank {self._ranks.rank} received wrong data from rank {other}")
        seconds = []
        for _ in range(exchanges):
            begun = monotonic()
            self._exchange(other)
            seconds.append(monotonic() - begun)
        return {other: seconds}

    def _exchange(self, other: int) -> None:
        from torch import distributed

        operations = [
            distributed.P2POp(distributed.isend, self._sent, other),
            distributed.P2POp(distributed.irecv, self._received, other),
        ]
        for request in distributed.batch_isend_irecv(operations):
            request.wait()
        self._device.synchronize()


class TcpExchange(Exchange):
    """Connections to a peer process of each rank, which says when it has all bytes."""

    checked = "bytes are counted by the receiver, not compared"

    def __init__(self, ranks: Ranks, size: int, streams: int, stack: ExitStack) -> None:
        self._ranks, self._streams = ranks, streams
        self._part = max(1, size // streams)
        self.size = self._part * streams
        own = stack.enter_context(tcp.local_peer(shown_address(os.environ["MASTER_ADDR"], ranks.gather)))
        self._peers: list[tcp.Address] = ranks.gather(own)

    def time(self, others: Sequence[int], exchanges: int) -> dict[int, list[float]]:
        with ExitStack() as stack:
            senders = {
                other: stack.enter_context(tcp.swallowing(self._peers[other], self._streams, CONNECT_SECONDS))
                for other in others
            }
            threads = stack.enter_context(ThreadPoolExecutor(len(others)))
            seconds: dict[int, list[float]] = {other: [] for other in others}
            for number in range(1 + exchanges):  # in the first a connection finds its speed
                swap(self._ranks, dict.fromkeys(others, 0))
                taken = threads.map(lambda send: send(self._part), senders.values())
                for other, one in zip(others, taken, strict=True):
                    seconds[other] += [one] if number else []
        return seconds


class RdmaExchange(Exchange):
    """Perftest's ib_write_bw both ways at once, through the adapter of the rank's place on its host.

    The later rank of a pair serves, and the earlier one has the figures.
    """

    checked = "by the completion of each message, not compared"

    def __init__(self, ranks: Ranks, size: int, local_rank: int) -> None:
        self._ranks = ranks
        devices = rdma.choose_devices(rdma.ALL)
        message = min(MESSAGE, size)
        messages = max(FEWEST_MESSAGES, size // message)
        self.size = message * messages
        tool = find_tool("ib_write_bw", "perftest", purpose="measures RDMA")
        options = ["-F", "--report_gbits", "--bidirectional", "--size", str(message), "--iters", str(messages)]
        self._command = [tool, *options, "--ib-dev", devices[local_rank % len(devices)]]
        self._addresses = ranks.gather(shown_address(os.environ["MASTER_ADDR"], ranks.gather))

    def time(self, others: Sequence[int], exchanges: int) -> dict[int, list[float]]:
        seconds: dict[int, list[float]] = {other: [] for other in others}
        with ThreadPoolExecutor(len(others)) as threads:
            for number in range(1 + exchanges):  # the first wakes the adapters up
                mine = {other: free_port("") if other < self._ranks.rank else 0 for other in others}
                theirs = swap(self._ranks, mine)
                for other, taken in zip(others, threads.map(partial(self._once, mine, theirs), others), strict=True):
                    seconds[other] += taken if number else []
        return seconds

    def _once(self, mine: Mapping[int, int], theirs: Mapping[int, int], other: int) -> list[float]:
        command = [*self._command, "--port", str(mine[other] or theirs[other])]
        if mine[other]:
            run_tool(command, timeout=rdma.SWEEP_SECONDS)
            return []
        (row,) = rdma.parse_bandwidth(rdma.run_client(command, self._addresses[other]))
        return [2 * self.size / row.typical]  # which counts both ways


def swap(ranks: Ranks, mine: Mapping[int, int]) -> dict[int, int]:
    """The number that each of these ranks has for this one; nobody goes on before all of them are here."""
    import torch
    from torch import distributed

    sent = {other: torch.tensor([number]) for other, number in mine.items()}
    received = {other: torch.zeros(1, dtype=torch.int64) for other in mine}
    operations = [distributed.P2POp(distributed.isend, sent[other], other, ranks.control) for other in mine]
    operations += [distributed.P2POp(distributed.irecv, received[other], other, ranks.control) for other in mine]
    for request in distributed.batch_isend_irecv(operations):
        request.wait()
    return {other: int(number) for other, number in received.items()}
