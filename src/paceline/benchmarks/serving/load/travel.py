"""What a host saw of a load on its way to another: arrays in bytes, which are read without trusting them."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.benchmarks.serving.load.processes import Seen, split
from paceline.benchmarks.serving.load.trace import Trace

_COLUMNS = ("intended", "sent", "first", "done", "status", "kind", "worker", "samples")
_SOMETIMES = ("batch", "dispatched", "host")
_STAGE = "stage_"


def packed(seen: Seen) -> bytes:
    """Everything that was seen."""
    trace = seen.trace
    columns: dict[str, NDArray[Any]] = {name: getattr(trace, name) for name in _COLUMNS}
    columns |= {name: getattr(trace, name) for name in _SOMETIMES if getattr(trace, name) is not None}
    columns |= {f"{_STAGE}{name}": values for name, values in trace.stages.items()}
    if trace.tokens is not None:
        columns["token_times"] = np.concatenate([np.empty(0), *trace.tokens])
        columns["token_counts"] = np.array([len(times) for times in trace.tokens], np.int64)
    columns["cpu_seconds"] = np.array(trace.cpu_seconds)
    columns["answer_kinds"] = np.array([kind for kind, _ in seen.answers], np.int32)
    columns["answer_lengths"] = np.array([len(body) for _, body in seen.answers], np.int64)
    columns["answer_bytes"] = np.frombuffer(b"".join(body for _, body in seen.answers), np.uint8)
    columns["losses"] = np.array(seen.losses, np.str_)
    file = io.BytesIO()
    np.savez(file, **columns)  # type: ignore[arg-type]
    return file.getvalue()


def unpacked(data: bytes) -> Seen:
    """The same again."""
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        found = {name: file[name] for name in file.files}
    columns: dict[str, Any] = {name: found.get(name) for name in (*_COLUMNS, *_SOMETIMES)}
    trace = Trace(
        **columns,
        stages={name.removeprefix(_STAGE): found[name] for name in found if name.startswith(_STAGE)},
        tokens=split(found["token_times"], found["token_counts"]) if "token_counts" in found else None,
        cpu_seconds=float(found["cpu_seconds"]),
    )
    bodies = split(found["answer_bytes"], found["answer_lengths"])
    answers = [(kind, body.tobytes()) for kind, body in zip(found["answer_kinds"].tolist(), bodies, strict=True)]
    return Seen(trace, answers, found["losses"].tolist())
