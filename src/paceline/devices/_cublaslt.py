"""cuBLASLt by itself: of the algorithms that its heuristics propose for a product, the one that takes least time here.

torch takes the first proposal. The library is the one that torch has loaded; the numbers below are those of its header.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from ctypes import byref, c_float, c_int, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.core.errors import Unsupported

if TYPE_CHECKING:
    from torch import Tensor

PROPOSALS = 64
ROUNDS, CALLS = 3, 3  # each proposal is timed so often, so many calls each; the shortest counts
WORKSPACE = 64 << 20  # bytes
NO_TRANSPOSE, TRANSPOSE = 0, 1
# Attributes: of a product, of a layout of a matrix, of what to look for.
TRANSPOSE_FIRST, TRANSPOSE_SECOND, FAST_ACCUMULATION = 3, 4, 25
BATCH_COUNT, BATCH_STRIDE = 5, 6
MOST_WORKSPACE = 1
# By the type of the operands: its number, that of the result and of the factors, and of how to compute.
_TYPES = {
    "float64": (1, 1, 1, 70),
    "float32": (0, 0, 0, 68),
    "float16": (2, 2, 0, 68),
    "bfloat16": (14, 14, 0, 68),
    "float8_e4m3fn": (28, 14, 0, 68),
    "int8": (3, 10, 10, 72),
}
_TF32 = 77


class Proposal(ctypes.Structure):
    """What a heuristic returns: an algorithm, the workspace it needs, and whether it is valid."""

    _fields_ = [
        ("algorithm", c_uint64 * 8),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    ]


@dataclass(frozen=True)
class Side:
    """An operand as the library sees it: a matrix that lies by columns, to be transposed or not."""

    operation: int
    rows: int
    columns: int

    @classmethod
    def of(cls, matrix: Tensor) -> Side:
        """What lies by rows is, by columns, the transpose: so it is of the product of transposes, B' A' = C'."""
        rows, columns = matrix.shape[-2:]
        if matrix.stride(-1) == 1:
            return cls(NO_TRANSPOSE, columns, rows)
        return cls(TRANSPOSE, rows, columns)


def tuned_product(
    a: Tensor, b: Tensor, out: Tensor, *, tf32: bool, stream: Callable[[], int], seconds_of: Callable[[Any], float]
) -> tuple[Callable[[], Tensor], str]:
    """The fastest proposal for `out = a @ b` as a call, and how it was found."""
    import torch

    library = _Library()
    kind, result, factor, compute = _TYPES[str(a.dtype).removeprefix("torch.")]
    product = c_void_p()
    library("cublasLtMatmulDescCreate", byref(product), _TF32 if tf32 else compute, factor)
    first, second = Side.of(b), Side.of(a)
    for attribute, value in ((TRANSPOSE_FIRST, first.operation), (TRANSPOSE_SECOND, second.operation)):
        library("cublasLtMatmulDescSetAttribute", product, attribute, byref(c_int(value)), c_size_t(4))
    if "float8" in str(a.dtype):
        fast = ctypes.c_int8(1)
        library("cublasLtMatmulDescSetAttribute", product, FAST_ACCUMULATION, byref(fast), c_size_t(1))
    layouts = [
        library.layout(kind, first.rows, first.columns, b),
        library.layout(kind, second.rows, second.columns, a),
        library.layout(result, out.shape[-1], out.shape[-2], out),
    ]
    preference, most = c_void_p(), c_size_t(WORKSPACE)
    library("cublasLtMatmulPreferenceCreate", byref(preference))
    library("cublasLtMatmulPreferenceSetAttribute", preference, MOST_WORKSPACE, byref(most), c_size_t(8))
    proposals, found = (Proposal * PROPOSALS)(), c_int()
    described = (product, *layouts, layouts[-1])
    library(
        "cublasLtMatmulAlgoGetHeuristic", library.handle, *described, preference, PROPOSALS, proposals, byref(found)
    )
    scalar: Any = {1: ctypes.c_double, 10: c_int}.get(factor, c_float)
    one, zero = scalar(1), scalar(0)
    workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device=out.device)
    x, y, z, scratch = (c_void_p(tensor.data_ptr()) for tensor in (b, a, out, workspace))

    def call_of(proposal: Proposal) -> Callable[[], Tensor]:
        algorithm = proposal.algorithm  # an array: its address is passed

        def call() -> Tensor:
            library(
                "cublasLtMatmul", library.handle, product, byref(one), x, layouts[0], y, layouts[1], byref(zero),
                z, layouts[2], z, layouts[2], algorithm, scratch, c_size_t(WORKSPACE), c_void_p(stream()),
            )  # fmt: skip
            return out

        call.keeps = (a, b, workspace, proposals)  # type: ignore[attr-defined]  # what the addresses point to
        return call

    def several(call: Callable[[], Tensor]) -> Callable[[], None]:
        def block() -> None:
            for _ in range(CALLS):
                call()

        return block

    calls = [call_of(proposal) for proposal in proposals[: found.value] if proposal.state == 0]
    calls = [call for call in calls if library.accepts(call)]
    if not calls:
        raise Unsupported("cuBLASLt proposes no algorithm for this product: use another route, shape or format")
    times = [[seconds_of(several(call)) for call in calls] for _ in range(ROUNDS)]
    shortest = [min(each) for each in zip(*times, strict=True)]
    best = min(range(len(calls)), key=shortest.__getitem__)
    how = f"cublasLtMatmul, number {best + 1} of the {len(calls)} proposals that ran"
    gain = f"{shortest[0] / shortest[best]:.2f} times as fast as the first by the shortest of {ROUNDS} tries"
    return calls[best], f"{how}, {gain}"


class _Library:
    """The loaded library; a call that fails raises."""

    def __init__(self) -> None:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
        found = re.search(r"/\S*libcublasLt\.so\S*", maps)
        if not found:
            raise Unsupported("this torch has loaded no cuBLASLt: use --route auto")
        self._functions = ctypes.CDLL(found.group())
        self.handle = c_void_p()
        self("cublasLtCreate", byref(self.handle))

    def __call__(self, name: str, *arguments: object) -> None:
        status = getattr(self._functions, name)(*arguments)
        if status:
            raise Unsupported(f"{name} of cuBLASLt answered {status}: use another route, shape or format")

    def accepts(self, call: Callable[[], Tensor]) -> bool:
        """Whether a proposal runs, once tried."""
        try:
            call()
        except Unsupported:
            return False
        return True

    def layout(self, kind: int, rows: int, columns: int, tensor: Tensor) -> c_void_p:
        """A matrix that lies by columns without gaps, or a batch of them."""
        layout = c_void_p()
        self("cublasLtMatrixLayoutCreate", byref(layout), kind, c_uint64(rows), c_uint64(columns), c_uint64(rows))
        if tensor.dim() == 3:
            count, stride = c_int(tensor.shape[0]), c_uint64(tensor.stride(0))
            self("cublasLtMatrixLayoutSetAttribute", layout, BATCH_COUNT, byref(count), c_size_t(4))
            self("cublasLtMatrixLayoutSetAttribute", layout, BATCH_STRIDE, byref(stride), c_size_t(8))
        return layout
