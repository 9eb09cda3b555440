"""Measurements whose summary and samples are read when somebody first looks at them.

A question about many records asks most of them for a headline and for nothing else, and to read a float takes longer
than to fetch it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from paceline.core.record import Measurement, Statistic
from paceline.core.stats import Summary
from paceline.store import codec

_LATER = {"summary": "unread summary", "samples": "unread samples"}  # and what is kept in their place until then
_NAMES = tuple(Measurement.model_fields)
_SET = set(_NAMES)
_fields = vars(BaseModel)["__dict__"]  # where a model keeps them, past the property below


class _Unread(Measurement):
    """Becomes a plain measurement when it is looked at as a whole: to compare, write, change or copy it."""

    def __getattr__(self, name: str) -> Any:
        if name not in _LATER:
            return super().__getattr__(name)  # type: ignore[misc]
        fields = _fields.__get__(self)
        if name not in fields:  # another thread may have been faster
            fields[name] = _read(name, fields)
        return fields[name]

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        return vars(_whole(self))

    def __eq__(self, other: object) -> bool:
        return _whole(self) == other

    def __repr__(self) -> str:
        return repr(_whole(self))

    def __copy__(self) -> Measurement:  # type: ignore[override]
        return _whole(self).__copy__()

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Measurement:  # type: ignore[override]
        return _whole(self).__deepcopy__(memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _whole(self).__reduce_ex__(protocol)

    def sample_array(self) -> NDArray[np.float64]:
        """The samples for arithmetic, without making a Python float of each."""
        fields = _fields.__get__(self)
        kept = fields.get(_LATER["samples"]) if "samples" not in fields else None
        return np.frombuffer(kept, dtype="<f8") if kept else super().sample_array()


def to_measurement(
    metric: str,
    scope: str,
    at: str,
    statistic: Statistic,
    summary: str,
    derived_from: str,
    work: float | None,
    samples: bytes = b"",
) -> Measurement:
    """The measurement of the columns `codec.MEASUREMENT`, whose documents are still text, and of its samples."""
    return codec.made(
        _Unread,
        _SET,
        {
            "metric": codec.metric(metric),
            "scope": scope,
            "at": codec.loads(at),
            "statistic": statistic,
            "derived_from": derived_from,
            "work": work,
            "unread summary": summary,
            "unread samples": samples,
        },
    )


def _read(name: str, fields: dict[str, Any]) -> Any:
    kept = fields[_LATER[name]]
    return codec.read(Summary, kept) if name == "summary" else codec.unpack(kept)


def _whole(measurement: Measurement) -> Measurement:
    """With everything read; a thread that comes in between finds either what was kept or what was read."""
    fields = _fields.__get__(measurement)
    if _LATER["summary"] in fields:
        told = {name: fields[name] if name in fields else _read(name, fields) for name in _NAMES}
        _fields.__set__(measurement, told)
    object.__setattr__(measurement, "__class__", Measurement)
    return measurement
