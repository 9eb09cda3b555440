"""cuBLASLt by itself: of the algorithms that its heuristics propose for a product, the one that takes least time here.

torch takes the first proposal. The library is the one that torch has loaded; the numbers below are those of its header.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from ctypes import byref, c_float, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
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
EPILOGUE, VECTOR, MATRIX, MATRIX_ROWS = 7, 8, 11, 12
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
# Epilogues: nothing; add a bias and take the GELU (tanh form) of what is kept as well; multiply by the GELU's
# derivative, without the sum over rows or with it; the sum over the inner size of `b`, and of `a`.
NO_EPILOGUE, GELU_AUX_BIAS, DGELU, DGELU_BGRAD, BGRADA, BGRADB = 1, 164, 192, 208, 256, 512


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


@dataclass(frozen=True)
class Epilogue:
    """What is done to a result on its way to memory, with a vector and a matrix that are read or written then."""

    kind: int = NO_EPILOGUE
    vector: Tensor | None = None  # a bias or the gradient of one
    matrix: Tensor | None = None  # what the GELU is taken of; lies as the result does

    def pointers(self) -> list[tuple[int, c_void_p]]:
        """The attributes that change with the tensors."""
        tensors = ((VECTOR, self.vector), (MATRIX, self.matrix))
        return [(attribute, c_void_p(one.data_ptr())) for attribute, one in tensors if one is not None]

    def settings(self) -> list[tuple[int, Any]]:
        """All attributes."""
        kinds: list[tuple[int, Any]] = [] if self.kind == NO_EPILOGUE else [(EPILOGUE, c_uint32(self.kind))]
        rows = [] if self.matrix is None else [(MATRIX_ROWS, c_int64(self.matrix.shape[-1]))]
        return [*kinds, *self.pointers(), *rows]


PLAIN = Epilogue()


class Product:
    """`out = a @ b`, described once, to be computed with whatever operands are like these."""

    def __init__(
        self, a: Tensor, b: Tensor, out: Tensor, stream: Callable[[], int], epilogue: Epilogue = PLAIN, *, tf32: bool
    ) -> None:
        import torch

        self._library = library = _Library()
        self._stream = stream
        kind, result, self._factor, compute = _TYPES[str(a.dtype).removeprefix("torch.")]
        self._product = product = c_void_p()
        library("cublasLtMatmulDescCreate", byref(product), _TF32 if tf32 else compute, self._factor)
        first, second = Side.of(b), Side.of(a)
        for attribute, value in ((TRANSPOSE_FIRST, first.operation), (TRANSPOSE_SECOND, second.operation)):
            self._set(attribute, c_int(value))
        if "float8" in str(a.dtype):
            self._set(FAST_ACCUMULATION, ctypes.c_int8(1))
        for attribute, setting in epilogue.settings():
            self._set(attribute, setting)
        self._layouts = [
            library.layout(kind, first.rows, first.columns, b),
            library.layout(kind, second.rows, second.columns, a),
            library.layout(result, out.shape[-1], out.shape[-2], out),
        ]
        preference, most = c_void_p(), c_size_t(WORKSPACE)
        library("cublasLtMatmulPreferenceCreate", byref(preference))
        library("cublasLtMatmulPreferenceSetAttribute", preference, MOST_WORKSPACE, byref(most), c_size_t(8))
        proposals, found = (Proposal * PROPOSALS)(), c_int()
        described = (product, *self._layouts, self._layouts[-1])
        library(
            "cublasLtMatmulAlgoGetHeuristic", library.handle, *described, preference, PROPOSALS, proposals, byref(found)
        )
        self._proposals = [one for one in proposals[: found.value] if one.state == 0]
        self._workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device=out.device)

    def bound(
        self, proposal: Proposal, a: Tensor, b: Tensor, out: Tensor, epilogue: Epilogue = PLAIN
    ) -> Callable[[], Tensor]:
        """A call of it by one algorithm."""
        library, product, layouts, stream = self._library, self._product, self._layouts, self._stream
        scalar: Any = {1: ctypes.c_double, 10: c_int}.get(self._factor, c_float)
        one, zero = scalar(1), scalar(0)
        x, y, z, scratch = (c_void_p(tensor.data_ptr()) for tensor in (b, a, out, self._workspace))
        algorithm = proposal.algorithm  # an array: its address is passed
        pointers = epilogue.pointers()

        def call() -> Tensor:
            for attribute, pointer in pointers:
                self._set(attribute, pointer)
            library(
                "cublasLtMatmul", library.handle, product, byref(one), x, layouts[0], y, layouts[1], byref(zero),
                z, layouts[2], z, layouts[2], algorithm, scratch, c_size_t(WORKSPACE), c_void_p(stream()),
            )  # fmt: skip
            return out

        call.keeps = (a, b, epilogue, proposal)  # type: ignore[attr-defined]  # what the addresses point to
        return call

    def tried(
        self, a: Tensor, b: Tensor, out: Tensor, seconds_of: Callable[[Any], float], epilogue: Epilogue = PLAIN
    ) -> list[tuple[float, Proposal]]:
        """The proposals that run, in their order, and the shortest time in which each made its calls."""
        calls = [(proposal, self.bound(proposal, a, b, out, epilogue)) for proposal in self._proposals]
        answers = [self._library.answer(call) for _, call in calls]
        running = [one for one, answer in zip(calls, answers, strict=True) if not answer]
        if not running:
            refused = f" that runs ({answers[0]})" if answers else ""
            raise Unsupported(
                f"cuBLASLt proposes no algorithm{refused} for this product: use another route, shape or format"
            )
        times = [[seconds_of(_several(call)) for _, call in running] for _ in range(ROUNDS)]
        shortest = [min(each) for each in zip(*times, strict=True)]
        return [(seconds, proposal) for seconds, (proposal, _) in zip(shortest, running, strict=True)]

    def _set(self, attribute: int, value: Any) -> None:
        size = c_size_t(ctypes.sizeof(value))
        self._library("cublasLtMatmulDescSetAttribute", self._product, attribute, byref(value), size)


def _several(call: Callable[[], Tensor]) -> Callable[[], None]:
    def block() -> None:
        for _ in range(CALLS):
            call()

    return block


def tuned_product(
    a: Tensor, b: Tensor, out: Tensor, *, tf32: bool, stream: Callable[[], int], seconds_of: Callable[[Any], float]
) -> tuple[Callable[[], Tensor], str]:
    """The fastest proposal for `out = a @ b` as a call, and how it was found."""
    product = Product(a, b, out, stream, tf32=tf32)
    tried = product.tried(a, b, out, seconds_of)
    times = [seconds for seconds, _ in tried]
    best = min(range(len(times)), key=times.__getitem__)
    how = f"cublasLtMatmul, number {best + 1} of the {len(tried)} proposals that ran"
    gain = f"{times[0] / times[best]:.2f} times as fast as the first by the shortest of {ROUNDS} tries"
    return product.bound(tried[best][1], a, b, out), f"{how}, {gain}"


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

    def answer(self, call: Callable[[], Tensor]) -> str:
        """What it says to a proposal, once tried; nothing where that runs."""
        try:
            call()
        except Unsupported as error:
            return str(error).partition(":")[0]
        return ""

    def layout(self, kind: int, rows: int, columns: int, tensor: Tensor) -> c_void_p:
        """A matrix that lies by columns without gaps, or a batch of them."""
        layout = c_void_p()
        self("cublasLtMatrixLayoutCreate", byref(layout), kind, c_uint64(rows), c_uint64(columns), c_uint64(rows))
        if tensor.dim() == 3:
            count, stride = c_int(tensor.shape[0]), c_uint64(tensor.stride(0))
            self("cublasLtMatrixLayoutSetAttribute", layout, BATCH_COUNT, byref(count), c_size_t(4))
            self("cublasLtMatrixLayoutSetAttribute", layout, BATCH_STRIDE, byref(stride), c_size_t(8))
        return layout
