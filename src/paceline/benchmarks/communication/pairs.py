"""Every pair of ranks exchanges data once, all pairs of a round at the same time: which link, adapter or node is slow.

With n ranks there are n - 1 rounds (n, if that is odd), as in a tournament. A pair's figure alone does not say whose
fault it is; all pairs together do (`core.pair_matrix`).
"""

from __future__ import annotations

import os
import socket
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from paceline.benchmarks._micro.metrics import rate_metric, time_metric
from paceline.benchmarks._micro.parameters import MicroParameters, TorchBenchmark
from paceline.benchmarks._micro.session import MicroSession
from paceline.benchmarks.ranks import Ranks, join
from paceline.core.benchmark import Context, Progress
from paceline.core.environment import Environment
from paceline.core.errors import SilentCorruption, Unsupported
from paceline.core.metric import Merge
from paceline.core.pair_matrix import FEWEST, judge_pairs
from paceline.core.quantity import Size, show_size
from paceline.core.record import Measurement, Record, RecordWarning, Result
from paceline.core.subject import Description, ShownCeiling
from paceline.devices import Device, open_device
from paceline.devices.timeline import monotonic

NODE = "PACELINE_NODE"  # what the user calls the machine of a rank
CPU_SIZE, GPU_SIZE = 4 * 1024**2, 64 * 1024**2
MOST_NAMED = 8  # in a warning

SLOWEST = rate_metric("slowest_pair_bandwidth", "of the slowest pair, each way", Merge.FIRST)
TYPICAL = rate_metric(
    "pair_bandwidth", "each way while both ends send and receive; of all pairs the middle", Merge.FIRST
)
TIME = time_metric("pair_time", "of one exchange of a pair, by the slower of its ends", Merge.FIRST)


class PairsParameters(MicroParameters):
    """How much a pair exchanges, and how often."""

    size: Size | None = Field(default=None, ge=8)
    """Bytes that each end of a pair sends; unset is 64MiB between GPUs, 4MiB between CPUs"""
    exchanges: int = Field(default=10, ge=3, le=10_000)
    """Exchanges of each pair that are timed"""


class Pairs(TorchBenchmark[PairsParameters]):
    """A tournament of exchanges."""

    name = "pairs"
    summary = "every pair of ranks, all pairs of a round at once: bandwidth matrix, and which link or node is slow"
    category = "communication"
    metrics = (TYPICAL, SLOWEST, TIME)
    distributed = True

    @classmethod
    def title(cls, parameters: PairsParameters) -> str:
        return show_size(parameters.size) if parameters.size else ""

    @classmethod
    def describe(cls, record: Record, parameters: PairsParameters, environment: Environment) -> Description:
        name = f"pairs of {record.case.ranks}"
        return Description(ceilings=(ShownCeiling(kind="link", name=name, metric=TYPICAL.name),))

    def measure(self, parameters: PairsParameters, context: Context) -> Result:
        if context.world_size < 2:
            raise Unsupported(
                "pairs takes several ranks: use --hosts A,B,C,D, torchrun over several machines, or --ranks 4"
            )
        device = open_device(context.target)
        size = parameters.size or (GPU_SIZE if device.kind.is_accelerator else CPU_SIZE)
        with join(context, device.kind) as ranks, MicroSession(parameters, context, device, ranks) as session:
            labels, nodes = _labels(ranks, context.local_rank)
            exchange = _Exchange(ranks, device, size)
            times: dict[tuple[int, int], list[float]] = {}
            rounds = ranks.world_size - 1 + ranks.world_size % 2
            for number in range(rounds):
                met = partners(number, ranks.world_size).tolist()
                other = met[ranks.rank]
                ranks.meet()
                taken = ranks.gather(exchange.time(other, parameters.exchanges) if other >= 0 else [])
                for one, two in enumerate(met):
                    if one < two:
                        times[one, two] = np.maximum(taken[one], taken[two]).tolist()
                context.report(Progress(phase=f"round {number + 1} of {rounds}"))
        return _result(session, size, times, labels, nodes)


