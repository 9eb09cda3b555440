"""Answers of tensor protocols: their outputs, and why one is not an answer to its request."""

from __future__ import annotations

import json
from collections.abc import Sequence

from paceline.load import kserve, kserve_grpc
from paceline.load.kserve import ProtocolError
from paceline.load.language import error_of, shown
from paceline.load.request import Wire
from paceline.load.tensors import Array

ANY = -1  # a length that is not known


def decode(body: bytes, wire: Wire) -> dict[str, Array]:
    """The outputs in an answer."""
    if wire == "kserve-grpc":
        return kserve_grpc.decode_response(body)
    if wire == "kserve-json":
        return kserve.decode_response(body)
    # The header that says where the JSON ends is not stored; the JSON itself shows it too.
    _, length = json.JSONDecoder().raw_decode(body.decode("latin-1"))
    return kserve.decode_response(body, length if length < len(body) else None)


def problem(wire: Wire, body: bytes, samples: int, shapes: Sequence[Sequence[int]]) -> str:
    """Why this does not answer a request of so many samples; `shapes` are of one sample, none where not known."""
    try:
        outputs = decode(body, wire)
    except (ProtocolError, ValueError) as error:
        return f"{_reported(body) or error}"
    if not outputs:
        return _reported(body) or "the answer has no outputs"
    if shapes and len(outputs) != len(shapes):
        return f"the answer has {len(outputs)} outputs instead of {len(shapes)}"
    if not shapes:
        return ""
    wrong = {name: list(one.shape) for name, one in outputs.items() if not _fits_any(one.shape, samples, shapes)}
    expected = " or ".join(str([samples, *shape]) for shape in dict.fromkeys(map(tuple, shapes)))
    return "; ".join(f"output '{name}' has the shape {shape} instead of {expected}" for name, shape in wrong.items())


def _fits_any(shape: Sequence[int], samples: int, shapes: Sequence[Sequence[int]]) -> bool:
    """Whether it is one of the shapes: a server may name or order its outputs in its own way."""
    wanted = [(samples, *one) for one in shapes]
    return any(
        len(one) == len(shape) and all(want in (ANY, size) for want, size in zip(one, shape, strict=True))
        for one in wanted
    )


def _reported(body: bytes) -> str:
    """What a body of JSON says went wrong, if it does."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return f"not an answer of the protocol: {shown(body)}"
    message = error_of(document) if isinstance(document, dict) else ""
    return f"the server reports an error: {message}" if message else ""
