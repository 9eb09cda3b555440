"""Which exceptions mean that memory ran out, and of which kind."""

from __future__ import annotations

import errno

import pytest

from paceline.measure.memory import exhausted


class OutOfMemoryError(RuntimeError):
    """Named like torch's, which is not imported here."""


@pytest.mark.parametrize(
    "error",
    [
        OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"),
        OutOfMemoryError(""),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("NCCL error: unhandled cuda error. Last error: Cuda failure 2 'out of memory'"),
    ],
)
def test_the_device_ran_out(error: Exception) -> None:
    assert exhausted(error) == "device"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried"),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 1 bytes"),
        RuntimeError("std::bad_alloc"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        MemoryError("Unable to allocate 8.00 GiB for an array"),
    ],
)
def test_the_host_ran_out(error: Exception) -> None:
    assert exhausted(error) == "host"


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"),
        OSError(errno.ENOSPC, "No space left on device"),
        ValueError("bad"),
        RuntimeError("out of memory"),  # of which, it does not say
        RuntimeError("ALLOC_FAILED"),
        KeyboardInterrupt(),
    ],
)
def test_other_errors_are_not_about_memory(error: BaseException) -> None:
    assert exhausted(error) is None


def test_more_than_torch_can_count_is_more_than_there_is() -> None:
    assert exhausted(RuntimeError("Storage size calculation overflowed with sizes=[1000000000000]")) == "host"
