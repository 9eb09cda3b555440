"""Lets megatron-core, which knows GPUs only, run on CPU ranks: what it asks of CUDA is answered for the CPU.

It names `cuda` where it makes tensors, asks for the current GPU, keeps random states of it for dropout, and tells
formats apart by the names of tensors on a GPU. All of that is replaced while the context is open, and restored after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import wraps
from typing import Any

import torch

from paceline.devices.cuda import CudaKind

ABOUT = "megatron-core runs on GPUs only: here its calls to CUDA were answered for the CPU"
_FACTORIES = ("arange", "empty", "full", "ones", "tensor", "zeros")

Function = Callable[..., Any]


@contextmanager
def on_cpu() -> Iterator[None]:
    """While it is open, CUDA means the CPU, in the whole process."""
    from megatron.core.tensor_parallel import random

    cuda = CudaKind.torch_module()
    # Only dropout and weights that are replaced draw from the random states of a GPU.
    replacements: list[tuple[Any, str, Function]] = [
        *((torch, name, _made_on_cpu(getattr(torch, name))) for name in _FACTORIES),
        (torch.Tensor, "type", _named_as_on_gpu(torch.Tensor.type)),
        (torch.Tensor, "cuda", lambda tensor, *_, **__: tensor),
        (cuda, "current_device", lambda: torch.device("cpu")),
        (cuda, "current_stream", lambda *_: None),
        (cuda, "synchronize", lambda *_, **__: None),
        (cuda, "manual_seed", lambda *_: None),
        (cuda, "get_rng_state", _no_state),
        (random, "_get_cuda_rng_state", _no_state),
        (random, "_set_cuda_rng_state", lambda *_, **__: None),
        (random.CudaRNGStatesTracker, "fork", lambda *_, **__: nullcontext()),
    ]
    with ExitStack() as stack:
        for replacement in replacements:
            stack.enter_context(_replaced(*replacement))
        yield


@contextmanager
def _replaced(owner: Any, name: str, function: Function) -> Iterator[None]:
    inherited = name not in vars(owner)
    before = getattr(owner, name)
    setattr(owner, name, function)
    try:
        yield
    finally:
        if inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def _made_on_cpu(factory: Function) -> Function:
    @wraps(factory)
    def make(*arguments: Any, **more: Any) -> Any:
        if str(more.get("device", "")).startswith(CudaKind.name):
            more["device"] = torch.device("cpu")
        return factory(*arguments, **more)

    return make


def _named_as_on_gpu(name_of: Function) -> Function:
    @wraps(name_of)
    def name(*arguments: Any, **more: Any) -> Any:
        found = name_of(*arguments, **more)
        return found.replace("torch.", f"torch.{CudaKind.name}.", 1) if isinstance(found, str) else found

    return name


def _no_state(*_: Any, **__: Any) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8)
