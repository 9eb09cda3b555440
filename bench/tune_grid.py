"""The whole grid of settings of the embedded server, measured second by second, for searchers to be replayed over."""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Iterator
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
    "max_batch": [1, 2, 4, 8, 16, 32],
    "max_delay": [0.0, 0.002, 0.01],
    "instances": [1, 2],
}
ASKED = {
    "model": "generated/transformer:layers=2,width=128,heads=4,sequence=16",
    "slo": {"p99": 0.06},
    "load": {"arrival": "closed", "users": 16, "duration": 4.0},
    "warm_up": 0.5,
    "check_answers": False,
}
SECONDS = 4  # of load in each start
STARTS = 3  # of each setting, so that what differs between starts is seen


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


def measured_grid(path: Path) -> list[Start]:
    """What the file has of the grid, and what is missing, which is measured now and written at once."""
    starts = [Start(**one) for one in json.loads(path.read_text())] if path.exists() else []
    for setting in itertools.islice(_order(), len(starts), None):
        starts.append(_measure(setting))
        path.write_text(json.dumps([asdict(one) for one in starts]))
    return starts


def _order() -> Iterator[int]:
    """Every setting once in an order of its own, and then again: what drifts meets all alike."""
    order = random.Random(1)
    for _ in range(STARTS):
        yield from order.sample(range(len(settings())), len(settings()))


def _measure(setting: int) -> Start:
    server = {"kind": "embedded", "engine": "onnxruntime", **settings()[setting]}
    parameters = ServeParameters.read(ASKED | {"server": server})
    case = Case(index=0, benchmark="serve", parameters={}, title="bench")
    begun = time.monotonic()
    trace = None
    why = ""
    try:
        with opened(
            parameters, Context(case=Case(index=0, benchmark="serve", parameters={}, title="bench"))
        ) as session:
            assert parameters.load is not None
            trace = session.send(parameters.load, "measuring")
    except CaseError as error:
        why = str(error)
    overhead = time.monotonic() - begun - (SECONDS if trace is not None else 0.0)
    return Start(setting, overhead, _by_second(parameters, trace) if trace is not None else [], why)


def _by_second(parameters: ServeParameters, trace: Trace) -> list[float]:
    assert parameters.slo is not None
    done = trace.done[parameters.slo.good(trace)]
    return [float(count) for count in np.histogram(done, bins=SECONDS, range=(0.0, float(SECONDS)))[0]]
