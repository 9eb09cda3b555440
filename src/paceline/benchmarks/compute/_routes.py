"""The ways in which torch computes a product: the vendor's libraries, tuned or not, and the kernels of compilers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from paceline.core.errors import Unsupported
from paceline.devices import Device
from paceline.measure.memory import exhausted

if TYPE_CHECKING:
    from torch import Tensor

Route = Literal["auto", "cublas", "cublaslt", "autotuned", "triton", "cutlass"]
Call = Callable[[], "Tensor"]
MOST_NAMES = 4


def check_route(route: Route, device: Device, precision: str) -> None:
    """Raise Unsupported, with the remedy, for a route that a device or a format does not have."""
    if route == "auto":
        return
    if not device.kind.is_accelerator:
        raise Unsupported(f"route = {route} needs a GPU: on a CPU use --route auto, which is torch's own choice")
    if precision == "int4":
        raise Unsupported("torch computes with int4 weights by a kernel of its own: use --route auto")
    if precision in ("fp8", "int8", "fp4") and route == "cublas":
        raise Unsupported(f"torch computes {precision} by cuBLASLt alone: use --route cublaslt")
    if precision == "fp4" and route == "autotuned":
        raise Unsupported("the algorithms of cuBLASLt are not tried for fp4: use --route cublaslt")
    if route == "cutlass":
        _check_cutlass()


def by_route(route: Route, device: Device, product: Call) -> Call:
    """The product by one of the libraries that torch may choose from, or compiled."""
    if route in ("triton", "cutlass"):
        return _compiled(route, device, product)
    if route != "auto":
        device.prefer_library(route)
    return product


def _compiled(route: Route, device: Device, product: Call) -> Call:
    """Compiled by Inductor, which tries the templates of this kind alone and keeps the fastest."""
    import torch

    options: dict[str, str | int | bool | Callable[..., object]] = {
        "max_autotune_gemm": True,
        "max_autotune_gemm_backends": route.upper(),
    }
    compiled: Call = torch.compile(product, dynamic=False, options=options)
    try:
        compiled()
    except Exception as error:
        if exhausted(error):
            raise
        reason = " ".join(str(error).split())[:300]
        raise Unsupported(f"Inductor compiles no {route} kernel for this product: {reason}; use --route auto") from None
    names = kernels_of(compiled, device)
    # cuBLAS has kernels by CUTLASS of its own: where they are those of the plain product, nothing was compiled.
    is_plain = route == "cutlass" and names == kernels_of(product, device)
    if names and (is_plain or not any(route in name.lower() for name in names)):
        ran = ", ".join(names)
        raise Unsupported(f"Inductor has no {route} kernel for this product and ran {ran}; use --route auto")
    return compiled


def _check_cutlass() -> None:
    from torch._inductor import config

    folder = Path(config.cuda.cutlass_dir)
    if not (folder / "include" / "cutlass").is_dir():
        remedy = "set TORCHINDUCTOR_CUTLASS_DIR to a checkout of NVIDIA's CUTLASS"
        raise Unsupported(f"route = cutlass needs its sources, but {folder} does not have them: {remedy}")
    if shutil.which("nvcc") is None and not os.environ.get("CUDACXX"):
        raise Unsupported("route = cutlass needs nvcc: install the CUDA toolkit, or name it in CUDACXX")


def kernels_of(call: Callable[[], object], device: Device) -> list[str]:
    """The names of the kernels that one call runs on the device; none where no profiler sees them."""
    from torch.profiler import profile

    if not device.kind.is_accelerator:
        return []
    try:
        with profile(activities=device.profiler_activities()) as seen:
            call()
            device.synchronize()
    except RuntimeError:  # a profiler that another one keeps from the device
        return []
    names = [event.name for event in seen.events() if event.device_type.name == "CUDA"]
    kernels = [name for name in names if not name.startswith(("Memset", "Memcpy"))]
    return list(dict.fromkeys(kernels))[:MOST_NAMES]
