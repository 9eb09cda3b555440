"""Every pair of ranks exchanges data once, all pairs of a round at the same time: which link, adapter or node is slow.

With n ranks there are n - 1 rounds (n, if that is odd), as in a tournament. A pair's figure alone does not say whose
fault it is; all pairs together do (`core.pair_matrix`). Other patterns have fewer pairs, for many hosts.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from paceline.benchmarks._micro.metrics import rate_metric, time_metric
from paceline.benchmarks._micro.parameters import MicroParameters, TorchBenchmark
from paceline.benchmarks._micro.session import MicroSession
from paceline.benchmarks.communication._pair_rounds import check_batch, distances, k_batch, pair_wise, topology_aware
from paceline.benchmarks.ranks import Ranks, join
from paceline.core.benchmark import Context, Progress
from paceline.core.case import Case
from paceline.core.environment import Environment
from paceline.core.errors import InputError, SilentCorruption, Unsupported
from paceline.core.metric import Merge
from paceline.core.network import MACHINE_FILES
from paceline.core.pair_matrix import FEWEST, PairVerdict, judge_pairs
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
    pattern: Literal["pair-wise", "k-batch", "topo-aware"] = "pair-wise"
    """Who meets: everybody; everybody of each `batch` ranks; or, by `topology`, hosts of each distance, once each"""
    batch: int = Field(default=2, ge=2)
    """Ranks of a group of k-batch, that follow each other; those left over rest"""
    topology: Annotated[str | None, MACHINE_FILES] = None
    """The output of ibnetdiscover, a file on the first host"""
    ibstat: Annotated[str | None, MACHINE_FILES] = None
    """The GUIDs of adapters by host, where their descriptions do not begin with its name: SuperBench's file"""
    min_distance: int = Field(default=2, ge=2)
    """Hops of the nearest pairs of topo-aware; hosts at one switch are 2 apart"""
    max_distance: int = Field(default=6, ge=2)
    """Hops of the farthest"""

    @model_validator(mode="after")
    def _has_a_topology(self) -> PairsParameters:
        if (self.pattern == "topo-aware") != (self.topology is not None):
            raise ValueError("pattern topo-aware and a topology, the output of ibnetdiscover, go together")
        if self.min_distance > self.max_distance:
            raise ValueError(f"min_distance = {self.min_distance} is more than max_distance = {self.max_distance}")
        return self


class Pairs(TorchBenchmark[PairsParameters]):
    """A tournament of exchanges."""

    name = "pairs"
    summary = "every pair of ranks, all pairs of a round at once: bandwidth matrix, and which link or node is slow"
    category = "communication"
    metrics = (TYPICAL, SLOWEST, TIME)
    distributed = True

    @classmethod
    def title(cls, parameters: PairsParameters) -> str:
        size = show_size(parameters.size) if parameters.size else ""
        pattern = "" if parameters.pattern == "pair-wise" else parameters.pattern
        group = f" of {parameters.batch}" if pattern == "k-batch" else ""
        return f"{size} {pattern}{group}".strip()

    @classmethod
    def check(cls, parameters: PairsParameters, case: Case) -> None:
        if parameters.pattern == "k-batch" and case.ranks > 1:  # of one rank, `measure` says what to do
            check_batch(case.ranks, parameters.batch)

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
            hops: dict[tuple[int, int], int] = {}
            rounds = _rounds(parameters, ranks, labels, nodes)
            for number, (partners, distance) in enumerate(rounds, start=1):
                met = partners.tolist()
                other = met[ranks.rank]
                ranks.meet()
                taken = ranks.gather(exchange.time(other, parameters.exchanges) if other >= 0 else [])
                for one, two in enumerate(met):
                    if one < two:
                        times[one, two] = np.maximum(taken[one], taken[two]).tolist()
                        hops[one, two] = distance
                context.report(Progress(phase=f"round {number} of {len(rounds)}"))
        return _result(session, size, times, labels, nodes, parameters, hops, len(rounds))


