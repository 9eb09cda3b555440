"""How fast answers come: `compare` and `report` on up to a million samples, `diagnose` on a fleet of 10,000 nodes, and
which pairs of 2,048 hosts meet when.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import numpy as np

from bench.ratio import Ratio
from paceline.benchmarks.communication._pair_rounds import distances, pair_wise, topology_aware
from paceline.core.case import Case
from paceline.core.metric import Better, Merge, Metric
from paceline.core.record import Measurement, Outcome, Record
from paceline.core.run import Run, RunRecords
from paceline.store import open_store

SAMPLES = 100  # of each record
SIZES = (100, 1_000, 10_000)  # records
SECONDS, MEMORY = 2.0, 500e6
TIMES = 3
NODES, METRICS = 10_000, 200
FLEET_SECONDS, FLEET_MEMORY = 15.0, 1e9
HOSTS, AT_EACH = 2_048, 32  # hosts, and how many are at one switch
PLAN_SECONDS = 1.0

_TIME = Metric(name="step_time", unit="s", better=Better.LOWER, merge=Merge.SLOWEST)
_RATE = Metric(name="throughput", unit="samples/s", better=Better.HIGHER, merge=Merge.SUM)
_MEMORY = Metric(name="peak_host_memory", unit="B", better=Better.LOWER, merge=Merge.MAXIMUM)
_KEYS = [
    *(("mem-bw", f"{way}_bw") for way in ("h2d", "d2h")),
    *(("kernel-launch", f"{kind}_time") for kind in ("event", "wall")),
    *(("gemm-flops", f"fp{bits}_flops") for bits in (16, 32, 64)),
    *(("nccl-bw", f"allreduce_{size}_busbw") for size in (1024, 65536)),
    ("model-benchmarks/pytorch-resnet50", "fp16_train_throughput"),
]
_CLOCKED = """
import re, runpy, sys
sys.argv = ["paceline", *sys.argv[1:]]
try:
    runpy.run_module("paceline", run_name="__main__")
finally:
    # What the parent held is no part of it, as it would be of getrusage's figure.
    kilobytes = re.search("VmHWM: *(.*) kB", open("/proc/self/status").read().replace(chr(9), " "))[1]
    sys.stderr.write(f"\\n{1024 * int(kilobytes)}")
