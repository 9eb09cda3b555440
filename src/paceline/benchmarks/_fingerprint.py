"""What a record with a fingerprint says of it: the digest, and on what nodes another one should be the same."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.core.environment import Environment
from paceline.core.record import Record
from paceline.core.subject import Fingerprint


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
