"""Whether what a compiler made computes what was written: one step is also taken uncompiled, and the two are compared.

A compiler that drops a gradient gives a faster step, a plausible loss and no message. The record tells how far the two
are apart; only what is surely missing is a doubt. In 16 bits fused operators round elsewhere, which networks of many
normed convolutions with random weights magnify: an output of inception_v3 then differs by more than its norm, the norm
of a gradient of mobilenet_v2 by half. Dropout draws other numbers, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from paceline.core.record import Doubt

if TYPE_CHECKING:
    from torch import Tensor, nn

    from paceline.benchmarks.model.measuring import Stepped

MOST_OF_A_GRADIENT = 0.9  # by which the norms of a parameter's gradient may differ, as a part of the larger
NEGLIGIBLE = 0.01  # of the largest norm: gradients below are rounding, some are zero in theory
MOST_OF_AN_OUTPUT = 0.5  # by which the norms of an output may differ
MOST_OF_AN_EXACT_OUTPUT = 0.05  # the norm of the difference, where outputs are computed in fp32
FACT = "compared_with_uncompiled"

Result = TypeVar("Result")


@dataclass(frozen=True)
class Gradients:
    """What a backward pass gave: its loss, and the norm of each parameter's gradient."""

    loss: float
    norms: Mapping[str, float]

    @classmethod
    def of(cls, loss: Tensor, parameters: Iterable[tuple[str, nn.Parameter]], scale: float) -> Gradients:
        """Of what lies at the parameters; the loss was multiplied by `scale` before the backward pass."""
        import torch

        named = [(name, one.grad) for name, one in parameters if one.grad is not None]
        norms = [float(torch.linalg.vector_norm(grad, dtype=torch.float32)) / scale for _, grad in named]
        return cls(float(loss), {name: norm for (name, _), norm in zip(named, norms, strict=True)})

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.loss) and all(map(math.isfinite, self.norms.values()))


def compare_gradients(session: Stepped, backward: Callable[[], Gradients]) -> None:
    """Let the session's facts, or a doubt, tell whether the compiled backward pass agrees with the uncompiled one."""
    with _as_far_as_possible(session):
        wanted = _uncompiled(backward)
        found = backward()
        if not (found.is_finite and wanted.is_finite):
            session.facts[FACT] = "no: a loss or a gradient is not finite"
            return
        name, worst = _worst(found, wanted)
        loss = abs(found.loss - wanted.loss) / max(abs(wanted.loss), 1e-12)
        session.facts[FACT] = f"the loss differs by {loss:.2%}, the norm of a parameter's gradient by up to {worst:.2%}"
        if worst > MOST_OF_A_GRADIENT:
            here, there = (f"{one.norms.get(name, 0.0):.3g}" for one in (found, wanted))
            session.doubts.append(_doubt(f"the norm of the gradient of {name} is {here} compiled, {there} uncompiled"))


def compare_outputs(session: Stepped, forward: Callable[[], object], *, exact: bool) -> None:
    """Let the session's facts, or a doubt, tell whether the compiled forward pass agrees with the uncompiled one."""
    with _as_far_as_possible(session):
        wanted = _uncompiled(forward)
        pairs = [
            (one.detach().float(), other.detach().float())
            for one, other in zip(*map(_tensors, (forward(), wanted)), strict=True)
        ]
        apart = max((_part(one - other, other) for one, other in pairs), default=0.0)
        longer = max((abs(1.0 - _part(one, other)) for one, other in pairs), default=0.0)
        if not math.isfinite(apart):
            session.facts[FACT] = "no: an output is not finite"
            return
        session.facts[FACT] = f"the output differs by {apart:.2%} of its norm"
        is_wrong = apart > MOST_OF_AN_EXACT_OUTPUT if exact else longer > MOST_OF_AN_OUTPUT
        if is_wrong:
            session.doubts.append(_doubt(f"compiled, the output is off by {apart:.0%} of its norm uncompiled"))


@contextmanager
def _as_far_as_possible(session: Stepped) -> Iterator[None]:
    """Where something cannot be compared, the facts say why: what is measured is the compiled step all the same."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError:
        session.facts[FACT] = "no: uncompiled, a step does not fit into the device's memory"
    except (RuntimeError, NotImplementedError, TypeError, ValueError, AttributeError) as error:
        session.facts[FACT] = f"no: {type(error).__name__}: {error}"
    finally:
        if session.device.kind == "cuda":
            torch.cuda.empty_cache()  # uncompiled, a step takes more memory than the one that is measured


def _uncompiled(compute: Callable[[], Result]) -> Result:
    """Whatever was compiled runs as it was written."""
    import torch

    with torch.compiler.set_stance("force_eager"):
        return compute()


def _worst(found: Gradients, wanted: Gradients) -> tuple[str, float]:
    """The parameter whose gradient differs most in its norm, and by which part of the larger one."""
    norms = [*found.norms.values(), *wanted.norms.values()]
    least = NEGLIGIBLE * max(norms, default=0.0)
    worst = ("", 0.0)
    for name in {**wanted.norms, **found.norms}:
        a, b = found.norms.get(name, 0.0), wanted.norms.get(name, 0.0)
        if max(a, b) > least and abs(a - b) / max(a, b) > worst[1]:
            worst = (name, abs(a - b) / max(a, b))
    return worst


def _part(one: Tensor, whole: Tensor) -> float:
    return float(one.norm()) / (float(whole.norm()) or 1.0)


def _tensors(output: object) -> Iterator[Tensor]:
    """The tensors of numbers in a model's output, in its order."""
    import torch

    if isinstance(output, torch.Tensor):
        if output.is_floating_point():
            yield output
        return
    parts = output.values() if isinstance(output, Mapping) else output
    if isinstance(parts, Iterable):
        for part in parts:
            yield from _tensors(part)


def _doubt(message: str) -> Doubt:
    remedy = "use --compile off, or another version of torch; what is faster here may compute less"
    return Doubt(kind="miscompiled", message=message, remedy=remedy)
