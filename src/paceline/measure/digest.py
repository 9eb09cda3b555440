"""Exact digests of tensors, computed where they lie: one flipped bit changes one, and every device gives the same.

Each word is multiplied by an odd number of its own, and all are added modulo 2^64. Whole numbers add up to the same in
any order, and an odd number has no divisor of zero there, so that a change of one word always shows; of random changes
of several words, one in 2^64 does not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from paceline.core.environment import Environment
from paceline.core.record import Record
from paceline.core.subject import Fingerprint

if TYPE_CHECKING:
    import torch
    from torch import Tensor

CHUNK = 1 << 22  # words that are multiplied at once: the memory that a digest takes
_MULTIPLIER, _MIXER = -7046029254386353131, -4658895280553007687  # odd, with bits everywhere


def bits(tensor: Tensor) -> Tensor:
    """The same memory as whole numbers, for which a NaN equals itself and 0 is not -0."""
    import torch

    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(whole[tensor.element_size()])


def digest(tensor: Tensor) -> Tensor:
    """One whole number of 64 bits, still on the device."""
    import torch

    words = bits(tensor.detach().contiguous()).reshape(-1)
    wide = max(1, 4 // words.element_size())
    if words.numel() % wide == 0:  # fewer words take less time; wider ones would leave their high bits little to change
        words = (words.clone() if words.storage_offset() % wide else words).view(torch.int32)
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    for number, chunk in enumerate(torch.split(words, CHUNK)):
        weights = _weights(1 << (chunk.numel() - 1).bit_length(), words.device)
        total += (chunk * weights[: chunk.numel()]).sum() * (2 * number + 1)
    return total


def joined_digest(parts: Mapping[str, int]) -> str:
    """The digests of named tensors as one, for people to compare."""
    text = "\n".join(f"{name} {value}" for name, value in sorted(parts.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@lru_cache(maxsize=64)
def _weights(count: int, device: torch.device) -> Tensor:
    """Odd numbers that do not follow one another in any simple way; fewer are the first of more."""
    import torch

    numbers = torch.arange(1, count + 1, dtype=torch.int64, device=device) * _MULTIPLIER
    numbers = (numbers ^ (numbers >> 29)) * _MIXER
    return (numbers ^ (numbers >> 32)) | 1


def fingerprint_of(record: Record, environment: Environment) -> Fingerprint | None:
    """From the fact of that name, with what decides about the last bits: device, libraries, and a CPU's threads."""
    fact, software = record.facts.get("fingerprint"), environment.software
    if not isinstance(fact, Mapping) or "digest" not in fact:
        return None
    on_cpu = record.case.target.partition(":")[0] == "cpu"
    threads = f"{record.facts['threads']} threads" if on_cpu and "threads" in record.facts else None
    parts = [
        environment.cpu.model or environment.architecture if on_cpu else record.facts.get("device"),
        threads,
        f"torch {software.packages.get('torch', 'unknown')}",
        f"CUDA {software.torch_cuda}" if software.torch_cuda and not on_cpu else None,
        f"HIP {software.torch_hip}" if software.torch_hip and not on_cpu else None,
    ]
    return Fingerprint(
        digest=str(fact["digest"]),
        basis=", ".join(str(part) for part in parts if part),
        steps=tuple(map(str, fact.get("steps", ()))),
    )