"""


def analysis_ratios() -> Iterator[Ratio]:
    """Seconds and memory at a million samples against what they may be, and the growth of time over a hundredfold."""
    with tempfile.TemporaryDirectory() as folder:
        for size in SIZES:
            _fill(Path(folder) / f"{size}.db", size)
        page = str(Path(folder) / "report.html")
        verbs = {
            "compare": ["compare", "first", "second"],
            "report": ["report", "all"],
            "report --html": ["report", "all", "--html", "-o", page],
        }
        for name, arguments in verbs.items():
            taken = {size: _clocked([*arguments, "--store", str(Path(folder) / f"{size}.db")]) for size in SIZES}
            yield from _ratios(name, taken)
        fleet = Path(folder) / "results-summary.jsonl"
        _write_fleet(fleet)
        seconds, memory = _clocked(["diagnose", str(fleet)])
        within, part = seconds / FLEET_SECONDS, memory / FLEET_MEMORY
        made_of = f"{NODES:,} nodes x {METRICS} metrics: {seconds:.2f} s"
        yield Ratio(f"diagnose: seconds / {FLEET_SECONDS:g} s", within, "<= 1", within <= 1, made_of)
        yield Ratio("diagnose: memory / 1 GB", part, "<= 1", part <= 1, f"{memory / 1e6:.0f} MB at the most")
    yield from _planning()


def _planning() -> Iterator[Ratio]:
    """What it takes to plan the rounds of `pairs`."""
    names, fabric = [f"node{host}" for host in range(HOSTS)], _fabric()
    plans: dict[str, Callable[[], object]] = {
        "pair-wise": lambda: pair_wise(HOSTS),
        "topo-aware": lambda: topology_aware(names, distances(fabric, names), names, 2, 4),
    }
    for pattern, plan in plans.items():
        seconds = []
        for _ in range(TIMES):
            begun = time.perf_counter()
            plan()
            seconds.append(time.perf_counter() - begun)
        within = median(seconds) / PLAN_SECONDS
        made_of = f"{HOSTS:,} hosts: {median(seconds):.2f} s"
        yield Ratio(f"pairs {pattern}: seconds / {PLAN_SECONDS:g} s", within, "<= 1", within <= 1, made_of)


def _fabric() -> str:
    """What ibnetdiscover prints of leaves of hosts at one spine."""
    leaves = [f"S-{leaf:016x}" for leaf in range(1, 1 + HOSTS // AT_EACH)]
    lines = [
        'Switch\t64 "S-0000000000000000"\t\t# "spine"',
        *(f'[{port}]\t"{leaf}"[1]' for port, leaf in enumerate(leaves)),
    ]
    for host in range(HOSTS):
        lines += [f'Ca\t1 "H-{host:016x}"\t\t# "node{host} mlx5_0"', f'[1](b)\t"{leaves[host // AT_EACH]}"[9]']
    for leaf in leaves:
        lines += [f'Switch\t40 "{leaf}"\t\t# "leaf"', '[1]\t"S-0000000000000000"[1]']
    return "\n".join(lines)


def _write_fleet(path: Path) -> None:
    """Results as SuperBench writes them, with 2 % of noise; one node of a hundred has a slow link."""
    names = [f"{start}/{part}:{rank}" for rank in range(METRICS // 10) for start, part in _KEYS]
    values = 100.0 * np.exp(0.02 * np.random.default_rng(7).standard_normal((NODES, METRICS)))
    values[::100, 0] *= 0.8
    with path.open("w", encoding="utf-8") as file:
        for node, row in enumerate(values.tolist()):
            file.write(json.dumps({"node": f"node-{node:05d}", **dict(zip(names, row, strict=True))}) + "\n")


def _ratios(name: str, taken: dict[int, tuple[float, float]]) -> Iterator[Ratio]:
    least, most = SIZES[0], SIZES[-1]
    seconds, memory = taken[most]
    made_of = ", ".join(f"{size * SAMPLES:,}: {taken[size][0]:.2f} s" for size in SIZES)
    within = seconds / SECONDS
    yield Ratio(f"{name}: seconds / {SECONDS:g} s", within, "<= 1", within <= 1, f"samples {made_of}")
    part = memory / MEMORY
    yield Ratio(f"{name}: memory / 500 MB", part, "<= 1", part <= 1, f"{memory / 1e6:.0f} MB at the most")
    growth = seconds / taken[least][0]
    yield Ratio(f"{name}: growth over 100 times", growth, "<= 100", growth <= 100, "linear would be 100")


def _clocked(arguments: list[str]) -> tuple[float, float]:
    """Seconds and bytes of a verb in a process of its own; the middle one of a few."""
    seconds, memory = [], []
    for _ in range(TIMES):
        begun = time.perf_counter()
        ended = subprocess.run([sys.executable, "-c", _CLOCKED, *arguments], capture_output=True, text=True)
        if ended.returncode not in (0, 1):  # 1: a node is defective
            raise RuntimeError(ended.stderr)
        seconds.append(time.perf_counter() - begun)
        memory.append(float(ended.stderr.rsplit("\n", 1)[-1]))
    return median(seconds), median(memory)


def _fill(path: Path, size: int) -> None:
    """A store with a run of so many records, and two of half as many each, the second a little slower."""
    with open_store(path) as store:
        for name, count, factor in (("all", size, 1.0), ("first", size // 2, 1.0), ("second", size // 2, 1.03)):
            found = _run(name, count, factor)
            store.begin(found.run)
            for record in found.records:
                store.add(record)
            store.finish(name)


def _run(name: str, count: int, factor: float) -> RunRecords:
    random, now = np.random.default_rng(7), datetime.now(UTC)
    records = []
    for index in range(count):
        parameters = {"model": f"model-{index % 500}", "batch_size": 2 ** (index // 500 % 8), "seed": index // 4000}
        case = Case(
            index=index,
            benchmark="train",
            parameters=parameters,
            title=" ".join(map(str, parameters.values())),
            category="training",
        )
        times = Measurement.of_samples(_TIME, random.normal(0.1 * factor, 0.001, SAMPLES))
        measurements = [times, Measurement.of_rate(_RATE, 32, times), Measurement.of_value(_MEMORY, 1e9 + index)]
        records.append(
            Record(run_id=name, case=case, outcome=Outcome.OK, started_at=now, seconds=12.0, measurements=measurements)
        )
    run = Run(id=name, name="analysis", started_at=now, version="0", cases=[record.case for record in records])
    return RunRecords(run=run, records=records)
