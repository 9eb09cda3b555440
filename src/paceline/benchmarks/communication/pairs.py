"""Every pair of ranks exchanges data once, all pairs of a round at the same time: which link, adapter or node is slow.

With n ranks there are n - 1 rounds (n, if that is odd), as in a tournament. A pair's figure alone does not say whose
fault it is; all pairs together do (`core.pair_matrix`). Other patterns have fewer pairs, for many hosts, or all of them
at once.
"""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from paceline.benchmarks._micro.parameters import MicroParameters, TorchBenchmark, join_words, rate_metric, time_metric
from paceline.benchmarks._micro.session import MicroSession
from paceline.benchmarks.communication._pair_exchange import CollectiveExchange, Exchange, RdmaExchange, TcpExchange
from paceline.benchmarks.communication._pair_rounds import (
    Round,
    check_batch,
    distances,
    k_batch,
    pair_wise,
    topology_aware,
)
from paceline.benchmarks.ranks import Ranks, join
from paceline.core.benchmark import Context, Progress
from paceline.core.case import Case
from paceline.core.environment import Environment
from paceline.core.errors import InputError, Unsupported
from paceline.core.metric import Merge
from paceline.core.network import MACHINE_FILES
from paceline.core.pair_matrix import FEWEST, PairVerdict, judge_pairs
from paceline.core.quantity import Size, show_size
from paceline.core.record import Measurement, Record, RecordWarning, Result
from paceline.core.subject import Description, ShownCeiling
from paceline.devices import Device, open_device
from paceline.devices.cpu import CpuDevice

NODE = "PACELINE_NODE"  # what the user calls the machine of a rank
CPU_SIZE, GPU_SIZE, TCP_SIZE, RDMA_SIZE = 4 * 1024**2, 64 * 1024**2, 64 * 1024**2, 1024**3
MOST_NAMED = 8  # in a warning

SLOWEST = rate_metric("slowest_pair_bandwidth", "of the slowest pair, each way", Merge.FIRST)
TYPICAL = rate_metric(
    "pair_bandwidth", "each way while both ends send and receive; of all pairs the middle", Merge.FIRST
)
TIME = time_metric("pair_time", "of one exchange of a pair, by the slower of its ends", Merge.FIRST)


class PairsParameters(MicroParameters):
    """How much a pair exchanges, and how often."""

    size: Size | None = Field(default=None, ge=8)
    """Bytes that each end of a pair sends; unset is 64MiB between GPUs and by tcp, 4MiB between CPUs, 1GiB by rdma"""
    by: Literal["collective", "tcp", "rdma"] = "collective"
    """What carries them: NCCL or gloo; TCP from host memory; or RDMA from host memory (perftest), each rank by the
    adapter of its place on its host"""
    streams: int = Field(default=4, ge=1, le=256)
    """Connections of each way of a pair, by tcp"""
    exchanges: int = Field(default=10, ge=3, le=10_000)
    """Exchanges of each pair that are timed"""
    pattern: Literal["pair-wise", "k-batch", "topo-aware", "all-to-all"] = "pair-wise"
    """Who meets: everybody; everybody of each `batch` ranks; by `topology`, hosts of each distance, once each; or
    everybody at the same time"""
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
        if self.pattern == "all-to-all" and self.by == "collective":
            raise ValueError("all-to-all is for tcp and rdma; NCCL's own is 'collective' with --operation all-to-all")
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
        by = f"by {parameters.by}" if parameters.by != "collective" else ""
        return join_words(size, f"{pattern}{group}", by)

    @classmethod
    def check(cls, parameters: PairsParameters, case: Case) -> None:
        if parameters.pattern == "k-batch" and case.ranks > 1:  # of one rank, `measure` says what to do
            check_batch(case.ranks, parameters.batch)

    @classmethod
    def describe(cls, record: Record, parameters: PairsParameters, environment: Environment) -> Description:
        by = f"{parameters.by} " if parameters.by != "collective" else ""
        name = f"{by}pairs of {record.case.ranks}"
        return Description(ceilings=(ShownCeiling(kind="link", name=name, metric=TYPICAL.name),))

    def measure(self, parameters: PairsParameters, context: Context) -> Result:
        if context.world_size < 2:
            raise Unsupported(
                "pairs takes several ranks: use --hosts A,B,C,D, torchrun over several machines, or --ranks 4"
            )
        is_of_hosts = parameters.by != "collective"
        device = CpuDevice() if is_of_hosts else open_device(context.target)
        backend = "gloo" if is_of_hosts else None
        with (
            join(context, device.kind, backend) as ranks,
            MicroSession(parameters, context, device, ranks) as session,
            ExitStack() as stack,
        ):
            labels, nodes = _labels(ranks, context.local_rank)
            exchange = _open(parameters, ranks, device, context.local_rank, stack)
            times: dict[tuple[int, int], list[float]] = {}
            hops: dict[tuple[int, int], int] = {}
            rounds = _rounds(parameters, ranks, labels, nodes)
            for number, (met, distance) in enumerate(rounds, start=1):
                others = [one + two - ranks.rank for one, two in met if ranks.rank in (one, two)]
                ranks.meet()
                taken = ranks.gather(exchange.time(others, parameters.exchanges) if others else {})
                for one, two in met:
                    ends = [taken[one][two], taken[two][one]]
                    times[one, two] = [max(both) for both in zip(*filter(None, ends), strict=True)]
                    hops[one, two] = distance
                context.report(Progress(phase=f"round {number} of {len(rounds)}"))
        return _result(session, exchange, times, labels, nodes, parameters, hops, len(rounds))


