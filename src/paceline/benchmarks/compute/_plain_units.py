"""A matrix product of our own for NVIDIA GPUs that uses no Tensor Cores.

cuBLAS chooses Tensor Cores for fp64 and fp16 and has no switch that keeps it from all of them (its pedantic modes
still use them for fp64, and are three times slower than the plain units for fp16). This kernel is built from
multiply-add instructions alone: tiles of 128 x 128 words in shared memory, 8 x 8 words per thread in registers. A word
is one fp64 number, or two fp16 numbers side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from paceline.core.errors import Unsupported

if TYPE_CHECKING:
    from torch import Tensor

    from paceline.devices import Device

TILE = 128
DEPTH = 8
THREADS = 256

_WORDS = {
    # halves in a word, its type, the type of an element of A, how an element of A fills a word, multiply and add
    "fp64": (1, "double", "double", "(x)", "acc = fma(a, b, acc)"),
    "fp16": (
        2,
        "unsigned int",
        "unsigned short",
        "((unsigned int)(x) * 0x10001u)",
        'asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(acc) : "r"(a), "r"(b))',
    ),
}

_SOURCE = """
typedef %(word)s Word;
typedef %(element)s Element;
// Memory is read two neighbours at a time: an alignment that the compiler knows makes it one instruction.
struct __align__(2 * sizeof(Word)) Words { Word first, second; };
struct __align__(2 * sizeof(Element)) Elements { Element first, second; };
#define FILL(x) %(fill)s
#define MULTIPLY_ADD(acc, a, b) %(multiply_add)s
#define TILE 128
#define DEPTH 8

extern "C" __global__ void __launch_bounds__(256)
plain_product(const Element *A, const Word *B, Word *C, int words, int k)
{
    __shared__ __align__(16) Word tileA[2][DEPTH][TILE], tileB[2][DEPTH][TILE];
    const int thread = threadIdx.x, x = thread %% 16 * 2, y = thread / 16 * 2;
    const int rowA = thread / 2, depthA = thread %% 2 * 4;
    const int rowB = thread / 32, columnB = thread %% 32 * 4;
    const Element *nextA = A + (long long)(blockIdx.y * TILE + rowA) * k + depthA;
    const Word *nextB = B + (long long)rowB * words + blockIdx.x * TILE + columnB;
    Word sums[8][8] = {};
    Elements heldA[2];
    Words heldB[2];

#define FETCH()                                                                     \\
    heldA[0] = ((const Elements *)nextA)[0], heldA[1] = ((const Elements *)nextA)[1]; \\
    heldB[0] = ((const Words *)nextB)[0], heldB[1] = ((const Words *)nextB)[1];       \\
    nextA += DEPTH;                                                                 \\
    nextB += (long long)DEPTH * words
#define KEEP(half)                                                                  \\
    for (int i = 0; i < 2; i++) {                                                   \\
        tileA[half][depthA + 2 * i][rowA] = FILL(heldA[i].first);                   \\
        tileA[half][depthA + 2 * i + 1][rowA] = FILL(heldA[i].second);              \\
        *(Words *)&tileB[half][rowB][columnB + 2 * i] = heldB[i];                   \\
    }

    FETCH();
    KEEP(0);
    __syncthreads();
    int half = 0;
    for (int done = 0; done < k; done += DEPTH, half ^= 1) {
        const bool more = done + DEPTH < k;
        if (more) { FETCH(); }
#pragma unroll
        for (int depth = 0; depth < DEPTH; depth++) {
            Word a[8], b[8];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const Words pair = *(const Words *)&tileA[half][depth][i * 32 + y];
                a[2 * i] = pair.first, a[2 * i + 1] = pair.second;
            }
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const Words pair = *(const Words *)&tileB[half][depth][j * 32 + x];
                b[2 * j] = pair.first, b[2 * j + 1] = pair.second;
            }
#pragma unroll
            for (int i = 0; i < 8; i++)
#pragma unroll
                for (int j = 0; j < 8; j++) { MULTIPLY_ADD(sums[i][j], a[i], b[j]); }
        }
        if (more) { KEEP(half ^ 1); }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const long long row = blockIdx.y * TILE + i / 2 * 32 + y + i %% 2;
            const Words pair = {sums[i][2 * j], sums[i][2 * j + 1]};
            *(Words *)&C[row * words + blockIdx.x * TILE + j * 32 + x] = pair;
        }
}
"""


def source(precision: str) -> str:
    """The kernel for a format, as CUDA C++."""
    _, word, element, fill, multiply_add = _WORDS[precision]
    return _SOURCE % {"word": word, "element": element, "fill": fill, "multiply_add": multiply_add}


def plain_product(precision: str, a: Tensor, b: Tensor, out: Tensor, device: Device) -> Callable[[], object]:
    """A call that computes `out = a @ b`, all of them stored by rows, without Tensor Cores."""
    m, k = a.shape
    n = b.shape[1]
    halves = _WORDS[precision][0]
    if m % TILE or n % (TILE * halves) or k % DEPTH:
        raise Unsupported(
            f"without Tensor Cores {precision} goes with m a multiple of {TILE}, n of {TILE * halves} and k of "
            f"{DEPTH}, but they are {m}, {n} and {k}"
        )
    kernel = device.build_kernel(source(precision), "plain_product")
    grid = (n // (TILE * halves), m // TILE, 1)
    arguments = [a, b, out, n // halves, k]
    return lambda: kernel(grid=grid, block=(THREADS, 1, 1), args=arguments)
