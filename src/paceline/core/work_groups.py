"""What a kernel or an operator does, told by its name.

Groups are tried in order, and the first whose words occur in the name has it. Names of a GPU's kernels are those of
cuDNN, cuBLAS, CUTLASS, NCCL, Triton and torch; names of operators are those of torch without their namespace.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal

Kind = Literal["compute", "memory", "communication", "other"]

# What bounds each group on usual hardware: arithmetic for products, the memory for everything that touches each number
# once.
KINDS: dict[str, Kind] = {
    "convolutions": "compute",
    "attention": "compute",
    "matrix products": "compute",
    "recurrent layers": "compute",
    "normalisation": "memory",
    "the optimizer": "memory",
    "copies": "memory",
    "indexing": "memory",
    "reductions": "memory",
    "elementwise work": "memory",
    "communication": "communication",
    "compiled code": "other",
    "dispatch": "other",
    "other work": "other",
}

_KERNELS = (
    ("communication", r"nccl|rccl|all_?reduce|all_?gather|reduce_scatter"),
    # Inductor names what it generates after all that was fused, but a pointwise kernel holds no product.
    ("elementwise work", r"^triton_poi_"),
    ("reductions", r"^triton_(red|per|spl)_"),
    ("the optimizer", r"^triton_for_"),
    ("attention", r"fmha|flash|attention|sdpa"),
    ("convolutions", r"conv(?!ert)|fprop|dgrad|wgrad|winograd"),
    ("recurrent layers", r"lstm|rnn|_gru"),
    ("matrix products", r"gemm|gemv|nvjet|cutlass|xmma|matmul|splitk|wgmma|cublas|^triton_tem_|^triton_mm|_s\d{3,}mma"),
    ("normalisation", r"norm(?!al)|\bbn_[fb]w|welford|gammabeta"),
    ("the optimizer", r"multi_tensor_apply|adam|_sgd"),
    ("copies", r"memcpy|memset|copy|catarray|transpose|nchwtonhwc|nhwctonchw|permute|fill|convert|chunk_cat"),
    ("indexing", r"embedding|index|gather|scatter|sort|topk"),
    ("reductions", r"reduce|softmax|pool|nll|loss|scan|argm"),
    ("elementwise work", r"elementwise|dropout|distribution|pointwise|relu|gelu|cub::"),
)

_OPERATORS = (
    ("communication", r"^(gloo|nccl|mpi):"),
    # Nodes of autograd and tensors spread over ranks only hand on to operators; views move nothing.
    (
        "dispatch",
        r"^autograd::engine|^torch::autograd|backward\d+$|^torchdynamo|^pregraph|^aotdispatcher|pythonsubclass"
        r"|torchtensor|redistribute",
    ),
    ("compiled code", r"compiled|^cpp_fused|^graph_\d+_cpp"),
    ("attention", r"attention|sdpa"),
    ("convolutions", r"conv(?!ert)"),
    ("recurrent layers", r"lstm|rnn|\bgru"),
    (
        "matrix products",
        r"(?:\b|_)(?:b|add|badd|int|scaled|sparse_)?(?:mm|bmm|mv|matmul|linear)(?:\b|_)|einsum|\bdot\b",
    ),
    ("normalisation", r"norm(?!al)"),
    ("the optimizer", r"adam|_sgd|_foreach"),
    ("indexing", r"embedding|index|gather|scatter|sort|topk|one_hot|masked_select"),
    ("copies", r"copy|clone|\bto\b|contiguous|\bcat\b|stack\b|fill|zero|\bones|\bfull|\bempty|resize|\bpad\b|repeat"),
    ("reductions", r"\bsum|\bmean|softmax|pool|loss|\ba?max\b|\ba?min\b|argm|\bvar\b|\bstd\b|cumsum|logsumexp|aminmax"),
    (
        "elementwise work",
        r"\b_?(add|sub|mul|div|rsub|neg|exp|log|sqrt|rsqrt|pow|abs|sign|tanh|sigmoid|relu|gelu|silu|hardtanh|clamp|where"
        r"|eq|ne|lt|le|gt|ge|erf|dropout|bernoulli|uniform|normal|random|addcmul|addcdiv|lerp|reciprocal|threshold"
        r"|hardswish|hardsigmoid|leaky_relu|elu|logical|bitwise|isfinite|arange|masked_fill|tril|triu)(_|\b)",
    ),
    (
        "dispatch",
        r"\b_?(view|as_strided|t|transpose|permute|expand|slice|select|unsqueeze|squeeze|split|chunk|narrow|detach|alias"
        r"|reshape|flatten|item|local_scalar_dense|resolve_conj|unbind|lift_fresh|result_type|unsafe_view|set)(_|\b)",
    ),
)

_COMPILED = {
    True: tuple((group, re.compile(words)) for group, words in _KERNELS),
    False: tuple((group, re.compile(words)) for group, words in _OPERATORS),
}


@lru_cache(maxsize=4096)
def group_of(name: str, *, on_device: bool) -> str:
    """What the kernel or the operator of this name does; a key of KINDS."""
    plain = name.lower()
    if not on_device:
        plain = re.sub(r"^(aten|prims|torchvision|quantized|mkldnn|onednn|profiler)::", "", plain)
    return next((group for group, words in _COMPILED[on_device] if words.search(plain)), "other work")