def _open(parameters: PairsParameters, ranks: Ranks, device: Device, local_rank: int, stack: ExitStack) -> Exchange:
    """What was asked for; what it starts ends with the stack."""
    if parameters.by == "tcp":
        return TcpExchange(ranks, parameters.size or TCP_SIZE, parameters.streams, stack)
    if parameters.by == "rdma":
        return RdmaExchange(ranks, parameters.size or RDMA_SIZE, local_rank)
    return CollectiveExchange(ranks, device, parameters.size or (GPU_SIZE if device.kind.is_accelerator else CPU_SIZE))


Meetings = list[tuple[int, int]]  # pairs of ranks, the earlier first


def _rounds(
    parameters: PairsParameters, ranks: Ranks, labels: list[str], nodes: dict[str, str]
) -> list[tuple[Meetings, int]]:
    """The pairs of every round, with their distance, 0 where that does not matter."""
    if parameters.pattern == "all-to-all":
        return [(list(itertools.combinations(range(ranks.world_size), 2)), 0)]
    if parameters.pattern == "pair-wise":
        return [(_meetings(met), 0) for met in pair_wise(ranks.world_size)]
    if parameters.pattern == "k-batch":
        return [(_meetings(met), 0) for met in k_batch(ranks.world_size, parameters.batch)]
    where = [nodes[label] for label in labels]
    names = list(dict.fromkeys(where))
    files = ranks.gather(_read_topology(parameters) if ranks.rank == 0 else None)[0]  # the first host has them
    apart = distances(files[0], names, files[1])
    least, most = parameters.min_distance, parameters.max_distance
    rounds = topology_aware(where, apart, names, least, most)
    if not rounds:
        message = f"no two hosts are {least} to {most} hops apart; see --min-distance and --max-distance"
        raise InputError("no-pairs", message, key="max_distance", value=most)
    return [(_meetings(met), distance) for distance, met in rounds.items()]


def _meetings(partners: Round) -> Meetings:
    return [(one, two) for one, two in enumerate(partners.tolist()) if one < two]


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


def _labels(ranks: Ranks, local_rank: int) -> tuple[list[str], dict[str, str]]:
    """What each rank is called, and the node of each: a node's only rank has the name of the node."""
    mine = os.environ.get(NODE) or socket.gethostname()
    there = ranks.gather((mine, local_rank))
    alone = {node for node, _ in there if sum(one == node for one, _ in there) == 1}
    labels = [node if node in alone else f"{node}:{local}" for node, local in there]
    return labels, {label: node for label, (node, _) in zip(labels, there, strict=True)}


def _result(
    session: MicroSession,
    exchange: Exchange,
    times: dict[tuple[int, int], list[float]],
    labels: list[str],
    nodes: dict[str, str],
    parameters: PairsParameters,
    hops: dict[tuple[int, int], int],
    rounds: int,
) -> Result:
    size = exchange.size
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
        "by": parameters.by,
        "streams": parameters.streams if parameters.by == "tcp" else None,
        "checked": exchange.checked,
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
    "all-to-all": "not judged: pairs share adapters at the same time, and unevenly; pair-wise names what is slow",
    "topo-aware": "not judged: it takes every pair to tell a slow link from a slow end; pair-wise measures them",
}


def _verdicts(
    rates: Sequence[Measurement], labels: Sequence[str], nodes: Mapping[str, str], parameters: PairsParameters
) -> list[PairVerdict]:
    """On all ends together, or on those of each group."""
    if parameters.pattern in ("topo-aware", "all-to-all"):
        return []
    batch = parameters.batch if parameters.pattern == "k-batch" else len(labels)
    group_of = {label: place // batch for place, label in enumerate(labels)}
    groups: dict[int, dict[tuple[str, str], float]] = {}
    for one in rates:
        groups.setdefault(group_of[str(one.at["one"])], {})[str(one.at["one"]), str(one.at["other"])] = one.value
    return [verdict for speeds in groups.values() if (verdict := judge_pairs(speeds, nodes)) is not None]
