"""The whole grid of settings of the embedded server, measured second by second, for searchers to be replayed over."""

from __future__ import annotations

import importlib.util
import itertools
import json
import multiprocessing
import os
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from paceline.benchmarks.serving.parameters import ServeParameters
from paceline.benchmarks.serving.session import opened
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.core.errors import CaseError
from paceline.load.trace import Trace

AXES: dict[str, list[Any]] = {
    "max_batch": [1, 2, 4, 8, 16],
    "max_delay": [0.0, 0.002, 0.01],
    "instances": [1, 2, 3],
}
MODEL = "generated/transformer:layers=2,width=128,heads=4,sequence=16"
USERS, LIMIT = 16, 0.05  # SLO: p99 within so many seconds
ENGINE = "onnxruntime" if importlib.util.find_spec("onnxruntime") else "torch"
WARM_UP = 0.5
SECONDS = 4  # of load in each start
STARTS = int(
    os.environ.get("PACELINE_TUNE_STARTS", "2")
)  # of each setting, so that what differs between starts is seen
CORES = 4  # for a server and its load; a machine with more of them measures several at once, each on its own cores


@dataclass
class Start:
    """One start of a server: what it cost to begin and end, and what it answered within the SLO in each second."""

    setting: int
    overhead: float  # seconds
    seconds: list[float] = field(default_factory=list)  # requests within the SLO; none where it failed
    why: str = ""


def settings() -> list[dict[str, Any]]:
    """Every combination, the first values first."""
    return [dict(zip(AXES, values, strict=True)) for values in itertools.product(*AXES.values())]


def core_groups() -> list[set[int]]:
    """The cores of this machine in groups, each for a server and its load."""
    cores = sorted(os.sched_getaffinity(0))
    size = min(CORES, len(cores))
    return [set(cores[at : at + size]) for at in range(0, len(cores) - size + 1, size)]


def measured_grid(path: Path) -> list[Start]:
    """What the file has; where there is none, the whole grid, measured now and written to it."""
    if path.exists():
        return [Start(**one) for one in json.loads(path.read_text())]
    groups, order = core_groups(), list(_order())
    shares = [order[number :: len(groups)] for number in range(len(groups))]
    with ProcessPoolExecutor(len(groups), mp_context=multiprocessing.get_context("spawn")) as pool:
        starts = [start for made in pool.map(_measured, shares, groups) for start in made]
    path.write_text(json.dumps([asdict(one) for one in starts]))
    return starts


def _order() -> Iterator[int]:
    """Every setting once in an order of its own, and then again: what drifts meets all alike."""
    order = random.Random(1)
    for _ in range(STARTS):
        yield from order.sample(range(len(settings())), len(settings()))


def _measured(share: Sequence[int], cores: set[int]) -> list[Start]:
    os.sched_setaffinity(0, cores)
    _measure(share[0])  # which pays for the imports
    return [_measure(setting) for setting in share]


def _measure(setting: int) -> Start:
    load = {"arrival": "closed", "users": USERS, "duration": float(SECONDS)}
    server = {"kind": "embedded", "engine": ENGINE, **settings()[setting]}
    asked = {"model": MODEL, "slo": {"p99": LIMIT}, "load": load, "warm_up": WARM_UP, "check_answers": False}
    parameters = ServeParameters.read(asked | {"server": server})
    assert parameters.load is not None
    case = Case(index=0, benchmark="serve", parameters={}, title="bench")
    begun, trace, why = time.monotonic(), None, ""
    try:
        with opened(parameters, Context(case=case)) as session:
            trace = session.send(parameters.load, "measuring")
    except CaseError as error:
        why = str(error)
    overhead = time.monotonic() - begun - (SECONDS if trace is not None else 0.0)
    return Start(setting, overhead, _by_second(parameters, trace) if trace is not None else [], why)


def _by_second(parameters: ServeParameters, trace: Trace) -> list[float]:
    assert parameters.slo is not None
    done = trace.done[parameters.slo.good(trace)]
    return [float(count) for count in np.histogram(done, bins=SECONDS, range=(0.0, float(SECONDS)))[0]]