def partners(number: int, ranks: int) -> NDArray[np.int64]:
    """With whom each rank exchanges data in a round; -1 where it rests.

    All but the last sit in a circle that turns: those whose places add up to the number of the round meet, and who
    would meet itself meets the last, which is nobody where the number of ranks is odd.
    """
    places = ranks - 1 + ranks % 2
    met = (number - np.arange(places)) % places
    alone = int(np.flatnonzero(met == np.arange(places))[0])
    met[alone] = places if places < ranks else -1
    return np.append(met, alone) if places < ranks else met


class _Exchange:
    """Both ends send and receive at the same time."""

    def __init__(self, ranks: Ranks, device: Device, size: int) -> None:
        import torch

        self._ranks, self._device = ranks, device
        self._count = max(1, size // 4)
        self._sent = self._numbers(ranks.rank)
        self._received = torch.empty_like(self._sent)

    def _numbers(self, rank: int) -> Any:
        import torch

        numbers = np.random.default_rng([7, rank]).integers(0, 1 << 30, 4099, dtype=np.int32)
        return torch.from_numpy(np.resize(numbers, self._count)).to(self._device.torch())

    def time(self, other: int, exchanges: int) -> list[float]:
        """Seconds of each exchange with another rank; what arrives in the first, which is not timed, is checked."""
        import torch

        self._received.zero_()
        self._exchange(other)
        if not torch.equal(self._received, self._numbers(other)):
            raise SilentCorruption(f"rank {self._ranks.rank} received wrong data from rank {other}")
        seconds = []
        for _ in range(exchanges):
            begun = monotonic()
            self._exchange(other)
            seconds.append(monotonic() - begun)
        return seconds

    def _exchange(self, other: int) -> None:
        from torch import distributed

        operations = [
            distributed.P2POp(distributed.isend, self._sent, other),
            distributed.P2POp(distributed.irecv, self._received, other),
        ]
        for request in distributed.batch_isend_irecv(operations):
            request.wait()
        self._device.synchronize()


def _labels(ranks: Ranks, local_rank: int) -> tuple[list[str], dict[str, str]]:
    """What each rank is called, and the node of each: a node's only rank has the name of the node."""
    mine = os.environ.get(NODE) or socket.gethostname()
    there = ranks.gather((mine, local_rank))
    alone = {node for node, _ in there if sum(one == node for one, _ in there) == 1}
    labels = [node if node in alone else f"{node}:{local}" for node, local in there]
    return labels, {label: node for label, (node, _) in zip(labels, there, strict=True)}


def _result(
    session: MicroSession,
    size: int,
    times: dict[tuple[int, int], list[float]],
    labels: list[str],
    nodes: dict[str, str],
) -> Result:
    each = []
    for a, b in combinations(range(len(labels)), 2):
        each.append(Measurement.of_samples(TIME, times[a, b], at={"one": labels[a], "other": labels[b]}))
    rates = [Measurement.of_rate(TYPICAL, float(size), time) for time in each]
    speeds = {(str(one.at["one"]), str(one.at["other"])): one.value for one in rates}
    slowest = min(rates, key=lambda one: one.value)
    whole = [
        Measurement.of_samples(TYPICAL, [one.value for one in rates]),
        Measurement.of_value(SLOWEST, slowest.value),
    ]
    verdict = judge_pairs(speeds, nodes)
    too_few = f"not judged: it takes {FEWEST} ends to tell a slow link from a slow end"
    facts: dict[str, Any] = {
        "size": f"{show_size(size)} each way, both ways at once",
        "checked": "every element of the first exchange of each pair",
        "rounds": len(labels) - 1 + len(labels) % 2,
        "pairs": len(rates),
        "slowest_pair": f"{slowest.at['one']} - {slowest.at['other']}",
        "verdict": verdict.sentence if verdict else too_few,
    }
    result = session.result([*whole, *rates, *each], facts)
    if verdict is not None and verdict.slow:
        named = "; ".join(map(str, verdict.slow[:MOST_NAMED]))
        more = f"; and {len(verdict.slow) - MOST_NAMED} more" if len(verdict.slow) > MOST_NAMED else ""
        remedy = "look at cables, counters and settings of what is named, and measure again"
        result.warnings.append(RecordWarning(kind="slow", message=named + more, remedy=remedy))
    return result
