"""Judges two computations from the same seed: the same, nondeterministic by design, or silently corrupt."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from paceline.core.errors import CaseError, SilentCorruption
from paceline.core.record import RecordWarning


def loss_warnings(trace: Sequence[float]) -> list[RecordWarning]:
    """The warning about a step whose result is not a number."""
    if all(math.isfinite(loss) for loss in trace):
        return []
    message = f"the loss of the first steps or of the last one is not finite: {list(trace)}"
    remedy = "use bf16 or fp32; a step that computes nothing sensible may take another time"
    return [RecordWarning(kind="diverged", message=message, remedy=remedy)]


def scale_warnings(before: float, after: float) -> list[RecordWarning]:
    """The warning about steps that were skipped because the scaled gradients of fp16 overflowed."""
    if after >= before:
        return []
    message = (
        f"the loss scale fell from {before:g} to {after:g}: gradients overflowed and optimizer steps were skipped, "
        "which is cheaper than taking them"
    )
    remedy = "use bf16, or allow more warm-up so that the scale settles"
    return [RecordWarning(kind="skipped-steps", message=message, remedy=remedy)]


@contextmanager
def caught_warnings(enabled: bool) -> Iterator[list[warnings.WarningMessage]]:
    """Collects the warnings of operators that have no deterministic implementation, if enabled."""
    if not enabled:
        yield []
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught


def compare_runs(
    first: Sequence[float], second: Sequence[float], seed: int, caught: Sequence[warnings.WarningMessage]
) -> None:
    """Raise unless the numbers are the same, bit by bit; the same not-a-number is the same."""
    if len(first) == len(second) and all(
        a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(first, second, strict=True)
    ):
        return
    message = f"two computations from seed {seed} gave {_shown(first)} and {_shown(second)}"
    excuses = {str(one.message).partition(".")[0] for one in caught if "deterministic" in str(one.message)}
    if excuses:
        raise CaseError(f"{message}, but that proves nothing: {'; '.join(sorted(excuses))}")
    raise SilentCorruption(f"{message}; check the device's memory (ECC) and the model's own sources of randomness")


def _shown(numbers: Sequence[float]) -> str:
    few = ", ".join(f"{number:.9g}" for number in numbers[:5])
    return f"[{few}{', ...' if len(numbers) > 5 else ''}]"