def _rounds(
    parameters: PairsParameters, ranks: Ranks, labels: list[str], nodes: dict[str, str]
) -> list[tuple[NDArray[np.int64], int]]:
    """The partners of every round, each with the distance of its pairs, 0 where that does not matter."""
    if parameters.pattern == "pair-wise":
        return [(met, 0) for met in pair_wise(ranks.world_size)]
    if parameters.pattern == "k-batch":
        return [(met, 0) for met in k_batch(ranks.world_size, parameters.batch)]
    where = [nodes[label] for label in labels]
    names = list(dict.fromkeys(where))
    files = ranks.gather(_read_topology(parameters) if ranks.rank == 0 else None)[0]  # the first host has them
    apart = distances(files[0], names, files[1])
    least, most = parameters.min_distance, parameters.max_distance
    rounds = topology_aware(where, apart, names, least, most)
    if not rounds:
        message = f"no two hosts are {least} to {most} hops apart; see --min-distance and --max-distance"
        raise InputError("no-pairs", message, key="max_distance", value=most)
    return [(met, distance) for distance, met in rounds.items()]


def _read_topology(parameters: PairsParameters) -> tuple[str, str]:
    texts = []
    for key in ("topology", "ibstat"):
        path = getattr(parameters, key)
        try:
            texts.append(Path(path).read_text(encoding="utf-8", errors="replace") if path else "")
        except OSError as error:
            message = f"{key} = {path}: {error.strerror}; it is read on the first host"
            raise InputError("unreadable-file", message, key=key, value=path) from None
    return texts[0], texts[1]


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
    parameters: PairsParameters,
    hops: dict[tuple[int, int], int],
    rounds: int,
) -> Result:
    each, farness = [], []
    for (a, b), taken in sorted(times.items()):
        each.append(Measurement.of_samples(TIME, taken, at={"one": labels[a], "other": labels[b]}))
        farness.append(hops[a, b])
    rates = [Measurement.of_rate(TYPICAL, float(size), time) for time in each]
    slowest = min(rates, key=lambda one: one.value)
    whole = [
        Measurement.of_samples(TYPICAL, [one.value for one in rates]),
        Measurement.of_value(SLOWEST, slowest.value),
    ]
    verdicts = _verdicts(rates, labels, nodes, parameters)
    facts: dict[str, Any] = {
        "size": f"{show_size(size)} each way, both ways at once",
        "checked": "every element of the first exchange of each pair",
        "pattern": parameters.pattern,
        "rounds": rounds,
        "pairs": len(rates),
        "slowest_pair": f"{slowest.at['one']} - {slowest.at['other']}",
        "verdict": " ".join(verdict.sentence for verdict in verdicts) or _NOT_JUDGED[parameters.pattern],
    }
    for distance in sorted(set(farness) - {0}):
        there = [one for one, far in zip(rates, farness, strict=True) if far == distance]
        worst = min(there, key=lambda one: one.value)
        facts[f"pair_bandwidth_{distance}_hops"] = (
            f"{np.median([one.value for one in there]) / 1e9:.4g} GB/s; the slowest, {worst.at['one']} - "
            f"{worst.at['other']}, {worst.value / 1e9:.4g} GB/s"
        )
    result = session.result([*whole, *rates, *each], facts)
    if slow := [one for verdict in verdicts for one in verdict.slow]:
        named = "; ".join(map(str, slow[:MOST_NAMED]))
        more = f"; and {len(slow) - MOST_NAMED} more" if len(slow) > MOST_NAMED else ""
        remedy = "look at cables, counters and settings of what is named, and measure again"
        result.warnings.append(RecordWarning(kind="slow", message=named + more, remedy=remedy))
    return result


_NOT_JUDGED = {
    "pair-wise": f"not judged: it takes {FEWEST} ends to tell a slow link from a slow end",
    "k-batch": f"not judged: it takes groups of {FEWEST} to tell a slow link from a slow end",
    "topo-aware": "not judged: it takes every pair to tell a slow link from a slow end; pair-wise measures them",
}


def _verdicts(
    rates: Sequence[Measurement], labels: Sequence[str], nodes: Mapping[str, str], parameters: PairsParameters
) -> list[PairVerdict]:
    """On all ends together, or on those of each group."""
    if parameters.pattern == "topo-aware":
        return []
    batch = parameters.batch if parameters.pattern == "k-batch" else len(labels)
    group_of = {label: place // batch for place, label in enumerate(labels)}
    groups: dict[int, dict[tuple[str, str], float]] = {}
    for one in rates:
        groups.setdefault(group_of[str(one.at["one"])], {})[str(one.at["one"]), str(one.at["other"])] = one.value
    return [verdict for speeds in groups.values() if (verdict := judge_pairs(speeds, nodes)) is not None]
